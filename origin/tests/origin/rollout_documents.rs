//! Plans of rollouts that operators define over the API.

use weir_origin::config::{OperatorConfig, OperatorRole};
use weir_store::testing::TestServer;

use crate::observed::{ask, report};
use crate::prelude::*;
use crate::rollout_plans::{PLAN, canary, rollout, staged_commit};
use crate::several_operators::Pair;

const CAREFUL: &str = "/v1/rollouts/careful";

fn plan() -> Value {
    serde_json::from_str(PLAN).unwrap()
}

fn follows(plan: &str) -> Value {
    json!({ "repository": "shop", "ref": "main", "folder": "deploy", "rollout": plan })
}

#[tokio::test]
async fn a_service_follows_a_plan_of_the_api_that_changes_no_rollout_in_progress_and_outlives_a_restart() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let git = serve(&upstream);
    let of_file = json!({ "name": "of-file", "stages": plan()["stages"] });
    let config = || {
        let mut config = empty_config(&home);
        config.rollouts = vec![serde_json::from_value(of_file.clone()).unwrap()];
        let mut ana = OperatorConfig::new("ana".parse().unwrap(), OperatorRole::View);
        ana.certificate = Some("operator-1".parse().unwrap());
        ana.services = Some(vec!["other-*".parse().unwrap()]);
        config.operators = vec![ana];
        config
    };
    let node = home.start(config()).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&git)).await.status, 201);
    let service = "/v1/services/shop-prod";
    let refused = operator.put(service, follows("careful")).await;
    assert_eq!(refused.body["errors"][0]["field"], "rollout", "{refused:?}");

    let dry_run = format!("{CAREFUL}/dry-run");
    let checked = operator.send(Method::POST, &dry_run, &[], Some(plan())).await;
    assert_eq!((checked.status.as_u16(), &checked.body["outcome"]), (200, &json!("created")), "{checked:?}");
    assert_eq!(operator.get(CAREFUL).await.problem().0, "no-such-rollout");
    let wrong = operator.put(CAREFUL, json!({ "stages": [{ "name": "all" }] })).await;
    assert_eq!(wrong.problem().0, "invalid-document");
    assert!(wrong.body["detail"].as_str().unwrap().contains("rollout `careful` has 1 stages"), "{wrong:?}");
    let created = operator.put(CAREFUL, plan()).await;
    assert_eq!((created.status.as_u16(), &created.body["defined_by"]), (201, &json!("api")), "{created:?}");
    let of_file = operator.put("/v1/rollouts/of-file", plan_of("of-file", "other")).await;
    assert_eq!(of_file.problem().0, "defined-by-file");
    let outdated = [("if-match", "\"other\"")];
    assert_eq!(operator.send(Method::DELETE, CAREFUL, &outdated, None).await.problem().0, "precondition-failed");
    assert_eq!(operator.put(service, follows("careful")).await.status, 201);
    let in_use = operator.delete(CAREFUL).await;
    assert_eq!((in_use.status.as_u16(), in_use.problem().0), (409, "rollout-in-use"));
    assert!(in_use.body["detail"].as_str().unwrap().contains("`shop-prod`"), "{in_use:?}");

    let old = node.published(|_| true).await;
    ask(&operator, "/v1/edges").await;
    assert_eq!(report(&edge, canary(1, (1, &old.publication().digest), true)).await.status, 204);
    let good = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    node.poll().await;
    let begun = staged_commit(&node, &good).await;
    // The next rollout has other stages.
    assert_eq!(operator.put(CAREFUL, plan_of("careful", "early")).await.status, 200);
    let list = operator.get("/v1/rollouts?limit=1").await.body;
    let staged = &list["rollouts"][0]["status"]["services"][0];
    assert_eq!((&staged["service"], &staged["staged"]["stage"]), (&json!("shop-prod"), &json!("canary")), "{list}");
    let ana = Operator::without_token(&home, &node, Some("operator"));
    assert_eq!(ana.get(CAREFUL).await.body["status"]["services_total"], 0, "it sees other services");
    assert_eq!((&staged["staged"]["verdict"], &staged["staged"]["paused"]), (&Value::Null, &json!(false)));
    let next = operator.get(&format!("/v1/rollouts?page={}", list["next_page"].as_str().unwrap())).await.body;
    assert_eq!((&next["rollouts"][0]["name"], &next["next_page"]), (&json!("of-file"), &Value::Null), "{next}");

    node.stop().await;
    let node = home.start(config()).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    assert_eq!(operator.get(CAREFUL).await.body["stages"][0]["name"], "early");
    ask(&operator, "/v1/edges").await;
    assert_eq!(rollout(&operator, "waiting").await["stage"], "canary");
    assert_eq!(report(&edge, canary(1, (begun.0, &begun.1), true)).await.status, 204);
    node.published(|now| commit_of(now) == good).await;
    let later = upstream.push("deploy/app.yaml", b"replicas: 8\n");
    node.poll().await;
    staged_commit(&node, &later).await;
    assert_eq!(operator.get("/v1/services/shop-prod/rollout").await.body["stage"], "early");

    assert_eq!(operator.delete(service).await.status, 204);
    assert_eq!(operator.delete(CAREFUL).await.status, 204);
    assert_eq!(operator.delete(CAREFUL).await.problem().0, "no-such-rollout");
    node.stop().await;
}

/// The plan with another name of its first stage.
fn plan_of(name: &str, stage: &str) -> Value {
    let mut plan = plan();
    (plan["name"], plan["stages"][0]["name"]) = (json!(name), json!(stage));
    plan
}

#[tokio::test(flavor = "multi_thread")]
async fn every_origin_of_a_cluster_knows_a_plan_at_once() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) = (Box::pin(Pair::start(24, &server)).await, Upstream::small());
    let git = serve(&upstream);
    let [first, second] = &pair.operators;
    assert_eq!(first.put("/v1/repositories/shop", repository_at(&git)).await.status, 201);
    assert_eq!(second.put(CAREFUL, plan()).await.status, 201);
    assert_eq!(first.put("/v1/services/shop-prod", follows("careful")).await.status, 201);
    let version = first.get(CAREFUL).await.body["version"].clone();
    assert_eq!(second.get(CAREFUL).await.body["version"], version);
    for operator in [first, second] {
        assert_eq!(operator.delete(CAREFUL).await.problem().0, "rollout-in-use");
    }
    for node in pair.nodes {
        node.stop().await;
    }
}
