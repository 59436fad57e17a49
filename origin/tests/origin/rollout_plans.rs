//! New commits that a plan brings to agents stage by stage.

use weir_protocol::descriptor::Generation;

use crate::observed::{ask, message, report};
use crate::prelude::*;
use crate::rollouts::{ROLLOUT, end, staged};

pub(crate) const PLAN: &str =
    r#"{"name":"careful","stages":[{"name":"canary","labels":{"ring":"canary"}},{"name":"all"}]}"#;

pub(crate) fn by_plan(home: &Home, upstream: &Upstream, plan: &str) -> Config {
    let mut config = config(home, upstream);
    config.rollouts = vec![serde_json::from_str(plan).unwrap()];
    config.services[0].rollout = Some("careful".parse().unwrap());
    config
}

/// What `edge-1` says of the canary: it runs this version, or its hook failed.
pub(crate) fn canary(seq: u64, (generation, digest): (Generation, &TarballDigest), succeeded: bool) -> Value {
    let mut said = message(seq);
    let mut row = said["agents"][0]["rows"][1].clone();
    row["desired"] = json!({ "digest": digest, "generation": generation });
    for (field, value) in row["desired"].clone().as_object().unwrap() {
        row["current"][field] = value.clone();
    }
    if !succeeded {
        row["hook"] = json!("failed");
        row["problem"] =
            json!({ "kind": "hook-failed", "since": "2026-11-20T09:30:00Z", "tries": 1, "text": "exit status 1" });
    }
    for agent in said["agents"].as_array_mut().unwrap() {
        agent["rows"] = json!([row]);
    }
    said["unheard"] = json!([]);
    said
}

/// Waits until the rollout is in this state.
pub(crate) async fn rollout(operator: &Operator, state: &str) -> Value {
    let mut last = Value::Null;
    until(async || {
        last = operator.get(ROLLOUT).await.body;
        last["state"] == state
    })
    .await;
    last
}

pub(crate) async fn staged_commit(node: &Node, commit: &str) -> (Generation, TarballDigest) {
    let with = node.published(|now| staged(now).is_some_and(|staged| commit_of(&staged) == commit)).await;
    let staged = staged(&with).unwrap();
    (staged.publication().generation, staged.publication().digest)
}

