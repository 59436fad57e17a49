//! Updates by frames: only what the release on disk lacks is fetched, and whatever goes wrong ends in a whole download.

use std::fs;
use std::time::Duration;

use http::{Method, Version};
use weir_agent::Config;
use weir_agent::config::ServiceConfig;
use weir_protocol::digest::{ObjectDigest, Sha256, TarballDigest};
use weir_protocol::manifest::{Frame, Manifest};
use weir_protocol::observed::TransferKind;

use crate::agent_under_test::{Agent, World, shop};
use crate::deltas;
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

/// An agent that has version 0.
async fn with_release() -> (World, TestEdge, Agent) {
    let (world, edge) = World::with_edge().await;
    edge.answers.cut_frames(FRAME_BYTES);
    edge.answers.publish(&shop(), version(0, &[]));
    let agent = Agent::with_release(world.config(&[edge.url()])).await;
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
    let heads = edge.answers.seen().len() - gets(&edge).len();
    assert_eq!(heads, 1, "the poll says that there is no delta");
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
            agent = Agent::with_release(world.config(&[edge.url()])).await;
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
async fn a_delta_is_preferred() {
    let (world, edge) = World::with_edge().await;
    edge.answers.cut_frames(FRAME_BYTES);
    let (old, new) = (version(0, &[]), version(1, &(0..20).collect::<Vec<_>>()));
    edge.answers.publish(&shop(), old.clone());
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
    edge.answers.publish(&shop(), new.clone());
    let body = deltas::delta(&old, &new);
    assert!(body.len() > 2 << 20, "one that is as large as a body of frames");
    edge.answers.send_delta(Sha256::of(&old), body);
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &new);
    assert_eq!((manifests(&edge), agent.metric("weir_agent_deltas_total", &[("result", "applied")])), (0, 1.0));
    agent.stop().await;
}

