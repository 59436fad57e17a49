//! Deltas against the release on disk: applied, and refused when they are wrong.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use bytesize::ByteSize;
use http::Method;
use weir_protocol::dcz;
use weir_protocol::digest::Sha256;
use weir_protocol::tar_writer::{END, HeaderKind, pad, write_header};
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::TestEdge;
use crate::tarball::with_content;

/// A tarball as an origin writes it: a program, a link and a file with a long name among others, and this file.
fn version(content: &str) -> Vec<u8> {
    let (long, noise) = ("n".repeat(150), noise(20_000));
    let mut tar = Vec::new();
    let mut file = |path: &str, executable: bool, contents: &[u8]| {
        let size = contents.len() as u64;
        write_header(&mut tar, path.as_bytes(), HeaderKind::File { executable, size });
        tar.extend_from_slice(contents);
        pad(&mut tar, size);
    };
    file("a", true, b"#!/bin/sh\n");
    file("content", false, content.as_bytes());
    write_header(&mut tar, b"d/", HeaderKind::Directory);
    write_header(&mut tar, b"d/link", HeaderKind::Symlink { target: b"../a" });
    write_header(&mut tar, format!("d/{long}").as_bytes(), HeaderKind::File { executable: false, size: 20_000 });
    tar.extend_from_slice(&noise);
    pad(&mut tar, 20_000);
    tar.extend_from_slice(&END);
    tar
}

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().finalize_xof().fill(&mut bytes);
    bytes
}

/// A delta, whatever its header says.
fn frame(old: &[u8], mut new: impl Read, window_log: u32) -> Vec<u8> {
    let mut encoder = Encoder::with_ref_prefix(Vec::new(), 3, old).unwrap();
    encoder.set_parameter(CParameter::WindowLog(window_log)).unwrap();
    std::io::copy(&mut new, &mut encoder).unwrap();
    encoder.flush().unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn delta(old: &[u8], new: &[u8]) -> Vec<u8> {
    [&dcz::header(&Sha256::of(old))[..], &frame(old, new, 20)].concat()
}

fn results(agent: &Agent) -> [f64; 3] {
    ["applied", "modified", "refused"].map(|result| agent.metric("weir_agent_deltas_total", &[("result", result)]))
}

/// An agent whose release is the tarball `old`.
async fn with_release(old: &[u8]) -> (World, TestEdge, Agent) {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish(&shop(), old.to_vec());
    let mut config = world.config(&[edge.url()]);
    config.max_tarball_bytes = ByteSize::mib(32);
    let agent = Agent::with_release(config).await;
    (world, edge, agent)
}

#[tokio::test]
async fn an_agent_applies_a_delta_against_its_release() {
    let mut old = version("0");
    let (world, edge, mut agent) = with_release(&old).await;
    for content in ["1", "2"] {
        let new = version(content);
        let (digest, _) = edge.answers.publish(&shop(), new.clone());
        let body = delta(&old, &new);
        assert!(body.len() < 1000);
        edge.answers.send_delta(Sha256::of(&old), body);
        let before = agent.metric("weir_agent_fetched_bytes_total", &[]);
        assert_eq!(agent.poll().await.last_error, None);
        assert_eq!((world.read("content").as_deref(), world.current()), (Some(content), Some(digest.to_string())));
        assert!(agent.metric("weir_agent_fetched_bytes_total", &[]) - before < 1000.0);
        old = new;
    }
    assert_eq!(results(&agent), [2.0, 0.0, 0.0]);
    let head = edge.answers.seen().into_iter().rfind(|seen| seen.method == Method::HEAD).unwrap();
    assert!(head.headers.contains_key("available-dictionary"), "a poll asks for a delta");

    // It is known after a restart, and a refresh takes the whole tarball.
    agent.stop().await;
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    let new = version("3");
    edge.answers.publish(&shop(), new.clone());
    edge.answers.send_delta(Sha256::of(&old), delta(&old, &new));
    agent.poll().await;
    assert_eq!((world.read("content").as_deref(), results(&agent)), (Some("3"), [1.0, 0.0, 0.0]));
    edge.answers.forget();
    while agent.refresh().await.refreshes == 0 {}
    let get = edge.answers.seen().into_iter().rfind(|seen| seen.method == Method::GET).unwrap();
    assert!(!get.headers.contains_key("available-dictionary"));
    agent.stop().await;
}

#[tokio::test]
async fn wrong_deltas_are_refused_and_the_whole_tarball_is_fetched() {
    let old = version("0");
    let (world, edge, mut agent) = with_release(&old).await;
    let (mut old, mut before) = (old, world.current());
    let dictionary = |old: &[u8]| dcz::header(&Sha256::of(old)).to_vec();
    type Wrong = Box<dyn Fn(&[u8], &[u8]) -> Vec<u8>>;
    let wrong: [(&str, Wrong); 9] = [
        (
            "another dictionary",
            Box::new(|old, new| [dcz::header(&Sha256::of(new)).to_vec(), frame(old, new, 20)].concat()),
        ),
        ("no header", Box::new(|old, new| frame(old, new, 20))),
        ("nothing", Box::new(|_, _| Vec::new())),
        (
            "truncated",
            Box::new(|old, new| {
                let mut body = delta(old, new);
                body.truncate(body.len() - 1);
                body
            }),
        ),
        ("more after its end", Box::new(|old, new| [delta(old, new), b"more".to_vec()].concat())),
        ("another tarball", Box::new(|old, _| delta(old, &version("something else")))),
        ("a large window", Box::new(move |old, new| [dictionary(old), frame(old, new, 24)].concat())),
        (
            "a bomb",
            Box::new(move |old, _| [dictionary(old), frame(old, std::io::repeat(0).take(64 << 20), 20)].concat()),
        ),
        ("a large body", Box::new(move |old, _| [dictionary(old), noise(9 << 20)].concat())),
    ];
    for (number, (what, wrong)) in wrong.iter().enumerate() {
        let new = version(&format!("version {number}"));
        edge.answers.publish(&shop(), new.clone());
        edge.answers.send_delta(Sha256::of(&old), wrong(&old, &new));
        edge.answers.forget();
        let status = agent.poll().await;
        assert_eq!(status.last_error, None, "{what}");
        let gets: Vec<_> = edge.answers.seen().into_iter().filter(|seen| seen.method == Method::GET).collect();
        assert_eq!(gets.len(), 2, "{what}");
        assert!(gets[0].headers.contains_key("available-dictionary"), "{what}");
        assert_eq!(
            (&gets[1].headers["accept-encoding"], &gets[1].headers["cache-control"]),
            (&"zstd".parse().unwrap(), &"no-cache".parse().unwrap())
        );
        assert_eq!(world.read("content"), Some(format!("version {number}")), "{what}");
        assert_ne!(world.current(), before, "{what}");
        world.assert_no_leftovers();
        (old, before) = (new, world.current());
    }
    assert_eq!(results(&agent), [0.0, 0.0, wrong.len() as f64]);
    agent.stop().await;
}

#[tokio::test]
async fn a_changed_release_is_no_dictionary() {
    let mut old = version("0");
    let (world, edge, mut agent) = with_release(&old).await;
    let current = |name: &str| world.service_dir().join("current").join(name);
    type Change<'a> = Box<dyn Fn() + 'a>;
    let changes: [Change<'_>; 4] = [
        Box::new(|| fs::write(current("content"), "changed").unwrap()),
        Box::new(|| fs::write(current("another"), "").unwrap()),
        Box::new(|| fs::set_permissions(current("a"), fs::Permissions::from_mode(0o644)).unwrap()),
        Box::new(|| fs::remove_dir_all(current("d")).unwrap()),
    ];
    for (number, change) in changes.iter().enumerate() {
        change();
        let new = version(&format!("version {number}"));
        edge.answers.publish(&shop(), new.clone());
        edge.answers.send_delta(Sha256::of(&old), delta(&old, &new));
        assert_eq!(agent.poll().await.last_error, None);
        assert_eq!(world.read("content"), Some(format!("version {number}")));
        assert_eq!(results(&agent), [0.0, (number + 1) as f64, 0.0]);
        old = new;
    }
    assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), 0.0, "the edge has sent nothing wrong");

    // Group and others do not count: only the owner's permission to execute is in a tarball.
    fs::set_permissions(current("content"), fs::Permissions::from_mode(0o600)).unwrap();
    let new = version("last");
    edge.answers.publish(&shop(), new.clone());
    edge.answers.send_delta(Sha256::of(&old), delta(&old, &new));
    agent.poll().await;
    assert_eq!((world.read("content").as_deref(), results(&agent)), (Some("last"), [1.0, 4.0, 0.0]));
    agent.stop().await;
}

