//! Silent and slow upstreams: a poll ends, also by an interrupt.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use crate::hostile_upstreams::{listing_with_a_new_one, mirrored};
use crate::prelude::*;
use crate::smart_http::tls_config;

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
        // Until the client closes the connection.
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

/// Checks that a poll of a silent server ends at a step. A busy machine may not reach the step within a short timeout,
/// so longer ones follow.
#[track_caller]
fn ends_at(step: &str, pair: &Pair, first: &str, url: String) {
    let mut upstream = pair.upstream.clone();
    upstream.config.url = url.into();
    let ended = [300, 3_000, 30_000].map(Duration::from_millis).into_iter().find(|silence| {
        upstream.config.stall_timeout = *silence;
        let error = pair
            .mirror
            .poll(&upstream, &pair.revisions, &FetchProgress::default(), &AtomicBool::new(false))
            .unwrap_err();
        assert!(error.is_timeout(), "{error}");
        error.step() == step
    });
    assert!(ended.is_some(), "it never came to `{step}`");
    assert_eq!(pair.resolve("main").unwrap().to_string(), first);
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
}

#[test]
fn silence_or_an_interrupt_ends_each_step() {
    let (mut pair, first) = mirrored();
    for silence in [Silence::AfterAccept, Silence::InTheHead, Silence::InTheListing, Silence::InThePack] {
        let server = silent_server(silence, &first);
        let step = if matches!(silence, Silence::InThePack) { "fetch" } else { "list refs" };
        ends_at(step, &pair, &first, server.url());
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.config.stall_timeout = Duration::from_secs(3600);
    for scheme in ["http", "https", "git", "ssh"] {
        let url = format!("{scheme}://{}/x", silent.local_addr().unwrap());
        let mut upstream = pair.upstream.clone();
        upstream.config.url = url.into();
        let empty = pair.git.dir.join("empty");
        std::fs::write(&empty, "").unwrap();
        (upstream.config.ssh_key, upstream.config.ssh_known_hosts) = (Some(empty.clone()), Some(empty));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (pair, upstream, stop) = (&pair, &upstream, &stop);
            let poll = scope.spawn(move || {
                pair.mirror.poll(upstream, &pair.revisions, &FetchProgress::default(), stop).unwrap_err()
            });
            let connection = silent.accept().unwrap();
            stop.store(true, Ordering::Relaxed);
            let error = poll.join().unwrap();
            assert!(matches!(error, MirrorError::Upstream(UpstreamError::Interrupted)), "{scheme}: {error}");
            drop(connection);
        });
    }
}

#[test]
fn silence_during_and_after_the_tls_handshake_ends() {
    let (mut pair, first) = mirrored();
    let certificates = pair.git.dir.parent().unwrap().join("certificates");
    certificates::write(&certificates, &[]).unwrap();
    pair.upstream.config.ca = Some(certificates.join("ca.pem"));
    let config = tls_config(&certificates, None);
    for (after, step) in [(false, "connect"), (true, "list refs")] {
        let (listener, config) = (TcpListener::bind("127.0.0.1:0").unwrap(), config.clone());
        let url = format!("https://{}/x", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for socket in listener.incoming() {
                let mut socket = socket.unwrap();
                if after {
                    let mut tls = rustls::ServerConnection::new(config.clone()).unwrap();
                    while tls.is_handshaking() && tls.complete_io(&mut socket).is_ok() {}
                }
                held.push(socket);
            }
        });
        ends_at(step, &pair, &first, url);
    }
}

#[test]
fn an_interrupt_ends_a_slow_response() {
    let (pair, _) = mirrored();
    let (began, trickles) = mpsc::channel();
    let server = ScriptedServer::start(move |_, _, socket| {
        begin(socket, ADVERTISEMENT, 1 << 30)?;
        let advertisement = advertisement();
        for byte in advertisement.iter().chain(std::iter::repeat(&b'0')) {
            socket.write_all(&[*byte])?;
            let _ = began.send(());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    });
    let mut upstream = pair.upstream.clone();
    upstream.config.url = server.url().into();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pair, upstream, stop) = (&pair, &upstream, &stop);
        let poll = scope
            .spawn(move || pair.mirror.poll(upstream, &pair.revisions, &FetchProgress::default(), stop).unwrap_err());
        trickles.iter().take(20).for_each(drop);
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(poll.join().unwrap(), MirrorError::Upstream(UpstreamError::Interrupted)));
    });
}
