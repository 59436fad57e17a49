use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Fault;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_concurrent_misses_share_one_fill_that_outlives_the_first_client() {
    let (site, tarball) = Site::serving(8 << 20).await;
    let gate = Arc::new(Semaphore::new(0));
    site.origin.faults([Fault::Hold(gate.clone())]);

    let mut first = site.client("h2").await;
    let first = tokio::spawn(async move { first.get(TARBALL, &[ZSTD]).await });
    site.until("the first request is under way", async || site.origin.requests("object").len() == 1).await;
    let mut others = Vec::new();
    for number in 0..49 {
        let mut client = site.client(["h1", "h2", "h3"][number % 3]).await;
        let encoding = if number % 5 == 0 { vec![] } else { vec![ZSTD] };
        others.push(tokio::spawn(async move { client.get(TARBALL, &encoding).await }));
    }
    site.until("all wait", async || site.in_use("fill_waiters") == 50.0).await;
    first.abort();
    site.until("the first one is gone", async || site.in_use("fill_waiters") == 49.0).await;
    gate.add_permits(1);

    for (number, other) in others.into_iter().enumerate() {
        let reply = other.await.unwrap();
        let expected = if number % 5 == 0 { &tarball.tar } else { &tarball.zstd };
        assert!(reply.bytes() == expected, "{number}");
        assert_eq!(reply.header("cache-status"), "edge-1; fwd=miss; fwd-status=200; stored; collapsed", "{number}");
    }
    assert_eq!((site.origin.requests("service").len(), site.origin.requests("object").len()), (1, 9));
    site.settled().await;
    assert_eq!(site.metric("weir_edge_fills_total", &[("result", "ok")]), 9.0);
    assert!(site.metric("weir_edge_fills_collapsed_total", &[]) >= 49.0);
    assert_eq!(site.metric("weir_edge_origin_received_bytes_total", &[]) as usize / (1 << 20), 8);
}

#[tokio::test]
async fn concurrent_requests_of_an_unknown_service_share_one_query() {
    let (site, _) = Site::serving(1000).await;
    let gate = site.origin.hold_descriptors();
    let mut polls = Vec::new();
    for _ in 0..20 {
        let mut client = site.client("h2").await;
        polls.push(tokio::spawn(async move { client.head(TARBALL, &[]).await }));
    }
    site.until("all wait", async || site.metric("weir_edge_queries_collapsed_total", &[]) == 19.0).await;
    gate.add_permits(100);
    let mut collapsed = 0;
    for poll in polls {
        let reply = poll.await.unwrap();
        assert_eq!(reply.status, 200);
        collapsed += usize::from(reply.header("cache-status").ends_with("; collapsed"));
    }
    assert_eq!((collapsed, site.origin.requests("service").len()), (19, 1));
}
