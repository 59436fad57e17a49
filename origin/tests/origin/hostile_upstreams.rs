//! Upstreams that stall, break off, lie and flood: each ends with a clear error, and the mirror stays as it was.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use weir_origin::mirror::{FetchProgress, MirrorError, Poll};
use weir_shared::process::certificates;

use crate::git_fixture::Git;
use crate::mirror_polls::Pair;
use crate::scripted_server::{ScriptedServer, advertisement, begin, line, listing, packfile, pour, say};
use crate::smart_http::tls_config;

const ADVERTISEMENT: &str = "application/x-git-upload-pack-advertisement";
const RESULT: &str = "application/x-git-upload-pack-result";
const ID: &str = "1234567890123456789012345678901234567890";

/// A mirror of one commit, and what it then has.
fn mirrored() -> (Pair, String) {
    let pair = Pair::new();
    pair.git.write("a", "1");
    let first = pair.git.commit("first");
    pair.follow();
    (pair, first.to_string())
}

/// What is mirrored, and a branch that has to be fetched.
fn listing_with_a_new_one(first: &str) -> Vec<u8> {
    listing([(first, "HEAD"), (first, "refs/heads/main"), (ID, "refs/heads/new")])
}

/// What a poll of another upstream fails with; what was mirrored is still there, and can still be followed.
#[track_caller]
fn refused(pair: &mut Pair, first: &str, url: String) -> MirrorError {
    let own = std::mem::replace(&mut pair.upstream.url, url);
    let error = pair.try_poll().unwrap_err();
    pair.upstream.url = own;
    assert_eq!(pair.resolve("main").unwrap().to_string(), first, "after {error}");
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }), "after {error}");
    assert!(error.to_string().len() < 600, "{error}");
    error
}

#[test]
fn nothing_is_deleted_when_no_refs_are_named() {
    let (mut pair, first) = mirrored();
    let nobody = ScriptedServer::of(listing([]), Vec::new());
    let error = refused(&mut pair, &first, nobody.url());
    assert!(matches!(error, MirrorError::NothingAdvertised { mirrored: 2 }), "{error}");
    // Others than were asked for count as none.
    let others = ScriptedServer::of(listing([(ID, "refs/notes/x")]), Vec::new());
    let error = refused(&mut pair, &first, others.url());
    assert_eq!(error.kind(), "no_refs", "{error}");
}

#[test]
fn a_million_refs_are_too_many_long_before_they_are_read() {
    let (mut pair, first) = mirrored();
    let sent = Arc::new(AtomicU64::new(0));
    let flood = {
        let sent = sent.clone();
        ScriptedServer::start(move |request, _, socket| {
            if request.starts_with("GET") {
                return say(socket, ADVERTISEMENT, &advertisement());
            }
            begin(socket, RESULT, 1 << 40)?;
            let refs: Vec<u8> = (0..1000).flat_map(|n| line(format!("{ID} refs/heads/branch-{n:09}\n"))).collect();
            pour(&sent, socket, &refs, 1000)
        })
    };
    pair.upstream.max_refs = 10_000;
    let error = refused(&mut pair, &first, flood.url());
    assert!(matches!(error, MirrorError::TooManyRefs { limit: 10_000 }), "{error}");
    assert_eq!(error.kind(), "limit");
    // 256 bytes for each of the 10,000, and what the two sockets hold.
    assert!(sent.load(Ordering::Relaxed) < 20_000_000, "{sent:?}");

    pair.upstream.max_refs = 3;
    let names = ["refs/heads/a", "refs/heads/b", "refs/heads/c", "refs/heads/d"];
    let few = ScriptedServer::of(listing(names.map(|name| (ID, name))), Vec::new());
    assert!(matches!(refused(&mut pair, &first, few.url()), MirrorError::TooManyRefs { limit: 3 }));
}

#[test]
fn a_name_that_is_also_a_folder_of_names_stops_nobody_for_good() {
    let (mut pair, first) = mirrored();
    let names = ["HEAD", "refs/heads/main", "refs/heads/a", "refs/heads/a/b"];
    let both = ScriptedServer::of(listing(names.map(|name| (first.as_str(), name))), Vec::new());
    let own = std::mem::replace(&mut pair.upstream.url, both.url());
    let _ = pair.try_poll();
    pair.upstream.url = own;
    pair.poll();
    assert!(matches!(pair.poll(), Poll::Unchanged { refs: 2 }));
    pair.mirror.look_closely().unwrap();
}

