use http::StatusCode;
use weir_shared::problem::Problem;

use crate::site::Site;
use crate::test_origin::Tarball;

const HEARTBEAT: &str = "/v1/services/shop/heartbeat";
const SIGNED: &str = r#"{"envelope":{"payloadType":"x","payload":"eHg=","signatures":[]},"index":0,"path":[]}"#;

#[tokio::test]
async fn a_signed_heartbeat_is_passed_on_byte_for_byte_and_asked_for_once() {
    let site = Site::start().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    site.origin.sign("shop", SIGNED);
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let reply = client.get(HEARTBEAT, &[]).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"), "{version}");
        assert_eq!(reply.bytes(), SIGNED, "{version}");
        let told = if version == "h1" { "edge-1; fwd=miss; fwd-status=200; stored" } else { "edge-1; hit" };
        assert_eq!(reply.header("cache-status"), told);
        assert_eq!(reply.header("cache-control"), "no-cache");
        let head = client.head(HEARTBEAT, &[]).await;
        assert_eq!((head.status, head.header("content-length")), (200, SIGNED.len().to_string().as_str()), "{version}");
    }
    assert_eq!(site.origin.asked("standing").len(), 1);
    assert_eq!(site.metric("weir_edge_bound_limit", &[("bound", "heartbeat_questions")]), 1024.0);
}

#[tokio::test]
async fn what_is_not_signed_is_told_from_what_cannot_be_asked() {
    let site = Site::start().await;
    for service in ["shop", "docs", "news"] {
        site.origin.publish(service, 7, 1, &Tarball::random(1, 1000));
    }
    let mut client = site.client("h2").await;
    for _ in 0..2 {
        let reply = client.get(HEARTBEAT, &[]).await;
        assert_eq!((reply.status, &reply.problem()["type"]), (404, &"urn:weir:problem:not-signed".into()));
    }
    assert_eq!(site.origin.asked("standing").len(), 1, "that there is none holds for a while, too");
    let absent = client.get("/v1/services/nobody/heartbeat", &[]).await;
    assert_eq!((absent.status, &absent.problem()["type"]), (404, &"urn:weir:problem:no-such-service".into()));

    // The service is known; its origin fails.
    assert_eq!(client.get("/v1/services/docs", &[]).await.status, 200);
    site.origin.answer_descriptors_with(Some(Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "busy",
        "Busy",
        "Not just now.",
    )));
    let reply = client.get("/v1/services/docs/heartbeat", &[]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    site.origin.answer_descriptors_with(None);
    assert_eq!(client.get("/v1/services/docs/heartbeat", &[]).await.status, 404, "a failure is not kept");
    assert_eq!(client.send("POST", HEARTBEAT, &[]).await.status, 405);

    // Its descriptor is held; what is not is said.
    assert_eq!(client.get("/v1/services/news", &[]).await.status, 200);
    site.origin.go_down().await;
    let reply = client.get("/v1/services/news/heartbeat", &[]).await;
    let detail = reply.problem()["detail"].as_str().unwrap().to_owned();
    assert!(reply.status == 502 && detail.starts_with("No signed heartbeat is held of `news` here, and "), "{detail}");
}
