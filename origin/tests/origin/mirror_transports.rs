//! Each way to an upstream: TLS with a private authority, passwords, redirects, `git://`, and upstreams that fall silent.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use weir_origin::mirror::{FetchProgress, MirrorError, Poll};
use weir_shared::process::certificates;

use crate::mirror_polls::Pair;
use crate::smart_http::{Manner, SmartHttp, git_daemon, password_file};

/// `ci:s3cret`
const CI: &str = "Y2k6czNjcmV0";

/// A pair whose upstream is served, over TLS if so wished, as `up stream`.
fn served(tls: bool) -> (Pair, SmartHttp) {
    let mut pair = Pair::new();
    pair.git.write("a", "1");
    pair.git.commit("first");
    let root = pair.git.dir.parent().unwrap().to_owned();
    let certificates = root.join("certificates");
    if tls {
        certificates::write(&certificates, &[]).unwrap();
    }
    let server = SmartHttp::start(&root, tls.then_some(&certificates));
    pair.upstream.url = server.url("up%20stream/.git");
    pair.upstream.ca = tls.then(|| certificates.join("ca.pem"));
    (pair, server)
}

#[track_caller]
fn push_and_follow(pair: &Pair) {
    pair.git.write("a", pair.git.line(["rev-parse", "HEAD"]));
    pair.git.commit("more");
    pair.follow();
}

#[test]
fn https_with_a_private_authority_and_a_password() {
    let (mut pair, server) = served(true);
    server.behave(Manner { basic_auth: Some(CI.to_owned()), ..Manner::default() });
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("none are configured"), "{error}");

    pair.upstream.username = Some("ci".to_owned());
    pair.upstream.password_file = Some(password_file(&pair.git.dir, "wrong"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("does not accept"), "{error}");
    assert!(!format!("{error} {error:?}").contains("wrong"));

    password_file(&pair.git.dir, "s3cret");
    pair.follow();
    push_and_follow(&pair);
    server.take_requests();
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    let requests = server.take_requests();
    assert!(requests.iter().all(|head| !head.contains("oxide")), "{requests:?}");
    assert!(requests[0].contains("weir-origin/"), "{requests:?}");
    assert_eq!(requests.iter().filter(|head| head.starts_with("POST")).count(), 1, "listed, not fetched: {requests:?}");
}

#[test]
fn another_authority_is_not_trusted_and_a_bad_file_is_said_to_be_bad() {
    let (mut pair, _server) = served(true);
    let other = pair.git.dir.join("other");
    certificates::write(&other, &[]).unwrap();
    pair.upstream.ca = Some(other.join("ca.pem"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "connect");
    assert!(error.to_string().contains("certificate"), "{error}");
    pair.upstream.ca = None;
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "connect", "the authorities of the system do not know ours: {error}");
    pair.upstream.ca = Some(other.join("ca.key"));
    assert!(pair.try_poll().unwrap_err().to_string().contains("holds no certificate"));
    pair.upstream.ca = Some(other.join("none"));
    assert!(matches!(pair.try_poll().unwrap_err(), MirrorError::Local { .. }));
}

#[test]
fn a_redirect_is_followed_but_takes_no_password_along() {
    let (mut pair, server) = served(true);
    let root = pair.git.dir.parent().unwrap().to_owned();
    let elsewhere = SmartHttp::start(&root, Some(&root.join("certificates")));
    let to = elsewhere.url("");
    server.behave(Manner { redirect: Some(to.trim_end_matches('/').to_owned()), ..Manner::default() });
    pair.follow();

    elsewhere.behave(Manner { basic_auth: Some(CI.to_owned()), ..Manner::default() });
    pair.upstream.username = Some("ci".to_owned());
    pair.upstream.password_file = Some(password_file(&pair.git.dir, "s3cret"));
    elsewhere.take_requests();
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("redirected to another host"), "{error}");
    let heads = elsewhere.take_requests().concat().to_ascii_lowercase();
    assert!(heads.starts_with("get") && !heads.contains("authorization"), "{heads}");
}