#[test]
fn names_that_no_ref_may_have_and_names_that_come_twice_change_nothing() {
    let (mut pair, first) = mirrored();
    let own = pair.upstream.url.clone();
    let (before, long) = (std::fs::read_dir(pair.mirror_dir()).unwrap().count(), "x/".repeat(3000));
    for name in ["../../../x", "a\u{1b}[31m", "x.lock", "a..b", "/x", "a b", "@{", &long] {
        let name = format!("refs/heads/{name}");
        let refs = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main"), (&first, &name)]);
        pair.upstream.url = ScriptedServer::of(refs, Vec::new()).url();
        match pair.try_poll() {
            // Some are not even taken for the name of a branch.
            Ok(poll) => assert_eq!(poll, Poll::Unchanged { refs: 2 }, "{name}"),
            Err(error) => {
                assert_eq!((error.step(), error.kind()), ("list refs", "protocol"), "{name}: {error}");
                assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
            }
        }
    }
    pair.upstream.url = own;
    assert_eq!(std::fs::read_dir(pair.mirror_dir()).unwrap().count(), before);
    let twice = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main"), (ID, "refs/heads/main")]);
    let error = refused(&mut pair, &first, ScriptedServer::of(twice, Vec::new()).url());
    assert!(error.to_string().contains("twice: `refs/heads/main`"), "{error}");
}

#[test]
fn answers_that_are_not_git_s_protocol_are_told_apart() {
    let (mut pair, first) = mirrored();
    let page = ScriptedServer::start(|_, _, socket| say(socket, "text/html; charset=utf-8", b"<h1>Log in</h1>"));
    let error = refused(&mut pair, &first, page.url());
    assert_eq!(error.kind(), "protocol");
    assert!(error.to_string().contains("`text/html; charset=utf-8`"), "{error}");
    for nonsense in
        [&b""[..], b"0000", b"zzzz", b"0003", b"0005", b"ffff", b"001e# service=git-upload-pack\n", b"\0\xff\x7f"]
    {
        let server = ScriptedServer::start(move |_, _, socket| say(socket, ADVERTISEMENT, nonsense));
        let error = refused(&mut pair, &first, server.url());
        assert!(["protocol", "no_refs"].contains(&error.kind()), "{nonsense:?}: {error}");
        let server = ScriptedServer::of(nonsense.to_vec(), Vec::new());
        let error = refused(&mut pair, &first, server.url());
        assert!(["protocol", "no_refs"].contains(&error.kind()), "{nonsense:?}: {error}");
    }
    let plain = ScriptedServer::start(|_, _, socket| socket.write_all(b"SSH-2.0-OpenSSH\r\n"));
    assert_eq!(refused(&mut pair, &first, plain.url()).kind(), "protocol");
    let error = refused(&mut pair, &first, plain.url().replace("http", "https"));
    assert!(["trust", "connect"].contains(&error.kind()), "{error}");
}

#[test]
fn lengths_that_lie_are_found_out() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    // More is promised than comes, and less.
    for (difference, kind) in [(1000, "protocol"), (-20, "protocol")] {
        let refs = refs.clone();
        let server = ScriptedServer::start(move |request, _, socket| {
            if request.starts_with("GET") {
                return say(socket, ADVERTISEMENT, &advertisement());
            }
            begin(socket, RESULT, (refs.len() as u64).checked_add_signed(difference).unwrap())?;
            socket.write_all(
                &refs[..refs.len().checked_add_signed(difference.min(0) as isize).unwrap().min(refs.len() - 4)],
            )
        });
        let error = refused(&mut pair, &first, server.url());
        assert_eq!(error.kind(), kind, "{error}");
    }
    for (what, pack) in hostile_packs() {
        let error = refused(&mut pair, &first, ScriptedServer::of(refs.clone(), packfile(&pack)).url());
        assert_eq!(error.step(), "fetch", "{what}: {error}");
    }
    assert_eq!(pack_files(&pair), 2);
}

/// Packs and what belongs to them.
fn pack_files(pair: &Pair) -> usize {
    std::fs::read_dir(pair.mirror_dir().join("objects/pack")).unwrap().count()
}

/// A pack of one object that claims to have so many bytes.
fn pack_of_one(declared: u64, contents: &[u8]) -> Vec<u8> {
    with_checksum([pack_header(1), blob(declared, contents)].concat())
}

