//! Packs of nested deltas and long chains, of which a few bytes describe much memory, and thin packs. They are followed
//! within the limits, and refused beyond them.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gix::odb::pack::data::entry::Header;

use crate::hostile_packs::{pack_header, with_checksum};
use crate::prelude::*;

/// The size of the innermost object, in bytes.
const SIZE: usize = 1 << 20;

/// How deltas refer to their bases.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Distance,
    Name,
}

/// A pack of nested levels, each of three deltas against the middle one of the level above, and the id of the first
/// object. Each object is a little larger than its base.
fn nested(levels: u8, by: By) -> (Vec<u8>, gix::ObjectId) {
    let mut object = vec![0; SIZE];
    let first = name(&object);
    let mut pack = pack_header(1 + 3 * u32::from(levels));
    let (mut base, mut base_name) = (pack.len(), first);
    pack.extend(entry(Header::Blob, &object));
    for level in 0..levels {
        let (mut middle, length) = (0, object.len());
        for sibling in 0..3 {
            let at = pack.len();
            let header = match by {
                By::Distance => Header::OfsDelta { base_distance: (at - base) as u64 },
                By::Name => Header::RefDelta { base_id: base_name },
            };
            pack.extend(entry(header, &copy_and_add(length, [level, sibling])));
            if sibling == 1 {
                middle = at;
            }
        }
        object.extend([level, 1]);
        (base, base_name) = (middle, name(&object));
    }
    (with_checksum(pack), first)
}

pub(crate) fn name(blob: &[u8]) -> gix::ObjectId {
    gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, blob).unwrap()
}

/// A delta that copies its base of this length and adds two bytes.
fn copy_and_add(length: usize, added: [u8; 2]) -> Vec<u8> {
    let size = [length as u8, (length >> 8) as u8, (length >> 16) as u8];
    [&number(length)[..], &number(length + 2), &[0xf0], &size, &[2], &added].concat()
}

/// A size in the header of a delta.
pub(crate) fn number(number: usize) -> [u8; 3] {
    [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8]
}

pub(crate) fn entry(header: Header, contents: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    header.write_to(contents.len() as u64, &mut entry).unwrap();
    let mut zlib = ZlibEncoder::new(entry, Compression::best());
    zlib.write_all(contents).unwrap();
    zlib.finish().unwrap()
}

/// Stores a pack in a repository, and commits all its objects.
fn commit_pack(repository: &Path, pack: &[u8]) -> String {
    let git = Git::at(repository.to_owned());
    let pack = git.feed(["index-pack", "--stdin"], pack);
    let pack = String::from_utf8(pack).unwrap();
    let listed =
        git.line(["verify-pack", "-v", &format!("objects/pack/pack-{}.pack", pack.split_whitespace().last().unwrap())]);
    let blobs = listed.lines().filter_map(|line| Some(line.split_once(" blob ")?.0));
    let entries: String = blobs.enumerate().map(|(at, id)| format!("100644 blob {id}\tfile-{at}\n")).collect();
    let text = |out: Vec<u8>| String::from_utf8(out).unwrap().trim().to_owned();
    let folder = text(git.feed(["mktree"], entries.as_bytes()));
    let root = text(git.feed(["mktree"], format!("040000 tree {folder}\tdeploy\n").as_bytes()));
    let commit = git.line(["commit-tree", "-m", "large", "-p", "main", &root]);
    git.run(["update-ref", "refs/heads/main", &commit]);
    commit
}

/// A depth-first resolution that keeps all bases has no memory for them. The git program drops and computes them again.
#[test]
fn deltas_may_be_nested_deeply() {
    for by in [By::Distance, By::Name] {
        let mut pair = Pair::new();
        pair.upstream.limits.max_object = ByteSize(2 << 20);
        let (pack, first) = nested(long_or(250, 100), by);
        assert!(pack.len() < 64 << 10);
        let server = ScriptedServer::of(listing([(first.to_string().as_str(), "refs/heads/nested")]), packfile(&pack));
        pair.upstream.config.url = server.url().into();
        assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
        pair.mirror.full_check().unwrap();
    }
}

