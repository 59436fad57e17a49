//! Packs of nested deltas and long chains, of which a few bytes describe much memory, and thin packs. They are followed
//! within the limits, and refused beyond them.

use gix::odb::pack::data::entry::Header;

use crate::packs::{SIZE, entry, line_of_large_deltas, name, number, pack_header, with_checksum};
use crate::prelude::*;

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

/// A delta that copies its base of this length and adds two bytes.
fn copy_and_add(length: usize, added: [u8; 2]) -> Vec<u8> {
    let size = [length as u8, (length >> 8) as u8, (length >> 16) as u8];
    [&number(length)[..], &number(length + 2), &[0xf0], &size, &[2], &added].concat()
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
