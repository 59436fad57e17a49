//! The how-to for secrets, with SOPS and age as they are.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_agent::Config;
use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, World, shop};
use crate::tarball::Tarball;

const HOW_TO: &str = include_str!("../../../docs/how-to/secrets-with-sops.md");

const SECRET: &str = "kind: Secret\nmetadata:\n    name: db\nstringData:\n    password: correct-horse\n";

/// The first block of the how-to in a language.
fn block(language: &str) -> &'static str {
    let (_, rest) = HOW_TO.split_once(&format!("```{language}\n")).expect("the how-to has such a block");
    rest.split_once("```").expect("it ends").0
}

/// What a program prints. `None`: it is not installed.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).current_dir(folder).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{program} cannot be started: {error}");
            eprintln!("SKIPPED: {program} cannot be started ({error})");
            None
        }
    }
}

/// The secret, encrypted for the owner of a new key, as the how-to does. Returns the file and the key.
fn encrypted(folder: &Path) -> Option<(Vec<u8>, String)> {
    fs::create_dir(folder).unwrap();
    let key = run(folder, "age-keygen", &[])?;
    let public = key.lines().find_map(|line| line.strip_prefix("# public key: ")).expect("a public key");
    let rules = block("yaml").replace("age1…,age1…", public);
    assert!(rules.contains(public), "{rules}");
    fs::write(folder.join(".sops.yaml"), rules).unwrap();
    fs::write(folder.join("db.enc.yaml"), SECRET).unwrap();
    run(folder, "sops", &["encrypt", "--in-place", "db.enc.yaml"])?;
    Some((fs::read(folder.join("db.enc.yaml")).unwrap(), key))
}

/// Whether a file below a folder has this text.
fn has_text(folder: &Path, text: &str) -> bool {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.any(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => has_text(&entry.path(), text),
        kind if kind.is_file() => {
            fs::read(entry.path()).unwrap().windows(text.len()).any(|part| part == text.as_bytes())
        }
        _ => false,
    })
}

#[tokio::test]
async fn a_hook_decrypts_what_no_edge_can_read_and_a_check_refuses_what_it_cannot_read() {
    let (world, edge) = World::with_edge().await;
    let path = |name: &str| world.path().join(name);
    let Some((ciphertext, key)) = encrypted(&path("ours")) else { return };
    let Some((of_others, _)) = encrypted(&path("theirs")) else { return };
    assert!(!String::from_utf8_lossy(&ciphertext).contains("correct-horse"));
    fs::write(path("cluster.key"), key).unwrap();
    // It stands for the API of the cluster.
    let kubectl = path("kubectl");
    fs::write(&kubectl, format!("echo \"$@\" >> {0}; cat >> {0}\n", path("applied").display())).unwrap();
    let hooks = block("toml").replace("/etc/weir/cluster.key", path("cluster.key").to_str().unwrap());
    let hooks = hooks.replace("kubectl apply", &format!("sh {} apply", kubectl.display())).replace("shop-prod", "shop");
    let file = path("agent.toml");
    let of_edge = format!("edges = ['{}']\nca = 'ca.pem'\nroot = 'root'\n", edge.url());
    fs::write(&file, of_edge + &hooks).unwrap();
    let mut config = world.config(&[edge.url()]);
    config.services = Config::load(&file).unwrap().services;

    edge.answers.publish(&shop(), Tarball::new().file("db.enc.yaml", &ciphertext).finish());
    let mut agent = Agent::with_release(config).await;
    agent.until("it is applied", |status| status.hook == HookState::Succeeded).await;
    let applied = || fs::read_to_string(path("applied")).unwrap();
    assert_eq!(applied(), format!("apply --server-side --filename -\n{SECRET}"));
    assert!(!has_text(&path("root"), "correct-horse"), "the agent stores ciphertext alone");

    let (digest, before) = (world.current(), applied());
    edge.answers.publish(&shop(), Tarball::new().file("db.enc.yaml", &of_others).finish());
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("check exited"), "{error}");
    assert_eq!((world.current(), applied()), (digest, before));
    agent.stop().await;
}
