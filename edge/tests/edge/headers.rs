use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use weir_protocol::descriptor::Descriptor;

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

/// Header names and values but for what differs from one moment or protocol to another.
fn comparable(headers: &HeaderMap) -> Vec<(String, String)> {
    let mut all: Vec<_> = headers
        .iter()
        .filter(|(name, _)| !["date", "age", "alt-svc", "cache-status", "server-timing"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    all.sort();
    all
}

#[tokio::test]
async fn head_equals_get_over_every_version_of_http() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    let descriptor = site.origin.publish("shop", 7, 1, &tarball);
    let immutable = format!("/v1/services/shop/tarballs/{}", tarball.digest());
    let mut seen = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for path in [TARBALL, immutable.as_str(), "/v1/services/shop"] {
            for encoding in [vec![], vec![ZSTD]] {
                let headers = [&encoding[..], &[("x-request-id", "one")]].concat();
                let get = client.get(path, &headers).await;
                let head = client.head(path, &headers).await;
                assert_eq!((get.status, head.status), (200, 200), "{version} {path} {get:?}");
                assert_eq!(comparable(&get.headers), comparable(&head.headers), "{version} {path}");
                assert_eq!(head.bytes(), "");
                assert_eq!(get.header("content-length"), get.bytes().len().to_string(), "{version} {path}");
                for reply in [&get, &head] {
                    assert!(reply.header("date").ends_with("GMT"), "{version}");
                    assert!(reply.header("age").parse::<u64>().unwrap() < 60);
                    assert!(reply.header("cache-status").starts_with("edge-1; "));
                    let alt_svc = format!("h3=\":{}\"; ma=86400", site.edge().address().port());
                    assert_eq!(reply.header("alt-svc"), if version == "h3" { "" } else { &alt_svc });
                }
                match (path, encoding.is_empty()) {
                    ("/v1/services/shop", _) => assert_eq!(get.bytes(), descriptor.bytes()),
                    (_, true) => assert_eq!(get.bytes(), &tarball.tar),
                    (_, false) => assert_eq!(get.bytes(), &tarball.zstd),
                }
                seen.push((path.to_owned(), encoding.is_empty(), comparable(&get.headers)));
            }
        }
    }
    for (path, identity, headers) in &seen {
        let first = seen.iter().find(|(p, i, _)| (p, i) == (path, identity)).unwrap();
        assert_eq!(headers, &first.2, "the same over every version");
    }
    assert_eq!(site.origin.requests("object").len(), 1);
}

#[tokio::test]
async fn the_headers_of_a_tarball_match_the_protocol() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 10_000);
    let descriptor = site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    let (digest, object) = (tarball.digest(), tarball.named());

    let first = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(first.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    let reply = client.get(TARBALL, &[ZSTD]).await;
    for (name, expected) in [
        ("weir-digest", digest.to_string()),
        ("weir-generation", "7".to_owned()),
        ("weir-commit", format!("c{:039x}", 7)),
        ("weir-revision", descriptor.publication().revision_id.to_string()),
        ("etag", format!("\"{digest}+zstd.{}\"", &object.hex()[..16])),
        ("content-type", "application/x-tar".to_owned()),
        ("content-encoding", "zstd".to_owned()),
        ("unencoded-digest", format!("sha-256=:{}:", STANDARD.encode(tarball.sha256().as_bytes()))),
        ("accept-ranges", "bytes".to_owned()),
        ("vary", "Accept-Encoding, Available-Dictionary".to_owned()),
        ("cache-control", "max-age=15, stale-while-revalidate=60, stale-if-error=31536000".to_owned()),
        ("cache-status", "edge-1; hit".to_owned()),
        ("content-location", format!("/v1/services/shop/tarballs/{digest}")),
    ] {
        assert_eq!(reply.header(name), expected, "{name}");
    }
    let identity = client.get(TARBALL, &[]).await;
    assert_eq!(identity.header("etag"), format!("\"{digest}\""));
    assert_eq!(identity.header("accept-ranges"), "bytes");
    assert!(!identity.headers.contains_key("content-encoding"));

    let immutable = client.get(reply.header("content-location"), &[ZSTD]).await;
    assert_eq!(immutable.header("cache-control"), "max-age=31536000, immutable");
    assert_eq!(immutable.header("etag"), reply.header("etag"));
    assert!(!immutable.headers.contains_key("weir-generation") && !immutable.headers.contains_key("weir-commit"));
}

