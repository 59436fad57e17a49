//! Upstreams that send wrong or endless packs: the mirror stays unchanged.

use std::io::Write;
use std::sync::mpsc;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::hostile_upstreams::{ID, listing_with_a_new_one, mirrored, refused};
use crate::packs::{pack_header, with_checksum};
use crate::prelude::*;
use crate::scripted_server::{LITTLE_OF_A_FLOOD, pour};

/// The number of files of packs.
fn pack_files(pair: &Pair) -> usize {
    std::fs::read_dir(pair.mirror_dir().join("objects/pack")).unwrap().count()
}

/// A pack of one object that declares this size.
fn pack_of_one(declared: u64, contents: &[u8]) -> Vec<u8> {
    with_checksum([pack_header(1), blob(declared, contents)].concat())
}

/// A pack of exactly these objects.
fn pack_of(git: &Git, objects: &[&str]) -> Vec<u8> {
    let ids = objects.iter().map(|object| git.line(["rev-parse", object]) + "\n").collect::<String>();
    git.feed(["pack-objects", "--quiet", "--stdout"], ids.as_bytes())
}

#[test]
fn wrong_lengths_are_detected() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    // More or fewer objects than declared.
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

#[test]
fn a_valid_pack_of_other_objects_is_dropped() {
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

/// The object of one of two refs is complete.
#[test]
fn a_pack_with_some_of_the_objects_leaves_the_mirror_intact() {
    let (mut pair, first) = mirrored();
    let second = pair.git.commit_file("a", "2").to_string();
    let pack = pair.git.feed(["pack-objects", "--quiet", "--stdout", "--revs"], b"HEAD\n");
    let refs = listing([(&*second, "HEAD"), (&second, "refs/heads/main"), (ID, "refs/heads/new")]);
    let own = std::mem::replace(&mut pair.upstream.config.url, ScriptedServer::of(refs, packfile(&pack)).url().into());
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("`refs/heads/new`"), "{error}");
    pair.mirror.full_check().unwrap();
    assert!([first, second].contains(&pair.resolve("main").unwrap().to_string()));
    pair.upstream.config.url = own;
    pair.poll();
    pair.mirror.full_check().unwrap();
}

