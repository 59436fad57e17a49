//! Mirrors that are stored as bundles: an origin that has lost its mirrors makes them again without a clone.

use bytesize::ByteSize;

use crate::damage::{mirror, only_mirror};
use crate::prelude::*;

const FULL: &str = "weir_origin_bundles_total{result=\"full\"}";
const HYDRATED: &str = "weir_origin_hydrations_total{result=\"hydrated\"}";
const FAILED: &str = "weir_origin_hydrations_total{result=\"failed\"}";

/// A configuration that stores mirrors.
fn storing(home: &Home, url: &str) -> Config {
    let mut config = home.config(url);
    config.store.mirrors = Some(true);
    config
}

/// An origin that has published and stored its mirror, and is stopped.
async fn stored(home: &Home, url: &str) -> Arc<Descriptor> {
    let node = home.start(storing(home, url)).await;
    let descriptor = node.published(|_| true).await;
    until(async || node.metric(FULL).await == 1.0).await;
    assert!(node.metric("weir_origin_newest_bundle_timestamp_seconds{repository=\"shop\"}").await > 1e9);
    node.stop().await;
    descriptor
}

/// Their maintenance takes turns, and none waits for its next poll, an hour later.
#[tokio::test]
async fn each_of_many_mirrors_is_stored_after_its_first_poll() {
    const MIRRORS: u8 = 12;
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = storing(&home, &upstream.url());
    for number in 1..MIRRORS {
        let mut more = config.repositories[0].clone();
        more.name = format!("shop-{number}").parse().unwrap();
        config.services.push(ServiceConfig::new(more.name.as_str().parse().unwrap(), more.name.clone()));
        config.repositories.push(more);
    }
    let node = home.start(config).await;
    until(async || node.metric(FULL).await == f64::from(MIRRORS)).await;
    node.stop().await;
}

fn lose_mirrors(home: &Home) {
    fs::remove_dir_all(home.data_dir().join("mirrors")).unwrap();
}

fn packed_objects(home: &Home) -> usize {
    let counted = String::from_utf8(Git::at(mirror(home)).run(["count-objects", "-v"])).unwrap();
    let line = counted.lines().find_map(|line| line.strip_prefix("in-pack: "));
    line.map_or(0, |number| number.trim().parse().unwrap())
}

#[tokio::test]
async fn an_origin_without_mirrors_builds_while_the_upstream_is_away() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let before = stored(&home, &upstream.url()).await;
    lose_mirrors(&home);
    upstream.take_away();
    let mut config = storing(&home, &upstream.url());
    let second = also(&mut config, "shop-second");
    second.folder = "deploy".parse().unwrap();
    let node = home.start(config).await;
    let built = node.published_of("shop-second", |_| true).await;
    assert_eq!(built.publication().digest, before.publication().digest);
    node.tarball(&built).await;
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    assert_eq!((node.metric(HYDRATED).await, node.metric(FAILED).await), (1.0, 0.0));
    upstream.give_back();
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.running.trigger_poll(&repository());
    node.published(|d| commit_of(d) == commit).await;
    assert_eq!(node.metric(HYDRATED).await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn the_upstream_serves_no_clone_to_an_origin_without_mirrors() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), None);
    let url = server.url("bare.git");
    stored(&home, &url).await;
    let objects = packed_objects(&home);
    lose_mirrors(&home);
    server.take_requests();
    let node = home.start(storing(&home, &url)).await;
    node.repository(|state| state.applied_polls > 0).await;
    let posts = |requests: Vec<String>| requests.iter().filter(|head| head.starts_with("POST ")).count();
    assert_eq!(posts(server.take_requests()), 1, "the listing of refs");
    assert_eq!(packed_objects(&home), objects);
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.running.trigger_poll(&repository());
    node.published(|d| commit_of(d) == commit).await;
    assert_eq!(packed_objects(&home) - objects, 4, "a commit, two trees and a file");
    node.stop().await;
}

#[tokio::test]
async fn a_mirror_that_is_older_than_the_published_version_publishes_nothing() {
    let (home, upstream) = (Home::new(), Upstream::small());
    stored(&home, &upstream.url()).await;
    // The bundle of this push is due in ten minutes.
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    let node = home.start(storing(&home, &upstream.url())).await;
    let newer = node.published(|d| commit_of(d) == commit).await;
    node.stop().await;
    lose_mirrors(&home);
    upstream.take_away();
    let node = home.start(storing(&home, &upstream.url())).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(node.metric(HYDRATED).await, 1.0);
    assert_eq!(node.descriptor().await.bytes(), newer.bytes());
    upstream.give_back();
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), newer.bytes());
    node.stop().await;
}

#[tokio::test]
async fn a_damaged_mirror_is_made_again_from_bundles() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let before = stored(&home, &upstream.url()).await;
    fs::write(mirror(&home).join("HEAD"), "").unwrap();
    upstream.take_away();
    let node = home.start(storing(&home, &upstream.url())).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!((node.metric(HYDRATED).await, node.metric(FAILED).await), (1.0, 0.0));
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 1.0);
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    assert!(git_command(&mirror(&home)).args(["fsck", "--full"]).output().unwrap().status.success());
    node.stop().await;
}

#[tokio::test]
async fn a_damaged_bundle_costs_a_clone() {
    let (home, upstream) = (Home::new(), Upstream::small());
    stored(&home, &upstream.url()).await;
    lose_mirrors(&home);
    let private = home.data_dir().join("objects").join(REPOSITORY).join("private");
    let is_pack = |file: &PathBuf| fs::read(file).unwrap().starts_with(b"PACK");
    let packs: Vec<PathBuf> =
        fs::read_dir(private).unwrap().map(|entry| entry.unwrap().path()).filter(is_pack).collect();
    assert_eq!(packs.len(), 1);
    flip_a_bit(&packs[0]);
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    let node = home.start(storing(&home, &upstream.url())).await;
    node.published(|d| commit_of(d) == commit).await;
    assert_eq!((node.metric(HYDRATED).await, node.metric(FAILED).await), (0.0, 1.0));
    node.stop().await;
}

#[tokio::test]
async fn a_mirror_above_the_limit_is_counted_and_not_stored() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = storing(&home, &upstream.url());
    config.store.max_mirror = ByteSize(100);
    let node = home.start(config).await;
    until(async || node.metric("weir_origin_bundles_total{result=\"too_large\"}").await == 1.0).await;
    assert_eq!(node.metric(FULL).await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn a_single_origin_stores_no_mirror_unless_it_is_configured() {
    let (home, _upstream, node, _) = crate::node::started().await;
    node.poll().await;
    node.stop().await;
    let objects = fs::read_dir(home.data_dir().join("objects").join(REPOSITORY).join("private")).unwrap();
    assert!(!objects.into_iter().any(|file| fs::read(file.unwrap().path()).unwrap().starts_with(b"# v")));
    assert!(only_mirror(&home.data_dir().join("mirrors/shop")).is_dir());
}