#[test]
fn a_pack_that_is_whole_but_not_what_was_asked_for_is_not_kept() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    let empty = with_checksum(pack_header(0));
    for pack in [empty, pack_of_one(1, b"a"), pack_of_one(1, b"b"), pack_of_one(1, b"c")] {
        let error = refused(&mut pair, &first, ScriptedServer::of(refs.clone(), packfile(&pack)).url());
        assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "protocol", false), "{error}");
        assert!(error.to_string().contains("`refs/heads/new`"), "{error}");
        assert_eq!(pack_files(&pair), 2, "{error}");
    }
}

/// Of two refs one can be moved: what it points at stays.
#[test]
fn a_pack_with_some_of_what_was_asked_for_leaves_the_mirror_whole() {
    let (mut pair, first) = mirrored();
    pair.git.write("a", "2");
    let second = pair.git.commit("second").to_string();
    let pack = pair.git.feed(["pack-objects", "--quiet", "--stdout", "--revs"], b"HEAD\n");
    let refs = listing([(&*second, "HEAD"), (&second, "refs/heads/main"), (ID, "refs/heads/new")]);
    let own = std::mem::replace(&mut pair.upstream.url, ScriptedServer::of(refs, packfile(&pack)).url());
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("`refs/heads/new`"), "{error}");
    pair.mirror.look_closely().unwrap();
    assert!([first, second].contains(&pair.resolve("main").unwrap().to_string()));
    pair.upstream.url = own;
    pair.poll();
    pair.mirror.look_closely().unwrap();
}

/// A tag came, and not what it was put on, or that is behind more tags than anybody follows. Everything else is followed.
#[test]
fn a_tag_that_leads_nowhere_keeps_no_other_ref_back() {
    let nested = |git: &Git, innermost: &str, kind: &str, count: usize| {
        let mut tags: Vec<String> = Vec::new();
        for _ in 0..count {
            let (of, kind) = tags.last().map_or((innermost, kind), |tag| (tag.as_str(), "tag"));
            let text = format!("object {of}\ntype {kind}\ntag t\ntagger a <a@b> 0 +0000\n\nt\n");
            let tag = git.feed(["hash-object", "-t", "tag", "--literally", "-w", "--stdin"], text.as_bytes());
            tags.push(String::from_utf8(tag).unwrap().trim().to_owned());
        }
        tags
    };
    for (missing, reason) in [(true, "it did not send what `refs/tags/t`"), (false, "`refs/tags/t` cannot be followed")]
    {
        let (mut pair, first) = mirrored();
        pair.git.write("a", "2");
        let second = pair.git.commit("second").to_string();
        let tags = if missing { nested(&pair.git, ID, "commit", 1) } else { nested(&pair.git, &first, "commit", 40) };
        let objects = [second.clone(), format!("{second}^{{tree}}"), format!("{second}:a")];
        let objects: Vec<String> = objects.iter().map(|object| pair.git.line(["rev-parse", object.as_str()])).collect();
        let objects = [objects, tags.clone()].concat().join("\n") + "\n";
        let pack = pair.git.feed(["pack-objects", "--quiet", "--stdout"], objects.as_bytes());
        let refs =
            listing([(&*second, "HEAD"), (&second, "refs/heads/main"), (tags.last().unwrap().as_str(), "refs/tags/t")]);
        let server = ScriptedServer::of(refs, packfile(&pack));
        pair.upstream.url = server.url();
        let error = pair.try_poll().unwrap_err();
        assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "protocol", false), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(pair.resolve("main").unwrap().to_string(), second);
        pair.mirror.look_closely().unwrap();
    }
}

#[test]
fn a_mirror_grows_to_its_bound_and_no_further() {
    let (mut pair, first) = mirrored();
    let own = pair.upstream.url.clone();
    let bytes = || pair.mirror.size().unwrap().bytes;
    let before = bytes();
    // What nobody compresses, and each time something else: as forced pushes would bring it.
    let noise = |seed: &str| -> String {
        let digest = |n: usize| ring::digest::digest(&ring::digest::SHA256, format!("{seed} {n}").as_bytes());
        (0..4000).flat_map(|n| digest(n).as_ref().to_owned()).map(|byte| char::from(byte & 127)).collect()
    };
    pair.upstream.max_mirror = before + (200 << 10);
    pair.git.write("a", noise("one"));
    pair.git.commit("first");
    pair.poll();
    assert!(bytes() > before + (100 << 10));
    pair.git.write("a", noise("two"));
    let third = pair.git.commit("third");
    for _ in 0..2 {
        let error = pair.try_poll().unwrap_err();
        assert!(matches!(error, MirrorError::MirrorTooLarge { .. }), "{error}");
        assert_eq!((error.step(), error.kind()), ("fetch", "limit"));
        assert!(error.to_string().contains("max_mirror"), "{error}");
        assert!(bytes() <= pair.upstream.max_mirror);
    }
    // Not even a connection's worth is taken once it is full; what needs no pack is followed still.
    pair.upstream.max_mirror = bytes();
    assert!(matches!(pair.try_poll(), Err(MirrorError::MirrorTooLarge { .. })));
    pair.git.run(["reset", "-q", "--hard", &first]);
    pair.poll();
    assert_eq!(pair.resolve("main").unwrap().to_string(), first);
    pair.upstream.max_mirror = u64::MAX;
    pair.git.run(["reset", "-q", "--hard", third.as_str()]);
    pair.poll();
    assert_eq!((pair.resolve("main").unwrap(), own), (third, pair.upstream.url));
}