#[tokio::test]
async fn a_large_tar_is_no_dictionary() {
    let largest = dcz::MAX_TAR_BYTES as usize;
    let tar = |content: &str, size: usize| {
        let mut tar = version(content);
        let end = tar.len() - END.len();
        // The last file takes what is left.
        let (header, more) = (512, size - tar.len() - 512);
        let mut last = Vec::new();
        write_header(&mut last, b"e", HeaderKind::File { executable: false, size: more as u64 });
        last.resize(header + more, 0);
        tar.splice(end..end, last);
        tar
    };
    for (size, offered) in [(largest, true), (largest + 512, false)] {
        let (world, edge, mut agent) = with_release(&tar("0", size)).await;
        edge.answers.forget();
        edge.answers.publish(&shop(), tar("1", size));
        agent.poll().await;
        assert_eq!(world.read("content").as_deref(), Some("1"));
        assert!(edge.answers.seen().iter().all(|seen| seen.headers.contains_key("available-dictionary") == offered));
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_state_file_without_the_tar_keeps_its_generation_and_offers_nothing() {
    let old = version("0");
    let (world, edge, agent) = with_release(&old).await;
    agent.stop().await;
    let file = world.service_dir().join("state");
    let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let tar = state["release"].as_object_mut().unwrap().remove("tar").unwrap();
    assert_eq!((&tar["sha256"], &tar["format"]), (&Sha256::of(&old).to_string().into(), &1.into()));
    fs::write(&file, state.to_string()).unwrap();
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    edge.answers.publish_at(&shop(), with_content("older"), 0);
    assert!(agent.poll().await.last_error.unwrap().contains("older than 1"));
    edge.answers.forget();
    edge.answers.publish_at(&shop(), with_content("newer"), 2);
    agent.poll().await;
    assert!(edge.answers.seen().iter().all(|seen| !seen.headers.contains_key("available-dictionary")));
    assert_eq!(world.read("content").as_deref(), Some("newer"));
    agent.stop().await;
}
