//! Updates by frames: only what the release on disk lacks is fetched, and whatever goes wrong ends in a whole download.

use std::fs;

use bytesize::ByteSize;
use http::Method;
use weir_agent::Config;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::manifest::{Frame, Manifest};
use weir_protocol::report::TransferKind;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Fault, FramesFault, Seen, TestEdge};
use crate::tarball::Written;
use crate::trust;

const FILES: usize = 24;
const FILE_BYTES: usize = 128 << 10;

/// Several small files and parts of others.
const FRAME_BYTES: usize = 200 << 10;

/// A tarball as an origin writes it, which does not compress. `changed`: the files that are others than those of version 0.
fn version(number: u8, changed: &[usize]) -> Vec<u8> {
    let file = |tar: Written, file| {
        let mut contents = vec![0; FILE_BYTES];
        let seed = [file as u8, if changed.contains(&file) { number } else { 0 }];
        blake3::Hasher::new().update(&seed).finalize_xof().fill(&mut contents);
        tar.file(format!("file-{file:02}"), contents)
    };
    (0..FILES).fold(Written::default(), file).finish()
}

fn config(world: &World, edges: &[String]) -> Config {
    // No delta is offered, as for a large tarball.
    Config { max_dictionary: ByteSize(0), ..world.config(edges) }
}

/// An agent that has version 0.
async fn with_release() -> (World, TestEdge, Agent) {
    let world = World::new();
    let edge = world.edge().await;
    edge.answers.cut_frames(FRAME_BYTES);
    edge.answers.publish(&shop(), version(0, &[]));
    let agent = Agent::with_release(config(&world, &[edge.url()])).await;
    edge.answers.forget();
    (world, edge, agent)
}

fn results(agent: &Agent) -> [f64; 2] {
    ["applied", "abandoned"].map(|result| agent.metric("weir_agent_frame_updates_total", &[("result", result)]))
}

fn fetched(agent: &Agent, kind: &str) -> f64 {
    agent.metric_if_any("weir_agent_fetched_bytes_total", &[("kind", kind)]).unwrap_or(0.0)
}

fn gets(edge: &TestEdge) -> Vec<Seen> {
    edge.answers.seen().into_iter().filter(|seen| seen.method == Method::GET).collect()
}

fn manifests(edge: &TestEdge) -> usize {
    gets(edge).iter().filter(|get| get.path.ends_with("/frames")).count()
}

fn ranges(edge: &TestEdge) -> usize {
    gets(edge).iter().filter(|get| get.headers.contains_key("range")).count()
}

/// Whole bodies that were requested.
fn whole(edge: &TestEdge) -> usize {
    gets(edge).len() - manifests(edge) - ranges(edge)
}

/// The release is exactly this tarball.
fn assert_is_released(world: &World, tar: &[u8]) {
    let digest = TarballDigest::of(tar).to_string();
    assert!(world.current().is_some_and(|current| current.starts_with(&digest)), "{:?}", world.current());
    for file in 0..FILES {
        let contents = fs::read(world.service_dir().join(format!("current/file-{file:02}"))).unwrap();
        let start = file * (512 + FILE_BYTES) + 512;
        assert!(contents == tar[start..start + FILE_BYTES], "file {file}");
    }
    world.assert_no_leftovers();
}