/// What comes before a pack is kept in memory, line by line.
#[test]
fn words_without_an_end_before_a_pack_do_not_fill_the_memory() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    for word in ["NAK\n".to_owned(), format!("ACK {first} common\n")] {
        let (refs, sent) = (refs.clone(), Arc::new(AtomicU64::new(0)));
        let counted = sent.clone();
        let chatters = ScriptedServer::start(move |request, body, socket| {
            if request.starts_with("GET") {
                return say(socket, ADVERTISEMENT, &advertisement());
            }
            if body.windows(7).any(|word| word == b"ls-refs") {
                return say(socket, RESULT, &refs);
            }
            begin(socket, RESULT, 1 << 40)?;
            socket.write_all(&line("acknowledgments\n"))?;
            pour(&counted, socket, &line(&word).repeat(10_000), 100_000)
        });
        let error = refused(&mut pair, &first, chatters.url());
        assert_eq!((error.step(), error.kind()), ("fetch", "protocol"), "{error}");
        assert!(error.to_string().contains("before the pack"), "{error}");
        assert!(sent.load(Ordering::Relaxed) < 30_000_000, "{sent:?}");
    }
}

#[test]
fn an_object_over_the_limit_is_refused_by_its_name() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    pair.upstream.max_object = 1 << 20;
    let pack = pack_of_one((1 << 20) + 1, &vec![0; (1 << 20) + 1]);
    let error = refused(&mut pair, &first, ScriptedServer::of(refs, packfile(&pack)).url());
    assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "limit", false), "{error}");
    assert!(error.to_string().contains("`[upstreams] max_object` = 1048576"), "{error}");
}

/// Each object takes some memory while the pack is indexed, however small it is.
#[test]
fn more_objects_than_are_taken_are_refused_by_the_head_of_the_pack() {
    let (mut pair, first) = mirrored();
    pair.upstream.max_objects = 1000;
    let pack = with_checksum([pack_header(1001), blob(3, b"abc")].concat());
    let error = refused(&mut pair, &first, ScriptedServer::of(listing_with_a_new_one(&first), packfile(&pack)).url());
    assert!(matches!(error, MirrorError::TooManyObjects { objects: 1001, limit: 1000 }), "{error}");
    assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "limit", false));
    assert!(error.to_string().contains("`[upstreams] max_objects` = 1000"), "{error}");
}

/// No upstream that means harm: only a large one.
#[test]
fn many_small_objects_are_not_taken_for_a_large_one() {
    let (mut pair, _) = mirrored();
    pair.upstream.max_object = 1 << 20;
    let blobs = (0..30_000).flat_map(|n| blob(5, format!("{n:05}").as_bytes())).collect();
    let pack = with_checksum([pack_header(30_000), blobs].concat());
    let last = gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, b"29999").unwrap().to_string();
    let server = ScriptedServer::of(listing([(last.as_str(), "refs/heads/many")]), packfile(&pack));
    pair.upstream.url = server.url();
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
}

/// Packs that claim what is not so.
fn hostile_packs() -> Vec<(&'static str, Vec<u8>)> {
    let header = pack_header;
    let bomb = blob(3, &vec![0; 200 << 20]);
    vec![
        ("four thousand million objects", with_checksum([header(u32::MAX), blob(3, b"abc")].concat())),
        ("one object too few", with_checksum([header(2), blob(3, b"abc")].concat())),
        ("a size of an exbibyte", with_checksum([header(1), blob(1 << 60, b"abc")].concat())),
        ("3 bytes that are 200 MiB", with_checksum([header(1), bomb].concat())),
        ("another checksum", [header(1), blob(3, b"abc"), vec![7; 20]].concat()),
        ("another version", with_checksum(b"PACK\0\0\0\x09\0\0\0\0".to_vec())),
        ("no pack", b"nothing of the kind".to_vec()),
        ("no bytes", Vec::new()),
    ]
}

