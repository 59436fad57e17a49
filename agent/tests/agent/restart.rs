//! What a killed agent leaves, step by step, and how the next one goes on.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use weir_agent::config::ServiceConfig;
use weir_agent::start;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::HookState;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::TestEdge;
use crate::tarball::with_content;

/// A world in which "one" is in force and the agent has stopped.
async fn stopped() -> (World, TestEdge, TarballDigest) {
    let (world, edge, one, agent) = World::following(with_content("one")).await;
    agent.stop().await;
    (world, edge, one)
}

#[tokio::test]
async fn temporary_files_are_removed_and_the_release_stays() {
    let (world, edge, one) = stopped().await;
    let dir = world.service_dir();
    fs::create_dir_all(dir.join("releases/.b3-half.partial/sub")).unwrap();
    fs::write(dir.join("releases/.b3-half.partial/sub/file"), "half").unwrap();
    fs::create_dir(dir.join("releases/.b3-old.removed")).unwrap();
    fs::write(dir.join("incoming/half.tar"), "half").unwrap();
    symlink("releases/nowhere", dir.join(".current.new")).unwrap();
    fs::write(dir.join(".state.new"), "{").unwrap();
    // What is not the agent's is left alone.
    fs::create_dir(dir.join("releases/notes")).unwrap();
    let agent = Agent::start(world.config(&[edge.url()])).await;
    assert_eq!(agent.status.borrow().release.as_ref().unwrap().digest, one);
    world.assert_no_leftovers();
    assert!(!dir.join(".current.new").is_symlink() && !dir.join(".state.new").exists());
    assert!(dir.join("releases/notes").exists());
    assert_eq!(world.read("content").as_deref(), Some("one"));
    agent.stop().await;
}

/// Copies the release in force under the name of another one, as if it had been unpacked.
fn place(world: &World, tar_content: &str) -> TarballDigest {
    let digest = TarballDigest::of(&with_content(tar_content));
    let at = world.service_dir().join("releases").join(digest.to_string());
    fs::create_dir(&at).unwrap();
    fs::write(at.join("content"), tar_content).unwrap();
    digest
}

#[tokio::test]
async fn a_kill_after_the_release_was_renamed() {
    let (world, edge, _) = stopped().await;
    let two = place(&world, "two");
    edge.answers.publish(&shop(), with_content("two"));
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("it has switched", |status| status.switches == 1).await;
    // It was compared, found equal, and used.
    assert_eq!(world.current(), Some(two.to_string()));
    assert_eq!(world.releases().len(), 2);
    agent.stop().await;

    // One that is not whole does not become a release, whatever its name.
    let three = place(&world, "three");
    fs::write(world.service_dir().join("releases").join(three.to_string()).join("content"), "thr").unwrap();
    edge.answers.publish(&shop(), with_content("three"));
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("it has switched", |status| status.switches == 1).await;
    assert_eq!(world.current(), Some(format!("{three}.1")));
    assert_eq!(world.read("content").as_deref(), Some("three"));
    agent.stop().await;
}

#[tokio::test]
async fn a_kill_before_and_after_the_symlink_is_replaced() {
    let (world, edge, one) = stopped().await;
    let state = world.service_dir().join("state");
    let before = fs::read(&state).unwrap();
    let (two, _) = edge.answers.publish(&shop(), with_content("two"));
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("it has switched", |status| status.switches == 1).await;
    agent.stop().await;
    let after = fs::read(&state).unwrap();
    let link = world.service_dir().join("current");
    let point_at = |digest: &TarballDigest| {
        fs::remove_file(&link).unwrap();
        symlink(format!("releases/{digest}"), &link).unwrap();
    };
    let log = world.path().join("log");
    let mut config = world.config(&["https://127.0.0.1:1".to_owned()]);
    config.services[0].exec = Some(format!("echo $WEIR_DIGEST:$WEIR_COMMIT >> {}", log.display()).into());
    // The state is ahead of the link, then behind it, then lost: the link is the truth, and exec runs for it.
    for (bytes, digest) in [(Some(&after), &one), (Some(&before), &two), (None, &two)] {
        match bytes {
            Some(bytes) => fs::write(&state, bytes).unwrap(),
            None => fs::remove_file(&state).unwrap(),
        }
        point_at(digest);
        let _ = fs::remove_file(&log);
        let mut agent = Agent::start(config.clone()).await;
        assert_eq!(agent.status.borrow().release.as_ref().unwrap().digest, *digest);
        agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
        assert!(fs::read_to_string(&log).unwrap().starts_with(&format!("{digest}:")));
        agent.stop().await;
    }
    // A damaged state is a lost one.
    fs::write(&state, "{\"version\": 1, ").unwrap();
    Agent::start(config.clone()).await.stop().await;
}

#[tokio::test]
async fn a_state_that_another_version_wrote_keeps_the_highest_generation() {
    let (world, edge, one) = stopped().await;
    let path = world.service_dir().join("state");
    let known: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let mut more = known.clone();
    more["highest_generation"] = 7.into();
    more["a_field_of_tomorrow"] = "x".into();
    let next = serde_json::json!({ "version": 2, "highest_generation": 7, "release": ["another", "shape"] });
    let mut odd = known;
    odd["highest_generation"] = 7.into();
    odd["hook"] = "unheard-of".into();
    for state in [more, next, odd] {
        fs::write(&path, state.to_string()).unwrap();
        // Twice: what is written again has it, too.
        for _ in 0..2 {
            let mut agent = Agent::start(world.config(&[edge.url()])).await;
            let status = agent.until("the first poll has ended", |status| status.polls > 0).await;
            assert!(status.last_error.unwrap().contains("generation 1"), "{state}");
            assert_eq!(world.current(), Some(one.to_string()));
            agent.stop().await;
        }
    }
}

