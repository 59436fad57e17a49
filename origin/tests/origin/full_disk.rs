//! Disks that are full, or about to be full.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use bytesize::ByteSize;
use serde_json::json;
use weir_origin::Condition;

use crate::mount::Mount;
use crate::node::{Home, service};
use crate::operator::{self, Operator};
use crate::upstream::Upstream;

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
async fn a_full_disk_stops_publishing_and_loses_nothing_and_room_lets_it_go_on() {
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
    let told = format!("{} {}", status["repositories"][0]["failure"], status["services"][0]["failure"]);
    assert!(told.to_lowercase().contains("no space left") || told.contains("os error 28"), "{status}");
    assert!(
        !told.contains("at path") && !told.contains("/objects/"),
        "no path, and none that is new each time: {told}"
    );
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    node.tarball(&before).await;

    make_room(&home.data_dir());
    let after = node.published(|now| now.publication().commit.as_str() == commit).await;
    node.tarball(&after).await;
    node.tarball(&before).await;
    node.stop().await;
}

#[tokio::test]
async fn an_operator_s_edit_that_found_the_disk_full_is_refused_and_the_next_one_goes_on_without_a_restart() {
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
        let told = operator.put(&format!("/v1/services/large-{made}"), large.clone()).await;
        if told.status != 201 {
            break told;
        }
        made += 1;
        assert!(made < 200, "the disk has room for everything");
    };
    assert_eq!((refused.status.as_u16(), refused.problem().0), (503, "origin-failed"));
    let told = refused.problem().1;
    assert!(told.contains("No space left on device") && told.contains("may have landed"), "{told}");
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
async fn too_little_room_is_said_before_a_build() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let Some(_mount) = Mount::tmpfs(&home.data_dir(), "size=24m") else { return };
    let mut config = home.config(&upstream.url());
    config.limits.min_free = ByteSize::gib(1);
    let node = home.start(config.clone()).await;
    let mut condition = node.running.condition(&service()).unwrap();
    let said = condition.wait_for(|now| matches!(now, Condition::Unhealthy { .. })).await.unwrap().clone();
    let Condition::Unhealthy { step, reason, .. } = said else { unreachable!() };
    assert_eq!(step, "store");
    assert!(reason.contains("min_free") && reason.contains("free"), "{reason}");
    node.stop().await;
    config.limits.min_free = ByteSize(0);
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.stop().await;
}
