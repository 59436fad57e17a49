//! Responses for services without a published version.

use tokio::net::TcpListener;

use crate::prelude::*;

#[tokio::test]
async fn the_first_clone_is_503_and_an_overdue_one_504() {
    let home = Home::new();
    // An upstream that accepts connections and sends nothing.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = home.config(&format!("http://{}/shop.git", silent.local_addr().unwrap()));
    config.repositories[0].stall_timeout = Duration::from_secs(2);
    let node = home.start(config).await;
    let (_held, _) = silent.accept().await.unwrap();
    let path = format!("/v1/services/{SERVICE}");
    let answer = node.get(&path).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(!answer.header("retry-after").is_empty());
    let (kind, detail) = answer.problem();
    assert!(kind == "not-published-yet" && detail.contains("cloned for the first time"), "{detail}");
    // A version is not denied either, because its versions are unknown so far.
    let version = node.get(&format!("{path}/versions/{}", TarballDigest::of(b"any"))).await;
    assert_eq!((version.status.as_u16(), version.problem().0), (503, kind));
    assert_eq!(node.admin("/readyz").await.0, 503);

    node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    let answer = node.get(&path).await;
    let (kind, detail) = answer.problem();
    assert_eq!((answer.status.as_u16(), kind.as_str()), (504, "upstream-timeout"), "{detail}");
    assert_eq!(node.admin("/readyz").await.0, 200, "it does what it can");
    node.stop().await;
}

#[tokio::test]
async fn a_failing_upstream_is_502_with_the_step_until_it_recovers() {
    let (home, upstream) = (Home::new(), Upstream::small());
    upstream.take_away();
    let node = home.start(home.config(&upstream.url())).await;
    node.repository(|state| state.applied_polls > 0).await;
    let path = format!("/v1/services/{SERVICE}");
    let answer = node.get(&path).await;
    let (kind, detail) = answer.problem();
    assert_eq!((answer.status.as_u16(), kind.as_str()), (502, "upstream-failure"), "{detail}");
    assert!(detail.contains("step: "), "{detail}");
    assert!(!answer.header("retry-after").is_empty());
    let degraded = async || {
        let (status, reply) = node.admin("/readyz").await;
        assert_eq!(status, 200, "{reply}");
        assert!(reply.starts_with("ready\ndegraded: 1 of 1 repositories cannot be polled"), "{reply}");
        assert!(!reply.contains(SERVICE), "names are not revealed: {reply}");
    };
    degraded().await;

    upstream.give_back();
    node.running.trigger_poll(&crate::node::repository());
    node.published(|_| true).await;
    assert_eq!(node.get(&path).await.status, 200);
    assert_eq!(node.admin("/readyz").await, (200, "ready\n".to_owned()));

    // Services follow the mirror, and report that it is not polled.
    upstream.take_away();
    node.running.trigger_poll(&crate::node::repository());
    node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    degraded().await;
    let status = node.status().await;
    assert_eq!((&status["ready"], status["reasons"].as_array().map(Vec::len)), (&json!(true), Some(1)), "{status}");
    let service = &status["services"][0];
    assert_eq!((&service["condition"], &service["failure"]["of"]), (&json!("following"), &json!("repository")));
    assert_eq!(service["failure"]["reason"], status["repositories"][0]["failure"]["reason"]);
    node.stop().await;
}

#[tokio::test]
async fn an_unknown_ref_is_502_and_named() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    config.services[0].followed_ref = "release/9".parse().unwrap();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    let answer = node.get(&format!("/v1/services/{SERVICE}")).await;
    let (_, detail) = answer.problem();
    assert_eq!(answer.status, 502, "{detail}");
    assert!(detail.contains("release/9") && detail.contains("resolve"), "{detail}");
    node.stop().await;
}
