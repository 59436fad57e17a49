//! The forced refresh: in full, compared with the files on disk.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use http::Method;
use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::Fault;
use crate::tarball::{Tarball, with_content};

fn tree() -> Vec<u8> {
    Tarball::new().file("a", "aaa").directory("d").file("d/b", "bbb").executable("run", "x").symlink("s", "a").finish()
}

#[tokio::test]
async fn an_intact_release_stays() {
    let (world, edge, digest, mut agent) = World::following(tree()).await;
    edge.answers.forget();
    let status = agent.refresh().await;
    assert_eq!((status.switches, status.unchanged, status.refreshes), (1, 1, 1));
    assert_eq!(world.releases(), [digest.to_string()]);
    let seen = edge.answers.seen();
    assert_eq!(seen.len(), 1, "it is one request in full");
    assert_eq!(seen[0].method, Method::GET);
    assert_eq!(seen[0].headers["cache-control"], "no-cache");
    assert!(!seen[0].headers.contains_key("if-none-match") && !seen[0].headers.contains_key("available-dictionary"));
    world.assert_no_leftovers();
    agent.stop().await;
}

type Damage = fn(&Path);

#[tokio::test]
async fn a_modified_release_is_replaced_and_exec_runs_again() {
    let (world, edge) = World::with_edge().await;
    let (digest, _) = edge.answers.publish(&shop(), tree());
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("true".into());
    let mut agent = Agent::with_release(config).await;
    let damages: [(&str, Damage); 10] = [
        ("mode of all", |at| std::fs::set_permissions(at, PermissionsExt::from_mode(0o700)).unwrap()),
        ("contents", |at| std::fs::write(at.join("a"), "aab").unwrap()),
        ("size", |at| std::fs::write(at.join("a"), "aaaa").unwrap()),
        ("missing file", |at| std::fs::remove_file(at.join("d/b")).unwrap()),
        ("missing folder", |at| std::fs::remove_dir_all(at.join("d")).unwrap()),
        ("extra file", |at| std::fs::write(at.join("d/extra"), "").unwrap()),
        ("mode", |at| std::fs::set_permissions(at.join("run"), PermissionsExt::from_mode(0o644)).unwrap()),
        ("link target", |at| {
            std::fs::remove_file(at.join("s")).unwrap();
            symlink("d", at.join("s")).unwrap();
        }),
        ("file turned link", |at| {
            std::fs::rename(at.join("a"), at.join("d/b")).unwrap();
            symlink("d/b", at.join("a")).unwrap();
        }),
        ("folder turned link", |at| {
            std::fs::rename(at.join("d"), at.join("e")).unwrap();
            symlink("e", at.join("d")).unwrap();
        }),
    ];
    for (count, (name, damage)) in (1..).zip(damages) {
        let runs = agent.until("exec has run", |status| status.hook == HookState::Succeeded).await.hook_runs;
        damage(&world.service_dir().join("current"));
        let status = agent.refresh().await;
        assert_eq!((status.last_error, status.switches), (None, count + 1), "{name}");
        let current = world.current().unwrap();
        assert!(current.starts_with(&format!("{digest}.")), "{name}: {current}");
        assert_eq!(world.read("a").as_deref(), Some("aaa"), "{name}");
        assert_eq!(world.read("d/b").as_deref(), Some("bbb"), "{name}");
        assert_eq!(agent.metric("weir_agent_refresh_repaired_total", &[]), count as f64, "{name}");
        agent.until("exec has run again", |status| status.hook_runs > runs).await;
        assert_eq!(agent.refresh().await.switches, count + 1, "{name}: and now it is as it should be");
    }
    assert_eq!(agent.metric("weir_agent_refresh_missed_change_total", &[]), 0.0);
    agent.stop().await;
}

#[tokio::test]
async fn a_refresh_finds_and_counts_a_change_that_polls_missed() {
    let (world, edge, _, mut agent) = World::following(with_content("one")).await;
    let (two, _) = edge.answers.publish(&shop(), with_content("two"));
    agent.refresh().await;
    assert_eq!(world.current(), Some(two.to_string()));
    assert_eq!(agent.metric("weir_agent_refresh_missed_change_total", &[]), 1.0);
    assert_eq!(agent.metric("weir_agent_refresh_repaired_total", &[]), 0.0);
    // Wrong bytes are no reason to repair anything.
    edge.answers.fail_always(Fault::FlipBit);
    let status = agent.refresh().await;
    assert!(status.last_error.is_some());
    assert_eq!((status.switches, world.current()), (2, Some(two.to_string())));
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_current_symlink_is_restored() {
    let (world, edge, one, mut agent) = World::following(with_content("one")).await;
    let (two, _) = edge.answers.publish(&shop(), with_content("two"));
    agent.poll().await;
    let link = world.service_dir().join("current");
    for damage in [true, false] {
        std::fs::remove_file(&link).unwrap();
        if damage {
            symlink(format!("releases/{one}"), &link).unwrap();
        }
        agent.refresh().await;
        assert_eq!(world.current(), Some(two.to_string()));
    }
    assert_eq!(agent.metric("weir_agent_refresh_repaired_total", &[]), 2.0);
    agent.stop().await;
}
