use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::site::{PATIENCE, Site, TARBALL, ZSTD, ask};
use crate::test_origin::{Fault, Tarball};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_finishes_requests_in_flight() {
    let mut site = Site::start().await;
    let (held, fetched) = (Tarball::random(1, 24 << 20), Tarball::random(2, 1 << 20));
    site.origin.publish("shop", 7, 1, &held);
    site.origin.publish("other", 7, 1, &fetched);
    let mut downloads = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = download.next().await.unwrap().unwrap();
        downloads.push((version, client, download, first.len()));
    }
    // One more waits for an object that is on its way.
    let gate = Arc::new(Semaphore::new(0));
    site.origin.fault_of(fetched.named(), Fault::Gate(gate.clone()));
    let mut client = site.client("h2").await;
    let waiting = tokio::spawn(async move { client.get("/v1/services/other/tarball", &[ZSTD]).await });
    let is_asked = || site.origin.requests("object").iter().any(|requests| requests.object == Some(fetched.named()));
    site.until("the fetch is under way", async || is_asked()).await;

    let edge = site.take_edge();
    let (address, admin) = (edge.address(), edge.admin_address().unwrap());
    let draining = tokio::spawn(edge.drain(PATIENCE));
    site.until("nobody is let in", async || TcpStream::connect(address).await.is_err()).await;
    assert_eq!(ask(admin, "GET", "/readyz", None, "").await, (503, "draining\n".to_owned()));
    let status: serde_json::Value = serde_json::from_str(&ask(admin, "GET", "/status", None, "").await.1).unwrap();
    assert_eq!((&status["ready"], &status["reasons"]), (&false.into(), &serde_json::json!(["draining"])));
    assert!(ask(admin, "GET", "/metrics", None, "").await.1.contains("weir_edge_fills_total"));
    gate.add_permits(1);
    for (version, client, download, read) in downloads {
        let reply = download.finish().await;
        assert_eq!(reply.bytes(), &held.zstd.slice(read..), "{version}");
        drop(client);
    }
    let reply = waiting.await.unwrap();
    assert_eq!(reply.bytes(), &fetched.zstd);
    assert_eq!(reply.header("alt-svc"), "clear");
    assert!(draining.await.unwrap(), "nothing had to be cut");
    assert!(TcpStream::connect(admin).await.is_err());
    // The directory is free, and what was fetched meanwhile is there.
    site.start_edge().await;
    site.settled().await;
    assert!(site.client("h2").await.get("/v1/services/other/tarball", &[ZSTD]).await.bytes() == &fetched.zstd);
    assert_eq!(site.metric("weir_edge_fills_total", &[]), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_releases_the_directory_and_ends_no_response_cleanly() {
    let (mut site, _) = Site::serving(24 << 20).await;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let download = client.begin("GET", TARBALL, &[ZSTD]).await;
        site.cut_edge().await;
        assert!(download.finish().await.body.is_err(), "{version}");
        site.start_edge().await;
    }
}
