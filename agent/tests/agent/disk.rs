//! Modes for a group, and a read-only root file system.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::agent_under_test::{Agent, World, shop};
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
