//! Transports of a mirror: TLS with a private authority, credentials, redirects, proxies, `git://`.

use std::net::TcpListener;
use std::sync::mpsc;

use rustls::HandshakeKind;

use crate::prelude::*;
use crate::smart_http::{HttpBehavior, git_daemon, password_file, tunnel_proxy};

/// `ci:s3cret`
const CI: &str = "Basic Y2k6czNjcmV0";

/// A pair whose upstream is served as `up stream`, over TLS if `tls`.
pub(crate) fn served(tls: bool) -> (Pair, SmartHttp) {
    let (mut pair, _) = Pair::of_a_commit();
    let root = pair.git.dir.parent().unwrap().to_owned();
    let certificates = root.join("certificates");
    if tls {
        certificates::write(&certificates, &[]).unwrap();
    }
    let server = SmartHttp::start(&root, tls.then_some(&certificates));
    pair.upstream.config.url = server.url("up%20stream/.git").into();
    pair.upstream.config.ca = tls.then(|| certificates.join("ca.pem"));
    (pair, server)
}

#[track_caller]
fn push_and_follow(pair: &Pair) {
    pair.git.commit_file("a", pair.git.line(["rev-parse", "HEAD"]));
    pair.follow();
}

#[test]
fn https_with_a_private_authority_and_a_password() {
    let (mut pair, server) = served(true);
    server.set_behavior(HttpBehavior { authorization: Some(CI.to_owned()), ..HttpBehavior::default() });
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("none are configured"), "{error}");

    pair.upstream.config.username = Some("ci".to_owned());
    pair.upstream.config.password_file = Some(password_file(&pair.git.dir, "wrong"));
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
    assert!(
        requests.iter().all(|head| head.to_ascii_lowercase().contains("accept-encoding: identity\r")),
        "{requests:?}"
    );
    assert_eq!(requests.iter().filter(|head| head.starts_with("POST")).count(), 1, "listed, not fetched: {requests:?}");
}

#[test]
fn polls_share_a_connection_and_reopen_a_closed_one() {
    let (pair, server) = served(true);
    server.set_behavior(HttpBehavior { requests_per_connection: Some(usize::MAX - 1), ..HttpBehavior::default() });
    pair.follow();
    push_and_follow(&pair);
    let (handshakes, requests) = (server.take_handshakes(), server.take_requests().len());
    assert_eq!(handshakes.iter().filter(|kind| **kind == HandshakeKind::Full).count(), 1, "{handshakes:?}");
    // A request may arrive before a connection is idle again.
    assert!(handshakes.len() < requests / 2, "{handshakes:?} for {requests} requests");

    // Another repository shares the connection, unless its egress policy differs.
    let other = Mirror::open(&pair.mirror_dir().with_file_name("other"), DEFAULT_MAX_OBJECT).unwrap();
    let full_handshakes = |upstream: &weir_upstream::Upstream| {
        other.poll(upstream, &HashSet::new(), &FetchProgress::default(), &AtomicBool::new(false)).unwrap();
        server.take_handshakes().iter().filter(|kind| **kind == HandshakeKind::Full).count()
    };
    assert_eq!(full_handshakes(&pair.upstream), 0);
    let hosts = Hosts::new(["127.0.0.1".to_owned()]).unwrap();
    let egress = Arc::new(EgressPolicy { hosts, ..EgressPolicy::default() });
    assert_eq!(full_handshakes(&weir_upstream::Upstream { egress, ..pair.upstream.clone() }), 1);

    // The files are read again for each poll, and changed contents take effect.
    let ca = pair.upstream.config.ca.clone().unwrap();
    let (own, other) = (fs::read(&ca).unwrap(), ca.with_file_name("other"));
    certificates::write(&other, &[]).unwrap();
    fs::copy(other.join("ca.pem"), &ca).unwrap();
    assert_eq!(pair.try_poll().unwrap_err().kind(), "trust");
    fs::write(&ca, [&own[..], b"\n"].concat()).unwrap();
    server.take_handshakes();

    // The server announces that it closes each connection: the next one resumes the TLS session.
    server.set_behavior(HttpBehavior::default());
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    // Session tickets come after a response, perhaps after the next request.
    let handshakes = server.take_handshakes();
    assert!(handshakes.len() <= 3 && handshakes.ends_with(&[HandshakeKind::Resumed]), "{handshakes:?}");

    // The server closes without notice: a request sent just then is repeated over another connection.
    server.set_behavior(HttpBehavior { requests_per_connection: Some(1), ..HttpBehavior::default() });
    server.take_requests();
    for _ in 0..10 {
        assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    }
    assert!(server.take_requests().len() > 20, "two for each poll, and those that were not answered");

    // A request over a new connection is not repeated.
    server.set_behavior(HttpBehavior { requests_per_connection: Some(0), ..HttpBehavior::default() });
    assert_eq!(pair.try_poll().unwrap_err().step(), "list refs");
    server.take_requests();
    assert_eq!(pair.try_poll().unwrap_err().step(), "list refs");
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn a_request_that_stalls_on_a_reused_connection_is_sent_again() {
    let (mut pair, server) = served(false);
    pair.follow();
    pair.upstream.config.stall_timeout = Duration::from_secs(2);
    // A poll takes two: the next one begins on a connection that is not answered any more.
    server.set_behavior(HttpBehavior { requests_per_connection: Some(2), hangs: true, ..HttpBehavior::default() });
    for _ in 0..3 {
        assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    }
    // On a new connection it is not.
    server.set_behavior(HttpBehavior { requests_per_connection: Some(0), hangs: true, ..HttpBehavior::default() });
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::Upstream(UpstreamError::Stalled { .. })), "{error}");
    server.take_requests();
    assert!(matches!(pair.try_poll().unwrap_err(), MirrorError::Upstream(UpstreamError::Stalled { .. })));
    assert_eq!(server.take_requests().len(), 1);
}

