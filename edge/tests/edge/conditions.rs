use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

#[tokio::test]
async fn a_304_has_the_matching_tag_and_the_required_headers() {
    let (site, tarball) = Site::serving(10_000).await;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let identity = client.head(TARBALL, &[]).await.header("etag").to_owned();
        let coded = client.head(TARBALL, &[ZSTD]).await.header("etag").to_owned();
        for (held, expected) in [
            (identity.clone(), &identity),
            (coded.clone(), &coded),
            (format!("W/{coded}"), &coded),
            (format!("\"other\", {identity}"), &identity),
            ("*".to_owned(), &coded),
        ] {
            for method in ["HEAD", "GET"] {
                let reply = client.send(method, TARBALL, &[ZSTD, ("if-none-match", &held)]).await;
                assert_eq!((reply.status, reply.header("etag")), (304, expected.as_str()), "{version} {method} {held}");
                for name in ["weir-digest", "weir-generation", "weir-commit", "cache-control", "vary", "age"] {
                    assert!(reply.headers.contains_key(name), "{version} {name}");
                }
                assert_eq!(reply.header("cache-status"), "edge-1; hit");
                assert!(reply.header("content-location").ends_with(&tarball.digest().to_string()));
                assert!(!reply.headers.contains_key("content-length"), "{version} {method}");
                assert_eq!(reply.bytes(), "");
            }
        }
        let other = client.get(TARBALL, &[ZSTD, ("if-none-match", "\"b3-other\"")]).await;
        assert_eq!((other.status, other.bytes()), (200, &tarball.zstd));
        // A range does not come before what makes it needless.
        let reply = client.get(TARBALL, &[ZSTD, ("if-none-match", &identity), ("range", "bytes=0-1")]).await;
        assert_eq!(reply.status, 304);
    }
    assert!(site.metric("weir_edge_requests_total", &[("status", "304"), ("cache", "hit")]) > 30.0);
}

#[tokio::test]
async fn a_descriptor_has_a_tag_of_its_own() {
    let site = Site::start().await;
    site.origin.publish("shop", 7, 3, &Tarball::random(1, 100));
    let mut client = site.client("h2").await;
    let reply = client.get("/v1/services/shop", &[]).await;
    assert_eq!((reply.header("etag"), reply.header("content-type")), ("\"7.3\"", "application/json"));
    let reply = client.get("/v1/services/shop", &[("if-none-match", "\"7.3\"")]).await;
    assert_eq!((reply.status, reply.header("etag")), (304, "\"7.3\""));
    assert!(!reply.headers.contains_key("content-length"));
}

#[tokio::test]
async fn if_match_is_compared_strongly() {
    let (site, _) = Site::serving(100).await;
    let mut client = site.client("h2").await;
    let coded = client.head(TARBALL, &[ZSTD]).await.header("etag").to_owned();
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", &coded)]).await.status, 200);
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", "*")]).await.status, 200);
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", &format!("\"x\", {coded}"))]).await.status, 200);
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", &format!("W/{coded}"))]).await.status, 412);
    // It comes before what would be a 304.
    let both = [ZSTD, ("if-match", "\"x\""), ("if-none-match", &*coded)];
    assert_eq!(client.get(TARBALL, &both).await.status, 412);
    let reply = client.get(TARBALL, &[("if-match", &coded)]).await;
    assert_eq!(
        (reply.status, reply.problem()["type"].as_str().unwrap()),
        (412, "urn:weir:problem:precondition-failed")
    );
    // Without a Last-Modified there is nothing a date could be compared with.
    let old = ("if-unmodified-since", "Fri, 20 Nov 1998 09:30:00 GMT");
    assert_eq!(client.get(TARBALL, &[old]).await.status, 200);
}
