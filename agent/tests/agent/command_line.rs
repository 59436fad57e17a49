//! The command line, also of the binary itself.

use std::process::Command;

use clap::Parser;
use weir_agent::command_line::Args;
use weir_agent::config::{HttpMode, ServiceList};

use crate::agent_under_test::World;

fn agent() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-agent"));
    command.env_clear();
    command
}

const FILE: &str = "
    name = 'from-file'
    edges = ['https://file.example']
    ca = 'ca.pem'
    root = 'agent-data'
    poll_interval = '10s'
    [[service]]
    name = 'shop'
    exec = 'true'
";

#[test]
fn flags_override_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, FILE).unwrap();
    let parse = |flags: &[&str]| {
        let args = ["weir-agent", "--config", file.to_str().unwrap()].into_iter().chain(flags.iter().copied());
        Args::try_parse_from(args).unwrap().into_config()
    };
    let config = parse(&[]).unwrap();
    assert_eq!(config.root, dir.path().join("agent-data"));
    assert_eq!(config.services[0].exec, Some("true".into()));

    let flags = "--edge https://a.example:1 --edge https://b.example --service shop --service other --root /r --ca /c \
                 --poll-interval 1m --refresh-interval 3h --http h2 --name flag --admin-listen 127.0.0.1:1";
    let config = parse(&flags.split_whitespace().collect::<Vec<_>>()).unwrap();
    let edges: Vec<_> = config.edges.iter().map(ToString::to_string).collect();
    assert_eq!(edges, ["https://a.example:1", "https://b.example"]);
    assert_eq!((config.root.to_str(), config.ca.to_str()), (Some("/r"), Some("/c")));
    assert_eq!((config.poll_interval.as_secs(), config.refresh_interval.as_secs()), (60, 3 * 3600));
    assert_eq!((config.http, config.name.as_str()), (HttpMode::H2, "flag"));
    assert!(config.admin_listen.is_some());
    let execs: Vec<_> = config.services.iter().map(|s| (s.name.as_str(), s.exec.clone())).collect();
    assert_eq!(execs, [("shop", Some("true".into())), ("other", None)]);
    let config = parse(&["--exec", "make"]).unwrap();
    assert_eq!(config.services[0].exec, Some("make".into()));
    assert!(parse(&["--poll-interval", "10ms"]).is_err());
    let config = parse(&["--services", "assigned"]).unwrap();
    assert_eq!((config.list, config.services.len()), (ServiceList::Assigned, 1));
}

#[test]
fn check_config_reports_every_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("agent.toml");
    std::fs::write(&file, FILE).unwrap();
    weir_runtime::certificates::write(dir.path(), &[]).unwrap();
    let check = |command: &mut Command| {
        let output = command.arg("--check-config").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    assert_eq!(check(agent().arg("--config").arg(&file)), (Some(0), "configuration ok\n".to_owned()));
    assert_eq!(check(agent().env("WEIR_CONFIG", &file)).0, Some(0));
    let ca = dir.path().join("ca.pem");
    let ca = ca.to_str().unwrap();
    let flags = ["--edge", "https://a.example", "--service", "shop", "--root", "r", "--ca", ca];
    assert_eq!(check(agent().args(flags)).0, Some(0));
    let environment = [
        ("WEIR_EDGE", "https://a.example,https://b.example"),
        ("WEIR_SERVICE", "shop"),
        ("WEIR_ROOT", "r"),
        ("WEIR_CA", ca),
    ];
    assert_eq!(check(agent().envs(environment)).0, Some(0));

    let environment = [("WEIR_ONCE", "1"), ("WEIR_METRICS_BY_SERVICE", "yes"), ("WEIR_SERVICE", "")];
    assert_eq!(check(agent().arg("--config").arg(&file).envs(environment)).0, Some(0));
    let (code, text) = check(agent().args(["--admin-listen", "localhost:7492"]));
    assert!(code == Some(2) && text.contains("`127.0.0.1:7492`"), "{text}");

    let more = "client_certificate = 'agent.pem'\nclient_key = 'agent.key'\n";
    std::fs::write(&file, format!("{more}{FILE}")).unwrap();
    assert_eq!(check(agent().arg("--config").arg(&file)).0, Some(0));
    weir_runtime::certificates::write_expired(dir.path(), "agent").unwrap();
    let (code, text) = check(agent().arg("--config").arg(&file));
    assert!(code == Some(2) && text.contains("agent.pem") && text.contains("it expired on"), "{text}");
    weir_runtime::certificates::write_not_yet_valid(dir.path(), "agent").unwrap();
    let (code, text) = check(agent().arg("--config").arg(&file));
    assert!(code == Some(2) && text.contains("agent.pem") && text.contains("not valid before"), "{text}");

    // All errors are reported at once.
    std::fs::write(dir.path().join("ca.pem"), "garbage").unwrap();
    let more = "client_certificate = 'none.pem'\nclient_key = 'none.key'\ntoken_file = 'token'\n";
    std::fs::write(&file, format!("{more}{FILE}")).unwrap();
    let (code, text) = check(agent().arg("--config").arg(&file));
    assert!(code == Some(2) && !text.contains("configuration ok"), "{text}");
    for named in ["ca.pem", "none.pem", "none.key", "token does not exist (yet)"] {
        assert!(text.contains(named), "{named}: {text}");
    }
    std::fs::write(&file, FILE.replace("10s", "1ms").replace("'true'", "' '")).unwrap();
    let (code, text) = check(agent().arg("--config").arg(&file));
    assert!(code == Some(2) && text.contains("poll_interval") && text.contains("`exec` of"), "{text}");

    std::fs::write(&file, format!("pol_interval = '1s'\n{FILE}")).unwrap();
    let (code, text) = check(agent().arg("--config").arg(&file));
    assert!(code == Some(2) && text.contains("pol_interval"), "{text}");
    for (flags, named) in [(&flags[2..], "--edge"), (&flags[..6], "--ca"), (&["--edge", "http://x"], "https")] {
        let (code, text) = check(agent().args(flags));
        assert!(code == Some(2) && text.contains(named), "{text}");
    }
    let help = agent().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("--refresh-interval") && help.contains("WEIR_PREVIOUS_"), "{help}");
}

