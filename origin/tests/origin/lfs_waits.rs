//! Slow and missing LFS objects: what continues meanwhile, and when they are requested again.

use std::fs::File;

use weir_origin::reconcile::LfsState;

use crate::lfs_server::LfsBehavior;
use crate::lfs_services::{ATTRIBUTES, failure};
use crate::prelude::*;

/// An object that takes hours byte by byte.
static LARGE: [u8; 1 << 20] = [7; 1 << 20];

async fn lfs(node: &Node, is: impl Fn(&LfsState) -> bool) -> LfsState {
    node.repository(|state| state.lfs.as_ref().is_some_and(&is)).await.lfs.unwrap()
}

fn slow(pointer: &str) -> LfsBehavior {
    LfsBehavior { slow: true, only_object: Some(pointer.to_owned()), ..LfsBehavior::default() }
}

fn downloads_of(server: &LfsServer, pointer: &str) -> usize {
    let oid = pointer.split(':').nth(2).unwrap().lines().next().unwrap();
    server.take_requests().iter().filter(|head| head.starts_with(&format!("GET /storage/{oid}"))).count()
}

/// Sets an object's time to before the grace period.
fn set_old(object: &Path) {
    let fetched = SystemTime::now() - Duration::from_secs(2 * 24 * 3600);
    File::options().write(true).open(object).unwrap().set_modified(fetched).unwrap();
}

/// Polls twice, because a poll does not start during the maintenance after the former.
async fn wait_for_maintenance(node: &Node) {
    node.poll().await;
    node.poll().await;
}

#[tokio::test]
async fn services_without_lfs_do_not_wait_for_slow_objects_and_a_newer_commit_cancels_them() {
    let shop = Shop::new();
    let mut config = shop.config();
    also(&mut config, "plain").lfs = false;
    let large = shop.server.store(&LARGE);
    shop.git.write("deploy/model.bin", &large);
    shop.git.commit_file("plain/a.txt", "1");
    shop.set_behavior(slow(&large));
    let node = shop.home.start(config).await;
    shop.server.wait_for_slow_download().await;
    node.published_of("plain", |_| true).await;
    let waited_for = lfs(&node, |lfs| lfs.fetching).await;
    assert_eq!((waited_for.services[0].0.as_str(), waited_for.objects), ("shop-prod", 1));
    let shown = node.status().await;
    assert_eq!(shown["repositories"][0]["lfs"]["services"], json!(["shop-prod"]));
    let since = |name: &str| {
        let mut services = shown["services"].as_array().unwrap().iter();
        services.find(|each| each["name"] == name).unwrap()["waits_for_lfs_since"].clone()
    };
    assert!(since("shop-prod").is_string() && since("plain").is_null(), "{shown}");

    let second = shop.git.commit_file("plain/a.txt", "2");
    node.poll().await;
    node.published_of("plain", |plain| plain.publication().commit.as_ref() == Some(&second)).await;
    assert!(node.running.service(&crate::node::service()).unwrap().borrow().is_none());

    // The same objects: their downloads continue.
    assert_eq!(downloads_of(&shop.server, &large), 1);
    let third = shop.git.commit_file("deploy/model.bin", shop.server.store(b"a smaller model"));
    node.poll().await;
    let first_published = node.published(|_| true).await;
    assert_eq!(first_published.publication().commit, Some(third));
    node.repository(|state| state.lfs.is_none()).await;

    // A shutdown does not wait for it either.
    shop.git.commit_file("deploy/model.bin", &large);
    node.poll().await;
    shop.server.wait_for_slow_download().await;
    assert_eq!(node.descriptor().await.version(), first_published.version());
    node.stop().await;
}

#[tokio::test]
async fn slow_objects_delay_neither_a_changed_service_nor_a_deleted_repository() {
    let home = Home::new();
    let root = home.file("git");
    let (server, git) = (LfsServer::start(&root, None), Git::init(&root.join("shop.git")));
    let large = server.store(&LARGE);
    git.write(".gitattributes", ATTRIBUTES);
    git.write("deploy/app.yaml", "replicas: 1\n");
    git.commit_file("deploy/model.bin", &large);
    server.set_behavior(slow(&large));
    let (node, operator) = operated(&home).await;
    let mut document = json!({ "repository": "shop", "folder": "deploy", "lfs": true });
    let shop = json!({ "url": server.url("shop.git"), "poll_interval": "1h" });
    operator.put("/v1/repositories/shop", shop).await;
    operator.put("/v1/services/shop-prod", document.clone()).await;
    server.wait_for_slow_download().await;
    document["lfs"] = false.into();
    assert_eq!(operator.put("/v1/services/shop-prod", document.clone()).await.status, 200);
    let without = node.published(|_| true).await;
    assert_eq!(without.publication().omitted.len(), 1);
    node.repository(|state| state.lfs.is_none()).await;

    document["lfs"] = true.into();
    operator.put("/v1/services/other", document).await;
    server.wait_for_slow_download().await;
    operator.delete("/v1/services/other").await;
    operator.delete("/v1/services/shop-prod").await;
    let mut gone = node.running.repository(&repository()).unwrap();
    assert_eq!(operator.delete("/v1/repositories/shop").await.status, 204);
    // The worker has stopped once its state is gone.
    in_time(async { while gone.changed().await.is_ok() {} }).await;
    node.stop().await;
}

