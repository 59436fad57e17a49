//! Signed freshness statements, as an edge passes them on.

use std::fs;
use std::time::{Duration, SystemTime};

use serde_json::json;
use weir_edge::config::{AuthMode, Config};
use weir_protocol::access_list::key_line;
use weir_protocol::descriptor::Selector;
use weir_protocol::digest::TarballDigest;
use weir_protocol::freshness::{Freshness, HeartbeatAnswer};
use weir_protocol::token::{Claims, SigningKey, unix_seconds};

use crate::cluster::{cluster, followed};
use crate::site::Site;
use crate::test_origin::Tarball;

pub(crate) const PATH: &str = "/v1/agents/self/heartbeats";

pub(crate) fn statement(service: &str, generation: u64) -> Freshness {
    Freshness {
        service: service.parse().unwrap(),
        selector: Selector,
        generation,
        digest: TarballDigest::of(b"tar"),
        time: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        upstream_unreachable_since: None,
    }
}

pub(crate) fn key() -> SigningKey {
    SigningKey::generate().unwrap().0
}

/// Makes an edge require tokens. Returns one that opens `shop*`.
pub(crate) fn guard(config: &mut Config, pki: &std::path::Path) -> String {
    let issuer = key();
    config.auth.mode = AuthMode::Required;
    config.auth.keys = vec![pki.join("keys")];
    fs::write(pki.join("keys"), key_line(issuer.public()) + "\n").unwrap();
    let claims = Claims {
        subject: "cluster-1".parse().unwrap(),
        id: Some("one".parse().unwrap()),
        services: vec!["shop*".parse().unwrap()],
        labels: Default::default(),
        expires: unix_seconds(SystemTime::now()) + 3600,
        not_before: None,
        issued_at: None,
    };
    format!("Bearer {}", issuer.issue(&claims).unwrap())
}

pub(crate) fn request(services: &[&str]) -> Vec<u8> {
    json!({ "services": services }).to_string().into_bytes()
}

#[tokio::test]
async fn an_edge_passes_on_what_the_client_may_read_and_asks_the_origin_once() {
    let mut site = Site::prepare().await;
    let pki = site.pki().to_owned();
    let bearer = guard(&mut site.config, &pki);
    let authorization = [("authorization", bearer.as_str())];
    let (tarball, keys) = (Tarball::random(1, 1000), [key()]);
    for service in ["shop", "shop-mute", "bank"] {
        site.origin.publish(service, 7, 1, &tarball);
    }
    let signed = statement("shop", 7).sign(&keys);
    site.origin.state_freshness("shop", signed.clone());
    site.origin.state_freshness("bank", statement("bank", 7).sign(&keys));
    site.start_edge().await;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        // The catalog has what was requested before.
        client.get("/v1/services/shop", &authorization).await;
        client.get("/v1/services/shop-mute", &authorization).await;
        let wanted = ["bank", "none", "shop", "shop-mute", "shop-unknown"];
        let reply = client.post(PATH, &authorization, request(&wanted)).await;
        assert_eq!((reply.status, reply.header("cache-control")), (200, "no-store"));
        let answer = HeartbeatAnswer::parse(reply.bytes()).unwrap();
        let [only] = &answer.services[..] else { panic!("{answer:?}") };
        assert_eq!((only.service.as_str(), &only.envelope), ("shop", &signed), "{version}: unchanged");
        for (path, headers, status) in [(PATH, &[][..], 401), ("/v1/heartbeats", &authorization[..], 404)] {
            assert_eq!(client.post(path, headers, request(&["shop"])).await.status, status, "{version} {path}");
        }
        assert_eq!(client.get(PATH, &authorization).await.status, 405);
        let many: Vec<_> = (0..257).map(|number| format!("shop-{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for wrong in [b"{".to_vec(), request(&many), vec![b' '; 100_000]] {
            if version == "h3" && wrong.len() == 100_000 {
                // This client is stopped while it sends, and does not look for the answer.
                continue;
            }
            let expected = if wrong.len() == 100_000 { 413 } else { 400 };
            assert_eq!(client.post(PATH, &authorization, wrong).await.status, expected, "{version}");
        }
    }
    assert_eq!(site.origin.requests("heartbeats").len(), 1, "collapsed for ten seconds, also what is absent");
    let counted = |result| site.metric("weir_edge_freshness_statements_total", &[("result", result)]);
    assert_eq!((counted("fetched"), counted("shared"), counted("absent")), (1.0, 2.0, 6.0));
    assert_eq!(site.in_use("freshness_statements"), 2.0);
}

#[tokio::test]
async fn nobody_is_self_at_an_open_edge() {
    let site = Site::start().await;
    let mut client = site.client("h2").await;
    assert_eq!(client.post(PATH, &[], request(&["shop"])).await.status, 404);
}

#[tokio::test]
async fn another_member_is_asked_when_the_owner_gives_none() {
    let (mut site, others) = cluster(2).await;
    let pki = site.pki().to_owned();
    let bearer = guard(&mut site.config, &pki);
    let tarball = Tarball::random(1, 1000);
    others[0].publish("shop", 7, 1, &tarball);
    for member in [&site.origin, &others[1]] {
        member.store("shop", 7, 1, &tarball);
    }
    // Ownership has moved, and its events have not arrived.
    others[1].state_freshness("shop", statement("shop", 7).sign(&[key()]));
    site.start_edge().await;
    followed(&site, 3).await;
    let mut client = site.client("h2").await;
    let authorization = [("authorization", bearer.as_str())];
    client.get("/v1/services/shop", &authorization).await;
    let reply = client.post(PATH, &authorization, request(&["shop"])).await;
    assert_eq!(HeartbeatAnswer::parse(reply.bytes()).unwrap().services.len(), 1);
    assert_eq!(others[0].requests("heartbeats").len(), 1, "its owner is asked first");
}