#[test]
fn the_size_of_an_object_is_in_its_delta() {
    let mut pair = Pair::new();
    pair.upstream.limits.max_object = ByteSize(SIZE as u64);
    let object = vec![0; SIZE];
    let delta = entry(Header::RefDelta { base_id: name(&object) }, &copy_and_add(SIZE, [1, 2]));
    let pack = with_checksum([pack_header(2), entry(Header::Blob, &object), delta].concat());
    let refs = listing([(name(&object).to_string().as_str(), "refs/heads/grown")]);
    let server = ScriptedServer::of(refs, packfile(&pack));
    pair.upstream.config.url = server.url().into();
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
}

/// A pack of a chain of deltas, each as large as the largest object, with the first object.
fn line_of_large_deltas(count: u8) -> (Vec<u8>, gix::ObjectId) {
    let (object, copies) = (vec![0; 1 << 10], SIZE / 8);
    let (mut pack, mut base, mut length) = (pack_header(1 + u32::from(count)), 12, object.len());
    pack.extend(entry(Header::Blob, &object));
    for level in 0..count {
        let at = pack.len();
        // One byte from the start, in the longest encoding.
        let copy = [0xff, 0, 0, 0, 0, 1, 0, 0];
        let delta = [&number(length)[..], &number(copies + 1), &copy.repeat(copies), &[1, level]].concat();
        pack.extend(entry(Header::OfsDelta { base_distance: (at - base) as u64 }, &delta));
        (base, length) = (at, copies + 1);
    }
    (with_checksum(pack), name(&object))
}

/// Reading the last object takes all deltas at once.
#[test]
fn a_delta_chain_over_the_limit_is_refused() {
    let mut pair = Pair::new();
    pair.upstream.limits.max_object = ByteSize(2 << 20);
    // A followed ref is fetched with each poll.
    pair.revisions.insert("refs/heads/line".parse().unwrap());
    let mut poll = |count| {
        let (pack, first) = line_of_large_deltas(count);
        assert!(pack.len() < 64 << 10);
        let server = ScriptedServer::of(listing([(first.to_string().as_str(), "refs/heads/line")]), packfile(&pack));
        pair.upstream.config.url = server.url().into();
        let polled = pair.try_poll();
        (polled, std::fs::read_dir(pair.mirror_dir().join("objects/pack")).unwrap().count())
    };
    let (polled, files) = poll(6);
    let error = polled.unwrap_err();
    assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "limit", false), "{error}");
    assert!(
        error.to_string().contains("6291456 bytes") && error.to_string().contains("`[upstreams] max_object`"),
        "{error}"
    );
    assert_eq!(files, 0);
    let (polled, _) = poll(5);
    assert_eq!(polled.unwrap(), Poll::Changed { refs: 1 });
}

/// A real Git server, with a chain of deltas on its disk.
#[tokio::test]
async fn published_services_continue_while_a_pack_is_refused() {
    let (home, upstream, neighbour) = (Home::new(), Upstream::small(), Upstream::small());
    let mut config = home.config(&upstream.url());
    config.upstreams.max_object = bytesize::ByteSize::mib(8);
    let other: weir_protocol::name::RepositoryName = "other".parse().unwrap();
    config.repositories.push(RepositoryConfig::new(other.clone(), neighbour.url()));
    let node = home.start(config).await;
    let before = node.published(|_| true).await;

    let large = commit_pack(&upstream.bare(), &line_of_large_deltas(25).0);
    let state = node.poll().await;
    let Health::Unhealthy { failure, .. } = &state.health else { panic!("{:?}", state.health) };
    assert!(failure.step == "fetch" && failure.reason.contains("`[upstreams] max_object`"), "{failure:?}");
    assert!(node.metric("weir_origin_poll_failures_total{kind=\"limit\"}").await >= 1.0);
    let after = node.descriptor().await;
    assert_eq!(after.publication().commit, before.publication().commit);
    node.tarball(&after).await;
    let mut state = node.running.repository(&other).unwrap();
    let polls = state.borrow().applied_polls;
    assert!(node.running.trigger_poll(&other));
    let state = in_time(state.wait_for(|state| state.applied_polls > polls)).await.unwrap().clone();
    assert!(!matches!(state.health, Health::Unhealthy { .. }), "{:?}", state.health);

    // The remedy from the error message.
    upstream_repack(&upstream);
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), large);
    node.stop().await;
}

fn upstream_repack(upstream: &Upstream) {
    Git::at(upstream.bare()).run(["repack", "-adfq", "--depth=10"]);
}