#[test]
fn an_unknown_authority_is_not_trusted_and_an_invalid_file_is_an_error() {
    let (mut pair, _server) = served(true);
    let other = pair.git.dir.join("other");
    certificates::write(&other, &[]).unwrap();
    pair.upstream.config.ca = Some(other.join("ca.pem"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!((error.step(), error.kind()), ("connect", "trust"));
    assert!(error.to_string().contains("signed by an authority that is not trusted here"), "{error}");
    pair.upstream.config.ca = None;
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "trust", "the authorities of the system do not know ours: {error}");
    pair.upstream.config.ca = Some(other.join("ca.key"));
    assert!(pair.try_poll().unwrap_err().to_string().contains("contains no valid certificate"));
    pair.upstream.config.ca = Some(other.join("none"));
    let error = pair.try_poll().unwrap_err();
    assert!(
        matches!(error, MirrorError::Upstream(UpstreamError::File { key: "ca", .. })) && !error.may_be_damage(),
        "{error}"
    );
    assert!(!error.to_string().contains("other/none"), "{error}");
}

#[test]
fn a_bearer_token_is_read_for_each_poll_and_sent_to_its_host_only() {
    let (mut pair, server) = served(true);
    server.set_behavior(HttpBehavior { authorization: Some("Bearer t0ken".to_owned()), ..HttpBehavior::default() });
    pair.upstream.config.token_file = Some(password_file(&pair.git.dir, "old"));
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("`token_file`") && !error.to_string().contains("old"), "{error}");
    password_file(&pair.git.dir, "t0ken");
    server.take_requests();
    pair.follow();
    let first = server.take_requests().remove(0);
    assert!(first.contains("Bearer t0ken"), "it is sent without a challenge: {first}");

    let root = pair.git.dir.parent().unwrap().to_owned();
    let elsewhere = SmartHttp::start(&root, Some(&root.join("certificates")));
    server.set_behavior(HttpBehavior {
        redirect: Some(elsewhere.url("").trim_end_matches('/').to_owned()),
        ..HttpBehavior::default()
    });
    pair.upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    elsewhere.set_behavior(HttpBehavior { authorization: Some("Bearer t0ken".to_owned()), ..HttpBehavior::default() });
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("redirected to another host"), "{error}");
    let heads = elsewhere.take_requests().concat().to_ascii_lowercase();
    assert!(heads.starts_with("get") && !heads.contains("authorization"), "{heads}");

    pair.upstream.config.url = pair.upstream.config.url.as_str().replace("https", "http").into();
    assert!(pair.try_poll().unwrap_err().to_string().contains("use https://"));
}

#[test]
fn every_request_is_counted_and_a_fetch_waits_for_permission() {
    let (mut pair, server) = served(false);
    let elsewhere = SmartHttp::start(pair.git.dir.parent().unwrap(), None);
    let to = elsewhere.url("").trim_end_matches('/').to_owned();
    server.set_behavior(HttpBehavior { redirect: Some(to), ..HttpBehavior::default() });
    pair.upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    let poll = |may_fetch: bool| {
        let (progress, stop) = (FetchProgress::default(), AtomicBool::new(false));
        let poll = pair
            .mirror
            .poll_with(&pair.upstream, &pair.revisions, &progress, &FetchMemory::new(1, 1), &stop, &|| may_fetch)
            .unwrap();
        let sent = server.take_requests().len() + elsewhere.take_requests().len();
        assert_eq!(progress.requests() as usize, sent, "{poll:?}");
        (poll, sent)
    };
    assert_eq!(poll(false), (Poll::Deferred, 3));
    assert!(pair.resolve("main").is_err(), "nothing was written");
    let (fetched, requests) = poll(true);
    assert!(matches!(fetched, Poll::Changed { .. }) && requests > 3, "{fetched:?} {requests}");
    assert!(matches!(poll(false), (Poll::Unchanged { .. }, 3)));
}

