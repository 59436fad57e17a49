//! An upstream behind OpenSSH: a pinned key, and each way in which the two do not come together.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_origin::mirror::{FetchProgress, MirrorError, Poll};
use weir_origin::source::{Hosts, Reach};

use crate::mirror_polls::Pair;
use crate::ssh_server::{SshServer, keygen};

fn served() -> (Pair, SshServer) {
    let mut pair = Pair::new();
    pair.git.write("a", "1");
    pair.git.commit("first");
    let server = SshServer::start(&pair.git.dir.parent().unwrap().join("ssh"));
    pair.upstream.url = server.url(&pair.git.dir).into();
    pair.upstream.ssh_key = Some(server.key());
    pair.upstream.ssh_known_hosts = Some(server.known_hosts(None));
    (pair, server)
}

#[test]
fn a_repository_behind_a_pinned_host_is_followed() {
    let (mut pair, server) = served();
    pair.follow();
    pair.git.write("a", "2");
    pair.git.commit("second");
    pair.follow();
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));

    pair.upstream.url = server.url(&pair.git.dir.with_file_name("it's;$(touch%20x)!none")).into();
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "not_found", "{error}");

    // The address that was judged is the one that is asked, and the host's key is that of its name.
    pair.upstream.url = server.url(&pair.git.dir).into();
    pair.upstream.reach = Arc::new(Reach { public_only: true, ..Reach::default() });
    assert_eq!(pair.try_poll().unwrap_err().kind(), "not_allowed");
    let hosts = Hosts::new([server.address.ip().to_string()]).unwrap();
    pair.upstream.reach = Arc::new(Reach { hosts, public_only: true, ..Reach::default() });
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
}

#[test]
fn no_host_is_trusted_that_is_not_known() {
    let (mut pair, server) = served();
    let dir = pair.git.dir.parent().unwrap().to_owned();
    let empty = dir.join("empty");
    fs::write(&empty, "").unwrap();
    pair.upstream.ssh_known_hosts = Some(empty.clone());
    let error = pair.try_poll().unwrap_err();
    assert_eq!((error.step(), error.kind()), ("connect", "trust"), "{error}");
    assert!(error.to_string().contains("no key of its host"), "{error}");
    assert_eq!(fs::read(&empty).unwrap(), b"", "and nothing is learned");

    keygen(&dir.join("other"));
    pair.upstream.ssh_known_hosts = Some(server.known_hosts(Some(&dir.join("other.pub"))));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "trust");
    assert!(error.to_string().contains("another key"), "{error}");
    // Nothing has to be started anew when the right one is there.
    server.known_hosts(None);
    pair.follow();
}

#[test]
fn another_key_opens_nothing_and_the_reason_is_said() {
    let (mut pair, server) = served();
    let dir = pair.git.dir.parent().unwrap().to_owned();
    keygen(&dir.join("other"));
    pair.upstream.ssh_key = Some(dir.join("other"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("does not accept the key"), "{error}");
    // The right one, but others may read it.
    pair.upstream.ssh_key = Some(server.key());
    fs::set_permissions(server.key(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(pair.try_poll().unwrap_err().to_string().contains("0600"));
    fs::write(dir.join("none"), "no key").unwrap();
    fs::set_permissions(dir.join("none"), fs::Permissions::from_mode(0o600)).unwrap();
    pair.upstream.ssh_key = Some(dir.join("none"));
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("no private key that can be used"), "{error}");
    pair.upstream.ssh_key = None;
    assert!(pair.try_poll().unwrap_err().to_string().contains("`ssh_key`"));
}

#[test]
fn a_host_that_accepts_and_falls_silent_is_given_up() {
    let (mut pair, _server) = served();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.url = format!("ssh://git@{}/x", silent.local_addr().unwrap()).into();
    pair.upstream.stall_timeout = Duration::from_millis(300);
    let error = pair.try_poll().unwrap_err();
    assert!(error.is_timeout() && error.step() == "list refs", "{error:?}");

    pair.upstream.stall_timeout = Duration::from_secs(3600);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (pair, stop) = (&pair, &stop);
        let poll = scope.spawn(move || pair.mirror.poll(&pair.upstream, &FetchProgress::default(), stop).unwrap_err());
        // The first was that of the poll before.
        let _connections: Vec<_> = silent.incoming().take(2).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(poll.join().unwrap(), MirrorError::Interrupted));
    });
    let free = silent.local_addr().unwrap();
    drop(silent);
    pair.upstream.url = format!("ssh://git@{free}/x").into();
    assert_eq!(pair.try_poll().unwrap_err().kind(), "connect");
}
