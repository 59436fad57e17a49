//! Modes for a group, and a read-only root file system.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::agent_under_test::{Agent, World, shop};
use crate::assigned::until;
use crate::edge::TestEdge;
use crate::tarball::Tarball;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn the_group_may_write_if_it_is_told_so() {
    let (world, edge) = World::with_edge().await;
    let tar = || Tarball::new().executable("run", "").file("dir/file", "1").finish();
    edge.answers.publish(&shop(), tar());
    let mut config = world.config(&[edge.url()]);
    config.group_write = true;
    let mut agent = Agent::with_release(config.clone()).await;
    let service = world.service_dir();
    for (path, expected) in [
        ("", 0o2775),
        ("releases", 0o2775),
        ("incoming", 0o2770),
        ("current/.", 0o2775),
        ("current/run", 0o775),
        ("current/dir", 0o2775),
        ("current/dir/file", 0o664),
    ] {
        assert_eq!(mode(&service.join(path)), expected, "{path}");
    }
    assert_eq!(mode(&world.path().join("root/.lock")), 0o664);
    assert_eq!(agent.refresh().await.switches, 1, "these are its modes: there is nothing to repair");
    agent.stop().await;
    // Other modes are asked for: the next refresh makes them so.
    config.group_write = false;
    let mut agent = Agent::with_release(config).await;
    agent.until("the first poll has ended", |status| status.polls == 1).await;
    assert_eq!(agent.refresh().await.switches, 1);
    assert_eq!(mode(&service.join("current/dir/file")), 0o644);
    agent.stop().await;
}

#[tokio::test]
async fn the_umask_of_the_agent_holds_for_its_releases() {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish(&shop(), Tarball::new().executable("run", "").file("dir/file", "1").finish());
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_weir-agent")]);
    command.args(["--edge", &edge.url(), "--service", "shop", "--once"]);
    command.arg("--ca").arg(world.path().join("ca.pem")).arg("--root").arg(world.path().join("root"));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let modes = ["releases", "current/.", "current/run", "current/dir", "current/dir/file"];
    assert_eq!(modes.map(|path| mode(&world.service_dir().join(path))), [0o700, 0o700, 0o700, 0o700, 0o600]);
    // An agent with another umask has nothing to repair, but for a mode that was changed.
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    agent.until("the first poll has ended", |status| status.polls == 1).await;
    assert_eq!(agent.refresh().await.switches, 0);
    std::fs::set_permissions(world.service_dir().join("current/dir/file"), PermissionsExt::from_mode(0o644)).unwrap();
    assert_eq!(agent.refresh().await.switches, 1);
    agent.stop().await;
}

/// In a mount namespace in which all but the root of the agent is read-only.
#[tokio::test]
async fn only_the_root_of_the_agent_is_written() {
    let (world, edge) = World::offering("one").await;
    let root = world.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let script = "mount --make-rprivate / && mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro / \
                  && ! touch \"$0/../outside\" 2>/dev/null && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script]).arg(&root);
    command.arg(env!("CARGO_BIN_EXE_weir-agent")).env_remove("TMPDIR");
    command.args([
        "--edge",
        &edge.url(),
        "--service",
        "shop",
        "--once",
        "--exec",
        "cat \"$WEIR_CHANGES\" > ../../copy",
    ]);
    command.arg("--ca").arg(world.path().join("ca.pem")).arg("--root").arg(&root);
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    let Some(output) = output.ok().filter(|output| !is_not_allowed(&output.stderr)) else {
        eprintln!("this machine has no mount namespaces: not tested");
        return;
    };
    assert!(output.status.success(), "{output:?}");
    assert_eq!(world.read("content").as_deref(), Some("one"));
    let copy = std::fs::read_to_string(world.service_dir().join("copy")).unwrap();
    assert_eq!(copy, "{\"change\":\"added\",\"path\":\"content\"}\n");
    assert!(!world.path().join("outside").exists());
}

fn is_not_allowed(stderr: &[u8]) -> bool {
    let text = String::from_utf8_lossy(stderr);
    ["unshare: ", "mount: "].iter().any(|program| text.contains(program))
}

/// The program, as a user whom modes bind: as root it loses the rights that ignore them.
fn bound_by_modes() -> Command {
    let program = env!("CARGO_BIN_EXE_weir-agent");
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-dac_override,-dac_read_search,-fowner", program]);
    command
}

