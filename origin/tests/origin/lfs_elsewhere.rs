//! LFS servers and storages on other hosts: which are contacted, and what they receive.

use weir_git::lfs::LfsFile;
use weir_upstream::Upstream;

use crate::lfs::{fetch_from, file};
use crate::lfs_server::{LfsBehavior, SHOWN};
use crate::prelude::*;
use crate::smart_http::tunnel_proxy;

/// Headers for an object go to its storage only, credentials to the upstream only.
#[test]
fn a_storage_on_another_host_must_be_public_or_listed_and_gets_no_credentials() {
    let home = Home::new();
    let root = home.file("git");
    let server = LfsServer::start(&root, Some(&home.file("")));
    let storage = LfsServer::start(&root, Some(&home.file("")));
    let wanted = [file("a.bin", &server.store(b"the file itself"))];
    storage.store(b"the file itself");
    storage.set_behavior(LfsBehavior { storage: Some(storage.base()), ..LfsBehavior::default() });
    std::fs::write(home.file("password"), "s3cret\n").unwrap();
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.config.ca = Some(home.file("ca.pem"));
    upstream.config.username = Some("ci".to_owned());
    upstream.config.password_file = Some(home.file("password"));
    // The upstream's credentials, which no other host receives.
    upstream.config.client_certificate = Some(home.file("edge-client.pem"));
    upstream.config.client_key = Some(home.file("edge-client.key"));
    let fetch = |mirror: &str, upstream: &Upstream| fetch_from(upstream, &home.file(mirror), &wanted);
    let mut allowed = upstream.clone();
    allowed.config.redirects = Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap());
    let (proxy, _) = tunnel_proxy("Basic bWU6cHJveHktczNjcmV0");
    let proxy_password = home.file("proxy-password");
    std::fs::write(&proxy_password, "proxy-s3cret\n").unwrap();
    let through = |upstream: &Upstream| {
        let mut upstream = upstream.clone();
        upstream.config.proxy = Some(format!("http://{proxy}").into());
        upstream.config.proxy_username = Some("me".to_owned());
        upstream.config.proxy_password_file = Some(proxy_password.clone());
        upstream
    };
    let manners = [
        LfsBehavior { storage: Some(storage.base()), ..LfsBehavior::default() },
        LfsBehavior { redirect: Some(storage.base()), ..LfsBehavior::default() },
    ];
    for (number, behavior) in manners.into_iter().enumerate() {
        server.set_behavior(behavior);
        let error = fetch("refused", &upstream).unwrap_err();
        assert!(error.contains("`a.bin`") && error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        // A proxy does not open hosts with private addresses either.
        assert!(fetch("refused", &through(&upstream)).unwrap_err().contains("no public address"));
        assert!(storage.take_requests().is_empty());
        assert_eq!(fetch(&format!("proxied-{number}"), &through(&allowed)), Ok(1));
        storage.take_requests();

        assert_eq!(fetch(&format!("allowed-{number}"), &allowed), Ok(1));
        let asked = storage.take_requests().concat().to_ascii_lowercase();
        assert!(!asked.contains("authorization"), "{asked}");
        let given = asked.contains("x-storage-key");
        assert_eq!(given, number == 0, "the key is for where the API says that the object is");

        // The list of a repository that must not reach private addresses has no effect on them.
        let mut of_operators = allowed.clone();
        let hosts = Hosts::new(["127.0.0.1".to_owned()]).unwrap();
        of_operators.egress = EgressPolicy { hosts: Hosts::default(), public_only: true, exempt: hosts }.into();
        let error = fetch("operators", &of_operators).unwrap_err();
        assert!(error.contains("no public address"), "{error}");
        assert!(storage.take_requests().is_empty());

        // `hosts` applies to storages too.
        let mut few = upstream.clone();
        few.egress =
            EgressPolicy { hosts: Hosts::new(["localhost".to_owned()]).unwrap(), ..EgressPolicy::default() }.into();
        few.config.url = few.config.url.as_str().replace("127.0.0.1", "localhost").into();
        let error = fetch("few", &few).unwrap_err();
        assert!(error.contains("`127.0.0.1` is not allowed"), "{error}");
    }
    // Without redirects: the URL from the API is not one.
    let mut none = allowed.clone();
    none.config.redirects = Redirects::None;
    assert!(fetch("none", &none).unwrap_err().contains("`redirects` is `none`"));
    server.set_behavior(LfsBehavior::default());
    assert_eq!(fetch("none", &none), Ok(1));
    // Never from https to http.
    let plain = LfsServer::start(&root, None);
    server.set_behavior(LfsBehavior { storage: Some(plain.base()), ..LfsBehavior::default() });
    let error = fetch("plain", &allowed).unwrap_err();
    assert!(error.contains("from https to http"), "{error}");
}

#[test]
fn addresses_that_a_proxy_would_resolve_are_checked_before() {
    let home = Home::new();
    let server = LfsServer::start(&home.file("git"), Some(&home.file("")));
    let storage = LfsServer::start(&home.file("git"), Some(&home.file("")));
    let wanted = [file("a.bin", &server.store(b"the file itself"))];
    storage.store(b"the file itself");
    let (proxy, heads) = tunnel_proxy("Basic bWU6czNjcmV0");
    let mut upstream = upstream(&home, &server);
    upstream.config.proxy = Some(format!("http://{proxy}").into());
    upstream.config.proxy_username = Some("me".to_owned());
    upstream.config.proxy_password_file = upstream.config.password_file.clone();
    let fetch = |upstream: &Upstream, storage: String, mirror: &str| {
        server.set_behavior(LfsBehavior { storage: Some(storage), ..LfsBehavior::default() });
        fetch_from(upstream, &home.file(mirror), &wanted)
    };
    let by_name = storage.base().replace("127.0.0.1", "localhost");
    let error = fetch(&upstream, by_name.clone(), "refused").unwrap_err();
    assert!(error.contains("`localhost`, which has no public address"), "{error}");
    let error = fetch(&upstream, "https://storage.invalid".to_owned(), "refused").unwrap_err();
    assert!(error.contains("list the host in `redirects`"), "{error}");
    assert!(
        heads.lock().unwrap().iter().all(|head| head.contains(" 127.0.0.1:")),
        "the proxy gets no request for them"
    );
    assert!(storage.take_requests().is_empty());

    upstream.config.redirects = Redirects::To(Hosts::new(["localhost".to_owned()]).unwrap());
    assert_eq!(fetch(&upstream, by_name, "listed"), Ok(1));
}

