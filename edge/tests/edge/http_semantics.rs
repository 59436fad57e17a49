//! HTTP as RFC 9110 and 9111 have it, over each of its versions.

use crate::site::{Site, TARBALL, ZSTD};

#[tokio::test]
async fn ranges() {
    let (site, tarball) = Site::serving(700_000).await;
    let stored = &tarball.zstd;
    let length = stored.len();
    let all = 0..length;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let tag = client.head(TARBALL, &[ZSTD]).await.header("etag").to_owned();
        let weak = format!("W/{tag}");
        let identity = format!("\"{}\"", tarball.digest());
        // How a range is read stands in shared/protocol/src/range.rs.
        for (range, validator, status, expected) in [
            ("bytes=0-", None, 206, all.clone()),
            (&*format!("bytes={}-", length - 1), None, 206, length - 1..length),
            ("bytes=100000-400001", None, 206, 100_000..400_002),
            ("bytes=-5", None, 206, length - 5..length),
            // A range that is met only if nothing has changed, and something has, or cannot be said not to have.
            ("bytes=10-19", Some(&tag), 206, 10..20),
            ("bytes=10-19", Some(&weak), 200, all.clone()),
            ("bytes=10-19", Some(&identity), 200, all.clone()),
            ("bytes=10-19", Some(&"Sat, 21 Nov 2026 00:00:00 GMT".to_owned()), 200, all.clone()),
            ("bytes=0-0,2-2", None, 200, all.clone()),
            ("nonsense", None, 200, all.clone()),
        ] {
            let mut headers = vec![ZSTD, ("range", range)];
            headers.extend(validator.map(|validator| ("if-range", validator.as_str())));
            let reply = client.get(TARBALL, &headers).await;
            assert_eq!(reply.status, status, "{version} {range} {validator:?}");
            assert_eq!(reply.bytes(), &stored.slice(expected.clone()), "{version} {range}");
            assert_eq!(reply.header("content-length"), expected.len().to_string(), "{version} {range}");
            let place = format!("bytes {}-{}/{length}", expected.start, expected.end - 1);
            assert_eq!(reply.header("content-range"), if status == 206 { &place } else { "" }, "{version} {range}");
            for name in ["etag", "cache-control", "vary", "content-location", "date", "age"] {
                assert!(reply.headers.contains_key(name), "{version} {range}: {name}");
            }
            // A range means something with GET alone.
            let head = client.head(TARBALL, &headers).await;
            assert_eq!((head.status, head.header("content-range")), (200, ""), "{version} {range}");
            assert_eq!(head.header("content-length"), length.to_string(), "{version} {range}");
        }
        let reply = client.get(TARBALL, &[ZSTD, ("range", &format!("bytes={length}-"))]).await;
        assert_eq!((reply.status, reply.header("content-range")), (416, &*format!("bytes */{length}")), "{version}");
        assert_eq!(reply.problem()["type"], "urn:weir:problem:range-not-satisfiable");
        let decoded = client.get(TARBALL, &[("range", "bytes=0-1")]).await;
        assert_eq!((decoded.status, decoded.bytes()), (206, &tarball.tar.slice(0..2)), "{version}");
    }
}

#[tokio::test]
async fn methods() {
    let (site, tarball) = Site::serving(1000).await;
    let immutable = format!("/v1/services/shop/tarballs/{}", tarball.digest());
    for version in ["h1", "h2", "h3"] {
        for path in [TARBALL, immutable.as_str(), "/v1/services/shop"] {
            for method in ["OPTIONS", "POST", "PUT", "PATCH", "DELETE", "BREW"] {
                let mut client = site.client(version).await;
                let reply = client.send(method, path, &[]).await;
                assert_eq!((reply.status, reply.header("allow")), (405, "GET, HEAD"), "{version} {method} {path}");
                assert_eq!(reply.problem()["type"], "urn:weir:problem:method-not-allowed", "{version} {method}");
            }
        }
    }
    assert!(site.origin.requests("service").is_empty(), "no origin was queried");
}

#[tokio::test]
async fn a_version_by_its_digest_is_conditional_too() {
    let (site, tarball) = Site::serving(5000).await;
    let immutable = format!("/v1/services/shop/tarballs/{}", tarball.digest());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let head = client.head(&immutable, &[ZSTD]).await;
        let (tag, length) = (head.header("etag"), tarball.zstd.len().to_string());
        assert_eq!((head.status, head.header("content-length"), head.bytes().len()), (200, length.as_str(), 0));
        for method in ["GET", "HEAD"] {
            let reply = client.send(method, &immutable, &[ZSTD, ("if-none-match", tag)]).await;
            assert_eq!((reply.status, reply.header("etag"), reply.bytes().len()), (304, tag, 0), "{version} {method}");
            for name in ["cache-control", "vary", "content-location", "date", "age", "cache-status"] {
                assert!(reply.headers.contains_key(name), "{version} {method}: {name}");
            }
            for name in ["content-length", "content-type", "content-encoding", "content-range"] {
                assert!(!reply.headers.contains_key(name), "{version} {method}: {name}");
            }
            let reply = client.send(method, &immutable, &[ZSTD, ("if-match", "\"other\"")]).await;
            assert_eq!(reply.status, 412, "{version} {method}");
            // Dates are no validators here: there is no Last-Modified to compare them with.
            let dates = [ZSTD, ("if-modified-since", "Sat, 21 Nov 2099 00:00:00 GMT")];
            assert_eq!(client.send(method, &immutable, &dates).await.status, 200, "{version} {method}");
            let dates = [ZSTD, ("if-unmodified-since", "Sat, 21 Nov 1998 00:00:00 GMT")];
            assert_eq!(client.send(method, &immutable, &dates).await.status, 200, "{version} {method}");
        }
        let part = client.get(&immutable, &[ZSTD, ("range", "bytes=-3"), ("if-range", tag)]).await;
        assert_eq!((part.status, part.bytes().len()), (206, 3), "{version}");
    }
}

#[tokio::test]
async fn server_timing_has_the_time_of_a_miss() {
    let (site, _) = Site::serving(5000).await;
    let mut client = site.client("h2").await;
    let descriptor = client.get("/v1/services/shop", &[]).await;
    let timing = descriptor.header("server-timing");
    assert!(timing.starts_with("cache;desc=miss, origin;dur=") && !timing.contains("fill"), "{timing}");
    let first = client.get(TARBALL, &[ZSTD]).await;
    let timing = first.header("server-timing");
    assert!(timing.starts_with("cache;desc=miss, origin;dur=") && timing.contains(", fill;dur="), "{timing}");
    // What is at hand has nothing to say.
    for (method, path) in [("GET", TARBALL), ("HEAD", TARBALL), ("GET", "/v1/services/shop")] {
        assert!(!client.send(method, path, &[ZSTD]).await.headers.contains_key("server-timing"), "{method} {path}");
    }
}
