//! Upstreams with wrong or endless listings of refs: each ends with a clear error, and the mirror stays unchanged.

use std::io::Write;

use crate::prelude::*;
use crate::scripted_server::{LITTLE_OF_A_FLOOD, pour};

pub(crate) const ID: &str = "1234567890123456789012345678901234567890";

/// A mirror of one commit, and its id.
pub(crate) fn mirrored() -> (Pair, String) {
    let (pair, first) = Pair::of_a_commit();
    pair.follow();
    (pair, first.to_string())
}

/// A listing of the mirror's branch and of a new one.
pub(crate) fn listing_with_a_new_one(first: &str) -> Vec<u8> {
    listing([(first, "HEAD"), (first, "refs/heads/main"), (ID, "refs/heads/new")])
}

/// The error of a poll of another upstream. The mirror's refs stay, and can still be followed.
#[track_caller]
pub(crate) fn refused(pair: &mut Pair, first: &str, url: String) -> MirrorError {
    let own = std::mem::replace(&mut pair.upstream.config.url, url.into());
    let error = pair.try_poll().unwrap_err();
    pair.upstream.config.url = own;
    assert_eq!(pair.resolve("main").unwrap().to_string(), first, "after {error}");
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }), "after {error}");
    assert!(error.to_string().len() < 600, "{error}");
    error
}

#[test]
fn an_empty_listing_deletes_nothing() {
    let (mut pair, first) = mirrored();
    let nobody = ScriptedServer::of(listing([]), Vec::new());
    let error = refused(&mut pair, &first, nobody.url());
    assert!(matches!(error, MirrorError::NothingAdvertised { mirrored: 2 }), "{error}");
    // Refs that were not requested do not count.
    let others = ScriptedServer::of(listing([(ID, "refs/notes/x")]), Vec::new());
    let error = refused(&mut pair, &first, others.url());
    assert_eq!(error.kind(), "no_refs", "{error}");
}

#[test]
fn a_million_refs_are_refused_before_they_are_read() {
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
            pour(&sent, socket, &refs, 100_000)
        })
    };
    pair.upstream.limits.max_refs = 10_000;
    let error = refused(&mut pair, &first, flood.url());
    assert!(matches!(error, MirrorError::TooManyRefs { limit: 10_000 }), "{error}");
    assert_eq!(error.kind(), "limit");
    // 256 bytes for each of the 10,000, and the buffers of both sockets.
    assert!(sent.load(Ordering::Relaxed) < LITTLE_OF_A_FLOOD, "{sent:?}");

    pair.upstream.limits.max_refs = 3;
    let names = ["refs/heads/a", "refs/heads/b", "refs/heads/c", "refs/heads/d"];
    let few = ScriptedServer::of(listing(names.map(|name| (ID, name))), Vec::new());
    assert!(matches!(refused(&mut pair, &first, few.url()), MirrorError::TooManyRefs { limit: 3 }));
}

#[test]
fn a_name_that_is_also_a_directory_blocks_no_later_poll() {
    let (mut pair, first) = mirrored();
    let names = ["HEAD", "refs/heads/main", "refs/heads/a", "refs/heads/a/b"];
    let both = ScriptedServer::of(listing(names.map(|name| (first.as_str(), name))), Vec::new());
    let own = std::mem::replace(&mut pair.upstream.config.url, both.url().into());
    let _ = pair.try_poll();
    pair.upstream.config.url = own;
    pair.poll();
    assert!(matches!(pair.poll(), Poll::Unchanged { refs: 2 }));
    pair.mirror.full_check().unwrap();
}

#[test]
fn invalid_and_duplicate_names_change_nothing() {
    let (mut pair, first) = mirrored();
    let own = pair.upstream.config.url.clone();
    let (before, long) = (std::fs::read_dir(pair.mirror_dir()).unwrap().count(), "x/".repeat(3000));
    for name in ["../../../x", "a\u{1b}[31m", "x.lock", "a..b", "/x", "a b", "@{", &long] {
        let name = format!("refs/heads/{name}");
        let refs = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main"), (&first, &name)]);
        pair.upstream.config.url = ScriptedServer::of(refs, Vec::new()).url().into();
        match pair.try_poll() {
            // Some are not even listed as branches.
            Ok(poll) => assert_eq!(poll, Poll::Unchanged { refs: 2 }, "{name}"),
            Err(error) => {
                assert!(matches!(error, MirrorError::NotFollowed { .. }), "{name}: {error}");
                assert_eq!(pair.resolve("main").unwrap().to_string(), first);
                assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
            }
        }
    }
    pair.upstream.config.url = own;
    assert_eq!(std::fs::read_dir(pair.mirror_dir()).unwrap().count(), before);
    let twice = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main"), (ID, "refs/heads/main")]);
    let error = refused(&mut pair, &first, ScriptedServer::of(twice, Vec::new()).url());
    assert!(error.to_string().contains("`refs/heads/main` cannot be followed: the upstream lists it twice"), "{error}");
}

