use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;
use weir_protocol::problem::Problem;

use crate::site::{Site, TARBALL, ZSTD, a_moment, always_revalidating};
use crate::test_origin::{Fault, Tarball};

#[tokio::test]
async fn cached_versions_are_served_without_the_origin_also_after_a_restart() {
    let mut site = Site::with(always_revalidating).await;
    let tarball = Tarball::random(1, 200_000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    site.origin.go_down().await;
    a_moment().await;
    let stale = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(stale.bytes(), &tarball.zstd);
    assert!(stale.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{}", stale.header("cache-status"));
    assert_eq!(site.metric("weir_edge_stale_served_total", &[("reason", "origin_failed")]), 1.0);
    site.until("the edge sees that it is down", async || site.metric("weir_edge_origin_up", &[]) == 0.0).await;

    for how in ["drained", "killed"] {
        if how == "drained" {
            site.stop_edge().await;
        } else {
            site.cut_edge().await;
        }
        tokio::time::sleep(Duration::from_millis(1100)).await;
        site.start_edge().await;
        let mut client = site.client("h3").await;
        let reply = client.get(TARBALL, &[]).await;
        assert_eq!(reply.bytes(), &tarball.tar, "{how}");
        let age: u64 = reply.header("age").parse().unwrap();
        assert!((1..60).contains(&age), "{how}: the age is counted on: {age}");
        assert!(reply.header("cache-status").starts_with("edge-1; hit; ttl=-"), "{how}");
        let tag = reply.header("etag").to_owned();
        assert_eq!(client.head(TARBALL, &[("if-none-match", &tag)]).await.status, 304);
        assert_eq!(site.admin("/readyz").await.0, 200, "an edge that holds something is ready");
    }
    site.origin.go_up().await;
    let mut client = site.client("h2").await;
    site.until("the edge is back to normal by itself", async || {
        client.get(TARBALL, &[ZSTD]).await.header("cache-status").starts_with("edge-1; fwd=stale; fwd-status=304")
    })
    .await;
    assert_eq!(site.origin.requests("object").len(), 1, "the object survived it all");
}

#[tokio::test]
async fn nothing_is_served_beyond_stale_if_error() {
    let site = Site::with(|config| {
        always_revalidating(config);
        config.freshness.stale_if_error = Some(Duration::ZERO);
    })
    .await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    let mut client = site.client("h2").await;
    let reply = client.get(TARBALL, &[]).await;
    assert!(reply.header("cache-control").ends_with("stale-if-error=0"));
    a_moment().await;
    assert_eq!(client.get(TARBALL, &[]).await.status, 200, "while the origin is up");
    site.origin.go_down().await;
    a_moment().await;
    let reply = client.get(TARBALL, &[]).await;
    assert_eq!((reply.status, reply.problem()["retryable"].as_bool()), (504, Some(true)));
    assert!(reply.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn the_problem_of_an_origin_is_forwarded_when_nothing_is_cached() {
    let site = Site::with(always_revalidating).await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    let words = "The first clone is running: 40 %.";
    for (status, retry_after) in [(502, None), (503, Some(7)), (504, None)] {
        let mut problem = Problem::new(StatusCode::from_u16(status).unwrap(), "any", "Any", words);
        if let Some(seconds) = retry_after {
            problem = problem.retry_after(Duration::from_secs(seconds));
        }
        site.origin.answer_descriptors_with(Some(problem));
        let reply = client.get(&format!("/v1/services/new-{status}/tarball"), &[]).await;
        assert_eq!((reply.status, reply.problem()["detail"].as_str()), (status, Some(words)));
        assert_eq!(reply.header("retry-after"), retry_after.unwrap_or(5).to_string());
    }
    a_moment().await;
    // Who holds something serves that.
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    site.origin.go_down().await;
    let reply = client.get("/v1/services/other/tarball", &[]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (502, "5"));
    let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("cannot be reached") && !detail.contains('/'), "{detail}");
}

#[tokio::test]
async fn several_origins_partition_the_services() {
    let mut site = Site::prepare().await;
    let mut second = site.second_origin().await;
    always_revalidating(&mut site.config);
    site.start_edge().await;
    let (one, two) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("one", 7, 1, &one);
    second.publish("two", 7, 1, &two);
    let mut client = site.client("h2").await;
    for (name, tarball) in [("one", &one), ("two", &two)] {
        let path = format!("/v1/services/{name}/tarball");
        assert_eq!(client.get(&path, &[ZSTD]).await.bytes(), &tarball.zstd);
    }
    // A known service is queried at its own origin only.
    let before = second.requests("service").len();
    a_moment().await;
    client.head("/v1/services/one/tarball", &[]).await;
    assert_eq!(second.requests("service").len(), before);
    assert_eq!(client.head("/v1/services/none/tarball", &[]).await.status, 404);
    // With one of them down nobody can say that a service does not exist.
    second.go_down().await;
    assert_eq!(client.head("/v1/services/neither/tarball", &[]).await.status, 502);
    // A known service is not absent, because only one origin responded 404.
    site.origin.withdraw("one");
    a_moment().await;
    assert_eq!(client.head("/v1/services/one/tarball", &[ZSTD]).await.status, 200);
    second.go_up().await;
    site.until("now it was", async || client.head("/v1/services/one/tarball", &[]).await.status == 404).await;
    site.until("both answer again", async || client.head("/v1/services/neither/tarball", &[]).await.status == 404)
        .await;
}

#[tokio::test]
async fn a_hanging_origin_delays_no_fill_from_another() {
    let mut site = Site::prepare().await;
    let second = site.second_origin().await;
    (site.config.cache.fills, site.config.cache.fill_idle) = (1, Duration::from_secs(3600));
    site.start_edge().await;
    let (one, two) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    site.origin.publish("one", 7, 1, &one);
    second.publish("two", 7, 1, &two);
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Hold(gate.clone())]);
    let mut client = site.client("h2").await;
    let mut waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.get("/v1/services/one/tarball", &[ZSTD]).await });
    site.until("it is requested", async || site.origin.requests("object").len() == 1).await;
    assert_eq!(client.get("/v1/services/two/tarball", &[ZSTD]).await.bytes(), &two.zstd);
    gate.add_permits(1);
    assert_eq!(waiting.await.unwrap().bytes(), &one.zstd);
}
