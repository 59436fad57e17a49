//! Tarballs whose digest is right and whose contents must not be unpacked.

use bytesize::ByteSize;
use tar::EntryType;

use crate::agent_under_test::{Agent, World, shop};
use crate::tarball::{Tarball, with_content};

/// The agent refuses a tarball, keeps what it has, and leaves nothing behind; and goes on.
async fn is_refused(tars: Vec<(&str, Vec<u8>)>) {
    let (world, edge) = World::offering("good").await;
    let mut config = world.config(&[edge.url()]);
    config.max_files = 100;
    config.max_tarball_bytes = ByteSize::mib(1);
    let mut agent = Agent::with_release(config).await;
    let good = world.current();
    for (reason, tar) in tars {
        edge.answers.publish(&shop(), tar);
        let error = agent.poll().await.last_error.unwrap_or_else(|| panic!("{reason}: it was taken"));
        assert!(error.contains(reason), "{reason}: {error}");
        assert_eq!(world.current(), good, "{reason}");
        assert_eq!(world.releases().len(), 1, "{reason}");
        world.assert_no_leftovers();
    }
    edge.answers.publish(&shop(), with_content("better"));
    agent.poll().await;
    assert_eq!(world.read("content").as_deref(), Some("better"));
    agent.stop().await;
}

#[tokio::test]
async fn names_that_lead_outside_are_refused() {
    is_refused(vec![
        ("not safe", Tarball::new().file("../escaped", "").finish()),
        ("not safe", Tarball::new().file("a/../../escaped", "").finish()),
        ("not safe", Tarball::new().file("/tmp/escaped", "").finish()),
        ("not safe", Tarball::new().file("./a", "").finish()),
        ("not safe", Tarball::new().directory(".git").finish()),
        ("not safe", Tarball::new().file("a/.Git/config", "").finish()),
        ("not safe", Tarball::new().file("x".repeat(256), "").finish()),
        ("not safe", Tarball::new().file([b"a\0b".as_slice(), &[b'c'; 100]].concat(), "").finish()),
    ])
    .await;
}

#[tokio::test]
async fn symlinks_that_lead_outside_and_files_through_symlinks_are_refused() {
    is_refused(vec![
        ("may leave the release", Tarball::new().symlink("a", "/etc").finish()),
        ("may leave the release", Tarball::new().symlink("a", "../..").finish()),
        ("may leave the release", Tarball::new().directory("d").symlink("d/a", "../../x").finish()),
        ("may leave the release", Tarball::new().symlink("a", "d/l/../x").directory("d").symlink("d/l", "..").finish()),
        ("in place of a directory", Tarball::new().directory("d").symlink("a", "d").file("a/through", "").finish()),
        ("exists already", Tarball::new().file("a", "").file("a/below", "").finish()),
        ("hard links", Tarball::new().file("a", "").entry(EntryType::Link, b"b", 0o644, b"a", b"").finish()),
    ])
    .await;
}

#[tokio::test]
async fn other_types_duplicates_and_malformed_tarballs_are_refused() {
    let entry = |kind| Tarball::new().entry(kind, b"a", 0o644, b"", b"").finish();
    is_refused(vec![
        ("devices", entry(EntryType::Char)),
        ("devices", entry(EntryType::Block)),
        ("fifos", entry(EntryType::Fifo)),
        ("type", entry(EntryType::XGlobalHeader)),
        ("exists already", Tarball::new().file("a", "1").file("a", "2").finish()),
        ("exists already", Tarball::new().directory("a").directory("a").finish()),
        ("exists already", Tarball::new().symlink("a", "b").file("a", "").finish()),
        ("follows its end", [with_content("x"), vec![0; 512]].concat()),
        ("two zero blocks", with_content("x")[..1024].to_vec()),
        ("not ustar", vec![1; 1024]),
        ("max_files", (0..101).fold(Tarball::new(), |tar, i| tar.file(format!("{i}"), "")).finish()),
    ])
    .await;
}

#[tokio::test]
async fn a_decompression_bomb_stops_at_the_limit() {
    is_refused(vec![("larger", Tarball::new().file("zeros", vec![0; 20 << 20]).finish())]).await;
}

#[tokio::test]
async fn implied_directories_count_towards_max_files() {
    let (world, edge) = World::with_edge().await;
    let mut config = world.config(&[edge.url()]);
    config.max_files = 100;
    let tree = |depth: usize| {
        let above = vec!["d"; depth].join("/");
        Tarball::new().file(format!("{above}/file"), "").file(format!("{above}/other"), "").finish()
    };
    edge.answers.publish(&shop(), tree(98));
    let mut agent = Agent::with_release(config).await;
    edge.answers.publish(&shop(), tree(99));
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains("max_files"), "{error}");
    world.assert_no_leftovers();
    agent.stop().await;
}

#[tokio::test]
async fn a_refused_tarball_is_not_fetched_at_each_poll() {
    let (world, edge) = World::with_edge().await;
    let evil = Tarball::new().file("../evil", "x").finish();
    edge.answers.publish(&shop(), evil);
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    let first = agent.until("the first poll has ended", |status| status.polls > 0).await;
    edge.answers.forget();
    let status = agent.poll().await;
    assert_eq!((status.errors, &status.last_error), (2, &first.last_error), "the reason is still reported");
    assert!(edge.answers.seen().iter().all(|seen| seen.method == http::Method::HEAD));
    // A refresh looks again, and another tarball is another matter.
    agent.refresh().await;
    assert!(edge.answers.seen().iter().any(|seen| seen.method == http::Method::GET));
    edge.answers.publish(&shop(), with_content("good"));
    assert_eq!(agent.poll().await.last_error, None);
    assert_eq!(world.read("content").as_deref(), Some("good"));
    agent.stop().await;
}