/// The commit and its tree are sent, but not the file. They are dropped, so that the next fetch requests all.
#[test]
fn a_ref_is_updated_only_with_all_reachable_objects() {
    let (mut pair, first) = mirrored();
    let second = pair.git.commit_file("a", "2").to_string();
    let pack = pack_of(&pair.git, &["HEAD", "HEAD^{tree}"]);
    let refs = listing([(&*second, "HEAD"), (&second, "refs/heads/main")]);
    let own = std::mem::replace(&mut pair.upstream.config.url, ScriptedServer::of(refs, packfile(&pack)).url().into());
    let error = pair.try_poll().unwrap_err();
    assert_eq!((error.step(), error.kind()), ("fetch", "protocol"), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    assert_eq!((pair.resolve("main").unwrap().to_string(), pack_files(&pair)), (first, 2));
    pair.upstream.config.url = own;
    pair.follow();
}

/// Declared of other commits, it would hide their parents for good.
#[test]
fn only_new_commits_of_a_successful_fetch_may_be_shallow() {
    let (mut pair, first) = mirrored();
    let second = pair.git.commit_file("a", "2").to_string();
    let shallow = pair.mirror_dir().join("shallow");
    let pack = pack_of(&pair.git, &["HEAD", "HEAD^{tree}"]);
    let whole = pack_of(&pair.git, &["HEAD", "HEAD^{tree}", "HEAD:a"]);
    let refs = listing([(&*second, "HEAD"), (&second, "refs/heads/main")]);
    for (pack, commits, is_followed) in [(pack, [&*second, ID], false), (whole, [&*first, ID], true)] {
        let response = [line("shallow-info\n"), commits.map(|id| line(format!("shallow {id}\n"))).concat()].concat();
        let server = ScriptedServer::of(refs.clone(), [response, b"0001".to_vec(), packfile(&pack)].concat());
        pair.upstream.config.url = server.url().into();
        assert_eq!(pair.try_poll().is_ok(), is_followed);
        assert!(!shallow.exists());
    }
}

/// A tag without its object, or a chain of too many tags. All other refs are updated.
#[test]
fn a_broken_tag_does_not_prevent_updates_of_other_refs() {
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
    for (missing, reason) in
        [(true, "it did not send the object of `refs/tags/t`"), (false, "`refs/tags/t` cannot be followed")]
    {
        let (mut pair, first) = mirrored();
        let second = pair.git.commit_file("a", "2").to_string();
        let tags = if missing { nested(&pair.git, ID, "commit", 1) } else { nested(&pair.git, &first, "commit", 40) };
        let objects = ["HEAD", "HEAD^{tree}", "HEAD:a"].into_iter().chain(tags.iter().map(String::as_str));
        let pack = pack_of(&pair.git, &objects.collect::<Vec<_>>());
        let refs =
            listing([(&*second, "HEAD"), (&second, "refs/heads/main"), (tags.last().unwrap().as_str(), "refs/tags/t")]);
        let server = ScriptedServer::of(refs, packfile(&pack));
        pair.upstream.config.url = server.url().into();
        pair.revisions.insert("refs/tags/t".parse().unwrap());
        let error = pair.try_poll().unwrap_err();
        assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "protocol", false), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(pair.resolve("main").unwrap().to_string(), second);
        pair.mirror.full_check().unwrap();

        // A missing object may come with the next fetch; a broken tag stays broken.
        let (progress, stop, memory) = (FetchProgress::default(), AtomicBool::new(false), FetchMemory::new(1, 1));
        let poll = |pair: &Pair| {
            pair.mirror.poll_with(&pair.upstream, &pair.revisions, &progress, &memory, &stop, &|| false).unwrap()
        };
        assert_eq!(poll(&pair) == Poll::Deferred, missing);
        // Not with each poll, unless somebody follows it.
        pair.revisions.clear();
        assert!(matches!(poll(&pair), Poll::Unchanged { .. }));
        assert!(pair.mirror.left_out()[0].1.to_string().contains(reason));
    }
}

#[test]
fn a_mirror_grows_up_to_its_limit() {
    let (mut pair, first) = mirrored();
    let own = pair.upstream.config.url.clone();
    let bytes = || pair.mirror.size().unwrap().bytes;
    let before = bytes();
    // Incompressible data, different each time, as with forced pushes.
    let noise = |seed: &str| -> String {
        let digest = |n: usize| ring::digest::digest(&ring::digest::SHA256, format!("{seed} {n}").as_bytes());
        (0..4000).flat_map(|n| digest(n).as_ref().to_owned()).map(|byte| char::from(byte & 127)).collect()
    };
    pair.upstream.limits.max_mirror = ByteSize(before + (200 << 10));
    pair.git.commit_file("a", noise("one"));
    pair.poll();
    assert!(bytes() > before + (100 << 10));
    let third = pair.git.commit_file("a", noise("two"));
    for _ in 0..2 {
        let error = pair.try_poll().unwrap_err();
        assert!(matches!(error, MirrorError::MirrorTooLarge { .. }), "{error}");
        assert_eq!((error.step(), error.kind()), ("fetch", "limit"));
        assert!(error.to_string().contains("max_mirror"), "{error}");
        assert!(bytes() <= pair.upstream.limits.max_mirror.as_u64());
    }
    // A full mirror receives no pack, but refs without new objects are still updated.
    pair.upstream.limits.max_mirror = ByteSize(bytes());
    assert!(matches!(pair.try_poll(), Err(MirrorError::MirrorTooLarge { .. })));
    pair.git.run(["reset", "-q", "--hard", &first]);
    pair.poll();
    assert_eq!(pair.resolve("main").unwrap().to_string(), first);
    pair.upstream.limits.max_mirror = ByteSize(u64::MAX);
    pair.git.run(["reset", "-q", "--hard", third.as_str()]);
    pair.poll();
    assert_eq!((pair.resolve("main").unwrap(), own), (third, pair.upstream.config.url));
}