#[tokio::test]
async fn a_revision_that_is_no_commit_has_its_version_and_no_commit() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 1000);
    let mut fields = tarball.descriptor("shop", 7, 1).fields().clone();
    let revision = format!("helm:1.2.3+sha256:{}", "d".repeat(64));
    fields.publication.commit = None;
    fields.publication.revision_id = revision.parse().unwrap();
    fields.publication.version = Some("1.2.3".parse().unwrap());
    let descriptor = Descriptor::new(fields);
    site.origin.put("shop", &tarball, descriptor.clone());
    let mut client = site.client("h2").await;
    let first = client.get(TARBALL, &[ZSTD]).await;
    let unchanged = client.get(TARBALL, &[ZSTD, ("if-none-match", first.header("etag"))]).await;
    assert_eq!((first.status, unchanged.status), (200, 304));
    for reply in [first, unchanged] {
        assert_eq!((reply.header("weir-revision"), reply.header("weir-version")), (revision.as_str(), "1.2.3"));
        assert!(!reply.headers.contains_key("weir-commit"));
    }
    let own = client.get("/v1/services/shop", &[]).await;
    let own = own.body.unwrap();
    assert!(own.ends_with(&descriptor.bytes()[1..]), "it is passed on as it is: {own:?}");
}

#[tokio::test]
async fn a_head_fetches_no_frame_and_has_the_catalog_s_cache_status() {
    let (site, _) = Site::serving(1000).await;
    let mut client = site.client("h3").await;
    assert_eq!(client.head(TARBALL, &[]).await.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    assert_eq!(client.head(TARBALL, &[]).await.header("cache-status"), "edge-1; hit");
    assert_eq!(site.origin.requests("object").len(), 0);
    // The descriptor is fresh and the body is not there: the answer tells of the body.
    let get = client.get(TARBALL, &[]).await;
    assert_eq!(get.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
}

#[tokio::test]
async fn a_past_version_is_served_while_its_origin_is_down() {
    let site = Site::start().await;
    let (old, new) = (Tarball::random(1, 5000), Tarball::random(2, 5000));
    site.origin.publish("shop", 7, 1, &old);
    site.origin.publish("shop", 8, 1, &new);
    let mut client = site.client("h2").await;
    let path = format!("/v1/services/shop/tarballs/{}", old.digest());
    let first = client.get(&path, &[ZSTD]).await;
    assert_eq!(first.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored");
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &new.zstd);
    site.origin.go_down().await;
    let again = client.get(&path, &[]).await;
    assert_eq!((again.bytes(), again.header("cache-status")), (&old.tar, "edge-1; hit"));
    let tag = first.header("etag");
    assert_eq!(client.head(&path, &[("if-none-match", tag)]).await.status, 304);
    let unknown = format!("/v1/services/shop/tarballs/{}", Tarball::random(3, 1).digest());
    assert_eq!(client.get(&unknown, &[]).await.status, 502);
    assert_eq!(site.origin.requests("version").len(), 1);
}

#[tokio::test]
async fn invalid_requests_get_problem_documents() {
    let (site, _) = Site::serving(1000).await;
    let missing = format!("/v1/services/shop/tarballs/{}", Tarball::random(3, 1).digest());
    let object = format!("/v1/objects/shop/{}", Tarball::random(1, 1000).named());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for (path, status, kind) in [
            ("/", 404, "no-such-path"),
            ("/v1/services", 404, "no-such-path"),
            (object.as_str(), 404, "no-such-path"),
            ("/v1/services/UPPER/tarball", 400, "malformed-request"),
            ("/v1/services/shop/tarballs/b3-12", 400, "malformed-request"),
            ("/v1/services/nothing/tarball", 404, "no-such-service"),
            ("/v1/services/nothing", 404, "no-such-service"),
            (missing.as_str(), 404, "no-such-version"),
        ] {
            let reply = client.get(path, &[]).await;
            assert_eq!(reply.status, status, "{version} {path}");
            assert_eq!(reply.problem()["type"], format!("urn:weir:problem:{kind}"), "{version} {path}");
            let head = client.head(path, &[]).await;
            assert_eq!((head.status, head.bytes().len()), (status, 0), "{version} {path}");
        }
        let reply = client.send("DELETE", TARBALL, &[]).await;
        assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{version}");
        let reply = client.get(TARBALL, &[("accept-encoding", "br, identity;q=0")]).await;
        assert_eq!((reply.status, reply.problem()["status"].as_u64()), (406, Some(406)), "{version}");
    }
}