#[tokio::test]
async fn a_commit_reaches_everybody_once_the_canary_runs_it_and_stops_where_its_hook_fails() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(by_plan(&home, &upstream, PLAN)).await;
    let old = node.published(|_| true).await;
    let (operator, edge) = (Operator::without_token(&home, &node, Some("operator")), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    assert_eq!(report(&edge, canary(1, (1, &old.publication().digest), true)).await.status, 204);
    let good = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    node.poll().await;
    let begun = staged_commit(&node, &good).await;
    let running = rollout(&operator, "running").await;
    assert_eq!([&running["plan"], &running["stage"]], ["careful", "canary"], "{running:?}");
    assert_eq!(running["waits_for"], "1 agent does not run the version yet");
    let stage = json!({ "name": "canary", "expected": 1, "done": 0, "failed": 0, "silent": 0 });
    assert_eq!((&running["stages"], &running["actions"]), (&json!([stage]), &json!(["pause", "promote", "abort"])));

    // What is paused does not go on, and what is resumed does.
    assert_eq!(end(&operator, "pause").await.body["state"], "paused");
    assert_eq!(report(&edge, canary(2, (begun.0, &begun.1), true)).await.status, 204);
    assert_eq!(rollout(&operator, "paused").await["stages"][0]["done"], 1);
    let refused = end(&operator, "approve").await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (409, "not-stageable"), "{refused:?}");
    end(&operator, "resume").await;
    let now = node.published(|now| commit_of(now) == good).await;
    assert_eq!((now.publication().generation, staged(&now)), (begun.0, None));
    assert_eq!(node.status().await["services"][0]["condition"], "following");

    let bad = upstream.push("deploy/app.yaml", b"replicas: 8\n");
    node.poll().await;
    let begun = staged_commit(&node, &bad).await;
    assert_eq!(report(&edge, canary(3, (begun.0, &begun.1), false)).await.status, 204);
    let stopped = rollout(&operator, "stopped").await;
    let agents = json!([{ "agent": "cluster-1", "problem": "hook-failed", "text": "exit status 1" }]);
    assert_eq!((&stopped["agents"], &stopped["actions"]), (&agents, &json!(["resume", "promote", "abort"])));
    let why = stopped["waits_for"].as_str().unwrap();
    assert!(why.contains("failed at 1 agent "), "{why}");
    // The next commit waits, also in another process.
    let next = upstream.push("deploy/app.yaml", b"replicas: 9\n");
    node.poll().await;
    node.stop().await;
    let node = home.start(by_plan(&home, &upstream, PLAN)).await;
    // What an operator does before the first poll has ended may wait for the next one.
    node.poll().await;
    let operator = Operator::without_token(&home, &node, Some("operator"));
    ask(&operator, "/v1/edges").await;
    assert_eq!(rollout(&operator, "stopped").await["to"]["commit"], bad);
    assert_eq!(end(&operator, "abort").await.body["state"], "aborted");
    let again = node.published(|now| now.publication().generation > begun.0).await;
    assert_eq!(commit_of(&again), good);
    let edge = Operator::as_edge(&home, &node);
    assert_eq!(
        report(&edge, canary(1, (again.publication().generation, &again.publication().digest), true)).await.status,
        204
    );
    staged_commit(&node, &next).await;
    let history = operator.get("/v1/services/shop-prod/history").await.body;
    let acts: Vec<_> =
        history["publications"].as_array().unwrap().iter().flat_map(|it| it["acts"].as_array()).flatten().collect();
    let said = |event: &str| acts.iter().filter(|act| act["event"] == event).count();
    let counts = ["staged", "stage-begun", "paused", "resumed", "promoted", "stopped", "aborted"].map(said);
    assert_eq!(counts, [3, 3, 1, 1, 1, 1, 1], "{acts:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_stage_without_agents_or_without_an_approval_waits_and_a_plan_may_abort_by_itself() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let plan = PLAN.replace(r#"{"name":"all"}]"#, r#"{"name":"all","approve":true}],"on_failure":"abort""#);
    let node = home.start(by_plan(&home, &upstream, &plan)).await;
    let old = node.published(|_| true).await;
    let (operator, edge) = (Operator::without_token(&home, &node, Some("operator")), Operator::as_edge(&home, &node));
    ask(&operator, "/v1/edges").await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    node.poll().await;
    let begun = staged_commit(&node, &commit).await;
    let waiting = rollout(&operator, "waiting").await["waits_for"].to_string();
    assert!(waiting.contains("stage `canary` names no agent that follows the service"), "{waiting}");
    assert_eq!(report(&edge, canary(1, (begun.0, &begun.1), true)).await.status, 204);
    let mut asked = Value::Null;
    until(async || {
        asked = operator.get(ROLLOUT).await.body;
        asked["actions"][0] == "approve"
    })
    .await;
    assert_eq!(asked["waits_for"], "an operator has to approve stage `all`");
    assert_eq!(report(&edge, canary(2, (begun.0, &begun.1), false)).await.status, 204);
    let aborted = rollout(&operator, "aborted").await;
    assert_eq!((&aborted["agents"][0]["agent"], &aborted["actions"]), (&json!("cluster-1"), &json!(["promote"])));
    assert_eq!(node.descriptor().await.publication().digest, old.publication().digest);
    let document = json!({ "repository": "shop", "ref": "main", "rollout": "carefull" });
    let refused = operator.put("/v1/services/shop-test", document).await;
    assert!(refused.body.to_string().contains("no rollout `carefull`"), "{refused:?}");
    node.stop().await;
}