#[test]
fn a_client_certificate_is_shown_to_its_host_only() {
    let (mut pair, server) = served(true);
    let root = pair.git.dir.parent().unwrap().to_owned();
    let certificates = root.join("certificates");
    pair.upstream.config.client_certificate = Some(certificates.join("edge-client.pem"));
    pair.upstream.config.client_key = Some(certificates.join("edge-client.key"));
    pair.follow();
    let elsewhere = SmartHttp::start_for_clients_of(&root, &certificates, &certificates.join("ca.pem"));
    server.set_behavior(HttpBehavior {
        redirect: Some(elsewhere.url("").trim_end_matches('/').to_owned()),
        ..HttpBehavior::default()
    });
    pair.upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("requires a client certificate"), "{error}");
    assert!(elsewhere.take_requests().is_empty());
}

/// As `git ls-remote` accepts it.
#[test]
fn a_media_type_may_have_parameters() {
    let (pair, first) = Pair::of_a_commit();
    let first = first.to_string();
    let refs = listing([(first.as_str(), "HEAD"), (&first, "refs/heads/main")]);
    pair.poll();
    for (ending, taken) in [("; charset=utf-8", true), (" ;x", true), ("s", false)] {
        let refs = refs.clone();
        let server = ScriptedServer::start(move |request, _, socket| match request.starts_with("GET") {
            true => say(socket, &format!("Application/X-Git-upload-pack-advertisement{ending}"), &advertisement()),
            false => say(socket, &format!("application/x-git-upload-pack-result{ending}"), &refs),
        });
        let mut upstream = pair.upstream.clone();
        upstream.config.url = server.url().into();
        let poll = pair.mirror.poll(&upstream, &pair.revisions, &FetchProgress::default(), &AtomicBool::new(false));
        assert_eq!(poll.is_ok(), taken, "{ending}: {poll:?}");
    }
}

#[test]
fn redirects_are_followed_only_as_configured() {
    let (mut pair, server) = served(false);
    let root = pair.git.dir.parent().unwrap().to_owned();
    let elsewhere = SmartHttp::start(&root, None);
    let to = |server: &SmartHttp| Some(server.url("").trim_end_matches('/').to_owned());
    server.set_behavior(HttpBehavior { redirect: to(&elsewhere), ..HttpBehavior::default() });
    let error = pair.try_poll().unwrap_err();
    assert_eq!((error.step(), error.kind()), ("connect", "redirect"));
    assert!(error.to_string().contains("another host"), "{error}");
    assert!(elsewhere.take_requests().is_empty(), "it gets no request");

    pair.upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    pair.follow();
    assert!(!elsewhere.take_requests().is_empty());

    server.set_behavior(HttpBehavior { redirect: to(&server), ..HttpBehavior::default() });
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("too many"), "a loop ends: {error}");
    pair.upstream.config.redirects = Redirects::None;
    assert!(pair.try_poll().unwrap_err().to_string().contains("`none`"));

    // Never from https to http.
    let (mut secure, front) = served(true);
    secure.upstream.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    front.set_behavior(HttpBehavior { redirect: to(&elsewhere), ..HttpBehavior::default() });
    elsewhere.take_requests();
    assert!(secure.try_poll().unwrap_err().to_string().contains("from https to http"));
    assert!(elsewhere.take_requests().is_empty());
}

#[test]
fn a_client_certificate_satisfies_a_server_that_requires_one() {
    let (mut pair, _) = served(true);
    let certificates = pair.git.dir.parent().unwrap().join("certificates");
    let root = pair.git.dir.parent().unwrap();
    let server = SmartHttp::start_for_clients_of(root, &certificates, &certificates.join("ca.pem"));
    pair.upstream.config.url = server.url("up%20stream/.git").into();
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "trust", "{error}");
    assert!(error.to_string().contains("requires a client certificate"), "{error}");
    pair.upstream.config.client_certificate = Some(certificates.join("edge-client.pem"));
    pair.upstream.config.client_key = Some(certificates.join("edge-client.key"));
    pair.follow();
    pair.upstream.config.client_key = Some(certificates.join("ca.pem"));
    assert!(pair.try_poll().unwrap_err().to_string().contains("`client_key`"));
}

