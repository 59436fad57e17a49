//! Services that operators freeze: nothing new of them is published for a while.

use weir_origin::config::{OperatorConfig, OperatorRole};

use crate::observed::{ask, report};
use crate::prelude::*;
use crate::rollout_plans::{PLAN, by_plan, canary, rollout, staged_commit};
use crate::rollouts::{ROLLOUT, end};

const FREEZE: &str = "/v1/freezes/sale";

/// Pushes a commit that is polled and waits.
async fn held(node: &Node, operator: &Operator, upstream: &Upstream, contents: &[u8]) -> String {
    let commit = upstream.push("deploy/app.yaml", contents);
    node.poll().await;
    until(async || {
        let service = operator.get("/v1/services/shop-prod").await.body;
        service["status"]["seen"]["revision_id"].as_str().is_some_and(|seen| seen.ends_with(&commit))
    })
    .await;
    assert_ne!(commit_of(&node.descriptor().await), commit, "it waits");
    commit
}

#[tokio::test]
async fn new_content_waits_for_the_end_of_a_freeze_and_operators_go_on() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    let first = node.published(|_| true).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    let runs = (first.publication().generation, &first.publication().digest);
    assert_eq!(report(&edge, canary(1, runs, true)).await.status, 204);
    let old = commit_of(&first);
    let document = json!({ "services": ["shop-*"], "until": "2999-01-02T03:04:05Z", "reason": "the sale" });
    let created = operator.put(FREEZE, document.clone()).await;
    assert_eq!((created.status.as_u16(), &created.body["defined_by"]), (201, &json!("api")), "{created:?}");
    assert_eq!(operator.put(FREEZE, document).await.status, 200);
    let second = held(&node, &operator, &upstream, b"replicas: 7\n").await;
    let status = operator.get("/v1/services/shop-prod").await.body["status"].take();
    let frozen = json!({ "name": "sale", "until": "2999-01-02T03:04:05Z", "reason": "the sale" });
    assert_eq!((&status["frozen"], &status["condition"]), (&frozen, &json!("following")));
    let list = operator.get("/v1/freezes").await.body;
    assert_eq!(list["freezes"][0]["services"], json!(["shop-*"]), "{list}");
    // No tip of the service says that it has what waits.
    let lacking = operator.get(&format!("/v1/fleet/rows?lacks={second}&service=shop-prod")).await;
    assert_eq!((&lacking.body["total"], &lacking.body["unknown"]), (&json!(0), &json!(2)), "{lacking:?}");

    // Also of the next process, and what operators want is done.
    node.stop().await;
    let node = home.start(config(&home, &upstream)).await;
    let operator = Operator::of(&home, &node);
    let third = held(&node, &operator, &upstream, b"replicas: 8\n").await;
    let pin = "/v1/services/shop-prod/pin";
    assert_eq!(operator.put(pin, json!({})).await.status, 200);
    assert_eq!(operator.delete(pin).await.status, 200);
    let staged = json!({ "revision": second, "for": [{ "labels": { "ring": "canary" } }] });
    ask(&operator, "/v1/edges").await;
    assert_eq!(report(&Operator::as_edge(&home, &node), canary(1, runs, true)).await.status, 204);
    let staged = operator.send(Method::POST, "/v1/services/shop-prod/stage", &[], Some(staged)).await;
    assert_eq!(staged.status, 200, "{staged:?}");
    assert_eq!(end(&operator, "promote").await.status, 200);
    node.published(|now| commit_of(now) != old).await;
    assert_eq!(operator.delete(pin).await.status, 200);
    assert_eq!(commit_of(&node.descriptor().await), second);

    // Without another poll.
    assert_eq!(operator.delete(FREEZE).await.status, 204);
    node.published(|now| commit_of(now) == third).await;
    assert_eq!(operator.delete(FREEZE).await.problem().0, "no-such-freeze");
    assert_eq!(operator.get("/v1/services/shop-prod").await.body["status"]["frozen"], Value::Null);
    node.stop().await;
}