/// Incompressible bytes.
fn noise(bytes: usize) -> Vec<u8> {
    let digest = |n: usize| ring::digest::digest(&ring::digest::SHA256, &n.to_be_bytes());
    (0..bytes.div_ceil(32)).flat_map(|n| digest(n).as_ref().to_owned()).take(bytes).collect()
}

/// A delta that copies its base of this length and adds one byte.
fn one_more(length: usize, added: u8) -> Vec<u8> {
    let size = [length as u8, (length >> 8) as u8, (length >> 16) as u8];
    [&number(length)[..], &number(length + 1), &[0xf0], &size, &[1, added]].concat()
}

/// A delta that uses nothing of its base.
fn all_new(length: usize, object: &[u8]) -> Vec<u8> {
    let pieces = object.chunks(127).flat_map(|piece| [&[piece.len() as u8], piece].concat());
    number(length).into_iter().chain(number(object.len())).chain(pieces).collect()
}

/// A server of one ref, with a thin pack of one delta.
fn thin(base: &[u8]) -> ScriptedServer {
    let pack = [pack_header(1), entry(Header::RefDelta { base_id: name(base) }, &one_more(base.len(), 7))].concat();
    let new = name(&[base, &[7]].concat()).to_string();
    ScriptedServer::of(listing([(new.as_str(), "refs/heads/new")]), packfile(&with_checksum(pack)))
}

/// A mirror of a file.
fn mirror_of(contents: &[u8]) -> Pair {
    let pair = Pair::new();
    pair.git.commit_file("file", contents);
    pair.follow();
    pair
}

#[test]
fn completing_a_thin_pack_counts_towards_the_limits() {
    let base = noise(300 << 10);
    let mut pair = mirror_of(&base);
    let server = thin(&base);
    // A followed ref is fetched with each poll.
    pair.revisions.insert("refs/heads/new".parse().unwrap());
    let before = pair.mirror.size().unwrap().bytes;
    pair.upstream.config.url = server.url().into();

    let max_pack = std::mem::replace(&mut pair.upstream.limits.max_pack, ByteSize(200 << 10));
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::PackTooLarge { .. }), "{error}");
    pair.upstream.limits.max_pack = max_pack;

    let max_mirror = std::mem::replace(&mut pair.upstream.limits.max_mirror, ByteSize(before + (200 << 10)));
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::MirrorTooLarge { .. }), "{error}");
    pair.upstream.limits.max_mirror = max_mirror;

    let max_objects = std::mem::replace(&mut pair.upstream.limits.max_objects, 1);
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::TooManyObjects { objects: 2, limit: 1 }), "{error}");
    pair.upstream.limits.max_objects = max_objects;

    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
    pair.mirror.full_check().unwrap();
}

/// The mirror has a version as a delta against the other, and reading it takes both at once.
#[test]
fn large_objects_are_still_followed() {
    let first = noise(700 << 10);
    let second = [&first[..], b"changed"].concat();
    let mut pair = Pair::new();
    pair.upstream.limits.max_object = ByteSize(1 << 20);
    for version in [&first, &second] {
        pair.git.commit_file("file", version);
    }
    pair.git.run(["repack", "-adfq"]);
    pair.follow();
    for base in [first, second] {
        let server = thin(&base);
        pair.upstream.config.url = server.url().into();
        assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
    }
}

/// The limit was lowered after the mirror was created.
#[test]
fn bases_over_a_lowered_limit_are_still_used() {
    let size = 900 << 10;
    let mut pair = Pair::new();
    pair.upstream.limits.max_object = ByteSize(4 << 20);
    let mut object = noise(size);
    let (mut pack, mut base) = (pack_header(7), 12);
    pack.extend(entry(Header::Blob, &object));
    for _ in 0..6 {
        object.rotate_left(1);
        let at = pack.len();
        pack.extend(entry(Header::OfsDelta { base_distance: (at - base) as u64 }, &all_new(size, &object)));
        base = at;
    }
    let last = name(&object).to_string();
    let server = ScriptedServer::of(listing([(last.as_str(), "refs/heads/chain")]), packfile(&with_checksum(pack)));
    pair.upstream.config.url = server.url().into();
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });

    let server = thin(&object);
    pair.upstream.config.url = server.url().into();
    pair.upstream.limits.max_object = ByteSize(1 << 20);
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
}
