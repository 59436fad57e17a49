//! What a changed document of a repository changes, and what it leaves alone.

use crate::prelude::*;
use crate::scheduling::silent;
use crate::smart_http::HttpBehavior;

/// How an operator's repository is.
async fn status(operator: &Operator) -> Value {
    operator.get("/v1/repositories/shop").await.body["status"].clone()
}

fn time(shown: &Value) -> SystemTime {
    humantime::parse_rfc3339(shown.as_str().unwrap()).unwrap()
}

/// A time may be shown a second earlier or later; the next poll without a pause would be minutes away.
#[track_caller]
fn assert_about(one: SystemTime, other: SystemTime) {
    let apart = one.duration_since(other).unwrap_or_else(|earlier| earlier.duration());
    assert!(apart < Duration::from_secs(60), "{one:?} and {other:?}");
}

#[tokio::test]
async fn a_changed_document_keeps_retry_after_of_its_host() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = serve(&upstream);
    let (node, operator) = operated(&home).await;
    let behavior =
        HttpBehavior { status: Some(429), header: Some("Retry-After: 3000".to_owned()), ..HttpBehavior::default() };
    server.set_behavior(behavior);
    let mut document = repository_at(&server);
    operator.put("/v1/repositories/shop", document.clone()).await;
    node.repository(|state| state.held_until.is_some()).await;
    let before = status(&operator).await;
    assert_eq!((&before["polls"], &before["consecutive_failures"]), (&json!(1), &json!(1)));
    server.take_requests();

    // A new poll interval is not a new upstream.
    document["poll_interval"] = "30m".into();
    assert_eq!(operator.put("/v1/repositories/shop", document.clone()).await.status, StatusCode::OK);
    let after = status(&operator).await;
    for kept in ["polls", "consecutive_failures", "failure"] {
        assert_eq!(after[kept], before[kept], "{kept}");
    }
    for kept in ["held_until", "next_poll"] {
        assert_about(time(&after[kept]), time(&before[kept]));
    }
    // Another way to ask the same host is tried at once, but for the pause.
    document["redirects"] = "none".into();
    operator.put("/v1/repositories/shop", document.clone()).await;
    let state = node.repository(|state| state.consecutive_failures == 0 && state.next_poll.is_some()).await;
    assert_eq!(state.applied_polls, 1);
    assert_about(state.next_poll.unwrap(), time(&before["next_poll"]));
    assert!(server.take_requests().is_empty());
    // The other host has sent no `Retry-After`.
    let other = serve(&upstream);
    document["url"] = other.url("bare.git").replace("127.0.0.1", "localhost").into();
    operator.put("/v1/repositories/shop", document).await;
    node.repository(|state| state.mirrored).await;
    node.stop().await;
}

#[tokio::test]
async fn a_changed_webhook_secret_or_interval_does_not_affect_a_running_poll() {
    let home = Home::new();
    let (silent, requests, release) = silent();
    let mut config = empty_config(&home);
    config.operator_api.secrets_dir = Some(home.file("secrets"));
    std::fs::create_dir(home.file("secrets")).unwrap();
    std::fs::write(home.file("secrets/hook"), "a secret\n").unwrap();
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    operator.put("/v1/repositories/shop", json!({ "url": silent.url() })).await;
    requests.acquire().await.unwrap().forget();
    let document = json!({
        "url": silent.url(), "webhook_secret_files": ["hook"], "poll_interval": "1h", "min_poll_interval": "1s",
        "stall_timeout": "40s", "poll_timeout": "2h", "build_timeout": "1h",
    });
    let put = operator.put("/v1/repositories/shop", document).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    drop(release);
    // The one request was the only one of that poll.
    let state = node.repository(|state| state.applied_polls == 1).await;
    assert_eq!((state.consecutive_failures, requests.available_permits()), (1, 0), "{state:?}");
    node.running.cut().await;
}

#[tokio::test]
async fn a_changed_policy_applies_from_the_response_on() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    let server = serve(&upstream);
    config.repositories.clear();
    config.services.clear();
    config.operator_api.secrets_dir = Some(home.file("secrets"));
    std::fs::create_dir(home.file("secrets")).unwrap();
    std::fs::write(home.file("secrets/signers"), "").unwrap();
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    operator.put("/v1/services/shop-prod", json!({ "repository": "shop", "folder": "deploy" })).await;
    let published = node.published(|_| true).await;
    let mut strict = repository_at(&server);
    strict["verify"] = json!({ "mode": "commit", "ssh_allowed_signers": "signers" });
    let put = operator.put("/v1/repositories/shop", strict).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), published.bytes());
    unhealthy(&node, "verify").await;
    operator.put("/v1/repositories/shop", repository_at(&server)).await;
    node.published(|new| commit_of(new) == commit).await;
    let nothing = json!({ "repository": "shop", "folder": "deploy", "include": ["*.none"] });
    operator.put("/v1/services/shop-prod", nothing).await;
    unhealthy(&node, "select").await;
    node.stop().await;
}

/// Waits until the service is unhealthy at this step.
async fn unhealthy(node: &Node, at: &str) {
    let mut condition = node.running.condition(&service()).unwrap();
    let failed = |now: &Condition| matches!(now, Condition::Unhealthy { step, .. } if *step == at);
    in_time(condition.wait_for(failed)).await.unwrap();
}