#[test]
fn what_a_server_answers_is_told_in_plain_words() {
    let (mut pair, server) = served(false);
    pair.follow();
    for (status, step) in [(403, "authenticate"), (404, "list refs"), (500, "list refs")] {
        server.behave(Manner { status: Some(status), ..Manner::default() });
        let error = pair.try_poll().unwrap_err();
        assert_eq!(error.step(), step, "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
        assert!(!error.is_timeout());
    }
    server.behave(Manner::default());
    push_and_follow(&pair);
    server.behave(Manner { basic_auth: Some(CI.to_owned()), ..Manner::default() });
    pair.upstream.username = Some("ci".to_owned());
    pair.upstream.password_file = Some(password_file(&pair.git.dir, "s3cret"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("use https://"), "{error}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in ["https://me:s3cret@", "http://", "git://"] {
        pair.upstream.url = format!("{url}{free}/x");
        let error = pair.try_poll().unwrap_err();
        assert_eq!(error.step(), "connect", "{error}");
        assert!(!format!("{error} {error:?} {:?}", pair.upstream).contains("s3cret"), "{error:?}");
    }
    for url in ["ssh://git@host/x", "git@host:x", "ftp://host/x", ""] {
        pair.upstream.url = url.to_owned();
        let error = pair.try_poll().unwrap_err();
        assert!(matches!(error, MirrorError::UnsupportedUrl { .. }), "{url}: {error}");
    }
}

#[test]
fn a_pack_that_stalls_is_given_up_and_fetched_again_later() {
    let (mut pair, server) = served(false);
    pair.git.write(
        "large",
        (0..200_000u32).flat_map(u32::to_le_bytes).map(|byte| byte.wrapping_mul(167)).collect::<Vec<_>>(),
    );
    pair.git.commit("large");
    pair.upstream.stall_timeout = Duration::from_secs(3);
    server.behave(Manner { silent_after: Some(60_000), ..Manner::default() });
    let error = pair.try_poll().unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(error.step(), "fetch");
    server.behave(Manner::default());
    pair.upstream.stall_timeout = Duration::from_secs(30);
    pair.follow();
}

#[test]
fn the_git_protocol_works_and_its_silence_is_bounded() {
    let mut pair = Pair::new();
    pair.git.write("a", "1");
    pair.git.commit("first");
    let address = git_daemon(pair.git.dir.parent().unwrap().to_owned());
    pair.upstream.url = format!("git://{address}/up%20stream");
    let url = pair.upstream.url.clone();
    pair.follow();
    push_and_follow(&pair);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.url = format!("git://{}/x", silent.local_addr().unwrap());
    pair.upstream.stall_timeout = Duration::from_millis(300);
    let error = pair.try_poll().unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(error.step(), "list refs");

    // Interrupted in silence, long before the stall timeout.
    pair.upstream.stall_timeout = Duration::from_secs(3600);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pair, stop) = (&pair, &stop);
        let poll = scope.spawn(move || pair.mirror.poll(&pair.upstream, &FetchProgress::default(), stop).unwrap_err());
        let asked: TcpStream = silent.incoming().map(Result::unwrap).find(heard).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(poll.join().unwrap(), MirrorError::Interrupted));
        drop(asked);
    });
    pair.upstream.url = url;
    push_and_follow(&pair);
}

/// Whether a client asked something and still waits; the one of the poll before has closed its end.
fn heard(mut socket: &TcpStream) -> bool {
    let mut said = [0; 4096];
    let asked = socket.read(&mut said).is_ok_and(|length| length > 0);
    socket.set_nonblocking(true).unwrap();
    asked && socket.read(&mut said).is_err()
}

#[test]
fn progress_can_be_watched_while_it_is_made() {
    let (pair, server) = served(false);
    pair.git
        .write("large", (0..400_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect::<Vec<_>>());
    pair.git.commit("large");
    server.behave(Manner { silent_after: Some(200_000), ..Manner::default() });
    let (progress, stop) = (FetchProgress::default(), AtomicBool::new(false));
    let mut upstream = pair.upstream.clone();
    upstream.stall_timeout = Duration::from_secs(3);
    let (seen, done) = mpsc::channel();
    std::thread::scope(|scope| {
        let watched = progress.clone();
        scope.spawn(move || {
            while done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                let snapshot = watched.snapshot();
                if snapshot.phase == "receiving" && snapshot.bytes > 0 && snapshot.total.is_some() {
                    return;
                }
                std::thread::yield_now();
            }
            panic!("the poll ended and nobody saw it receive");
        });
        pair.mirror.poll(&upstream, &progress, &stop).unwrap_err();
        let _ = seen.send(());
    });
    assert_eq!(progress.snapshot().phase, "idle");
}