#[tokio::test]
async fn an_edge_without_manifests_sends_the_whole_tarball() {
    let (world, edge) = World::with_edge().await;
    edge.answers.publish(&shop(), version(0, &[]));
    let mut agent = Agent::with_release(world.config(&[edge.url()])).await;
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
    let mut ranges_ever = 0;
    for (number, change) in (1..).zip(changes) {
        change();
        edge.answers.forget();
        let next = version(number, &[9]);
        edge.answers.publish(&shop(), next.clone());
        assert_eq!(agent.poll().await.last_error, None);
        assert_is_released(&world, &next);
        assert_eq!((whole(&edge), results(&agent)), (1, [0.0, 0.0]));
        assert_eq!(agent.metric("weir_agent_frame_updates_total", &[("result", "modified")]), f64::from(number));
        ranges_ever += ranges(&edge);
    }
    assert_eq!(ranges_ever, 1, "from the second one on the release is proved before anything is requested for it");
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
    let faults: [(&str, Make); 11] = [
        ("a wrong frame", |_, _| FramesFault::InRange(Fault::WrongPart)),
        ("another part", |_, _| FramesFault::InRange(Fault::OtherPart)),
        ("a short range", |_, _| FramesFault::InRange(Fault::Truncate)),
        ("an endless range", |_, _| FramesFault::InRange(Fault::Endless)),
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
    assert!(agent.metric("weir_agent_verify_failures_total", &[]) > 0.0, "an edge that sends wrong bytes is reported");
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
    let mut agent = Agent::with_release(trusting).await;
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

/// Two edges that have the same, and an agent that has version 0.
async fn two_edges() -> (World, [TestEdge; 2], Agent) {
    let world = World::new();
    let edges = [world.edge().await, world.edge().await];
    edges.iter().for_each(|edge| edge.answers.cut_frames(FRAME_BYTES));
    publish(&edges, &version(0, &[]));
    let agent = Agent::with_release(world.config(&edges.each_ref().map(TestEdge::url))).await;
    edges.iter().for_each(|edge| edge.answers.forget());
    (world, edges, agent)
}

fn publish(edges: &[TestEdge], tar: &[u8]) {
    for edge in edges {
        edge.answers.publish(&shop(), tar.to_vec());
    }
}

#[tokio::test]
async fn the_next_edge_sends_the_frames_that_one_could_not() {
    let faults = [
        FramesFault::InRange(Fault::BreakOff),
        FramesFault::InRange(Fault::Stall),
        FramesFault::InRange(Fault::Status(503, Some(1))),
        FramesFault::InRange(Fault::Status(429, None)),
        FramesFault::InManifest(Fault::Stall),
        FramesFault::InManifest(Fault::BreakOff),
    ];
    for fault in faults {
        let (world, edges, mut agent) = two_edges().await;
        let one = version(1, &[9]);
        publish(&edges, &one);
        edges[0].answers.fail_frames(fault.clone());
        assert_eq!(agent.poll().await.last_error, None, "{fault:?}");
        assert_is_released(&world, &one);
        assert_eq!(edges.each_ref().map(whole), [0, 0], "{fault:?}");
        assert_eq!((ranges(&edges[1]), results(&agent)[0]), (1, 1.0), "{fault:?}");
        assert_eq!(agent.metric("weir_agent_verify_failures_total", &[]), 0.0);
        agent.stop().await;
    }
}

#[tokio::test]
async fn the_next_edge_sends_only_the_ranges_that_have_not_arrived() {
    let (world, edges, mut agent) = two_edges().await;
    let one = version(1, &[0, 12, 23]);
    publish(&edges, &one);
    // Two manifests and two ranges come first.
    let first = [const { Fault::Late(Duration::ZERO) }; 4];
    edges[0].answers.fail(first.into_iter().chain([Fault::BreakOff]));
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((edges.each_ref().map(ranges), edges.each_ref().map(whole)), ([3, 1], [0, 0]));
    assert_eq!(results(&agent), [1.0, 1.0]);
    agent.stop().await;
}

#[tokio::test]
async fn a_second_failure_of_an_update_ends_in_a_whole_download() {
    let (world, edge, mut agent) = with_release().await;
    edge.answers.fail_frames(FramesFault::InRange(Fault::Status(503, Some(3600))));
    let one = version(1, &[9]);
    edge.answers.publish(&shop(), one.clone());
    let error = agent.poll().await.last_error;
    assert!(error.as_ref().is_some_and(|error| error.contains("503")), "{error:?}");
    assert_eq!((ranges(&edge), whole(&edge)), (1, 0), "the edge is left alone as long as it asks for");
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((ranges(&edge), whole(&edge), results(&agent)), (2, 1, [0.0, 2.0]));
    agent.stop().await;
}

#[tokio::test]
async fn frames_are_preferred_to_the_rest_of_a_whole_download() {
    let (world, edges, mut agent) = two_edges().await;
    let one = version(1, &[9]);
    publish(&edges, &one);
    // The first edge has no frames, and its whole body stalls.
    edges[0].answers.fail_frames(FramesFault::Manifest(b"[]".to_vec()));
    edges[0].answers.fail([Fault::Late(Duration::ZERO), Fault::Stall, Fault::Stall]);
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    assert_eq!((whole(&edges[0]), whole(&edges[1]), ranges(&edges[1])), (1, 0, 1));
    assert_eq!((results(&agent)[0], manifests(&edges[1])), (1.0, 2));
    agent.stop().await;
}

#[tokio::test]
async fn a_range_that_stalls_over_http3_is_continued_over_http2() {
    let (world, edge, mut agent) = with_release().await;
    agent.until_http3().await;
    edge.answers.forget();
    let one = version(1, &[9]);
    edge.answers.publish(&shop(), one.clone());
    // Two manifests are before the range.
    edge.answers.fail([Fault::Late(Duration::ZERO), Fault::Late(Duration::ZERO), Fault::Stall]);
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &one);
    let ranges: Vec<_> = gets(&edge).into_iter().filter(|get| get.headers.contains_key("range")).collect();
    let versions: Vec<_> = ranges.iter().map(|get| get.version).collect();
    assert_eq!((versions, whole(&edge)), (vec![Version::HTTP_3, Version::HTTP_2], 0));
    assert_ne!(ranges[0].headers["range"], ranges[1].headers["range"], "no byte twice");
    agent.stop().await;
}

#[tokio::test]
async fn the_manifest_of_the_release_in_force_stays_when_a_check_refuses_the_next_one() {
    let (world, edge) = World::with_edge().await;
    edge.answers.cut_frames(FRAME_BYTES);
    edge.answers.publish(&shop(), version(0, &[]));
    let mut config = world.config(&[edge.url()]);
    let refused = world.path().join("refused");
    config.services[0].check = Some(format!("! test -e {}", refused.display()).into());
    let mut agent = Agent::with_release(config).await;
    edge.answers.publish(&shop(), version(1, &[9]));
    assert_eq!(agent.poll().await.last_error, None);
    fs::write(&refused, "").unwrap();
    edge.answers.publish(&shop(), version(2, &[10]));
    assert!(agent.poll().await.last_error.is_some());
    fs::remove_file(&refused).unwrap();
    edge.answers.forget();
    let three = version(3, &[11]);
    edge.answers.publish(&shop(), three.clone());
    assert_eq!(agent.poll().await.last_error, None);
    assert_is_released(&world, &three);
    assert_eq!((manifests(&edge), whole(&edge)), (1, 0));
    agent.stop().await;
}

#[tokio::test]
async fn an_update_that_trickles_lets_another_one_go_first() {
    if std::env::var_os("WEIR_NIGHTLY").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED: ranges trickle for ten minutes; WEIR_NIGHTLY=1 runs it");
        return;
    }
    let (world, bakery) = (World::new(), "bakery".parse().unwrap());
    let edge = world.edge().await;
    // Half a range arrives at once, and ten minutes of a KiB each second are less than the other half.
    edge.answers.cut_frames(3 << 19);
    edge.answers.publish(&shop(), version(0, &[]));
    let services = vec![ServiceConfig::new(&shop()), ServiceConfig::new(&bakery)];
    let config = Config { services, max_downloads: 1, ..world.config(&[edge.url()]) };
    let mut agent = Agent::with_release(config).await;
    let mut other = agent.running.service(&bakery).unwrap();
    other.wait_for(|status| status.polls > 0).await.unwrap();
    let [one, two] = [version(1, &[0]), version(2, &[5])];
    edge.answers.publish(&shop(), one.clone());
    edge.answers.publish(&bakery, two);
    edge.answers.forget();
    edge.answers.fail_frames(FramesFault::InRange(Fault::Trickle));
    agent.running.poll_now(&shop());
    while ranges(&edge) == 0 {
        tokio::task::yield_now().await;
    }
    // The range that has begun trickles, and its rest will not.
    edge.answers.fail_frames(None);
    agent.running.poll_now(&bakery);
    other.wait_for(|status| status.release.is_some()).await.unwrap();
    agent.until("the rest is there", |status| status.switches == 2).await;
    assert_is_released(&world, &one);
    assert_eq!((ranges(&edge), results(&agent)), (2, [1.0, 0.0]));
    let order = gets(&edge).into_iter().map(|get| (get.path.contains("bakery"), get.headers.contains_key("range")));
    let order: Vec<_> = order.skip_while(|(_, is_range)| !is_range).collect();
    assert_eq!(order, [(false, true), (true, false), (false, true)]);
    agent.stop().await;
}

#[tokio::test]
async fn an_update_whose_ranges_come_too_slowly_fails() {
    if std::env::var_os("WEIR_NIGHTLY").is_none_or(|value| value != "1") {
        eprintln!("SKIPPED: a minute passes before the minimum rate applies; WEIR_NIGHTLY=1 runs it");
        return;
    }
    let (world, edges, mut agent) = two_edges().await;
    let one = version(1, &[9]);
    publish(&edges, &one);
    let late = Fault::Late(Duration::from_secs(110));
    edges[0].answers.fail([Fault::Late(Duration::ZERO), Fault::Late(Duration::ZERO), late]);
    agent.running.poll_now(&shop());
    while agent.status.borrow().switches < 2 {
        tokio::time::timeout(Duration::from_secs(100), agent.status.changed()).await.expect("it fails").unwrap();
    }
    assert_is_released(&world, &one);
    assert_eq!((edges.each_ref().map(whole), results(&agent)), ([0, 0], [1.0, 1.0]));
    agent.stop().await;
}