#[tokio::test]
async fn a_wrong_object_backs_off_and_delays_no_other() {
    let shop = Shop::new();
    let mut config = shop.config();
    also(&mut config, "good").lfs = true;
    let wrong = shop.server.store(b"a model that is wrong");
    shop.git.write("deploy/model.bin", &wrong);
    shop.git.commit_file("good/model.bin", shop.server.store(b"another"));
    let is_wrong = |pointer: &str| LfsBehavior {
        contents: Some(b"x".to_vec()),
        only_object: Some(pointer.to_owned()),
        ..LfsBehavior::default()
    };
    shop.set_behavior(is_wrong(&wrong));
    let node = shop.home.start(config).await;
    node.published_of("good", |_| true).await;
    let reported = failure(&node).await;
    assert!(reported["reason"].as_str().unwrap().contains("`model.bin` is not stored: it has 1 bytes"), "{reported}");
    let polls = 30;
    for _ in 0..polls {
        node.poll().await;
    }
    // Each pause is twice the former, so this holds on a slow machine.
    let downloads = downloads_of(&shop.server, &wrong);
    assert!((1..polls / 3).contains(&downloads), "{downloads} downloads");
    // While an attempt runs, there is no next one.
    let mut shown = Value::Null;
    until(async || {
        shown = node.status().await["repositories"][0]["lfs"].take();
        shown["next_attempt"].is_string()
    })
    .await;
    let failed = &shown["failure"];
    assert!(failed["reason"].as_str().unwrap().contains("`model.bin`") && failed["since"].is_string(), "{shown}");
    assert!(failed["attempts"].as_u64().unwrap() >= 1, "{shown}");

    // Objects of a new commit are requested at once.
    let right = shop.server.store(b"a model that is right");
    let second = shop.git.commit_file("deploy/model.bin", &right);
    node.poll().await;
    node.published(|published| published.publication().commit.as_ref() == Some(&second)).await;
    node.repository(|state| state.lfs.is_none()).await;

    // An object that is repaired without a commit is fetched without a poll.
    let late = shop.server.store(b"a model that is put right");
    shop.set_behavior(is_wrong(&late));
    let third = shop.git.commit_file("deploy/model.bin", &late);
    node.poll().await;
    lfs(&node, |lfs| lfs.failure.is_some()).await;
    assert!(downloads_of(&shop.server, &late) > 0, "of what is waited for now");
    shop.set_behavior(LfsBehavior::default());
    node.published(|published| published.publication().commit.as_ref() == Some(&third)).await;
    node.stop().await;
}

#[tokio::test]
async fn unneeded_objects_are_removed_from_an_idle_repository() {
    let shop = Shop::new();
    let mut config = shop.config();
    config.retention.versions = 0;
    let node = shop.home.start(config.clone()).await;
    node.published(|_| true).await;
    node.stop().await;
    let object = shop.object();
    set_old(&object);

    // A service with a missing ref does not block garbage collection.
    config.services[0].lfs = false;
    also(&mut config, "other").lfs = true;
    config.services[1].followed_ref = "elsewhere".parse().unwrap();
    let node = shop.home.start(config).await;
    wait_for_maintenance(&node).await;
    assert!(!object.exists());
    node.stop().await;
}

#[tokio::test]
async fn objects_stay_while_a_damaged_mirror_cannot_be_cloned_again() {
    let shop = Shop::new();
    let node = shop.home.start(shop.config()).await;
    let before = node.published(|_| true).await;
    node.stop().await;
    let (object, mirror) = (shop.object(), shop.mirror());
    set_old(&object);
    fs::write(mirror.join("HEAD"), "").unwrap();

    shop.server
        .set_behavior(LfsBehavior { authorization: Some("another password".to_owned()), ..LfsBehavior::default() });
    let node = shop.home.start(shop.config()).await;
    wait_for_maintenance(&node).await;
    assert!(!node.repository(|_| true).await.mirrored);
    assert!(object.exists());

    shop.set_behavior(LfsBehavior::default());
    wait_for_maintenance(&node).await;
    assert!(node.repository(|_| true).await.mirrored && object.exists());
    assert_eq!(node.descriptor().await.version(), before.version());
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 0.0);
    node.stop().await;
}

