//! Slow work on one service of a repository delays no other service.

use std::fs::File;
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::damage::mirror;
use crate::lfs_server::LfsBehavior;
use crate::prelude::*;

/// The number of services besides the slow one.
const OTHERS: usize = 9;

/// A branch with a folder of 900,000 files, which takes few objects and long to build, and small ones.
struct WithSlowFolder {
    upstream: Upstream,
    slow: String,
}

impl WithSlowFolder {
    fn new() -> Self {
        let upstream = Upstream::small();
        let work = Git::at(upstream.work());
        let file = work.blob(b"x");
        let names: Vec<String> = (0..1000).map(|number| format!("{number:03}")).collect();
        let files: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), file.as_str())).collect();
        let folder = work.raw_tree(&files);
        let folders: Vec<_> = names[..900].iter().map(|name| ("40000", name.as_bytes(), folder.as_str())).collect();
        let slow = work.raw_tree(&folders);
        Self { upstream, slow }
    }

    /// Pushes a commit in which each of the small folders has this content; the commit's id.
    fn push(&self, contents: &str) -> String {
        let work = Git::at(self.upstream.work());
        let file = work.blob(contents.as_bytes());
        let folder = work.raw_tree(&[("100644", b"app.yaml", &file)]);
        let names: Vec<String> = (0..OTHERS).map(|number| format!("s{number}")).collect();
        let mut folders: Vec<_> = names.iter().map(|name| ("40000", name.as_bytes(), folder.as_str())).collect();
        folders.push(("40000", b"slow", &self.slow));
        let commit = work.commit_tree(&folders).to_string();
        self.upstream.git(&["push", "--quiet", "--force", "origin", &format!("{commit}:refs/heads/main")]);
        commit
    }
}

/// Has a service published, changed and published again, and an object of it lost and built again.
async fn goes_on(node: &Node, service: &str, push: impl FnOnce() -> String) {
    node.published_of(service, |_| true).await;
    let commit = push();
    node.running.trigger_poll(&repository());
    let is_new = |descriptor: &Descriptor| commit_of(descriptor) == commit;
    let descriptor = node.published_of(service, is_new).await;
    let polls = node.repository(|_| true).await.polls;
    node.running.trigger_poll(&repository());
    node.repository(|state| state.polls > polls).await;
    assert!(!node.tarball(&descriptor).await.is_empty());
}

fn is_building(state: &RepositoryState, service: &str) -> bool {
    state.building.iter().any(|(name, _)| name.as_str() == service)
}

#[tokio::test]
async fn slow_builds_of_a_repository_leave_one_to_the_others() {
    let (home, git, neighbour) = (Home::new(), WithSlowFolder::new(), Upstream::small());
    git.push("replicas: 1\n");
    let mut config = home.config(&git.upstream.url());
    config.limits.concurrent_builds = 2;
    config.services[0].folder = "slow".parse().unwrap();
    let second = also(&mut config, "slow-2");
    (second.folder, second.gzip) = ("slow".parse().unwrap(), true);
    let other: RepositoryName = "other".parse().unwrap();
    config.repositories.push(RepositoryConfig::new(other.clone(), neighbour.url()));
    config.services.push(ServiceConfig::new(other.as_str().parse().unwrap(), other.clone()));
    let node = home.start(config).await;
    node.published_of("other", |_| true).await;
    node.repository(|state| !state.building.is_empty()).await;
    let commit = neighbour.push("app.yaml", b"replicas: 2\n");
    assert!(node.running.trigger_poll(&other));
    node.published_of("other", |descriptor| commit_of(descriptor) == commit).await;
    let status = node.status().await;
    let pending = status["services"].as_array().unwrap().iter().filter(|each| each["condition"] == "pending");
    assert_eq!(pending.count(), 2, "no slow build has ended: {status}");
    node.running.cut().await;
}

