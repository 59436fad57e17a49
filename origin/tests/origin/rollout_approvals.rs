//! Operators who approve the stages of a plan.

use crate::observed::ask;
use crate::operator::Reply;
use crate::prelude::*;
use crate::rollout_plans::{PLAN, by_plan, rollout, staged_commit};
use crate::rollouts::ROLLOUT;

async fn approve(operator: &Operator, stage: &Value) -> Reply {
    let body = json!({ "action": "approve", "stage": stage, "reason": "CHG-7" });
    operator.send(Method::POST, ROLLOUT, &[], Some(body)).await
}

#[tokio::test]
async fn two_operators_who_looked_at_one_stage_approve_that_stage_alone() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let plan =
        PLAN.replace("}]}", r#","approve":true}]}"#).replace(r#""name":"canary""#, r#""name":"canary","approve":true"#);
    let node = home.start(by_plan(&home, &upstream, &plan)).await;
    node.published(|_| true).await;
    let operator = Operator::of(&home, &node);
    ask(&operator, "/v1/edges").await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    node.poll().await;
    let (first, second) = (rollout(&operator, "waiting").await, rollout(&operator, "waiting").await);
    assert_eq!((&first["stage"], &first["next_stage"]), (&Value::Null, &json!("canary")), "{first}");
    assert_eq!(approve(&operator, &first["next_stage"]).await.status, 200);
    staged_commit(&node, &commit).await;
    let late = approve(&operator, &second["next_stage"]).await;
    let (problem, detail) = late.problem();
    assert_eq!((late.status.as_u16(), problem), (409, "not-stageable"), "{late:?}");
    assert!(detail.contains("stage `canary` does not come next, `all` does"), "{detail}");
    assert_eq!(operator.get(ROLLOUT).await.body["next_stage"], "all");
    let pause = json!({ "action": "pause", "stage": "all" });
    assert_eq!(operator.send(Method::POST, ROLLOUT, &[], Some(pause)).await.status, 400);
    assert_eq!(approve(&operator, &json!("all")).await.status, 200);
    node.stop().await;
}
