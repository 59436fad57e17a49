//! Mirrors over OpenSSH: a pinned host key, and failures of authentication and connection.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use crate::prelude::*;

fn served() -> (Pair, SshServer) {
    let (mut pair, _) = Pair::of_a_commit();
    let server = SshServer::start(&pair.git.dir.parent().unwrap().join("ssh"));
    pair.upstream.config.url = server.url(&pair.git.dir).into();
    pair.upstream.config.ssh_key = Some(server.key());
    pair.upstream.config.ssh_known_hosts = Some(server.known_hosts(None));
    (pair, server)
}

#[test]
fn a_repository_behind_a_pinned_host_is_followed() {
    let (mut pair, server) = served();
    pair.follow();
    pair.git.commit_file("a", "2");
    pair.follow();
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));

    pair.upstream.config.url = server.url(&pair.git.dir.with_file_name("it's;$(touch%20x)!none")).into();
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "not_found", "{error}");

    // With an egress policy the checked address is used, and the host key is that of the name.
    pair.upstream.config.url = server.url(&pair.git.dir).into();
    pair.upstream.egress = Arc::new(EgressPolicy { public_only: true, ..EgressPolicy::default() });
    assert_eq!(pair.try_poll().unwrap_err().kind(), "not_allowed");
    let hosts = Hosts::new([server.address.ip().to_string()]).unwrap();
    pair.upstream.egress = Arc::new(EgressPolicy { hosts, public_only: true, ..EgressPolicy::default() });
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
}

#[test]
fn an_unknown_host_is_not_trusted() {
    let (mut pair, server) = served();
    let dir = pair.git.dir.parent().unwrap().to_owned();
    let empty = dir.join("empty");
    fs::write(&empty, "").unwrap();
    pair.upstream.config.ssh_known_hosts = Some(empty.clone());
    let error = pair.try_poll().unwrap_err();
    assert_eq!((error.step(), error.kind()), ("connect", "trust"), "{error}");
    assert!(error.to_string().contains("no key of its host"), "{error}");
    assert_eq!(fs::read(&empty).unwrap(), b"", "and nothing is learned");

    keygen(&dir.join("other"));
    pair.upstream.config.ssh_known_hosts = Some(server.known_hosts(Some(&dir.join("other.pub"))));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "trust");
    assert!(error.to_string().contains("another key"), "{error}");
    let trusted = fs::read_to_string(server.known_hosts(None)).unwrap();
    fs::write(server.known_hosts(None), format!("@revoked {trusted}")).unwrap();
    let error = pair.try_poll().unwrap_err();
    assert!(error.kind() == "trust" && error.to_string().contains("`@revoked`"), "{error}");
    // A corrected file needs no restart.
    server.known_hosts(None);
    pair.follow();
}

/// Some servers explain on standard output, or not at all.
#[test]
fn the_output_and_the_exit_status_of_ssh_are_shown() {
    let (pair, server) = served();
    let keys = server.key().with_extension("pub");
    let key = fs::read_to_string(&keys).unwrap();
    for (command, shown) in [
        ("echo this account is suspended", "it sent: this account is suspended"),
        // It begins like the length of a line of Git's protocol.
        ("echo Access denied by the bastion", "it sent: Access denied by the bastion"),
        ("exit 3", "`ssh` ended with status 3"),
    ] {
        fs::write(&keys, format!("command=\"{command}\" {key}")).unwrap();
        let error = pair.try_poll().unwrap_err();
        assert!(error.step() == "list refs" && error.to_string().contains(shown), "{error}");
    }
    fs::write(&keys, key).unwrap();
    pair.follow();
}

#[test]
fn a_wrong_key_is_refused_with_a_reason() {
    let (mut pair, server) = served();
    let dir = pair.git.dir.parent().unwrap().to_owned();
    keygen(&dir.join("other"));
    pair.upstream.config.ssh_key = Some(dir.join("other"));
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.step(), "authenticate");
    assert!(error.to_string().contains("does not accept the key"), "{error}");
    // The right key, but readable by others.
    pair.upstream.config.ssh_key = Some(server.key());
    fs::set_permissions(server.key(), fs::Permissions::from_mode(0o644)).unwrap();
    assert!(pair.try_poll().unwrap_err().to_string().contains("0600"));
    fs::write(dir.join("none"), "no key").unwrap();
    fs::set_permissions(dir.join("none"), fs::Permissions::from_mode(0o600)).unwrap();
    pair.upstream.config.ssh_key = Some(dir.join("none"));
    let error = pair.try_poll().unwrap_err();
    assert!(error.to_string().contains("not a usable private key"), "{error}");
    pair.upstream.config.ssh_key = None;
    assert!(pair.try_poll().unwrap_err().to_string().contains("`ssh_key`"));
}

#[test]
fn a_silent_host_times_out() {
    let (mut pair, _server) = served();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.upstream.config.url = format!("ssh://git@{}/x", silent.local_addr().unwrap()).into();
    pair.upstream.config.stall_timeout = Duration::from_millis(300);
    let error = pair.try_poll().unwrap_err();
    assert!(error.is_timeout() && error.step() == "list refs", "{error:?}");

    let free = silent.local_addr().unwrap();
    drop(silent);
    pair.upstream.config.url = format!("ssh://git@{free}/x").into();
    assert_eq!(pair.try_poll().unwrap_err().kind(), "connect");
}