#[tokio::test]
async fn a_slow_build_delays_no_other_service_poll_or_rebuild() {
    let (home, git) = (Home::new(), WithSlowFolder::new());
    git.push("replicas: 1\n");
    let mut config = home.config(&git.upstream.url());
    config.services[0].folder = "slow".parse().unwrap();
    (0..OTHERS).for_each(|number| _ = also(&mut config, &format!("s{number}")));
    let node = home.start(config).await;
    node.repository(|state| is_building(state, "shop-prod")).await;
    for number in 0..OTHERS {
        node.published_of(&format!("s{number}"), |_| true).await;
    }
    let stored = node.published_of("s1", |_| true).await;
    fs::remove_file(home.object(&object_of(&stored))).unwrap();
    assert!(!node.tarball(&stored).await.is_empty(), "it is rebuilt on demand");
    goes_on(&node, "s0", || git.push("replicas: 2\n")).await;
    let state = node.repository(|_| true).await;
    assert!(is_building(&state, "shop-prod"), "the slow one was built before all that: {state:?}");
    let status = node.status().await;
    assert_eq!(status["repositories"][0]["building"][0], "shop-prod");
    let services = status["services"].as_array().unwrap();
    let since = |name: &str| &services.iter().find(|each| each["name"] == *name).unwrap()["building_since"];
    assert!(since("shop-prod").is_string() && since("s0").is_null(), "{status}");
    node.running.cut().await;
}

#[tokio::test]
async fn a_slow_repack_delays_no_service_poll_or_rebuild() {
    let (home, git) = (Home::new(), WithSlowFolder::new());
    git.push("replicas: 1\n");
    let mut config = home.config(&git.upstream.url());
    config.services[0].folder = "s0".parse().unwrap();
    (0..OTHERS).for_each(|number| _ = also(&mut config, &format!("s{number}")));
    let node = home.start(config.clone()).await;
    node.published(|_| true).await;
    until(async || mirror(&home).join("weir-repacked").exists()).await;
    node.stop().await;
    let mirror = mirror(&home);
    // A full repack is due, and git waits in it for this pipe.
    let long_ago = SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    File::options().write(true).open(mirror.join("weir-repacked")).unwrap().set_modified(long_ago).unwrap();
    let pipe = mirror.join("info/grafts");
    fs::create_dir_all(mirror.join("info")).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let node = home.start(config).await;
    let mut repacks = None;
    until(async || {
        // Opening fails until there is a reader.
        repacks = rustix::fs::open(&pipe, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
        repacks.is_some()
    })
    .await;
    fs::remove_file(&pipe).unwrap();

    for contents in ["replicas: 2\n", "replicas: 3\n"] {
        goes_on(&node, "shop-prod", || git.push(contents)).await;
        let current = node.descriptor().await.publication().commit.clone();
        for number in 0..OTHERS {
            let is_new = |descriptor: &Descriptor| descriptor.publication().commit == current;
            let stored = node.published_of(&format!("s{number}"), is_new).await;
            assert!(!node.tarball(&stored).await.is_empty());
        }
    }
    fs::remove_file(home.object(&object_of(&node.descriptor().await))).unwrap();
    assert!(!node.tarball(&node.descriptor().await).await.is_empty(), "it is rebuilt on demand");
    let full = "weir_origin_repacks_total{repository=\"shop\",result=\"full\"}";
    assert_eq!(node.metric(full).await, 0.0);
    drop(repacks);
    until(async || node.metric(full).await == 1.0).await;
    node.tarball(&node.descriptor().await).await;
    node.stop().await;
}

#[tokio::test]
async fn a_slow_lfs_fetch_delays_no_other_lfs_fetch() {
    let shop = Shop::new();
    let large = shop.server.store(&[7; 1 << 20]);
    shop.git.write("deploy/model.bin", &large);
    shop.git.commit_file("other/model.bin", shop.server.store(b"a small one"));
    shop.set_behavior(LfsBehavior { slow: true, only_object: Some(large.clone()), ..LfsBehavior::default() });
    let mut config = shop.config();
    also(&mut config, "other");
    let node = shop.home.start(config).await;
    shop.server.wait_for_slow_download().await;
    let stored = node.published_of("other", |_| true).await;
    fs::remove_file(shop.home.object(&object_of(&stored))).unwrap();
    assert!(!node.tarball(&stored).await.is_empty(), "it is rebuilt on demand");
    goes_on(&node, "other", || {
        shop.git.commit_file("other/model.bin", shop.server.store(b"another small one")).to_string()
    })
    .await;
    assert!(node.repository(|_| true).await.lfs.unwrap().fetching);
    node.running.cut().await;
}

#[tokio::test]
async fn an_object_that_two_services_need_is_fetched_once() {
    let shop = Shop::new();
    let mut config = shop.config();
    also(&mut config, "other");
    let pointer = shop.server.store(b"the model of both");
    for folder in ["deploy", "other"] {
        shop.git.write(format!("{folder}/model.bin"), &pointer);
    }
    shop.git.commit("one model for both");
    let node = shop.home.start(config).await;
    node.published(|_| true).await;
    node.published_of("other", |_| true).await;
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 1.0);
    node.stop().await;
}
