//! First release, change, nothing new.

use std::os::unix::fs::PermissionsExt;

use http::Method;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Seen, commit};
use crate::tarball::{Tarball, with_content};

#[tokio::test]
async fn the_first_release_and_the_following_ones_are_switched_to() {
    let (world, edge, one, mut agent) = World::following(with_content("one")).await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
    assert_eq!(world.current(), Some(one.to_string()));

    // Nothing new: one small request and no tarball.
    edge.answers.forget();
    let status = agent.poll().await;
    assert_eq!((status.unchanged, status.switches), (1, 1));
    assert_eq!(edge.answers.seen().len(), 1);
    let seen = &edge.answers.seen()[0];
    assert_eq!(seen.method, Method::HEAD);
    assert_eq!(seen.headers["if-none-match"], format!("\"{one}\""));

    let (two, generation) = edge.answers.publish(&shop(), with_content("two"));
    let release = agent.poll().await.release.unwrap();
    assert_eq!((release.digest, release.generation), (two, generation));
    assert_eq!(release.commit.unwrap().as_str(), commit(generation));
    assert_eq!(world.read("content").as_deref(), Some("two"));
    assert_eq!(std::fs::read_to_string(release.directory.join("content")).unwrap(), "two");
    // Absolute, and not through the link: a reader that is in it stays in it.
    assert!(release.directory.is_absolute() && release.directory.ends_with(two.to_string()));
    let previous = world.service_dir().join("releases").join(one.to_string()).join("content");
    assert_eq!(std::fs::read_to_string(previous).unwrap(), "one");
    world.assert_no_leftovers();
    agent.stop().await;
}

#[tokio::test]
async fn the_same_content_under_a_new_commit_is_no_switch() {
    let (world, edge) = World::with_edge().await;
    let tar = with_content("same");
    edge.answers.publish(&shop(), tar.clone());
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    let (_, generation) = edge.answers.publish(&shop(), tar);
    edge.answers.forget();
    let status = agent.poll().await;
    assert_eq!((status.switches, status.unchanged), (1, 1));
    assert!(edge.answers.seen().iter().all(|seen| seen.method != Method::GET));
    assert_eq!(status.release.unwrap().generation, generation);
    agent.stop().await;
}

#[tokio::test]
async fn every_type_of_entry_has_its_exact_mode() {
    let (world, edge) = World::with_edge().await;
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let tar = Tarball::new()
        .file("empty", "")
        .file("odd\n name", "newline")
        .file(b"not-utf-8-\xff\xfe", "bytes")
        .executable("run", "#!/bin/sh\n")
        .directory("dir")
        .file("dir/inner", [7; 100_000])
        .symlink("dir/link", "../run")
        .symlink("dangling", "nowhere")
        .directory("d".repeat(120))
        .file(&long, "long")
        .file("without/its/directories", "made on the way")
        .finish();
    edge.answers.publish(&shop(), tar);
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    let at = world.service_dir().join("current");
    let mode = |name: &str| std::fs::symlink_metadata(at.join(name)).unwrap().permissions().mode() & 0o7777;
    for (name, expected) in
        [("empty", 0o644), ("run", 0o755), ("dir", 0o755), ("dir/inner", 0o644), ("without/its", 0o755)]
    {
        assert_eq!(mode(name), expected, "{name}");
    }
    assert_eq!(std::fs::metadata(at.join("dir/inner")).unwrap().len(), 100_000);
    assert_eq!(std::fs::read_link(at.join("dir/link")).unwrap().to_str(), Some("../run"));
    assert_eq!(std::fs::read_link(at.join("dangling")).unwrap().to_str(), Some("nowhere"));
    assert_eq!(world.read("odd\n name").as_deref(), Some("newline"));
    assert_eq!(world.read(&long).as_deref(), Some("long"));
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"not-utf-8-\xff\xfe");
    assert_eq!(std::fs::read(at.join(name)).unwrap(), b"bytes");
    // What was unpacked is what the tarball says: the refresh finds nothing to repair.
    assert_eq!(agent.refresh().await.switches, 1);
    agent.stop().await;
}

#[tokio::test]
async fn a_path_longer_than_path_max_is_unpacked() {
    let (world, edge) = World::with_edge().await;
    let deep = vec!["x".repeat(200); 40].join("/");
    edge.answers.publish(&shop(), Tarball::new().file(format!("{deep}/file"), "deep").finish());
    let mut config = world.config(&[edge.url()]);
    config.keep_releases = 1;
    let mut agent = Agent::with_release(config).await;
    assert_eq!(agent.refresh().await.switches, 1, "compared and found equal");
    edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    edge.answers.publish(&shop(), with_content("three"));
    agent.poll().await;
    assert_eq!(world.releases().len(), 2, "and removed again");
    world.assert_no_leftovers();
    agent.stop().await;
}

#[tokio::test]
async fn the_current_the_previous_and_keep_releases_are_not_pruned() {
    let (world, edge, _, mut agent) = World::following(with_content("0")).await;
    let mut digests = Vec::new();
    for content in ["1", "2", "3", "4"] {
        digests.push(edge.answers.publish(&shop(), with_content(content)).0.to_string());
        agent.poll().await;
    }
    let mut kept = digests[1..].to_vec();
    kept.sort();
    assert_eq!(world.releases(), kept);
    // Back to one that is still there: it is used again.
    let (again, _) = edge.answers.publish(&shop(), with_content("2"));
    agent.poll().await;
    assert_eq!((world.current(), world.releases()), (Some(again.to_string()), kept));
    agent.stop().await;
}

#[tokio::test]
async fn all_requests_of_a_poll_have_one_id_and_the_next_poll_has_another() {
    let (_world, edge, _, mut agent) = World::following(with_content("one")).await;
    edge.answers.forget();
    edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    let ids = |seen: Vec<Seen>| seen.iter().map(|seen| seen.headers["x-request-id"].clone()).collect::<Vec<_>>();
    let changed = ids(edge.answers.seen());
    assert!(changed.len() == 2 && changed[0] == changed[1] && changed[0].len() == 16, "HEAD and GET: {changed:?}");
    edge.answers.forget();
    agent.poll().await;
    let unchanged = ids(edge.answers.seen());
    assert!(unchanged.len() == 1 && unchanged[0] != changed[0], "{unchanged:?}");
    agent.stop().await;
}
