//! Nothing that the machine, the user or the upstream's repository configures is read or executed.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use crate::prelude::*;
use crate::smart_http::{HttpBehavior, password_file};
use crate::ssh_server::SshServer;

/// An origin as a process, killed on drop.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program that leaves a trace when it is started.
fn trap(traps: &Path, name: &str) -> PathBuf {
    let program = traps.join(name);
    fs::write(&program, format!("#!/bin/sh\ntouch {}/triggered-{name}\nexit 1\n", traps.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

fn triggered(traps: &Path) -> Vec<String> {
    let names = fs::read_dir(traps).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("triggered-")).collect()
}

/// A Git configuration in which every setting that can start a program does.
fn hostile_config(traps: &Path) -> String {
    let trap = |name: &str| trap(traps, name).display().to_string();
    format!(
        "[url \"file:///nowhere/\"]\n\tinsteadOf = https://\n\tinsteadOf = ssh://\n\tinsteadOf = file://\n\
         [core]\n\tsshCommand = {}\n\taskPass = {}\n\tfsmonitor = {}\n\tgitProxy = {}\n\thooksPath = {}\n\talternateRefsCommand = {}\n\
         [credential]\n\thelper = {}\n[http]\n\tproxy = http://127.0.0.1:1\n[protocol \"ext\"]\n\tallow = always\n\
         [uploadpack]\n\tpackObjectsHook = {}\n[remote \"origin\"]\n\turl = ext::{}\n\tpromisor = true\n\tuploadpack = {}\n",
        trap("core-ssh-command"),
        trap("core-ask-pass"),
        trap("core-fsmonitor"),
        trap("core-git-proxy"),
        traps.display(),
        trap("core-alternate-refs"),
        trap("credential-helper"),
        trap("pack-objects-hook"),
        trap("remote-helper"),
        trap("remote-upload-pack"),
    )
}

#[test]
fn no_configuration_hook_or_helper_of_the_host_or_the_repository_is_used() {
    let home = Home::new();
    let at = |name: &str| home.file(name);
    for name in ["traps", "home/.ssh", "home/.config/git"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    let traps = at("traps");
    let config = hostile_config(&traps);
    for file in ["home/.gitconfig", "home/.config/git/config", "system-gitconfig"] {
        fs::write(at(file), &config).unwrap();
    }
    fs::write(at("home/.ssh/config"), format!("Host *\n  ProxyCommand {}\n", trap(&traps, "ssh-proxy").display()))
        .unwrap();

    // The repository's own configuration and hooks are hostile too.
    let git = Git::init(&at("root/shop"));
    git.commit_file("deploy/a", "1");
    fs::create_dir(git.dir.join(".git/hooks")).unwrap();
    for hook in ["post-checkout", "pre-receive", "reference-transaction", "post-index-change", "update"] {
        fs::copy(trap(&traps, "hook"), git.dir.join(".git/hooks").join(hook)).unwrap();
    }
    fs::write(at("included"), &config).unwrap();
    let own = fs::read_to_string(git.dir.join(".git/config")).unwrap();
    let own = format!("{own}{config}[include]\n\tpath = {}\n", at("included").display());
    fs::write(git.dir.join(".git/config"), own).unwrap();
    assert!(triggered(&traps).is_empty());

    let https = SmartHttp::start(&at("root"), Some(&at("")));
    https
        .set_behavior(HttpBehavior { authorization: Some("Basic Y2k6czNjcmV0".to_owned()), ..HttpBehavior::default() });
    password_file(&at(""), "s3cret");
    let ssh = SshServer::start(&at("ssh"));
    let repositories = [
        format!("name = \"local\"\nurl = {:?}\n", git.dir),
        format!(
            "name = \"https\"\nurl = {:?}\nca = \"ca.pem\"\nusername = \"ci\"\npassword_file = \"password\"\n",
            https.url("shop/.git")
        ),
        format!(
            "name = \"ssh\"\nurl = {:?}\nssh_key = {:?}\nssh_known_hosts = {:?}\n",
            ssh.url(&git.dir),
            ssh.key(),
            ssh.known_hosts(None)
        ),
    ];
    let file = home.write_config(&repositories.each_ref().map(|keys| format!("[[repository]]\n{keys}")).concat());

    let mut origin = Command::new(env!("CARGO_BIN_EXE_weir-origin"));
    origin.arg("--config").arg(file).stderr(Stdio::piped()).stdout(Stdio::null());
    let trap = |name: &str| trap(&traps, name);
    origin.envs([
        ("HOME", at("home")),
        ("XDG_CONFIG_HOME", at("home/.config")),
        ("GIT_CONFIG_SYSTEM", at("system-gitconfig")),
        ("GIT_CONFIG_GLOBAL", at("home/.gitconfig")),
        ("GIT_DIR", at("nowhere")),
        ("GIT_OBJECT_DIRECTORY", at("nowhere")),
        ("GIT_ALTERNATE_OBJECT_DIRECTORIES", at("nowhere")),
        ("GIT_SSH", trap("git-ssh")),
        ("GIT_SSH_COMMAND", trap("git-ssh-command")),
        ("GIT_ASKPASS", trap("git-ask-pass")),
        ("SSH_ASKPASS", trap("ssh-ask-pass")),
        ("GIT_PROXY_COMMAND", trap("git-proxy-command")),
        ("GIT_EXTERNAL_DIFF", trap("git-external-diff")),
        ("GIT_TRACE", traps.join("triggered-trace")),
    ]);
    origin.envs([
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "url.file:///nowhere/.insteadOf"),
        ("GIT_CONFIG_VALUE_0", "https://"),
        ("SSH_ASKPASS_REQUIRE", "force"),
        ("DISPLAY", ":1"),
        ("HTTP_PROXY", "http://127.0.0.1:1"),
        ("HTTPS_PROXY", "http://127.0.0.1:1"),
        ("https_proxy", "http://127.0.0.1:1"),
        ("ALL_PROXY", "http://127.0.0.1:1"),
    ]);
    let mut origin = Process(origin.spawn().unwrap());
    let mut log = BufReader::new(origin.0.stderr.take().unwrap()).lines();
    for _ in &repositories {
        let line = log.find(|line| {
            let line = line.as_deref().unwrap_or_default();
            assert!(!line.contains("the upstream cannot be polled") && !line.contains("s3cret"), "{line}");
            line.contains("the repository is mirrored")
        });
        assert!(line.is_some(), "the origin went away");
    }
    assert_eq!(triggered(&traps), Vec::<String>::new());
}
