//! Packs whose deltas are told against what the mirror has: that is written into them, and counts as what came.

use weir_origin::mirror::{MirrorError, Poll};

use crate::hostile_packs::{pack_header, with_checksum};
use crate::mirror_polls::Pair;
use crate::nested_deltas::{entry, name, number};
use crate::scripted_server::{ScriptedServer, listing, packfile};
use gix::odb::pack::data::entry::Header;

/// What nobody compresses.
fn noise(bytes: usize) -> Vec<u8> {
    let digest = |n: usize| ring::digest::digest(&ring::digest::SHA256, &n.to_be_bytes());
    (0..bytes.div_ceil(32)).flat_map(|n| digest(n).as_ref().to_owned()).take(bytes).collect()
}

/// A delta: all of a base of so many bytes, and one more.
fn one_more(length: usize, added: u8) -> Vec<u8> {
    let size = [length as u8, (length >> 8) as u8, (length >> 16) as u8];
    [&number(length)[..], &number(length + 1), &[0xf0], &size, &[1, added]].concat()
}

/// A delta that takes nothing of its base.
fn all_new(length: usize, object: &[u8]) -> Vec<u8> {
    let pieces = object.chunks(127).flat_map(|piece| [&[piece.len() as u8], piece].concat());
    number(length).into_iter().chain(number(object.len())).chain(pieces).collect()
}

/// A server of one ref, and of a pack that has one delta against an object which is not in it.
fn thin(base: &[u8]) -> ScriptedServer {
    let pack = [pack_header(1), entry(Header::RefDelta { base_id: name(base) }, &one_more(base.len(), 7))].concat();
    let new = name(&[base, &[7]].concat()).to_string();
    ScriptedServer::of(listing([(new.as_str(), "refs/heads/new")]), packfile(&with_checksum(pack)))
}

/// A mirror of a file.
fn mirror_of(contents: &[u8]) -> Pair {
    let pair = Pair::new();
    pair.git.write("file", contents);
    pair.git.commit("one file");
    pair.follow();
    pair
}

#[test]
fn what_completes_a_pack_counts_as_what_came() {
    let base = noise(300 << 10);
    let mut pair = mirror_of(&base);
    let server = thin(&base);
    let before = pair.mirror.size().unwrap().bytes;
    pair.upstream.url = server.url().into();

    let max_pack = std::mem::replace(&mut pair.upstream.max_pack, 200 << 10);
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::PackTooLarge { .. }), "{error}");
    pair.upstream.max_pack = max_pack;

    let max_mirror = std::mem::replace(&mut pair.upstream.max_mirror, before + (200 << 10));
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::MirrorTooLarge { .. }), "{error}");
    pair.upstream.max_mirror = max_mirror;

    let max_objects = std::mem::replace(&mut pair.upstream.max_objects, 1);
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::TooManyObjects { objects: 2, limit: 1 }), "{error}");
    pair.upstream.max_objects = max_objects;

    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
    pair.mirror.look_closely().unwrap();
}

/// The mirror has one of its versions as a delta against the other, and to read that takes both at a time.
#[test]
fn large_objects_go_on_being_followed() {
    let first = noise(700 << 10);
    let second = [&first[..], b"changed"].concat();
    let mut pair = Pair::new();
    pair.upstream.max_object = 1 << 20;
    for version in [&first, &second] {
        pair.git.write("file", version);
        pair.git.commit("next");
    }
    pair.git.run(["repack", "-adfq"]);
    pair.follow();
    for base in [first, second] {
        let server = thin(&base);
        pair.upstream.url = server.url().into();
        assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
    }
}

/// The limit was lowered after the mirror was made.
#[test]
fn what_rests_on_more_than_may_be_sent_now_is_followed() {
    let size = 900 << 10;
    let mut pair = Pair::new();
    pair.upstream.max_object = 4 << 20;
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
    pair.upstream.url = server.url().into();
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });

    let server = thin(&object);
    pair.upstream.url = server.url().into();
    pair.upstream.max_object = 1 << 20;
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
}