#[test]
fn an_object_over_the_limit_is_refused_by_its_header() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    pair.upstream.limits.max_object = ByteSize(1 << 20);
    let pack = pack_of_one((1 << 20) + 1, &vec![0; (1 << 20) + 1]);
    let error = refused(&mut pair, &first, ScriptedServer::of(refs, packfile(&pack)).url());
    assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "limit", false), "{error}");
    assert!(error.to_string().contains("`[upstreams] max_object` = 1048576"), "{error}");
}

/// Each object takes memory while its pack is indexed.
#[test]
fn too_many_objects_are_refused_by_the_header_of_the_pack() {
    let (mut pair, first) = mirrored();
    pair.upstream.limits.max_objects = 1000;
    let pack = with_checksum([pack_header(1001), blob(3, b"abc")].concat());
    let error = refused(&mut pair, &first, ScriptedServer::of(listing_with_a_new_one(&first), packfile(&pack)).url());
    assert!(matches!(error, MirrorError::TooManyObjects { objects: 1001, limit: 1000 }), "{error}");
    assert_eq!((error.step(), error.kind(), error.may_be_damage()), ("fetch", "limit", false));
    assert!(error.to_string().contains("`[upstreams] max_objects` = 1000"), "{error}");
}

/// A large repository without bad intentions.
#[test]
fn many_small_objects_count_individually() {
    let (mut pair, _) = mirrored();
    pair.upstream.limits.max_object = ByteSize(1 << 20);
    let blobs = (0..30_000).flat_map(|n| blob(5, format!("{n:05}").as_bytes())).collect();
    let pack = with_checksum([pack_header(30_000), blobs].concat());
    let last = gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, b"29999").unwrap().to_string();
    let server = ScriptedServer::of(listing([(last.as_str(), "refs/heads/many")]), packfile(&pack));
    pair.upstream.config.url = server.url().into();
    assert_eq!(pair.poll(), Poll::Changed { refs: 1 });
}

/// Packs with wrong declarations.
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

/// A blob entry that declares this size.
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

/// A server of an endless object, and the bytes that it has sent.
fn endless(first: &str) -> (ScriptedServer, Arc<AtomicU64>) {
    let (refs, sent) = (listing_with_a_new_one(first), Arc::new(AtomicU64::new(0)));
    let counted = sent.clone();
    let server = ScriptedServer::of_refs(
        "127.0.0.1",
        move || refs.clone(),
        move |socket| {
            begin(socket, RESULT, 1 << 40)?;
            socket.write_all(&line("packfile\n"))?;
            // In stored blocks.
            let start = [&b"PACK\0\0\0\x02\0\0\0\x01"[..], &[0xb0, 0xff, 0xff, 0xff, 0x7f, 0x78, 0x01]].concat();
            socket.write_all(&line([&[1], &start[..]].concat()))?;
            let block = [&[0, 0xff, 0x7f, 0, 0x80][..], &[7; 0x7fff]].concat();
            pour(&counted, socket, &line([&[1], &block[..]].concat()), 100_000)
        },
    );
    (server, sent)
}

#[test]
fn an_endless_pack_fills_neither_disk_nor_memory() {
    let (mut pair, first) = mirrored();
    let (server, sent) = endless(&first);
    pair.upstream.limits.max_object = ByteSize(8 << 30);
    let max_pack = std::mem::replace(&mut pair.upstream.limits.max_pack, ByteSize(4 << 20));
    let error = refused(&mut pair, &first, server.url());
    assert!(matches!(error, MirrorError::PackTooLarge { .. }), "{error}");
    assert!(sent.load(Ordering::Relaxed) < LITTLE_OF_A_FLOOD, "{sent:?}");

    let (server, sent) = endless(&first);
    (pair.upstream.limits.max_pack, pair.upstream.limits.max_object) = (max_pack, ByteSize(4 << 20));
    let error = refused(&mut pair, &first, server.url());
    assert!(matches!(error, MirrorError::ObjectTooLarge { .. }), "{error}");
    assert!(sent.load(Ordering::Relaxed) < LITTLE_OF_A_FLOOD, "{sent:?}");
}

