use bytes::Bytes;
use serde_json::Value;
use weir_edge::config::AuthMode;
use weir_protocol::access_list::{AccessList, key_line};
use weir_protocol::event::EventKind;
use weir_protocol::token::SigningKey;

use crate::site::{Site, TARBALL, ZSTD, always_revalidating};
use crate::test_origin::Tarball;

#[tokio::test]
async fn an_edge_with_a_catalog_stays_ready_and_reports_degradation() {
    let mut site = Site::with(always_revalidating).await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 5000));
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(site.admin("/readyz").await, (200, "ready\n".to_owned()));
    site.origin.go_down().await;
    client.head("/v1/services/other/tarball", &[]).await;
    let (status, body) = site.admin("/readyz").await;
    assert_eq!(status, 200);
    assert!(body.starts_with("ready\ndegraded: ") && body.contains("cannot be reached"), "{body}");
    let status: Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
    assert_eq!((status["ready"].as_bool(), status["reasons"].as_array().unwrap().len()), (Some(true), 1));
    site.origin.go_up().await;
    site.until("it finds the origin again", async || site.admin("/readyz").await.1 == "ready\n").await;
}

#[tokio::test]
async fn an_origin_that_refuses_this_edge_is_not_up() {
    let mut site = Site::prepare().await;
    site.origin.refuse(true);
    site.start_edge().await;
    let mut seen = (0, String::new());
    site.until("the reason is reported", async || {
        seen = site.admin("/readyz").await;
        seen.1.contains("401")
    })
    .await;
    assert_eq!((seen.0, site.metric("weir_edge_origin_up", &[])), (503, 0.0), "{}", seen.1);
    let status: Value = serde_json::from_str(&site.admin("/status").await.1).unwrap();
    let origin = &status["origins"][0];
    assert_eq!(origin["up"], false);
    assert!(origin["last_error"].as_str().unwrap().contains("client certificate"), "{origin}");
    let detail = site.client("h2").await.get(TARBALL, &[]).await.problem()["detail"].to_string();
    assert!(
        detail.contains("401") && detail.contains("client certificate") && !detail.contains("protocol"),
        "{detail}"
    );
    site.origin.refuse(false);
    site.until("it finds the origin", async || site.admin("/readyz").await == (200, "ready\n".to_owned())).await;
}

#[tokio::test]
async fn without_the_access_list_of_an_origin_an_edge_is_not_ready() {
    let mut site = Site::prepare().await;
    site.config.auth.mode = AuthMode::Required;
    site.config.auth.keys_from_origins = true;
    let denied = site.pki().join("denied");
    std::fs::write(&denied, "").unwrap();
    site.config.auth.deny = Some(denied.clone());
    site.origin.serve_events();
    site.start_edge().await;
    let unready = site.admin("/readyz").await;
    assert!(unready.0 == 503 && unready.1.contains("has not sent its access list yet"), "{}", unready.1);
    site.until("it follows", async || site.metric("weir_edge_stream_up", &[]) == 1.0).await;
    site.origin.send_event(EventKind::Access(b"{}".to_vec().into()));
    let mut seen = (0, String::new());
    site.until("the list has arrived", async || {
        seen = site.admin("/readyz").await;
        !seen.1.contains("has not sent its access list")
    })
    .await;
    assert!(seen.0 == 503 && seen.1.contains("no usable key"), "{}", seen.1);
    site.origin.send_event(EventKind::Access(with_a_key()));
    site.until("somebody can read", async || site.admin("/readyz").await == (200, "ready\n".to_owned())).await;
    std::fs::write(&denied, "tokn lost\n").unwrap();
    let reported = async || site.admin("/readyz").await.1.contains("degraded: a file of keys or denials");
    site.until("an unreadable file is reported", reported).await;
    std::fs::write(&denied, "").unwrap();
    site.origin.go_down().await;
    site.stop_edge().await;
    site.start_edge().await;
    site.until("it knows from before", async || {
        !site.admin("/readyz").await.1.contains("has not sent its access list")
    })
    .await;
}

fn with_a_key() -> Bytes {
    let (key, _) = SigningKey::generate().unwrap();
    let mut list = AccessList::default();
    list.add_key_file(&key_line(key.public())).unwrap();
    list.json().get().as_bytes().to_vec().into()
}
