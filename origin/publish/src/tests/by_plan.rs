//! Content that a plan stages, and the steps of its rollout.

use std::collections::BTreeMap;

use weir_rollout::{Action, Cause, Plan, Step, VerdictKind};

use super::staging::{audience, digest, row, staged};
use super::*;

const PLAN: &str = r#"{"name":"careful","stages":[{"name":"canary","percent":5},{"name":"all","approve":true}]}"#;
const FIVE: &str = r#"{"percent":5}"#;

fn by_plan(followed: &str) -> Arc<Service> {
    let mut config = ServiceConfig::new(name("shop-prod"), shop());
    config.followed_ref = followed.parse().unwrap();
    config.rollout = Some("careful".parse().unwrap());
    Arc::new(Service::new(&config, |_| None, None).unwrap())
}

fn set(publisher: &Publisher, plan: &str) {
    let plan: Plan = serde_json::from_str(plan).unwrap();
    publisher.plans.set(BTreeMap::from([(plan.name().clone(), plan)]));
}

/// Version 1 in force, and version 2 staged for nobody yet.
async fn wait_for_first_stage(store: &TestStore, plan: &str) -> (Arc<Publisher>, Arc<Service>) {
    let (publisher, shop_prod) = (store.open().await, by_plan("main"));
    set(&publisher, plan);
    assert_eq!(publish(&publisher, &shop_prod, 1, &["1"]).await.unwrap(), Outcome::Published, "nothing is in force");
    assert_eq!(publish(&publisher, &shop_prod, 2, &["2"]).await.unwrap(), Outcome::Waits);
    (publisher, shop_prod)
}

fn seen(publisher: &Publisher) -> StagedByPlan {
    let all = publisher.staged_by_plans();
    assert_eq!(all.len(), 1);
    all.into_iter().next().unwrap()
}

async fn step(publisher: &Publisher, service: &Arc<Service>, step: Step) -> bool {
    // Times are stored in whole seconds.
    let change = VersionChange { now: at(5) + Duration::from_millis(1), ..change("driver", 5) };
    publisher.advance(service, seen(publisher), step, change).await.unwrap()
}

fn needs_build(cached: &Cached) -> bool {
    matches!(cached, Cached::NeedsBuild)
}

fn begin(stage: usize) -> Step {
    Step::Begin { stage, audience: audience(FIVE) }
}

fn in_force(service: &Service) -> (TarballDigest, bool) {
    let current = current(service);
    (current.publication().digest, staged(&current).is_some())
}