#[tokio::test]
async fn a_freeze_ends_at_its_time() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    let operator = Operator::of(&home, &node);
    let until = |seconds| humantime::format_rfc3339(SystemTime::now() + Duration::from_secs(seconds)).to_string();
    assert_eq!(operator.put(FREEZE, json!({ "services": ["*"] })).await.status, 201);
    let commit = held(&node, &operator, &upstream, b"replicas: 7\n").await;
    // It is replaced by one that ends by itself.
    let replaced = operator.put(FREEZE, json!({ "services": ["*"], "until": until(2) })).await;
    assert_eq!(replaced.status, 200, "{replaced:?}");
    node.published(|now| commit_of(now) == commit).await;
    assert_eq!(operator.get(FREEZE).await.status, 404);
    for (wrong, words) in [
        (json!({ "services": ["*"], "until": "2001-01-02T03:04:05Z" }), "`until` is past"),
        (json!({ "services": [] }), "from 1 to 20"),
        (json!({ "services": ["*"], "reason": "a\nb" }), "line break"),
        (json!({ "services": ["*"], "unless": "late" }), "unless"),
    ] {
        let refused = operator.put(FREEZE, wrong).await;
        assert!(refused.status == 400 && refused.problem().1.contains(words), "{refused:?}");
    }
    node.stop().await;
}

#[tokio::test]
async fn what_a_plan_has_staged_waits_and_a_failure_stops_it_all_the_same() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(by_plan(&home, &upstream, PLAN)).await;
    let old = node.published(|_| true).await;
    let (operator, edge) = (Operator::without_token(&home, &node, Some("operator")), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    assert_eq!(report(&edge, canary(1, (1, &old.publication().digest), true)).await.status, 204);
    let commit = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    node.poll().await;
    let begun = staged_commit(&node, &commit).await;
    operator.put(FREEZE, json!({ "services": ["shop-prod"], "reason": "the sale" })).await;
    assert_eq!(report(&edge, canary(2, (begun.0, &begun.1), true)).await.status, 204);
    let waiting = rollout(&operator, "scheduled").await["waits_for"].to_string();
    assert!(waiting.contains("the service is frozen: by `sale`: the sale"), "{waiting}");
    assert_eq!(report(&edge, canary(3, (begun.0, &begun.1), false)).await.status, 204);
    rollout(&operator, "stopped").await;
    assert_eq!(end(&operator, "abort").await.body["state"], "aborted");
    assert_eq!(operator.get(ROLLOUT).await.body["state"], "aborted");
    node.stop().await;
}

#[tokio::test]
async fn an_operator_of_some_services_freezes_these_alone() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut limited = config(&home, &upstream);
    let mut ana = OperatorConfig::new("ana".parse().unwrap(), OperatorRole::Deliver);
    ana.certificate = Some("operator-1".parse().unwrap());
    ana.services = Some(vec!["shop-*".parse().unwrap()]);
    limited.operators = vec![ana];
    let node = home.start(limited).await;
    node.published(|_| true).await;
    let (admin, ana) = (Operator::of(&home, &node), Operator::without_token(&home, &node, Some("operator")));
    for services in [json!(["*"]), json!(["shop-prod", "blog"])] {
        let refused = ana.put(FREEZE, json!({ "services": services })).await;
        assert_eq!(refused.problem().0, "not-permitted", "{refused:?}");
    }
    assert_eq!(ana.put(FREEZE, json!({ "services": ["shop-p*"] })).await.status, 201);
    assert_eq!(admin.put("/v1/freezes/all", json!({ "services": ["*"] })).await.status, 201);
    assert_eq!(admin.put("/v1/freezes/blog", json!({ "services": ["blog"] })).await.status, 201);
    let names =
        |list: &Value| list["freezes"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&ana.get("/v1/freezes").await.body), ["all", "sale"], "what keeps her services");
    assert_eq!(ana.delete("/v1/freezes/all").await.problem().0, "not-permitted");
    assert_eq!(ana.delete(FREEZE).await.status, 204);
    node.stop().await;
}