#[tokio::test]
async fn only_the_missing_frames_are_fetched() {
    let (world, edge, mut agent) = with_release().await;
    let one = version(1, &[9]);
    edge.answers.publish(&shop(), one.clone());
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((manifests(&edge), ranges(&edge), whole(&edge)), (2, 1, 0), "neighbours are one range");
    assert!(fetched(&agent, "frames") < (3 * FRAME_BYTES) as f64, "{}", fetched(&agent, "frames"));
    let transfer = agent.status.borrow().transfer.unwrap();
    assert_eq!((transfer.kind, transfer.tarball_bytes), (TransferKind::Frames, one.len() as u64));
    assert!(transfer.received_bytes as f64 <= fetched(&agent, "frames"));
    let range = gets(&edge).into_iter().find(|get| get.headers.contains_key("range")).unwrap();
    assert!(range.headers["if-range"].to_str().unwrap().contains("+zstd."));

    // The manifest of the release is on disk, also after a restart.
    for (number, changed, expected) in [(2, vec![0, 12, 23], 3), (3, vec![4, 5, 6], 1)] {
        if number == 3 {
            agent.stop().await;
            agent = Agent::with_release(config(&world, &[edge.url()])).await;
            agent.until("the first poll has ended", |status| status.polls > 0).await;
        }
        edge.answers.forget();
        let next = version(number, &changed);
        edge.answers.publish(&shop(), next.clone());
        assert_eq!(agent.poll().await.last_error, None);
        assert_is_released(&world, &next);
        assert_eq!((manifests(&edge), whole(&edge)), (1, 0));
        // What the last version changed is changed back.
        assert!(ranges(&edge) >= expected, "{}", ranges(&edge));
    }
    assert_eq!((results(&agent), fetched(&agent, "full")), ([1.0, 0.0], 0.0));
    assert!(agent.metric("weir_agent_reused_frames_total", &[]) > 4.0);

    edge.answers.forget();
    while agent.refresh().await.refreshes == 0 {}
    assert_eq!((manifests(&edge), ranges(&edge), whole(&edge)), (0, 0, 1), "a refresh proves the disk");
    agent.stop().await;
}

#[tokio::test]
async fn an_edge_without_manifests_sends_the_whole_tarball() {
    let world = World::new();
    let edge = world.edge().await;
    edge.answers.publish(&shop(), version(0, &[]));
    let mut agent = Agent::with_release(config(&world, &[edge.url()])).await;
    edge.answers.forget();
    let one = version(1, &[9]);
    edge.answers.publish(&shop(), one.clone());
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((manifests(&edge), ranges(&edge), whole(&edge), results(&agent)), (1, 0, 1, [0.0, 0.0]));
    agent.stop().await;
}

#[tokio::test]
async fn most_of_a_tarball_is_fetched_whole() {
    let (world, edge, mut agent) = with_release().await;
    let one = version(1, &(0..FILES - 3).collect::<Vec<_>>());
    edge.answers.publish(&shop(), one.clone());
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((ranges(&edge), whole(&edge), results(&agent)), (0, 1, [0.0, 0.0]));
    agent.stop().await;
}

#[tokio::test]
async fn changed_files_end_in_a_whole_download() {
    let (world, edge, mut agent) = with_release().await;
    let current = |name: &str| world.service_dir().join("current").join(name);
    let changes: [&dyn Fn(); 4] = [
        &|| fs::write(current("file-01"), vec![7; FILE_BYTES]).unwrap(),
        &|| fs::write(current("file-01"), "shorter").unwrap(),
        &|| fs::write(current("file-00-more"), "another file").unwrap(),
        &|| fs::remove_file(current("file-23")).unwrap(),
    ];
    for (number, change) in (1..).zip(changes) {
        change();
        edge.answers.forget();
        let next = version(number, &[9]);
        edge.answers.publish(&shop(), next.clone());
        assert_eq!(agent.poll().await.last_error, None);
        assert_is_released(&world, &next);
        assert_eq!((whole(&edge), results(&agent)), (1, [0.0, f64::from(number)]));
    }
    assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), 0.0, "the edge has sent nothing wrong");
    agent.stop().await;
}

/// A manifest of which one frame is another one.
fn with_frame(manifest: &Manifest, index: usize, change: impl Fn(&mut Frame)) -> Vec<u8> {
    let mut frames = manifest.frames().to_vec();
    change(&mut frames[index]);
    Manifest::new(frames).unwrap().to_bytes().unwrap().to_vec()
}