#[test]
fn invalid_responses_have_distinct_errors() {
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

/// Lines before a pack are kept in memory.
#[test]
fn endless_lines_before_a_pack_do_not_fill_the_memory() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    for word in ["NAK\n".to_owned(), format!("ACK {first} common\n")] {
        let (refs, sent) = (refs.clone(), Arc::new(AtomicU64::new(0)));
        let counted = sent.clone();
        let chatters = ScriptedServer::of_refs(
            "127.0.0.1",
            move || refs.clone(),
            move |socket| {
                begin(socket, RESULT, 1 << 40)?;
                socket.write_all(&line("acknowledgments\n"))?;
                pour(&counted, socket, &line(&word).repeat(10_000), 100_000)
            },
        );
        let error = refused(&mut pair, &first, chatters.url());
        assert_eq!((error.step(), error.kind()), ("fetch", "protocol"), "{error}");
        assert!(error.to_string().contains("before the pack"), "{error}");
        assert!(sent.load(Ordering::Relaxed) < LITTLE_OF_A_FLOOD, "{sent:?}");
    }
}

/// In listings and fetches, over side bands, and where a page comes in place of Git's protocol.
#[test]
fn the_words_of_a_server_are_shown() {
    let (mut pair, first) = mirrored();
    let refs = listing_with_a_new_one(&first);
    let listed = |answer: Vec<u8>| ScriptedServer::of(answer, Vec::new());
    let fetched = |answer: Vec<u8>| ScriptedServer::of(refs.clone(), answer);
    let band = |text: &str| [line("packfile\n"), line(text), b"0000".to_vec()].concat();
    let first_answer = |answer: Vec<u8>| ScriptedServer::start(move |_, _, socket| say(socket, ADVERTISEMENT, &answer));
    for (server, step, words) in [
        (
            first_answer(line("ERR this project\u{1b}[31m moved\n")),
            "list refs",
            "the server reports: this project[31m moved",
        ),
        (listed(line("ERR access denied or not exported\n")), "list refs", "the server reports: access denied"),
        (listed(b"<h1>Log in</h1>".to_vec()), "list refs", "it sent: <h1>Log in</h1>"),
        (fetched(line("ERR upload-pack: not our ref\n")), "fetch", "the server reports: upload-pack: not our ref"),
        (fetched(band("\u{3}quota exceeded\n")), "fetch", "the server reports: quota exceeded"),
        (fetched(band("\u{2}maintenance until noon\n")), "fetch", "the server reports: maintenance until noon"),
        (fetched(b"<h1>Maintenance</h1>".to_vec()), "fetch", "it sent: <h1>Maintenance</h1>"),
    ] {
        let error = refused(&mut pair, &first, server.url());
        assert_eq!((error.step(), error.kind()), (step, "protocol"), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_compressed_answer_is_named() {
    let (mut pair, first) = mirrored();
    let proxy = ScriptedServer::start(|_, _, socket| {
        write!(
            socket,
            "HTTP/1.1 200 OK\r\nContent-Type: {ADVERTISEMENT}\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
        )
    });
    let error = refused(&mut pair, &first, proxy.url());
    assert!(error.to_string().contains("`Content-Encoding: gzip`"), "{error}");
}

#[test]
fn an_ipv6_address_may_be_the_host() {
    let (mut pair, first) = mirrored();
    let refs = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main")]);
    let server = ScriptedServer::of_refs("::1", move || refs.clone(), |_| Ok(()));
    pair.upstream.config.url = server.url().into();
    assert_eq!(pair.poll(), Poll::Unchanged { refs: 2 });
}
