//! Disks that are full, about to be full, or read-only for a while.

use std::fs::File;
use std::io::Write;
use std::process::Command;

use bytesize::ByteSize;

use crate::mount::Mount;
use crate::operator;
use crate::prelude::*;

/// Takes all the room that is left.
fn fill(dir: &Path) {
    let mut ballast = File::create(dir.join("ballast")).unwrap();
    while ballast.write_all(&[0; 4096]).is_ok() {}
    while ballast.write_all(&[0]).is_ok() {}
}

fn make_room(dir: &Path) {
    std::fs::remove_file(dir.join("ballast")).unwrap();
}

/// What does not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    noise
}

#[tokio::test]
async fn a_full_disk_stops_publishing_until_there_is_space_and_loses_nothing() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let Some(_mount) = Mount::tmpfs(&home.data_dir(), "size=24m") else { return };
    let mut config = home.config(&upstream.url());
    config.limits.min_free = ByteSize(0);
    let node = home.start(config).await;
    let before = node.published(|_| true).await;
    node.poll().await;

    fill(&home.data_dir());
    let commit = upstream.push("deploy/large", &noise(1 << 20));
    node.poll().await;
    let status = node.status().await;
    let failures = format!("{} {}", status["repositories"][0]["failure"], status["services"][0]["failure"]);
    assert!(failures.to_lowercase().contains("no space left") || failures.contains("os error 28"), "{status}");
    assert!(
        !failures.contains("at path") && !failures.contains("/objects/"),
        "no path, and none that is new each time: {failures}"
    );
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    node.tarball(&before).await;

    make_room(&home.data_dir());
    let after = node.published(|now| commit_of(now) == commit).await;
    node.tarball(&after).await;
    node.tarball(&before).await;
    node.stop().await;
}

#[tokio::test]
async fn an_edit_on_a_full_disk_is_refused_and_the_next_one_succeeds() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let Some(_mount) = Mount::tmpfs(&home.data_dir(), "size=24m") else { return };
    let mut config = operator::config(&home, &upstream);
    config.limits.min_free = ByteSize(0);
    let node = home.start(config.clone()).await;
    node.published(|_| true).await;
    node.poll().await;
    let operator = Operator::of(&home, &node);
    let large = json!({ "repository": "shop", "folder": "docs", "include": vec!["x".repeat(200); 400] });
    let small = json!({ "repository": "shop", "folder": "docs" });
    assert_eq!(operator.put("/v1/services/before", small.clone()).await.status, 201);

    fill(&home.data_dir());
    let mut made = 0;
    let refused = loop {
        let reply = operator.put(&format!("/v1/services/large-{made}"), large.clone()).await;
        if reply.status != 201 {
            break reply;
        }
        made += 1;
        assert!(made < 200, "the disk has room for everything");
    };
    assert_eq!((refused.status.as_u16(), refused.problem().0), (503, "origin-failed"));
    let detail = refused.problem().1;
    assert!(detail.contains("No space left on device") && detail.contains("may have been committed"), "{detail}");
    let lost = format!("/v1/services/large-{made}");
    assert_eq!(operator.get(&lost).await.status, 404, "what was refused is not there");
    assert_eq!(operator.get("/v1/services/before").await.status, 200);

    make_room(&home.data_dir());
    assert_eq!(operator.put(&lost, large).await.status, 201);
    assert_eq!(operator.put("/v1/services/after", small).await.status, 201);
    node.stop().await;
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    for name in ["before", "after", &format!("large-{made}")] {
        assert_eq!(operator.get(&format!("/v1/services/{name}")).await.status, 200, "{name}");
    }
    node.stop().await;
}

#[tokio::test]
async fn too_little_space_is_reported_before_a_build() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let Some(_mount) = Mount::tmpfs(&home.data_dir(), "size=24m") else { return };
    let mut config = home.config(&upstream.url());
    config.limits.min_free = ByteSize::gib(1);
    let node = home.start(config.clone()).await;
    let mut condition = node.running.condition(&service()).unwrap();
    let reported = condition.wait_for(|now| matches!(now, Condition::Unhealthy { .. })).await.unwrap().clone();
    let Condition::Unhealthy { step, reason, .. } = reported else { unreachable!() };
    assert_eq!(step, "store");
    assert!(reason.contains("min_free") && reason.contains("free"), "{reason}");
    node.stop().await;
    config.limits.min_free = ByteSize(0);
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.stop().await;
}

/// Whatever is opened below a directory is read-only until this is dropped. Files that are open stay as they are: the
/// kernel makes no file system read-only that somebody writes.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn over(directory: &Path) -> Self {
        let mount = |arguments: &[&str]| {
            let done = Command::new("mount").args(arguments).arg(directory).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        mount(&["--bind", directory.to_str().unwrap()]);
        mount(&["-o", "remount,bind,ro"]);
        Self(directory.to_owned())
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// What `/readyz` says once it says that.
async fn readyz(node: &Node, is: impl Fn(&str) -> bool) -> (u16, String) {
    loop {
        let reply = node.admin("/readyz").await;
        if is(&reply.1) {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn retained_status(node: &Node, digest: &str) -> u16 {
    node.get(&format!("/v1/services/{SERVICE}/versions/{digest}")).await.status.as_u16()
}

#[tokio::test]
async fn a_read_only_disk_stops_publishing_and_is_reported_while_versions_are_served() {
    let (home, upstream) = (Home::new(), Upstream::small());
    // A disk of its own, which may be filled.
    let Some(_mount) = Mount::tmpfs(&home.data_dir(), "size=24m") else { return };
    let mut config = home.config(&upstream.url());
    config.limits.min_free = ByteSize(0);
    let node = home.start(config).await;
    let old = node.published(|_| true).await;
    upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    let before = node.descriptor().await;

    let read_only = ReadOnly::over(&home.data_dir());
    let commit = upstream.push("deploy/app.yaml", b"replicas: 10\n");
    for _ in 0..2 {
        node.poll().await;
        let status = node.status().await;
        let failure = status["repositories"][0]["failure"].to_string().to_lowercase();
        assert!(failure.contains("read-only file system"), "{status}");
        assert!(!failure.contains(&home.data_dir().display().to_string()), "{status}");
    }
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    for version in [&before, &old] {
        node.tarball(version).await;
        assert_eq!(retained_status(&node, &version.publication().digest.to_string()).await, 200);
    }
    let (status, reply) = in_time(readyz(&node, |reply| reply.contains("cannot be written"))).await;
    assert_eq!(status, 200, "{reply}");
    assert!(reply.contains("degraded: `data_dir` cannot be written: Read-only file system"), "{reply}");
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 0.0);

    drop(read_only);
    node.poll().await;
    let after = node.published(|now| commit_of(now) == commit).await;
    node.tarball(&after).await;
    assert_eq!(node.status().await["repositories"][0]["health"], "healthy");
    in_time(readyz(&node, |reply| reply == "ready\n")).await;
    node.stop().await;
}
