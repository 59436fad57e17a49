//! A disk that is read-only for a while under a running origin.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bytesize::ByteSize;

use crate::mount::Mount;
use crate::node::{Home, Node, SERVICE, in_time};
use crate::upstream::Upstream;

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
        let told = node.admin("/readyz").await;
        if is(&told.1) {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn retained_status(node: &Node, digest: &str) -> u16 {
    node.get(&format!("/v1/services/{SERVICE}/versions/{digest}")).await.status.as_u16()
}

#[tokio::test]
async fn a_read_only_disk_stops_publishing_and_says_so_and_what_is_published_is_served() {
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
        let told = status["repositories"][0]["failure"].to_string().to_lowercase();
        assert!(told.contains("read-only file system"), "{status}");
        assert!(!told.contains(&home.data_dir().display().to_string()), "{status}");
    }
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    for version in [&before, &old] {
        node.tarball(version).await;
        assert_eq!(retained_status(&node, &version.publication().digest.to_string()).await, 200);
    }
    let (status, told) = in_time(readyz(&node, |told| told.contains("cannot be written"))).await;
    assert_eq!(status, 200, "{told}");
    assert!(told.contains("degraded: `data_dir` cannot be written: Read-only file system"), "{told}");
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 0.0);

    drop(read_only);
    node.poll().await;
    let after = node.published(|now| now.publication().commit.as_str() == commit).await;
    node.tarball(&after).await;
    assert_eq!(node.status().await["repositories"][0]["health"], "healthy");
    in_time(readyz(&node, |told| told == "ready\n")).await;
    node.stop().await;
}
