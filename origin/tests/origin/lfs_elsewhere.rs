//! LFS servers, and storages, that are not where the upstream is: who is asked, and what he is given.

use weir_origin::source::Upstream;
use weir_origin::source::git::lfs::LfsFile;

use crate::lfs::{fetch_from, file};
use crate::lfs_server::{Manner, SHOWN};
use crate::prelude::*;
use crate::smart_http::tunnel_proxy;

/// A key for an object goes to where it is for, and credentials go nowhere else at all.
#[test]
fn a_storage_elsewhere_is_public_or_listed_and_gets_no_credentials() {
    let home = Home::new();
    let root = home.file("git");
    let server = LfsServer::start(&root, Some(&home.file("")));
    let storage = LfsServer::start(&root, Some(&home.file("")));
    let wanted = [file("a.bin", &server.hold(b"the file itself"))];
    storage.hold(b"the file itself");
    storage.behave(Manner { storage: Some(storage.base()), ..Manner::default() });
    std::fs::write(home.file("password"), "s3cret\n").unwrap();
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.ca = Some(home.file("ca.pem"));
    upstream.username = Some("ci".to_owned());
    upstream.password_file = Some(home.file("password"));
    // What the server would be shown; another one never is.
    upstream.client_certificate = Some(home.file("edge-client.pem"));
    upstream.client_key = Some(home.file("edge-client.key"));
    let fetch = |mirror: &str, upstream: &Upstream| fetch_from(upstream, &home.file(mirror), &wanted);
    let mut allowed = upstream.clone();
    allowed.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    let (proxy, _) = tunnel_proxy("Basic bWU6cHJveHktczNjcmV0");
    let proxy_password = home.file("proxy-password");
    std::fs::write(&proxy_password, "proxy-s3cret\n").unwrap();
    let through = |upstream: &Upstream| Upstream {
        proxy: Some(format!("http://{proxy}").into()),
        proxy_username: Some("me".to_owned()),
        proxy_password_file: Some(proxy_password.clone()),
        ..upstream.clone()
    };
    let manners = [
        Manner { storage: Some(storage.base()), ..Manner::default() },
        Manner { redirect: Some(storage.base()), ..Manner::default() },
    ];
    for (number, manner) in manners.into_iter().enumerate() {
        server.behave(manner);
        let error = fetch("refused", &upstream).unwrap_err();
        assert!(error.contains("`a.bin`") && error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        // Nor does a proxy with such an address open the way to what stands beside it.
        assert!(fetch("refused", &through(&upstream)).unwrap_err().contains("no public address"));
        assert!(storage.take_requests().is_empty());
        assert_eq!(fetch(&format!("proxied-{number}"), &through(&allowed)), Ok(1));
        storage.take_requests();

        assert_eq!(fetch(&format!("allowed-{number}"), &allowed), Ok(1));
        let asked = storage.take_requests().concat().to_ascii_lowercase();
        assert!(!asked.contains("authorization"), "{asked}");
        let given = asked.contains("x-storage-key");
        assert_eq!(given, number == 0, "the key is for where the API says that the object is");

        // A list in the document of somebody who may not reach private addresses changes nothing.
        let mut of_operators = allowed.clone();
        let hosts = Hosts::new(["127.0.0.1".to_owned()]).unwrap();
        of_operators.egress = EgressPolicy { hosts: Hosts::default(), public_only: true, exempt: hosts }.into();
        let error = fetch("operators", &of_operators).unwrap_err();
        assert!(error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        // And `hosts` holds for storages too.
        let mut few = upstream.clone();
        few.egress =
            EgressPolicy { hosts: Hosts::new(["localhost".to_owned()]).unwrap(), ..EgressPolicy::default() }.into();
        few.url = few.url.as_str().replace("127.0.0.1", "localhost").into();
        let error = fetch("few", &few).unwrap_err();
        assert!(error.contains("`127.0.0.1` is not allowed"), "{error}");
    }
    // No redirects at all: what the API names is none.
    let mut none = allowed.clone();
    none.redirects = Redirects::None;
    assert!(fetch("none", &none).unwrap_err().contains("`redirects` is `none`"));
    server.behave(Manner::default());
    assert_eq!(fetch("none", &none), Ok(1));
    // Never from https to http, whoever is allowed.
    let plain = LfsServer::start(&root, None);
    server.behave(Manner { storage: Some(plain.base()), ..Manner::default() });
    let error = fetch("plain", &allowed).unwrap_err();
    assert!(error.contains("from https to http"), "{error}");
}

#[test]
fn what_a_proxy_looks_up_itself_is_judged_here_before() {
    let home = Home::new();
    let server = LfsServer::start(&home.file("git"), Some(&home.file("")));
    let storage = LfsServer::start(&home.file("git"), Some(&home.file("")));
    let wanted = [file("a.bin", &server.hold(b"the file itself"))];
    storage.hold(b"the file itself");
    let (proxy, heads) = tunnel_proxy("Basic bWU6czNjcmV0");
    let mut upstream = upstream(&home, &server);
    upstream.proxy = Some(format!("http://{proxy}").into());
    upstream.proxy_username = Some("me".to_owned());
    upstream.proxy_password_file = upstream.password_file.clone();
    let fetch = |upstream: &Upstream, storage: String, mirror: &str| {
        server.behave(Manner { storage: Some(storage), ..Manner::default() });
        fetch_from(upstream, &home.file(mirror), &wanted)
    };
    let by_name = storage.base().replace("127.0.0.1", "localhost");
    let error = fetch(&upstream, by_name.clone(), "refused").unwrap_err();
    assert!(error.contains("`localhost`, which has no public address"), "{error}");
    let error = fetch(&upstream, "https://storage.invalid".to_owned(), "refused").unwrap_err();
    assert!(error.contains("list the host in `redirects`"), "{error}");
    assert!(heads.lock().unwrap().iter().all(|head| head.contains(" 127.0.0.1:")), "the proxy is not asked for them");
    assert!(storage.take_requests().is_empty());

    upstream.redirects = Redirects::To(Hosts::new(["localhost".to_owned()]).unwrap());
    assert_eq!(fetch(&upstream, by_name, "listed"), Ok(1));
}

/// An upstream with a private authority and a password.
fn upstream(home: &Home, server: &LfsServer) -> Upstream {
    std::fs::write(home.file("password"), "s3cret\n").unwrap();
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.ca = Some(home.file("ca.pem"));
    upstream.username = Some("ci".to_owned());
    upstream.password_file = Some(home.file("password"));
    upstream
}

fn this_machine() -> Redirects {
    Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap())
}

#[test]
fn a_client_certificate_is_shown_to_the_upstream_and_to_no_storage_that_asks_for_one() {
    let home = Home::new();
    let server = LfsServer::start_asking_for_certificates(&home.file("git"), &home.file(""));
    let storage = LfsServer::start_asking_for_certificates(&home.file("git"), &home.file(""));
    let wanted: [LfsFile; 1] = [file("a.bin", &server.hold(b"the file itself"))];
    storage.hold(b"the file itself");
    let mut upstream = upstream(&home, &server);
    upstream.redirects = this_machine();
    upstream.client_certificate = Some(home.file("edge-client.pem"));
    upstream.client_key = Some(home.file("edge-client.key"));
    assert_eq!(fetch_from(&upstream, &home.file("at-home"), &wanted), Ok(1));
    let at_home = server.take_requests();
    assert!(at_home.len() == 2 && at_home.iter().all(|head| head.ends_with(SHOWN)), "{at_home:?}");

    storage.behave(Manner { storage: Some(storage.base()), ..Manner::default() });
    let moved = Some(("307 Temporary Redirect", storage.base()));
    for (number, manner) in [
        Manner { storage: Some(storage.base()), ..Manner::default() },
        Manner { redirect: Some(storage.base()), ..Manner::default() },
        Manner { moved, ..Manner::default() },
    ]
    .into_iter()
    .enumerate()
    {
        server.behave(manner);
        assert_eq!(fetch_from(&upstream, &home.file(&format!("elsewhere-{number}")), &wanted), Ok(1));
        let elsewhere = storage.take_requests();
        assert!(!elsewhere.is_empty() && elsewhere.iter().all(|head| !head.ends_with(SHOWN)), "{elsewhere:?}");
    }
}

#[test]
fn a_question_that_is_sent_on_is_asked_there_by_the_rules_of_redirects() {
    let home = Home::new();
    let (server, other) = (
        LfsServer::start(&home.file("git"), Some(&home.file(""))),
        LfsServer::start(&home.file("git"), Some(&home.file(""))),
    );
    let wanted = [file("a.bin", &server.hold(b"the file itself"))];
    other.hold(b"the file itself");
    let authorization = Some("Basic Y2k6czNjcmV0".to_owned());
    let upstream = upstream(&home, &server);
    let sent_on = |status, to: &LfsServer| {
        let moved = Some((status, to.base()));
        server.behave(Manner { authorization: authorization.clone(), moved, ..Manner::default() });
    };
    // Whatever the status says of methods, at the same host with the credentials.
    for (number, status) in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"].iter().enumerate()
    {
        sent_on(status, &server);
        assert_eq!(fetch_from(&upstream, &home.file(&format!("same-{number}")), &wanted), Ok(1), "{status}");
    }
    // Another host has to be listed, and is given no credentials.
    sent_on("307 Temporary", &other);
    let error = fetch_from(&upstream, &home.file("other"), &wanted).unwrap_err();
    assert!(error.contains("it is another host"), "{error}");
    let listed = Upstream { redirects: this_machine(), ..upstream.clone() };
    other.behave(Manner { storage: Some(other.base()), ..Manner::default() });
    assert_eq!(fetch_from(&listed, &home.file("other"), &wanted), Ok(1));
    let asked = other.take_requests().concat().to_ascii_lowercase();
    assert!(asked.starts_with("post /moved/") && !asked.contains("authorization"), "{asked}");
    other.behave(Manner { authorization: authorization.clone(), ..Manner::default() });
    let error = fetch_from(&listed, &home.file("refused"), &wanted).unwrap_err();
    assert!(error.contains("which is not given the credentials"), "{error}");

    // Never from https to http, nor at all when none are to be followed.
    sent_on("307 Temporary", &LfsServer::start(&home.file("git"), None));
    let error = fetch_from(&listed, &home.file("plain"), &wanted).unwrap_err();
    assert!(error.contains("from https to http"), "{error}");
    sent_on("307 Temporary", &server);
    let none = Upstream { redirects: Redirects::None, ..upstream };
    let error = fetch_from(&none, &home.file("none"), &wanted).unwrap_err();
    assert!(error.contains("`redirects` is `none`"), "{error}");
}
