//! What ends a rollout besides its plan: each leaves nothing staged, and a generation above what agents may have of it.

use weir_protocol::descriptor::Generation;

use crate::prelude::*;
use crate::rollout_plans::{PLAN, rollout, staged_commit};
use crate::rollouts::{ROLLOUT, staged};

const AT: &str = "/v1/services/shop-prod";
const PIN: &str = "/v1/services/shop-prod/pin";

/// An origin whose operators define the service.
struct Hub {
    upstream: Upstream,
    node: Node,
    operator: Operator,
    _home: Home,
}

impl Hub {
    /// `plan`: the only one.
    async fn start(plan: &str) -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let mut config = config(&home, &upstream);
        config.rollouts = vec![serde_json::from_str(plan).unwrap()];
        config.services.clear();
        let mut other = config.repositories[0].clone();
        other.name = "other".parse().unwrap();
        config.repositories.push(other);
        let node = home.start(config).await;
        let operator = Operator::of(&home, &node);
        let hub = Self { upstream, node, operator, _home: home };
        hub.define("shop", "deploy").await;
        hub.node.published(|_| true).await;
        hub
    }

    async fn define(&self, repository: &str, folder: &str) {
        let document = json!({ "repository": repository, "ref": "main", "folder": folder, "rollout": "careful" });
        let reply = self.operator.put(AT, document).await;
        assert!(reply.status.is_success(), "{reply:?}");
    }

    /// Pushes a commit that is staged for the canaries. Returns what is in force, the commit and its generation.
    async fn stage(&self, contents: &str) -> (Descriptor, String, Generation) {
        let commit = self.push(contents).await;
        let (generation, _) = staged_commit(&self.node, &commit).await;
        (self.node.descriptor().await, commit, generation)
    }

    async fn push(&self, contents: &str) -> String {
        let commit = self.upstream.push("deploy/app.yaml", contents.as_bytes());
        self.node.poll().await;
        commit
    }

    /// Waits until this content is for everybody, above the generation of what was staged.
    async fn ended(&self, in_force: &Descriptor, above: Generation) {
        let (digest, same) = (in_force.publication().digest, |now: &Descriptor| staged(now).is_none());
        let now = self.node.published(|now| now.publication().generation > above && same(now)).await;
        assert_eq!(now.publication().digest, digest);
    }

    /// What was done to what was staged, the last first.
    async fn last_act(&self, event: &str) -> Value {
        let history = self.operator.get(&format!("{AT}/history")).await.body;
        let acts = history["publications"].as_array().unwrap().iter().flat_map(|it| it["acts"].as_array()).flatten();
        let mut acts: Vec<_> = acts.filter(|act| act["event"] == event).cloned().collect();
        assert!(!acts.is_empty(), "{event}: {history}");
        acts.swap_remove(0)
    }
}

#[tokio::test]
async fn a_revert_aborts_a_rollout_and_pins_rollbacks_and_unpins_end_it() {
    let hub = Hub::start(PLAN).await;
    let (first, _, generation) = hub.stage("replicas: 2\n").await;
    hub.upstream.git(&["revert", "--no-edit", "HEAD"]);
    hub.upstream.push_head();
    hub.node.poll().await;
    let aborted = rollout(&hub.operator, "aborted").await;
    assert_eq!(aborted["waits_for"], "the ref has the content in force again", "{aborted}");
    hub.ended(&first, generation).await;

    // A pin holds what is in force. Without it the same commit is staged again.
    let (in_force, commit, generation) = hub.stage("replicas: 3\n").await;
    assert_eq!(hub.operator.put(PIN, json!({ "reason": "INC-42" })).await.status, 200);
    hub.ended(&in_force, generation).await;
    assert_eq!(hub.operator.get(ROLLOUT).await.body["state"], "none");
    assert_eq!(hub.last_act("staging-ended").await["reason"], "INC-42");
    assert_eq!(hub.operator.delete(PIN).await.status, 200);
    let (again, _) = staged_commit(&hub.node, &commit).await;
    assert!(again > generation, "{again} {generation}");

    // `previous` is what was in force, not what some agents had.
    let promoted = hub.operator.send(Method::POST, ROLLOUT, &[], Some(json!({ "action": "promote" }))).await;
    assert_eq!(promoted.status, 200, "{promoted:?}");
    let (_, commit, generation) = hub.stage("replicas: 4\n").await;
    let back = json!({ "revision": "previous" });
    let back = hub.operator.send(Method::POST, &format!("{AT}/rollback"), &[], Some(back)).await;
    assert_eq!(back.status, 200, "{back:?}");
    hub.ended(&first, generation).await;
    assert_eq!(hub.operator.delete(PIN).await.status, 200);
    staged_commit(&hub.node, &commit).await;
    hub.node.stop().await;
}

#[tokio::test]
async fn another_document_a_move_and_a_deletion_end_a_rollout() {
    let hub = Hub::start(PLAN).await;
    let (in_force, commit, generation) = hub.stage("replicas: 2\n").await;
    // Its own tip is staged by the plan.
    hub.define("shop", "").await;
    let is_staged_anew = |now: &Descriptor| {
        staged(now).is_some_and(|staged| staged.publication().generation > generation && commit_of(&staged) == commit)
    };
    let now = hub.node.published(is_staged_anew).await;
    let (whole, _) = staged_commit(&hub.node, &commit).await;
    assert_eq!(now.publication().digest, in_force.publication().digest);
    assert!(generation < now.publication().generation && now.publication().generation < whole);

    // After a move and a deletion the first publication is for everybody.
    hub.define("other", "").await;
    let moved = hub.node.published(|now| now.publication().repository.as_str() == "other").await;
    assert!(moved.publication().generation > whole && staged(&moved).is_none());
    let commit = hub.upstream.push("deploy/app.yaml", b"replicas: 3\n");
    hub.node.running.trigger_poll(&"other".parse().unwrap());
    let (generation, _) = staged_commit(&hub.node, &commit).await;
    assert_eq!(hub.operator.delete(AT).await.status, 204);
    assert_eq!(hub.operator.get(ROLLOUT).await.status, 404);
    hub.define("other", "").await;
    let again = hub.node.published(|now| now.publication().generation > generation).await;
    assert_eq!((commit_of(&again), staged(&again)), (&*commit, None));
    hub.node.stop().await;
}

#[tokio::test]
async fn a_plan_that_replaces_stages_the_newest_commit_from_its_first_stage() {
    let hub = Hub::start(&PLAN.replace(r#""stages""#, r#""replace":true,"stages""#)).await;
    let (in_force, _, before) = hub.stage("replicas: 2\n").await;
    let (now, _, after) = hub.stage("replicas: 3\n").await;
    assert_eq!(now.publication().digest, in_force.publication().digest);
    assert!(before < now.publication().generation && now.publication().generation < after);
    assert_eq!(hub.operator.get(ROLLOUT).await.body["stage"], "canary");
    hub.node.stop().await;
}
