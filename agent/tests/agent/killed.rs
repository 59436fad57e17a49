//! The binary, killed at any moment: readers see whole releases and nothing else, and `exec` is never forgotten.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::agent_under_test::{World, shop};
use crate::edge::{PATIENCE, TestEdge};
use crate::tarball::Tarball;

/// Files that all say which release they are of.
const FILES: usize = 200;

fn tree(number: usize) -> Vec<u8> {
    let content = number.to_string().repeat(5000);
    (0..FILES).fold(Tarball::new(), |tar, file| tar.file(format!("file-{file}"), &content)).finish()
}

fn spawn(world: &World, edge: &TestEdge) -> Child {
    Command::new(env!("CARGO_BIN_EXE_weir-agent"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .args(["--edge", &edge.url(), "--service", "shop", "--poll-interval", "1s"])
        .args(["--exec", "echo $WEIR_DIGEST >> ../../log"])
        .arg("--ca")
        .arg(world.path().join("ca.pem"))
        .arg("--root")
        .arg(world.path().join("root"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts")
}

/// The number of the release in force, after a look at all its files.
fn look(world: &World) -> Option<String> {
    // Into the release itself, as a reader does that must not see two at once.
    let release = std::fs::canonicalize(world.service_dir().join("current")).ok()?;
    let first = std::fs::read_to_string(release.join("file-0")).expect("a release is whole");
    for file in 0..FILES {
        assert_eq!(std::fs::read_to_string(release.join(format!("file-{file}"))).expect("a release is whole"), first);
    }
    assert_eq!(std::fs::read_dir(&release).expect("a release").count(), FILES);
    Some(first)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_torn_is_ever_seen() {
    let world = World::new();
    let edge = world.edge().await;
    for round in 0..12 {
        edge.answers.publish(&shop(), tree(round));
        let mut child = spawn(&world, &edge);
        // At a moment of its start, its download, its unpacking, or its switch; whichever it is has to be harmless.
        tokio::time::sleep(Duration::from_millis(20 + 17 * round as u64)).await;
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
        look(&world);
    }
    let (digest, _) = edge.answers.publish(&shop(), tree(99));
    let mut child = spawn(&world, &edge);
    let log = world.service_dir().join("log");
    let done = async {
        while !std::fs::read_to_string(&log).unwrap_or_default().contains(&digest.to_string()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.expect("the last one goes on where the others were stopped");
    assert_eq!(look(&world), Some("99".repeat(5000)));
    // `exec` runs while the agent still tidies up.
    let incoming = world.service_dir().join("incoming");
    let tidy = async {
        while std::fs::read_dir(&incoming).expect("the folder").count() > 0
            || world.releases().iter().any(|name| name.starts_with('.'))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, tidy).await.expect("nothing is left of what was half done");
    child.kill().expect("it can be killed");
    child.wait().expect("it can be waited for");
}