#[tokio::test]
async fn a_new_generation_is_the_only_news_that_is_written() {
    let (world, edge, _, mut agent) = World::following(with_content("one")).await;
    let written = || fs::read(world.service_dir().join("state")).unwrap();
    let modified = || fs::metadata(world.service_dir().join("state")).unwrap().modified().unwrap();
    let (before, at) = (written(), modified());
    agent.poll().await;
    agent.refresh().await;
    assert_eq!((written(), modified()), (before.clone(), at), "nothing is new");
    edge.answers.publish(&shop(), with_content("one"));
    agent.poll().await;
    assert_ne!(written(), before, "the highest generation rose");
    let (before, at) = (written(), modified());
    agent.poll().await;
    assert_eq!((written(), modified()), (before, at));
    agent.stop().await;
}

#[tokio::test]
async fn a_deleted_release_is_fetched_again() {
    let (world, edge, one) = stopped().await;
    fs::remove_dir_all(world.service_dir().join("releases").join(one.to_string())).unwrap();
    let mut agent = Agent::start(world.config(&[edge.url()])).await;
    agent.until("it is back", |status| status.release.is_some()).await;
    assert_eq!(world.read("content").as_deref(), Some("one"));
    agent.stop().await;
}

type Foreign = fn(&Path);

fn folder(at: &Path) {
    fs::create_dir(at).unwrap();
}

fn file(at: &Path) {
    fs::write(at, "mine").unwrap();
}

fn pipe(at: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, at, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
}

#[tokio::test]
async fn what_is_in_the_way_of_a_service_fails_that_service_alone() {
    let (world, edge, _) = stopped().await;
    let bakery: ServiceName = "bakery".parse().unwrap();
    edge.answers.publish(&bakery, with_content("bread"));
    let mut config = world.config(&[edge.url()]);
    config.services.push(ServiceConfig::new(&bakery));
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    let foreign: [(&str, Foreign); 12] = [
        ("shop/current", file),
        ("shop/current", folder),
        ("shop/current", |at| symlink("/etc", at).unwrap()),
        ("shop/current", |at| symlink("releases/../..", at).unwrap()),
        ("shop/state", folder),
        ("shop/state", pipe),
        ("shop/.state.new", folder),
        ("shop/incoming", file),
        ("shop/releases", file),
        ("shop", file),
        (".pins/shop", folder),
        (".pins/shop", file),
    ];
    fs::create_dir(world.path().join("root/.pins")).unwrap();
    for (name, make) in foreign {
        let (path, away) = (world.path().join("root").join(name), world.path().join("away"));
        let _ = fs::rename(&path, &away);
        make(&path);
        let mut agent = Agent::start(config.clone()).await;
        let mut other = agent.running.service(&bakery).unwrap();
        let followed = other.wait_for(|status| status.release.is_some() && status.polls > 0);
        tokio::time::timeout(crate::edge::PATIENCE, followed).await.expect("the other is followed").unwrap();
        let failed = agent.until("its poll has failed", |status| status.last_error.is_some()).await.last_error.unwrap();
        assert!(failed.contains(path.to_str().unwrap()), "{name}: {failed}");
        let (_, ready) = agent.admin("/readyz").await;
        assert!(ready.contains("shop") && !ready.contains("bakery"), "{name}: {ready}");

        // It goes on without a restart.
        match path.is_dir() && !path.is_symlink() {
            true => fs::remove_dir(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        let _ = fs::rename(&away, &path);
        agent.until("it is polled", |status| status.last_error.is_none()).await;
        assert_eq!(world.read("content").as_deref(), Some("one"), "{name}");
        agent.stop().await;
    }
    // And while it runs.
    let link = world.service_dir().join("current");
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    fs::remove_file(&link).unwrap();
    fs::write(&link, "mine").unwrap();
    edge.answers.publish(&shop(), with_content("two"));
    let error = agent.poll().await.last_error.unwrap();
    assert!(error.contains(link.to_str().unwrap()), "{error}");
    assert_eq!(fs::read_to_string(&link).unwrap(), "mine");
    agent.stop().await;
}

#[tokio::test]
async fn an_interrupted_download_changes_nothing() {
    let (world, edge, one) = stopped().await;
    edge.answers.publish(&shop(), with_content("x".repeat(300_000)));
    edge.answers.fail_always(crate::edge::Fault::Stall);
    let mut config = world.config(&[edge.url()]);
    config.idle_timeout = std::time::Duration::from_secs(3600);
    edge.answers.forget();
    let agent = Agent::start(config).await;
    let asked = async {
        while !edge.answers.seen().iter().any(|seen| seen.method == http::Method::GET) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::edge::PATIENCE, asked).await.unwrap();
    // A drain does not wait for it either.
    agent.stop().await;
    assert_eq!(world.current(), Some(one.to_string()));
    world.assert_no_leftovers();
}

#[tokio::test]
async fn one_agent_per_root() {
    let (world, edge, _) = stopped().await;
    let agent = Agent::start(world.config(&[edge.url()])).await;
    let error = start(world.config(&[edge.url()])).await.err().expect("it is refused").to_string();
    assert!(error.contains("another agent") && error.contains("root"), "{error}");
    agent.stop().await;
}