pub(crate) fn pack_header(objects: u32) -> Vec<u8> {
    [&b"PACK\0\0\0\x02"[..], &objects.to_be_bytes()].concat()
}

/// A blob as it stands in a pack, which claims to have so many bytes.
fn blob(declared: u64, contents: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    let (mut rest, mut byte) = (declared >> 4, 0x30 | (declared & 15) as u8);
    while rest > 0 {
        entry.push(byte | 0x80);
        (byte, rest) = ((rest & 127) as u8, rest >> 7);
    }
    entry.push(byte);
    let mut zlib = ZlibEncoder::new(entry, Compression::best());
    zlib.write_all(contents).unwrap();
    zlib.finish().unwrap()
}

pub(crate) fn with_checksum(mut pack: Vec<u8>) -> Vec<u8> {
    pack.extend(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &pack).as_ref());
    pack
}

/// A server of an object that goes on and on, and how many bytes of it went out.
fn endless(first: &str) -> (ScriptedServer, Arc<AtomicU64>) {
    let (refs, sent) = (listing_with_a_new_one(first), Arc::new(AtomicU64::new(0)));
    let counted = sent.clone();
    let server = ScriptedServer::start(move |request, body, socket| {
        if request.starts_with("GET") {
            return say(socket, ADVERTISEMENT, &advertisement());
        }
        if body.windows(7).any(|word| word == b"ls-refs") {
            return say(socket, RESULT, &refs);
        }
        begin(socket, RESULT, 1 << 40)?;
        socket.write_all(&line("packfile\n"))?;
        // In stored blocks.
        let start = [&b"PACK\0\0\0\x02\0\0\0\x01"[..], &[0xb0, 0xff, 0xff, 0xff, 0x7f, 0x78, 0x01]].concat();
        socket.write_all(&line([&[1], &start[..]].concat()))?;
        let block = [&[0, 0xff, 0x7f, 0, 0x80][..], &[7; 0x7fff]].concat();
        pour(&counted, socket, &line([&[1], &block[..]].concat()), 100_000)
    });
    (server, sent)
}

#[test]
fn a_pack_without_an_end_fills_neither_the_disk_nor_the_memory() {
    let (mut pair, first) = mirrored();
    let (server, sent) = endless(&first);
    let max_pack = std::mem::replace(&mut pair.upstream.max_pack, 4 << 20);
    let error = refused(&mut pair, &first, server.url());
    assert!(matches!(error, MirrorError::PackTooLarge { .. }), "{error}");
    assert!(sent.load(Ordering::Relaxed) < 40_000_000, "{sent:?}");

    let (server, sent) = endless(&first);
    (pair.upstream.max_pack, pair.upstream.max_object) = (max_pack, 4 << 20);
    let error = refused(&mut pair, &first, server.url());
    assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    assert!(sent.load(Ordering::Relaxed) < 40_000_000, "{sent:?}");
}

/// Where a server falls silent.
#[derive(Debug, Clone, Copy)]
enum Silence {
    AfterAccept,
    InTheHead,
    InTheListing,
    InThePack,
}

fn silent_server(silence: Silence, first: &str) -> ScriptedServer {
    let refs = listing_with_a_new_one(first);
    ScriptedServer::start(move |request, body, socket| {
        // Until the client has had enough.
        let wait = |socket: &mut TcpStream| socket.read(&mut [0]).map(|_| ());
        match silence {
            Silence::AfterAccept => return wait(socket),
            Silence::InTheHead => {
                socket.write_all(b"HTTP/1.1 200 O")?;
                return wait(socket);
            }
            _ if request.starts_with("GET") => return say(socket, ADVERTISEMENT, &advertisement()),
            Silence::InThePack if body.windows(7).any(|word| word == b"ls-refs") => return say(socket, RESULT, &refs),
            Silence::InTheListing => {
                begin(socket, RESULT, refs.len() as u64)?;
                socket.write_all(&refs[..20])?;
            }
            Silence::InThePack => {
                begin(socket, RESULT, 100_000)?;
                socket.write_all(&line("packfile\n"))?;
                socket.write_all(&line(b"\x01PACK\0\0\0\x02\0\0\0\x01"))?;
            }
        }
        wait(socket)
    })
}

