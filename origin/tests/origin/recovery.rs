//! Restarts, losses and outages.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::fs::{Mode, OFlags};

use crate::damage::only_mirror;
use crate::prelude::*;

#[tokio::test]
async fn a_restart_without_the_upstream_serves_the_same() {
    let (home, upstream, node, descriptor) = started().await;
    node.stop().await;
    upstream.take_away();

    let node = home.start(home.config(&upstream.url())).await;
    assert_eq!(node.descriptor().await.bytes(), descriptor.bytes(), "from the first moment");
    node.tarball(&descriptor).await;
    node.repository(|state| state.consecutive_failures > 0).await;
    assert_eq!(node.descriptor().await.bytes(), descriptor.bytes());
    assert_eq!(node.metric("weir_origin_builds_total{result=\"built\"}").await, 0.0);
    assert_eq!(node.metric("weir_origin_repository_healthy{repository=\"shop\"}").await, 0.0);

    upstream.give_back();
    let commit = upstream.push("deploy/app.yaml", b"replicas: 5\n");
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), commit);
    node.stop().await;
}

#[tokio::test]
async fn a_new_service_is_built_from_the_mirror_while_the_upstream_is_down() {
    let (home, upstream, node, _) = started().await;
    node.stop().await;
    upstream.take_away();
    let mut config = home.config(&upstream.url());
    config.services[0].folder = "docs".parse().unwrap();
    let node = home.start(config).await;
    let descriptor = node.published(|d| d.publication().size > 0 && d.revision() == 1).await;
    let descriptor = node.published(|d| d.publication().digest != descriptor.publication().digest).await;
    assert_eq!(crate::node::names(&node.tarball(&descriptor).await), ["readme.md"]);
    node.stop().await;
}

#[tokio::test]
async fn generations_grow_across_the_loss_of_everything_and_the_digest_is_the_same() {
    let (home, upstream, node, before) = started().await;
    node.stop().await;
    fs::remove_dir_all(home.data_dir()).unwrap();
    let (node, after) = home.start_published(&upstream).await;
    assert_eq!(after.publication().digest, before.publication().digest);
    assert_eq!(object_of(&after), object_of(&before));
    assert!(after.publication().generation > before.publication().generation);
    node.stop().await;
}

#[tokio::test]
async fn another_url_is_another_mirror_and_is_cloned_again() {
    let (home, first, second) = (Home::new(), Upstream::small(), Upstream::small());
    let (node, old) = home.start_published(&first).await;
    node.stop().await;
    second.push("deploy/app.yaml", b"of another place\n");
    let node = home.start(home.config(&second.url())).await;
    assert_eq!(node.descriptor().await.bytes(), old.bytes(), "the last good one, until the new place answered");
    node.published(|d| commit_of(d) == second.git(&["rev-parse", "main"])).await;
    node.stop().await;
}

/// Each has a thread of its own and reads the disk.
#[tokio::test]
async fn a_start_with_many_repositories_opens_eight_mirrors_at_a_time() {
    let (home, upstream, node, _) = started().await;
    node.stop().await;
    let mut config = home.config(&upstream.url());
    let (repository, service) = (config.repositories.remove(0), config.services.remove(0));
    let mirrors = archive(&home.data_dir().join("mirrors/shop"));
    let names: Vec<String> = (0..14).map(|number| format!("shop-{number}")).collect();
    let heads = names.iter().map(|name| {
        let folder = home.data_dir().join("mirrors").join(name);
        tar::Archive::new(mirrors.as_slice()).unpack(&folder).unwrap();
        let name: RepositoryName = name.parse().unwrap();
        let mut one = repository.clone();
        one.name = name.clone();
        config.repositories.push(one);
        let name_of_service = name.as_str().parse().unwrap();
        config.services.push(ServiceConfig { name: name_of_service, repository: Some(name), ..service.clone() });
        only_mirror(&folder).join("HEAD")
    });
    // Whoever opens a mirror reads its HEAD, and waits for what is written to the pipe.
    let heads: Vec<PathBuf> = heads.collect();
    heads.iter().for_each(|head| fs::remove_file(head).unwrap());
    assert!(Command::new("mkfifo").args(&heads).status().unwrap().success());
    let node = home.start(config).await;
    let mut opened: Vec<Option<OwnedFd>> = heads.iter().map(|_| None).collect();
    let mut look = || {
        for (head, opened) in heads.iter().zip(&mut opened).filter(|(_, opened)| opened.is_none()) {
            // Fails while nobody reads it.
            *opened = rustix::fs::open(head, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()).ok();
        }
        opened.iter().flatten().count()
    };
    until(async || look() >= 8).await;
    assert_eq!(node.metric("weir_bound_in_use{bound=\"ref_lookups\"}").await, 8.0);
    assert_eq!(look(), 8);
    for (head, opened) in heads.iter().zip(opened) {
        fs::write(head.with_extension("new"), "ref: refs/heads/main\n").unwrap();
        fs::rename(head.with_extension("new"), head).unwrap();
        if let Some(pipe) = opened {
            fs::File::from(pipe).write_all(b"ref: refs/heads/main\n").unwrap();
        }
    }
    for name in names {
        node.published_of(&name, |_| true).await;
    }
    node.stop().await;
}
