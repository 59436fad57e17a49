//! `X-Request-Id`: accepted or made, returned, and passed on to origins.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::site::{Site, TARBALL, ZSTD, always_revalidating};
use crate::test_origin::{Fault, OriginRequest, Tarball};

const REQUEST_ID: &str = "x-request-id";

fn ids(requests: &[OriginRequest]) -> Vec<&str> {
    requests.iter().map(|request| request.request_id.as_deref().unwrap()).collect()
}

#[tokio::test]
async fn every_response_has_the_id_of_its_request_or_a_new_one() {
    let (site, _) = Site::serving(1000).await;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for path in [TARBALL, "/v1/services/none/tarball", "/"] {
            let reply = client.get(path, &[(REQUEST_ID, "client/7")]).await;
            assert_eq!(reply.header(REQUEST_ID), "client/7", "{version} {path}");
            for none in [&[][..], &[(REQUEST_ID, "")], &[(REQUEST_ID, "two words")], &[(REQUEST_ID, "'quoted'")]] {
                let (one, two) = (client.head(path, none).await, client.head(path, none).await);
                let (one, two) = (one.header(REQUEST_ID), two.header(REQUEST_ID));
                let is_new = |id: &str| id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
                assert!(is_new(one) && is_new(two) && one != two, "{version} {path} {none:?}: {one} {two}");
            }
        }
    }
}

#[tokio::test]
async fn origins_get_the_id_of_the_request_that_needs_them() {
    let (site, tarball) = (Site::with(always_revalidating).await, Tarball::random(1, 3 << 20));
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    assert_eq!(client.get(TARBALL, &[ZSTD, (REQUEST_ID, "first")]).await.status, 200);
    let (queries, fills) = (site.origin.requests("service"), site.origin.requests("object"));
    assert!(queries.len() == 1 && fills.len() > 1, "{queries:?} {fills:?}");
    assert!(ids(&queries).iter().chain(&ids(&fills)).all(|id| *id == "first"), "{queries:?} {fills:?}");
    // A revalidation, and a past version.
    site.origin.publish("shop", 8, 1, &Tarball::random(2, 1000));
    assert_eq!(client.get(TARBALL, &[ZSTD, (REQUEST_ID, "second")]).await.status, 200);
    assert_eq!(ids(&site.origin.requests("service")), ["first", "second"]);
    let past = format!("/v1/services/shop/tarballs/{}", tarball.digest());
    assert_eq!(client.get(&past, &[ZSTD, (REQUEST_ID, "third")]).await.status, 200);
    assert_eq!(ids(&site.origin.requests("version")), ["third"]);
}

#[tokio::test]
async fn a_fill_that_requests_share_has_the_id_of_the_first() {
    let (site, _) = Site::serving(1000).await;
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Hold(gate.clone())]);
    let (mut one, mut other) = (site.client("h2").await, site.client("h3").await);
    let one = tokio::spawn(async move { one.get(TARBALL, &[ZSTD, (REQUEST_ID, "one")]).await });
    site.until("the first request is under way", async || site.origin.requests("object").len() == 1).await;
    let other = tokio::spawn(async move { other.get(TARBALL, &[ZSTD, (REQUEST_ID, "other")]).await });
    site.until("both wait", async || site.in_use("fill_waiters") == 2.0).await;
    gate.add_permits(1);
    let (one, other) = (one.await.unwrap(), other.await.unwrap());
    assert_eq!((one.header(REQUEST_ID), other.header(REQUEST_ID)), ("one", "other"));
    assert_eq!(ids(&site.origin.requests("object")), ["one"]);
}