#[tokio::test]
async fn services_do_not_fail_while_their_repository_is_cloned_again() {
    let shop = Shop::new();
    let large = shop.server.store(&LARGE);
    shop.git.commit_file("deploy/model.bin", &large);
    shop.set_behavior(slow(&large));
    let node = shop.home.start(shop.config()).await;
    shop.server.wait_for_slow_download().await;

    // The repository has another object format now, which makes the mirror unusable, and the server sends only refs.
    fs::remove_dir_all(shop.git.dir.join(".git")).unwrap();
    shop.git.run(["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    let commit = shop.git.commit("in another format");
    let kept = shop.git.dir.join(".git/objects").join(&commit.as_str()[..2]);
    for folder in fs::read_dir(shop.git.dir.join(".git/objects")).unwrap().map(|folder| folder.unwrap().path()) {
        if folder != kept {
            fs::remove_dir_all(folder).unwrap();
        }
    }
    node.poll().await;
    node.repository(|state| !state.mirrored && state.consecutive_failures > 1).await;

    // The fetch has ended, and waiting services are resolved.
    shop.set_behavior(LfsBehavior::default());
    node.repository(|state| state.lfs.is_none()).await;
    assert_eq!(*node.running.condition(&crate::node::service()).unwrap().borrow(), Condition::Pending);
    node.stop().await;
}

#[tokio::test]
async fn a_slow_storage_loses_its_permit_to_others_of_its_host() {
    let shop = Shop::new();
    let (drips_name, dripping) = ("drips", shop.server.store(&LARGE));
    let git = Git::init(&shop.home.file("git").join("drips.git"));
    git.write(".gitattributes", ATTRIBUTES);
    git.commit_file("drips/model.bin", &dripping);
    shop.set_behavior(slow(&dripping));
    let mut config = shop.config();
    config.limits.concurrent_fetches = 1;
    let mut repository = config.repositories[0].clone();
    (repository.name, repository.url) = (drips_name.parse().unwrap(), shop.server.url("drips.git").into());
    repository.stall_timeout = Duration::from_secs(3);
    config.repositories.push(repository);
    also(&mut config, drips_name).lfs = true;
    config.services[1].repository = Some(drips_name.parse().unwrap());
    let node = shop.home.start(config).await;
    shop.server.wait_for_slow_download().await;

    let second = shop.git.commit_file("deploy/model.bin", shop.server.store(b"a model that comes"));
    node.poll().await;
    node.published(|published| published.publication().commit.as_ref() == Some(&second)).await;
    let mut condition = node.running.condition(&drips_name.parse().unwrap()).unwrap();
    let is_too_slow = |condition: &Condition| matches!(condition, Condition::Unhealthy { step: "lfs", reason, .. } if reason.contains("`[upstreams] min_rate` = 1024"));
    in_time(condition.wait_for(is_too_slow)).await.unwrap();
    node.running.cut().await;
}

#[tokio::test]
async fn a_forced_poll_and_a_changed_document_retry_failed_objects() {
    let home = Home::new();
    let root = home.file("git");
    let (server, git) = (LfsServer::start(&root, None), Git::init(&root.join("shop.git")));
    git.write(".gitattributes", ATTRIBUTES);
    git.commit_file("deploy/model.bin", server.store(b"the model itself"));
    server.set_behavior(LfsBehavior { contents: Some(b"x".to_vec()), ..LfsBehavior::default() });
    let (node, operator) = operated(&home).await;
    let shop = |interval: &str| json!({ "url": server.url("shop.git"), "poll_interval": interval });
    let model = json!({ "repository": "shop", "folder": "deploy", "lfs": true });
    operator.put("/v1/repositories/shop", shop("1h")).await;
    operator.put("/v1/services/shop-prod", model).await;
    let begun_after =
        |before: SystemTime| lfs(&node, move |lfs| lfs.failure.as_ref().is_some_and(|failure| failure.since > before));
    let first = begun_after(SystemTime::UNIX_EPOCH).await.failure.unwrap().since;
    assert_eq!(operator.post("/v1/repositories/shop/refresh").await.status, 202);
    let second = begun_after(first).await.failure.unwrap().since;
    assert_eq!(operator.put("/v1/repositories/shop", shop("2h")).await.status, 200);
    begun_after(second).await;
    node.running.cut().await;
}