#[test]
fn silence_ends_at_each_step_and_so_does_a_request_to_stop() {
    let (mut pair, first) = mirrored();
    for silence in [Silence::AfterAccept, Silence::InTheHead, Silence::InTheListing, Silence::InThePack] {
        let server = silent_server(silence, &first);
        let patient = std::mem::replace(&mut pair.upstream.stall_timeout, Duration::from_millis(300));
        let error = refused(&mut pair, &first, server.url());
        let step = if matches!(silence, Silence::InThePack) { "fetch" } else { "list refs" };
        assert!(error.is_timeout() && error.step() == step, "{silence:?}: {error}");
        pair.upstream.stall_timeout = patient;
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.stall_timeout = Duration::from_secs(3600);
    for scheme in ["http", "https", "git", "ssh"] {
        let url = format!("{scheme}://{}/x", silent.local_addr().unwrap());
        let mut upstream = pair.upstream.clone();
        upstream.url = url;
        let empty = pair.git.dir.join("empty");
        std::fs::write(&empty, "").unwrap();
        (upstream.ssh_key, upstream.ssh_known_hosts) = (Some(empty.clone()), Some(empty));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (pair, upstream, stop) = (&pair, &upstream, &stop);
            let poll = scope.spawn(move || pair.mirror.poll(upstream, &FetchProgress::default(), stop).unwrap_err());
            let connection = silent.accept().unwrap();
            stop.store(true, Ordering::Relaxed);
            let error = poll.join().unwrap();
            assert!(matches!(error, MirrorError::Interrupted), "{scheme}: {error}");
            drop(connection);
        });
    }
}

#[test]
fn silence_within_and_after_the_tls_handshake_ends() {
    let (mut pair, first) = mirrored();
    let certificates = pair.git.dir.parent().unwrap().join("certificates");
    certificates::write(&certificates, &[]).unwrap();
    pair.upstream.ca = Some(certificates.join("ca.pem"));
    pair.upstream.stall_timeout = Duration::from_millis(500);
    let config = tls_config(&certificates, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/x", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for (at, socket) in listener.incoming().enumerate() {
            let mut socket = socket.unwrap();
            if at > 0 {
                let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
                while tls.is_handshaking() && tls.complete_io(&mut socket).is_ok() {}
            }
            held.push(socket);
        }
    });
    let error = refused(&mut pair, &first, url.clone());
    assert!(error.is_timeout() && error.step() == "connect", "within: {error:?}");
    let error = refused(&mut pair, &first, url);
    assert!(error.is_timeout() && error.step() == "list refs", "after: {error:?}");
}

#[test]
fn an_answer_that_trickles_is_ended_by_who_watches() {
    let (pair, _) = mirrored();
    let (told, trickles) = mpsc::channel();
    let server = ScriptedServer::start(move |_, _, socket| {
        begin(socket, ADVERTISEMENT, 1 << 30)?;
        let advertisement = advertisement();
        for byte in advertisement.iter().chain(std::iter::repeat(&b'0')) {
            socket.write_all(&[*byte])?;
            let _ = told.send(());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let mut upstream = pair.upstream.clone();
    upstream.url = server.url();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pair, upstream, stop) = (&pair, &upstream, &stop);
        let poll = scope.spawn(move || pair.mirror.poll(upstream, &FetchProgress::default(), stop).unwrap_err());
        trickles.iter().take(20).for_each(drop);
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(poll.join().unwrap(), MirrorError::Interrupted));
    });
}

/// Otherwise whoever may push refs, and signs nothing, changes what a signed commit holds.
#[test]
fn an_object_that_stands_in_for_another_is_not_taken_for_it() {
    let mut pair = Pair::new();
    pair.git.write("deploy/app", "good");
    let commit = pair.git.commit("signed").to_string();
    let good = pair.git.line(["rev-parse", "HEAD:deploy"]);
    let evil = pair.git.raw_tree(&[("100644", b"app", &pair.git.blob(b"evil"))]);
    pair.git.run(["replace", &good, &evil]);
    pair.upstream.further_refs.insert(format!("refs/replace/{good}"));
    assert_eq!(pair.poll(), Poll::Changed { refs: 3 }, "it is mirrored as any other ref");
    let repository = pair.mirror.repository().unwrap().to_thread_local();
    let tree = repository.find_commit(gix::ObjectId::from_hex(commit.as_bytes()).unwrap()).unwrap().tree().unwrap();
    let app = tree.lookup_entry_by_path("deploy/app").unwrap().unwrap();
    assert_eq!(app.object().unwrap().data, b"good");
}