#[tokio::test]
async fn no_wrong_frame_or_manifest_makes_a_wrong_release() {
    let (world, edge, mut agent) = with_release().await;
    let mut before = edge.answers.manifest(&shop());
    type Make = fn(&Manifest, &Manifest) -> FramesFault;
    let tiny = |count| {
        let frame = Frame { digest: ObjectDigest::of(b"tiny"), size: 1, tar_size: 1 };
        Manifest::new(vec![frame; count]).unwrap().to_bytes().unwrap().to_vec()
    };
    let faults: [(&str, Make); 14] = [
        ("a wrong frame", |_, _| FramesFault::InRange(Fault::WrongPart)),
        ("another part", |_, _| FramesFault::InRange(Fault::OtherPart)),
        ("a short range", |_, _| FramesFault::InRange(Fault::Truncate)),
        ("an endless range", |_, _| FramesFault::InRange(Fault::Endless)),
        ("a broken range", |_, _| FramesFault::InRange(Fault::BreakOff)),
        ("no range", |_, _| FramesFault::InRange(Fault::Status(503, None))),
        ("the manifest before", |old, _| FramesFault::Manifest(old.to_bytes().unwrap().to_vec())),
        ("a manifest that is none", |_, _| FramesFault::Manifest(b"[]".to_vec())),
        ("a range of another tarball", |_, _| FramesFault::InRange(Fault::WrongDigest)),
        ("another frame of the release", |old, new| {
            FramesFault::Manifest(with_frame(new, 1, |frame| *frame = old.frames()[2]))
        }),
        ("a frame of another size of tar", |_, new| {
            FramesFault::Manifest(with_frame(new, 6, |frame| frame.tar_size -= 1))
        }),
        ("an endless manifest", |_, _| FramesFault::InManifest(Fault::Endless)),
        ("a manifest that stalls", |_, _| FramesFault::InManifest(Fault::Stall)),
        ("half a manifest", |_, _| FramesFault::InManifest(Fault::Truncate)),
    ];
    let huge: [(&str, Vec<u8>); 2] = [("many frames", tiny(70_000)), ("two frames", tiny(2))];
    let all = faults.into_iter().map(|(what, make)| (what, Some(make), Vec::new()));
    let all = all.chain(huge.into_iter().map(|(what, bytes)| (what, None, bytes)));
    for (number, (what, make, bytes)) in (1..).zip(all) {
        let next = version(number, &[9]);
        edge.answers.publish(&shop(), next.clone());
        let manifest = edge.answers.manifest(&shop());
        edge.answers.fail_frames(make.map_or(FramesFault::Manifest(bytes), |make| make(&before, &manifest)));
        edge.answers.forget();
        assert_eq!(agent.poll().await.last_error, None, "{what}");
        assert_is_released(&world, &next);
        assert_eq!(whole(&edge), 1, "{what}: {:?}", gets(&edge));
        assert!(gets(&edge).len() < 6, "{what}: it gives up");
        before = manifest;
    }
    assert_eq!(results(&agent)[0], 0.0);
    edge.answers.fail_frames(None);
    let last = version(100, &[9]);
    edge.answers.publish(&shop(), last.clone());
    agent.poll().await;
    assert_is_released(&world, &last);
    assert_eq!(results(&agent)[0], 1.0, "and the next one is right");
    agent.stop().await;
}

#[tokio::test]
async fn what_an_origin_signed_is_composed_of_frames() {
    let (world, keys) = (World::new(), [trust::key()]);
    let edge = world.edge().await;
    edge.answers.cut_frames(FRAME_BYTES);
    edge.answers.publish_at(&shop(), version(0, &[]), 5);
    edge.answers.sign(&shop(), &keys);
    let trusting = trust::trusting(&world, &[edge.url()], &[&keys[0]]);
    let mut agent = Agent::with_release(Config { max_dictionary: ByteSize(0), ..trusting }).await;
    let one = version(1, &[9]);
    edge.answers.publish_at(&shop(), one.clone(), 6);
    edge.answers.sign(&shop(), &keys);
    edge.answers.forget();
    let status = agent.poll().await;
    assert_eq!((status.last_error, status.release.map(|release| release.generation)), (None, Some(6)));
    assert_is_released(&world, &one);
    assert_eq!((ranges(&edge), results(&agent)), (1, [1.0, 0.0]));
    agent.stop().await;
}