#[tokio::test]
async fn the_file_is_named_before_or_after_a_command() {
    let (world, edge) = World::offering("one").await;
    let file = world.path().join("agent.toml");
    let (url, root) = (edge.url(), world.path().join("root"));
    std::fs::write(
        &file,
        format!("edges = ['{url}']\nca = 'ca.pem'\nroot = '{}'\n[[service]]\nname = 'shop'\n", root.display()),
    )
    .unwrap();
    let run = async |arguments: &str| {
        let mut command = agent();
        command.args(
            arguments.split(' ').map(|argument| if argument == "F" { file.as_os_str() } else { argument.as_ref() }),
        );
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    for arguments in ["--config F doctor", "doctor --config F", "--config none.toml doctor --config F"] {
        let (code, text) = run(arguments).await;
        assert!(code == Some(0) && text.contains(&url), "{arguments}: {text}");
    }
    for arguments in ["--config F unpin shop", "unpin --config F shop"] {
        let (code, text) = run(arguments).await;
        assert!(code == Some(0) && text.contains("was not pinned"), "{arguments}: {text}");
    }
    // Other flags would be ignored there.
    for arguments in ["--config F --once doctor", "--check-config unpin shop", "--root /r doctor --config F"] {
        let (code, text) = run(arguments).await;
        assert!(code == Some(2) && text.contains("before `"), "{arguments}: {text}");
    }
}

#[tokio::test]
async fn once_reports_its_error() {
    let (world, edge) = World::offering("one").await;
    let run = async |service: &str| {
        let mut command = agent();
        command.args(["--edge", &edge.url(), "--service", service, "--once"]);
        command.arg("--ca").arg(world.path().join("ca.pem")).arg("--root").arg(world.path().join("root"));
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    };
    let output = run("shop").await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.read("content").as_deref(), Some("one"));
    let output = run("unknown").await;
    assert_eq!(output.status.code(), Some(1));
    let expected = format!("weir-agent: unknown: {}: the edge answers 404", edge.url());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.lines().next_back().unwrap().starts_with(&expected), "a person reads it: {output:?}");
}

#[tokio::test]
async fn sigterm_drains_the_agent() {
    let (world, edge) = World::offering("one").await;
    let mut command = agent();
    command.args(["--edge", &edge.url(), "--service", "shop"]).stderr(std::process::Stdio::null());
    command.arg("--ca").arg(world.path().join("ca.pem")).arg("--root").arg(world.path().join("root"));
    let mut child = command.spawn().unwrap();
    let released = async {
        while world.read("content").is_none() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(crate::edge::PATIENCE, released).await.unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    // Reads its configuration again, and lives on.
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}");
}