#[test]
fn a_proxy_with_credentials_connects_to_an_https_upstream() {
    let (mut pair, server) = served(true);
    let (proxy, heads) = tunnel_proxy("Basic bWU6cHJveHktczNjcmV0");
    pair.upstream.config.proxy = Some(format!("http://{proxy}").into());
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "authenticate", "{error}");
    assert!(error.to_string().contains("the proxy requires credentials"), "{error}");
    pair.upstream.config.proxy_username = Some("me".to_owned());
    pair.upstream.config.proxy_password_file = Some(password_file(&pair.git.dir, "proxy-s3cret"));
    pair.follow();
    let heads = heads.lock().unwrap().clone();
    assert!(heads.iter().all(|head| head.starts_with(&format!("CONNECT {} ", server.address))), "{heads:?}");
    assert!(server.take_requests().iter().all(|head| !head.to_ascii_lowercase().contains("proxy-authorization")));
}

#[test]
fn http_errors_have_plain_messages() {
    let (mut pair, server) = served(false);
    pair.follow();
    for (status, step, kind) in [
        (403, "authenticate", "authenticate"),
        (404, "list refs", "not_found"),
        (418, "list refs", "protocol"),
        (429, "list refs", "rate_limit"),
        (500, "list refs", "server_error"),
    ] {
        server.set_behavior(HttpBehavior { status: Some(status), ..HttpBehavior::default() });
        let error = pair.try_poll().unwrap_err();
        assert_eq!((error.step(), error.kind()), (step, kind), "{error}");
        assert!(error.to_string().contains(&status.to_string()), "{error}");
        assert!(!error.is_timeout() && error.retry_after().is_none());
    }
    for status in [429, 503, 403] {
        let header = Some("Retry-After: 120".to_owned());
        server.set_behavior(HttpBehavior { status: Some(status), header, ..HttpBehavior::default() });
        assert_eq!(pair.try_poll().unwrap_err().retry_after(), Some(Duration::from_secs(120)), "{status}");
    }
    server.set_behavior(HttpBehavior::default());
    push_and_follow(&pair);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in ["https://me:s3cret@", "http://", "git://"] {
        pair.upstream.config.url = format!("{url}{free}/x").into();
        let error = pair.try_poll().unwrap_err();
        assert_eq!(error.step(), "connect", "{error}");
        assert!(!format!("{error} {error:?} {:?}", pair.upstream).contains("s3cret"), "{error:?}");
    }
    for url in ["https://no-such-host.invalid/x", "git://no-such-host.invalid/x"] {
        pair.upstream.config.url = url.into();
        let error = pair.try_poll().unwrap_err();
        assert_eq!(error.kind(), "dns", "{error}");
    }
    for url in ["ssh://-x/y", "git@-x:y", "ftp://host/x", ""] {
        pair.upstream.config.url = url.into();
        let error = pair.try_poll().unwrap_err();
        assert!(matches!(error, MirrorError::Upstream(UpstreamError::UnsupportedUrl { .. })), "{url}: {error}");
    }
}

#[test]
fn the_git_protocol_works_and_times_out() {
    let (mut pair, _) = Pair::of_a_commit();
    let address = git_daemon(pair.git.dir.parent().unwrap().to_owned());
    pair.upstream.config.url = format!("git://{address}/up%20stream").into();
    let url = pair.upstream.config.url.clone();
    pair.follow();
    push_and_follow(&pair);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.config.url = format!("git://{}/x", silent.local_addr().unwrap()).into();
    pair.upstream.config.stall_timeout = Duration::from_millis(300);
    let error = pair.try_poll().unwrap_err();
    assert!(error.is_timeout() && error.step() == "list refs", "{error:?}");
    pair.upstream.config.url = url;
    push_and_follow(&pair);
}

#[test]
fn progress_is_reported_during_a_fetch() {
    let (pair, server) = served(false);
    pair.git
        .write("large", (0..400_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect::<Vec<_>>());
    pair.git.commit("large");
    server.set_behavior(HttpBehavior { silent_after: Some(200_000), ..HttpBehavior::default() });
    let (progress, stop) = (FetchProgress::default(), AtomicBool::new(false));
    let mut upstream = pair.upstream.clone();
    upstream.config.stall_timeout = Duration::from_secs(3);
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
        let error = pair.mirror.poll(&upstream, &pair.revisions, &progress, &stop).unwrap_err();
        assert!(error.is_timeout() && error.step() == "fetch", "{error}");
        let _ = seen.send(());
    });
    assert_eq!(progress.snapshot().phase, "idle");
    // A stalled fetch is repeated.
    server.set_behavior(HttpBehavior::default());
    pair.follow();
}
