use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

#[tokio::test]
async fn a_304_repeats_the_tag_that_matched_and_says_what_it_must() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 10_000);
    site.origin.publish("shop", 7, 1, &tarball);
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
    let site = Site::start().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let mut client = site.client("h2").await;
    let coded = client.head(TARBALL, &[ZSTD]).await.header("etag").to_owned();
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", &coded)]).await.status, 200);
    assert_eq!(client.get(TARBALL, &[ZSTD, ("if-match", "*")]).await.status, 200);
    let reply = client.get(TARBALL, &[("if-match", &coded)]).await;
    assert_eq!(
        (reply.status, reply.problem()["type"].as_str().unwrap()),
        (412, "urn:weir:problem:precondition-failed")
    );
    // Without a Last-Modified there is nothing a date could be compared with.
    let old = ("if-unmodified-since", "Fri, 20 Nov 1998 09:30:00 GMT");
    assert_eq!(client.get(TARBALL, &[old]).await.status, 200);
}

#[tokio::test]
async fn ranges_are_of_what_is_stored() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 700_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let length = tarball.zstd.len();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let whole = client.get(TARBALL, &[ZSTD]).await;
        let tag = whole.header("etag").to_owned();
        let immutable = whole.header("content-location").to_owned();
        for path in [TARBALL, &immutable] {
            let reply = client.get(path, &[ZSTD, ("range", "bytes=100000-400001"), ("if-range", &tag)]).await;
            assert_eq!(reply.status, 206, "{version}");
            assert_eq!(reply.header("content-range"), format!("bytes 100000-400001/{length}"));
            assert_eq!(reply.header("content-length"), "300002");
            assert_eq!(reply.header("etag"), tag);
            assert_eq!(reply.header("content-encoding"), "zstd");
            assert_eq!(reply.bytes(), &tarball.zstd.slice(100_000..400_002));
        }
        // Resumed after it was cut short: both halves are the whole.
        let rest = client.get(TARBALL, &[ZSTD, ("range", "bytes=5-"), ("if-range", &tag)]).await;
        assert_eq!(rest.bytes(), &tarball.zstd.slice(5..));
        let tail = client.get(TARBALL, &[ZSTD, ("range", "bytes=-7")]).await;
        assert_eq!((tail.status, tail.bytes()), (206, &tarball.zstd.slice(length - 7..)));

        let beyond = client.get(TARBALL, &[ZSTD, ("range", &format!("bytes={length}-"))]).await;
        assert_eq!((beyond.status, beyond.header("content-range")), (416, format!("bytes */{length}").as_str()));
        let identity_tag = format!("\"{}\"", tarball.digest());
        for (name, headers) in [
            ("another tag", vec![ZSTD, ("range", "bytes=0-1"), ("if-range", identity_tag.as_str())]),
            ("several", vec![ZSTD, ("range", "bytes=0-1,4-5")]),
        ] {
            assert_eq!(client.get(TARBALL, &headers).await.bytes(), &tarball.zstd, "{version} {name}");
        }
        let identity = client.get(TARBALL, &[("range", "bytes=0-1")]).await;
        assert_eq!((identity.status, identity.bytes()), (206, &tarball.tar.slice(0..2)));
        assert_eq!(client.head(TARBALL, &[ZSTD, ("range", "bytes=0-1")]).await.status, 200);
    }
}