/// All fetches share a memory budget, and no host takes all of it.
#[test]
fn a_fetch_waits_for_memory_of_its_own_host() {
    let ((mut slow, first), (mut small, second), (elsewhere, _)) = (mirrored(), mirrored(), mirrored());
    let (begins, begun) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let (refs, gone) = (listing_with_a_new_one(&first), Mutex::new(gone));
    let server = ScriptedServer::of_refs(
        "127.0.0.1",
        move || refs.clone(),
        move |socket| {
            begin(socket, RESULT, 1 << 40)?;
            socket.write_all(&[line("packfile\n"), line([&[1], &pack_header(1000)[..]].concat())].concat())?;
            begins.send(()).unwrap();
            let _ = gone.lock().unwrap().recv();
            Ok(())
        },
    );
    let blob = pack_of_one(3, b"abc");
    let id = gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, b"abc").unwrap().to_string();
    let refs = listing([(&*second, "HEAD"), (&second, "refs/heads/main"), (&*id, "refs/tags/abc")]);
    let quick = ScriptedServer::of(refs, packfile(&blob));
    (slow.upstream.config.url, small.upstream.config.url) = (server.url().into(), quick.url().into());
    elsewhere.git.commit_file("a", "2");

    let memory = FetchMemory::new(slow.upstream.limits.max_object.as_u64(), 1000);
    let poll = |pair: &Pair, progress: &FetchProgress| {
        pair.mirror.poll_with(&pair.upstream, &pair.revisions, progress, &memory, &AtomicBool::new(false), &|| true)
    };
    let progress = FetchProgress::default();
    std::thread::scope(|scope| {
        let held = scope.spawn(|| poll(&slow, &FetchProgress::default()));
        begun.recv().unwrap();
        let waits = scope.spawn(|| poll(&small, &progress));
        while progress.snapshot().phase != "waiting" {
            assert!(!waits.is_finished());
            std::thread::yield_now();
        }
        assert_eq!(memory.in_use(), memory.limit() / 2);
        assert!(matches!(poll(&elsewhere, &FetchProgress::default()), Ok(Poll::Changed { .. })));
        go.send(()).unwrap();
        held.join().unwrap().unwrap();
        assert_eq!(slow.mirror.left_out().len(), 1);
        assert!(matches!(waits.join().unwrap(), Ok(Poll::Changed { .. })));
    });
    assert_eq!(memory.in_use(), 0);
}

/// Otherwise anyone with push permission could change the contents of a signed commit.
#[test]
fn a_replacement_object_is_not_used() {
    let mut pair = Pair::new();
    let commit = pair.git.commit_file("deploy/app", "good").to_string();
    let good = pair.git.line(["rev-parse", "HEAD:deploy"]);
    let evil = pair.git.raw_tree(&[("100644", b"app", &pair.git.blob(b"evil"))]);
    pair.git.run(["replace", &good, &evil]);
    pair.revisions.insert(weir_git::revision::Revision::Named(format!("refs/replace/{good}")));
    assert_eq!(pair.poll(), Poll::Changed { refs: 3 }, "it is mirrored as any other ref");
    let repository = pair.mirror.repository().unwrap().to_thread_local();
    let tree = repository.find_commit(gix::ObjectId::from_hex(commit.as_bytes()).unwrap()).unwrap().tree().unwrap();
    let app = tree.lookup_entry_by_path("deploy/app").unwrap().unwrap();
    assert_eq!(app.object().unwrap().data, b"good");
}