async fn acts(publisher: &Publisher) -> Vec<String> {
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    let acts = history.publications.iter().rev().flat_map(|entry| &entry.entry.acts);
    acts.map(|act| format!("{} {}", act.event, act.author.reason.as_deref().unwrap_or("-"))).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_plan_stages_waits_for_its_first_stage_and_comes_to_everybody_unpinned() {
    let store = TestStore::new();
    let (publisher, shop_prod) = wait_for_first_stage(&store, PLAN).await;
    assert_eq!((in_force(&shop_prod), store.events()), ((digest(1), false), 1), "edges see nothing of it");
    // A newer tip takes its place while nobody has it.
    assert_eq!(publish(&publisher, &shop_prod, 3, &["3"]).await.unwrap(), Outcome::Waits);
    assert_eq!((seen(&publisher).digest, store.events()), (digest(3), 1));
    let former = seen(&publisher);
    publisher.freezes.set(None);
    assert!(!step(&publisher, &shop_prod, begin(0)).await, "it was decided before a freeze");
    publisher.freezes.set(Some(Vec::new()));
    assert!(step(&publisher, &shop_prod, begin(0)).await);
    assert_eq!((in_force(&shop_prod), store.events()), ((digest(1), true), 2));
    assert!(
        !publisher.advance(&shop_prod, former, Step::Promote, change("d", 6)).await.unwrap(),
        "it stands elsewhere"
    );

    // Later tips wait, and the plan goes on after a restart.
    assert_eq!(publish(&publisher, &shop_prod, 4, &["4"]).await.unwrap(), Outcome::Waits);
    drop(publisher);
    let (publisher, _) = store.start(&["shop-prod"]).await;
    set(&publisher, PLAN);
    let before = seen(&publisher);
    assert_eq!((before.digest, before.state.stage), (digest(3), Some(0)));
    publisher.act(&shop_prod, Action::Approve(None), change("ann", 6)).await.unwrap();
    assert_eq!(seen(&publisher).state.approved.as_ref().map(|approval| approval.stage), Some(1));
    assert!(step(&publisher, &shop_prod, Step::Promote).await);
    assert_eq!((in_force(&shop_prod), shop_prod.is_pinned()), ((digest(3), false), false), "a newer tip comes next");
    assert_eq!(current(&shop_prod).publication().generation, before.generation);
    assert_eq!(publish(&publisher, &shop_prod, 4, &["4"]).await.unwrap(), Outcome::Waits);
    assert_eq!((seen(&publisher).digest, seen(&publisher).state.stage), (digest(4), None));
    let mut acts = acts(&publisher).await;
    acts.sort_unstable();
    let expected = [
        "approved -",
        "promoted -",
        "stage-begun stage `canary`",
        "staged rollout `careful`",
        "staged rollout `careful`",
        "staged rollout `careful`",
        "staging-ended rollout `careful`",
    ];
    assert_eq!(acts, expected);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_stops_keeps_its_agents_and_one_that_is_aborted_does_not_come_back() {
    for ends in ["stop", "abort", "revert"] {
        let store = TestStore::new();
        let (publisher, shop_prod) = wait_for_first_stage(&store, PLAN).await;
        assert!(step(&publisher, &shop_prod, begin(0)).await);
        let cause = Cause { reason: "it failed".to_owned(), agents: Vec::new() };
        let staged_at = seen(&publisher).generation;
        match ends {
            "stop" => {
                assert!(step(&publisher, &shop_prod, Step::Stop(cause)).await);
                let verdict = seen(&publisher).state.verdict.clone().unwrap();
                assert_eq!((verdict.kind, verdict.cause.reason.as_str()), (VerdictKind::Stopped, "it failed"));
                assert_eq!(in_force(&shop_prod), (digest(1), true), "{ends}");
                let error = publisher.act(&shop_prod, Action::Approve(None), change("ann", 6)).await.unwrap_err();
                assert!(matches!(error, StageError::Action(..)), "{error}");
                publisher.act(&shop_prod, Action::Resume, change("ann", 6)).await.unwrap();
                assert_eq!(seen(&publisher).state.verdict, None);
                continue;
            }
            "abort" => assert!(step(&publisher, &shop_prod, Step::Abort(cause)).await),
            _ => drop(publish(&publisher, &shop_prod, 1, &["1"]).await.unwrap()),
        }
        assert_eq!(in_force(&shop_prod), (digest(1), false), "{ends}");
        assert!(current(&shop_prod).publication().generation > staged_at, "{ends}");
        let aborted = row(&publisher).await.aborted.unwrap();
        assert_eq!(aborted.rollout.and_then(|state| state.verdict).map(|it| it.kind), Some(VerdictKind::Aborted));
        assert_eq!(publish(&publisher, &shop_prod, 2, &["2"]).await.unwrap(), Outcome::Waits, "{ends}");
        let comes_back = publisher.staged_by_plans().iter().any(|staged| staged.digest == digest(2));
        assert_eq!(comes_back, ends == "revert", "{ends}: the ref has led to another content");
        assert_eq!(publish(&publisher, &shop_prod, 3, &["3"]).await.unwrap(), Outcome::Waits, "{ends}");
        assert_eq!(seen(&publisher).digest, digest(3), "{ends}: another commit");
    }
}

#[tokio::test(start_paused = true)]
async fn another_ref_or_a_plan_that_replaces_begins_again_and_an_unknown_plan_publishes_nothing() {
    let store = TestStore::new();
    let (publisher, shop_prod) =
        wait_for_first_stage(&store, &PLAN.replace(r#""stages""#, r#""replace":true,"stages""#)).await;
    assert!(step(&publisher, &shop_prod, begin(0)).await);
    let before = seen(&publisher).generation;
    // Another plan applies to the next rollout.
    set(&publisher, PLAN);
    assert_eq!(publish(&publisher, &shop_prod, 3, &["3"]).await.unwrap(), Outcome::Waits);
    let after = seen(&publisher);
    assert_eq!((in_force(&shop_prod), after.digest, after.state.stage), ((digest(1), false), digest(3), None));
    let again = current(&shop_prod).publication().generation;
    assert!(before < again && again < after.generation, "agents with version 2 go back to version 1");

    let release = Arc::new(Arc::into_inner(by_plan("release")).unwrap().replacing(&shop_prod));
    assert!(step(&publisher, &release, begin(0)).await);
    assert_eq!(publish(&publisher, &release, 4, &["4"]).await.unwrap(), Outcome::Waits);
    assert_eq!((in_force(&release), seen(&publisher).digest), ((digest(1), false), digest(4)));
    // What is in force is still of the other ref. The next commits wait all the same, and what is aborted stays that.
    assert!(step(&publisher, &release, begin(0)).await);
    assert!(
        !publisher.publish_cached(&shop(), &[candidate(&release, 6)], at(6)).await.unwrap().iter().any(needs_build)
    );
    assert_eq!(publish(&publisher, &release, 6, &["6"]).await.unwrap(), Outcome::Waits);
    assert_eq!(seen(&publisher).digest, digest(4));
    publisher.abort(&release, change("ann", 6)).await.unwrap();
    assert_eq!(publish(&publisher, &release, 4, &["4"]).await.unwrap(), Outcome::Waits);
    assert!(publisher.staged_by_plans().is_empty());
    assert_eq!(publish(&publisher, &release, 7, &["7"]).await.unwrap(), Outcome::Waits);

    publisher.plans.set(BTreeMap::new());
    let error = publish(&publisher, &release, 5, &["5"]).await.unwrap_err();
    assert!(matches!(error, PublishError::NoSuchRollout { .. }), "{error}");
    let by_hand = publisher.stage(&release, &digest(2), audience(FIVE), change("ann", 7)).await.unwrap_err();
    assert!(matches!(by_hand, StageError::ByPlan(..)), "{by_hand}");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_first_stage_takes_the_place_of_no_version_and_keeps_a_pause() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, by_plan("main"));
    set(&publisher, PLAN);
    publish(&publisher, &shop_prod, 1, &["1"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["2"]).await.unwrap();
    publisher.promote(&shop_prod, change("ann", 2)).await.unwrap();
    publish(&publisher, &shop_prod, 3, &["3"]).await.unwrap();
    publisher.act(&shop_prod, Action::Pause, change("ann", 3)).await.unwrap();
    let looked_at = seen(&publisher).generation;
    publish(&publisher, &shop_prod, 4, &["4"]).await.unwrap();
    let retained: Vec<_> = row(&publisher).await.retained.iter().map(|of| of.version.digest).collect();
    assert_eq!(retained, [digest(4), digest(1)], "nobody ever had version 3");
    assert!(seen(&publisher).state.paused.is_some());
    // An operator promotes what she has looked at, or nothing.
    let promote =
        |expected| publisher.promote(&shop_prod, VersionChange { expected: Some(expected), ..change("ann", 5) });
    let error = promote(looked_at).await.unwrap_err();
    assert!(matches!(error, StageError::Change(VersionChangeError::GenerationConflict { .. })), "{error}");
    // Without a plan there is nothing to wait for.
    let without = Arc::new(Arc::into_inner(service("shop-prod")).unwrap().replacing(&shop_prod));
    assert_eq!(publish(&publisher, &without, 4, &["4"]).await.unwrap(), Outcome::Published);
    assert_eq!((in_force(&without), publisher.staged_by_plans().len()), ((digest(4), false), 0));
}