/// An upstream with a private authority and a password.
fn upstream(home: &Home, server: &LfsServer) -> Upstream {
    std::fs::write(home.file("password"), "s3cret\n").unwrap();
    let mut upstream = Upstream::new(server.url("shop.git"));
    upstream.config.ca = Some(home.file("ca.pem"));
    upstream.config.username = Some("ci".to_owned());
    upstream.config.password_file = Some(home.file("password"));
    upstream
}

fn this_machine() -> Redirects {
    Redirects::To(Hosts::new(["127.0.0.1".to_owned()]).unwrap())
}

#[test]
fn a_client_certificate_is_shown_to_the_upstream_and_to_no_storage() {
    let home = Home::new();
    let server = LfsServer::start_asking_for_certificates(&home.file("git"), &home.file(""));
    let storage = LfsServer::start_asking_for_certificates(&home.file("git"), &home.file(""));
    let wanted: [LfsFile; 1] = [file("a.bin", &server.store(b"the file itself"))];
    storage.store(b"the file itself");
    let mut upstream = upstream(&home, &server);
    upstream.config.redirects = this_machine();
    upstream.config.client_certificate = Some(home.file("edge-client.pem"));
    upstream.config.client_key = Some(home.file("edge-client.key"));
    assert_eq!(fetch_from(&upstream, &home.file("at-home"), &wanted), Ok(1));
    let at_home = server.take_requests();
    assert!(at_home.len() == 2 && at_home.iter().all(|head| head.ends_with(SHOWN)), "{at_home:?}");

    storage.set_behavior(LfsBehavior { storage: Some(storage.base()), ..LfsBehavior::default() });
    let api_redirect = Some(("307 Temporary Redirect", storage.base()));
    for (number, behavior) in [
        LfsBehavior { storage: Some(storage.base()), ..LfsBehavior::default() },
        LfsBehavior { redirect: Some(storage.base()), ..LfsBehavior::default() },
        LfsBehavior { api_redirect, ..LfsBehavior::default() },
    ]
    .into_iter()
    .enumerate()
    {
        server.set_behavior(behavior);
        assert_eq!(fetch_from(&upstream, &home.file(&format!("elsewhere-{number}")), &wanted), Ok(1));
        let elsewhere = storage.take_requests();
        assert!(!elsewhere.is_empty() && elsewhere.iter().all(|head| !head.ends_with(SHOWN)), "{elsewhere:?}");
    }
}

#[test]
fn a_redirected_batch_request_is_repeated_by_the_rules_of_redirects() {
    let home = Home::new();
    let (server, other) = (
        LfsServer::start(&home.file("git"), Some(&home.file(""))),
        LfsServer::start(&home.file("git"), Some(&home.file(""))),
    );
    let wanted = [file("a.bin", &server.store(b"the file itself"))];
    other.store(b"the file itself");
    let authorization = Some("Basic Y2k6czNjcmV0".to_owned());
    let upstream = upstream(&home, &server);
    let sent_on = |status, to: &LfsServer| {
        let api_redirect = Some((status, to.base()));
        server.set_behavior(LfsBehavior {
            authorization: authorization.clone(),
            api_redirect,
            ..LfsBehavior::default()
        });
    };
    // Any redirect status, on the same host with the credentials.
    for (number, status) in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"].iter().enumerate()
    {
        sent_on(status, &server);
        assert_eq!(fetch_from(&upstream, &home.file(&format!("same-{number}")), &wanted), Ok(1), "{status}");
    }
    // Another host must be listed, and gets no credentials.
    sent_on("307 Temporary", &other);
    let error = fetch_from(&upstream, &home.file("other"), &wanted).unwrap_err();
    assert!(error.contains("it is another host"), "{error}");
    let mut listed = upstream.clone();
    listed.config.redirects = this_machine();
    other.set_behavior(LfsBehavior { storage: Some(other.base()), ..LfsBehavior::default() });
    assert_eq!(fetch_from(&listed, &home.file("other"), &wanted), Ok(1));
    let asked = other.take_requests().concat().to_ascii_lowercase();
    assert!(asked.starts_with("post /moved/") && !asked.contains("authorization"), "{asked}");
    other.set_behavior(LfsBehavior { authorization: authorization.clone(), ..LfsBehavior::default() });
    let error = fetch_from(&listed, &home.file("refused"), &wanted).unwrap_err();
    assert!(error.contains("does not receive the credentials"), "{error}");

    // Never from https to http, and never if redirects are disabled.
    sent_on("307 Temporary", &LfsServer::start(&home.file("git"), None));
    let error = fetch_from(&listed, &home.file("plain"), &wanted).unwrap_err();
    assert!(error.contains("from https to http"), "{error}");
    sent_on("307 Temporary", &server);
    let mut none = upstream;
    none.config.redirects = Redirects::None;
    let error = fetch_from(&none, &home.file("none"), &wanted).unwrap_err();
    assert!(error.contains("`redirects` is `none`"), "{error}");
}