/// A process that is killed at the end.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

fn write_config(world: &World, edge: &TestEdge, more: &str, hook: &str) -> std::path::PathBuf {
    let (file, root) = (world.path().join("agent.toml"), world.path().join("root"));
    let config = format!(
        "edges = ['{}']\nca = 'ca.pem'\nroot = '{}'\nkeep_releases = 1\n{more}\n[[service]]\nname = 'shop'\nexec = {hook:?}\n",
        edge.url(),
        root.display()
    );
    std::fs::write(&file, config).unwrap();
    file
}

#[tokio::test]
async fn modes_that_a_hook_leaves_keep_no_release_and_fail_no_hook() {
    let (world, edge) = World::with_edge().await;
    let hook = "cat \"$WEIR_CHANGES\" > ../../changes && mkdir -p left/deep && touch left/deep/file \
                && chmod 500 left/deep && chmod 000 left dir content .";
    let file = write_config(&world, &edge, "", hook);
    for content in ["one", "two", "six"] {
        edge.answers.publish(&shop(), Tarball::new().file("content", content).file("dir/file", "1").finish());
        let mut command = bound_by_modes();
        command.arg("--config").arg(&file).arg("--once");
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{content}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("cannot be removed"), "{content}: {output:?}");
    }
    let releases = world.releases();
    assert!(releases.len() == 2 && releases.iter().all(|name| !name.starts_with('.')), "{releases:?}");
    let changes = std::fs::read_to_string(world.service_dir().join("changes")).unwrap();
    let mut changes: Vec<_> = changes.lines().collect();
    changes.sort_unstable();
    let expected =
        [r#"{"change":"changed","path":"content"}"#, r#"{"change":"removed","path":"left/deep/file"}"#].to_vec();
    assert_eq!(changes, expected);
}

#[tokio::test]
async fn releases_that_cannot_be_removed_are_counted_until_they_can_be() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give a folder to another user");
        return;
    }
    let (world, edge) = World::with_edge().await;
    let publish = |content: &str| edge.answers.publish(&shop(), Tarball::new().file("content", content).finish());
    let (one, _) = publish("one");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let hook = "[ $(cat content) != one ] || (mkdir foreign && touch foreign/file && chmod 700 foreign && chown 65534 foreign)";
    let file = write_config(&world, &edge, &format!("admin_listen = '{port}'\npoll_interval = '1s'"), hook);
    let mut command = bound_by_modes();
    let log = std::fs::File::create(world.path().join("log")).unwrap();
    command.arg("--config").arg(&file).stdout(std::process::Stdio::null()).stderr(log);
    let _agent = Killed(command.spawn().unwrap());
    let get = |path: &str| {
        let mut answer = String::new();
        let mut stream = std::net::TcpStream::connect(port)?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {port}\r\nConnection: close\r\n\r\n").as_bytes())?;
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    let shows = |path: &str, wanted: &str| get(path).is_ok_and(|answer: String| answer.contains(wanted));
    let succeeded = |count: u32| {
        let wanted = format!("weir_agent_hook_runs_total{{result=\"success\"}} {count}\n");
        shows("/metrics", &wanted)
    };
    for (count, content) in [(1, "one"), (2, "two"), (3, "three")] {
        if count > 1 {
            publish(content);
        }
        until("its hook has run", || succeeded(count)).await;
    }
    until("it is counted", || shows("/metrics", "weir_agent_releases_unremoved 1\n")).await;
    assert!(shows("/readyz", "degraded: 1 old releases of shop cannot be removed"), "{:?}", get("/readyz"));
    let left = world.service_dir().join(format!("releases/.{one}.0.removed/foreign"));
    std::os::unix::fs::chown(&left, Some(0), None).unwrap();
    until("the next poll removes it", || shows("/metrics", "weir_agent_releases_unremoved 0\n")).await;
    assert!(!left.exists() && shows("/readyz", "ready\n") && !shows("/readyz", "degraded"), "{:?}", get("/readyz"));
    let warned = std::fs::read_to_string(world.path().join("log")).unwrap().matches("cannot be removed").count();
    assert_eq!(warned, 1, "once, not with each poll");
}
