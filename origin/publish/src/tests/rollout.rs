//! What tips and operators do with a staged version.

use super::staging::{CANARIES, audience, digest, publish_number, row, stage, staged, write};
use super::*;

/// Version 2 over version 1.
async fn begin(store: &TestStore) -> (Arc<Publisher>, Arc<Service>, Generation) {
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    (publisher, shop_prod, generation)
}

/// The ref leads to this commit. Returns whether it needs a build.
async fn follow(publisher: &Publisher, service: &Arc<Service>, number: u64) -> bool {
    let candidate = candidate(service, number);
    let cached = publisher.publish_cached(&shop(), std::slice::from_ref(&candidate), at(number)).await.unwrap();
    candidate.followed();
    matches!(cached[..], [Cached::NeedsBuild])
}

fn in_force(service: &Service) -> (TarballDigest, bool) {
    let current = current(service);
    (current.publication().digest, staged(&current).is_some())
}

#[tokio::test(start_paused = true)]
async fn later_tips_wait_for_what_is_staged_and_are_not_built() {
    let store = TestStore::new();
    let (publisher, shop_prod, _) = begin(&store).await;
    for tip in [1, 2, 3, 4] {
        assert!(!follow(&publisher, &shop_prod, tip).await, "{tip}");
        assert_eq!(in_force(&shop_prod), (digest(1), true), "{tip}");
    }
    // A build that began before.
    assert_eq!(publish(&publisher, &shop_prod, 3, &["3"]).await.unwrap(), Outcome::Waits);
    assert_eq!(in_force(&shop_prod), (digest(1), true));
    publisher.abort(&shop_prod, change("ann", 5)).await.unwrap();
    assert!(follow(&publisher, &shop_prod, 4).await, "only the newest is published then");
}

#[tokio::test(start_paused = true)]
async fn the_ref_that_goes_back_from_what_is_staged_aborts_it() {
    let store = TestStore::new();
    let (publisher, shop_prod, generation) = begin(&store).await;
    follow(&publisher, &shop_prod, 1).await;
    assert_eq!(in_force(&shop_prod), (digest(1), true), "it never led to it");
    follow(&publisher, &shop_prod, 2).await;
    let before = store.record().await;
    follow(&publisher, &shop_prod, 2).await;
    assert_eq!(store.record().await, before, "that is stored once");
    // Also after another one, and by another owner.
    follow(&publisher, &shop_prod, 3).await;
    let (publisher, _) = store.start(&["shop-prod"]).await;
    follow(&publisher, &shop_prod, 1).await;
    assert_eq!(in_force(&shop_prod), (digest(1), false));
    assert!(current(&shop_prod).publication().generation > generation);
    assert_eq!(row(&publisher).await.aborted.unwrap().digest, digest(2));
}

#[tokio::test(start_paused = true)]
async fn what_was_aborted_is_not_published_by_itself() {
    let store = TestStore::new();
    let (publisher, shop_prod, generation) = begin(&store).await;
    assert!(publisher.abort(&shop_prod, change("ann", 3)).await.unwrap());
    assert!(!publisher.abort(&shop_prod, change("ann", 3)).await.unwrap(), "nothing is staged");
    let again = current(&shop_prod).publication().generation;
    assert!(again > generation);
    publisher.pin(&shop_prod, None, change("ann", 4)).await.unwrap();
    let expected = VersionChange { expected: Some(again), ..change("ann", 4) };
    let error = publisher.promote(&shop_prod, expected).await.unwrap_err();
    assert!(matches!(error, StageError::Pinned(_)), "{error}");
    publisher.unpin(&shop_prod, change("ann", 5)).await.unwrap();
    let (publisher, _) = store.start(&["shop-prod"]).await;
    assert!(!follow(&publisher, &shop_prod, 2).await);
    assert_eq!(publish(&publisher, &shop_prod, 2, &["2"]).await.unwrap(), Outcome::Waits);
    assert_eq!(current(&shop_prod).publication().generation, again);
    // Until the ref has led to another one.
    publish_number(&publisher, &shop_prod, 3).await;
    follow(&publisher, &shop_prod, 2).await;
    assert_eq!(in_force(&shop_prod), (digest(2), false));
}

#[tokio::test(start_paused = true)]
async fn what_was_aborted_is_published_by_another_definition_and_after_a_move() {
    for why in ["another document", "another ref", "a move", "another repository"] {
        let store = TestStore::new();
        let (publisher, mut shop_prod, _) = begin(&store).await;
        publisher.abort(&shop_prod, change("ann", 3)).await.unwrap();
        match why {
            "another document" => {
                let services = vec![(name("shop-prod"), Some(serde_json::json!({ "folder": "b" })))];
                publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
            }
            "another ref" => {
                let mut config = ServiceConfig::new(name("shop-prod"), shop());
                config.followed_ref = "release".parse().unwrap();
                let moved = Service::new(&config, |_| None, None).unwrap().replacing(&shop_prod);
                shop_prod = Arc::new(moved);
            }
            "a move" => {
                let of = vec![name("shop-prod")];
                let last = publisher.withdraw_services(&shop(), of).await.unwrap()[0];
                let withdrawals = publisher.repositories.withdrawals(&shop());
                publisher.adopt(&shop(), vec![(name("shop-prod"), last)], withdrawals).await.unwrap();
            }
            _ => {
                let mut elsewhere = row(&publisher).await;
                elsewhere.generation += 1;
                write(&publisher, elsewhere).await;
            }
        }
        let outcome = publish(&publisher, &shop_prod, 2, &["2"]).await.unwrap();
        assert_eq!((outcome, in_force(&shop_prod)), (Outcome::Published, (digest(2), false)), "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_promoted_is_for_everybody_as_it_was_staged() {
    for (tip, is_pinned) in [(None, true), (Some(1), true), (Some(2), false), (Some(3), true)] {
        let store = TestStore::new();
        let (publisher, shop_prod, generation) = begin(&store).await;
        let (later, _) = staged(&current(&shop_prod)).unwrap();
        if let Some(tip) = tip {
            follow(&publisher, &shop_prod, tip).await;
        }
        assert_eq!(publisher.promote(&shop_prod, change("ann", 3)).await.unwrap(), generation, "{tip:?}");
        assert_eq!((current(&shop_prod), shop_prod.is_pinned()), (later, is_pinned), "{tip:?}");
        let row = row(&publisher).await;
        assert_eq!((row.staged.is_none(), row.pin.is_some()), (true, is_pinned), "{tip:?}");
        let listed = publisher.queries.versions(&shop(), &name("shop-prod")).await.unwrap().versions;
        assert_eq!(listed.iter().map(|listed| listed.followed).collect::<Vec<_>>(), [true, true], "{tip:?}: tags stay");
        let error = publisher.promote(&shop_prod, change("ann", 4)).await.unwrap_err();
        assert!(matches!(error, StageError::NothingStaged(_)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_aborted_can_be_promoted_or_staged_again() {
    let store = TestStore::new();
    let (publisher, shop_prod, _) = begin(&store).await;
    for promotes in [false, true] {
        publisher.abort(&shop_prod, change("ann", 3)).await.unwrap();
        let last = current(&shop_prod).publication().generation;
        let error = publisher.promote(&shop_prod, change("ann", 4)).await.unwrap_err();
        assert!(matches!(error, StageError::Aborted(_)), "{error}");
        let change = VersionChange { expected: Some(last), ..change("ann", 4) };
        let generation = match promotes {
            true => publisher.promote(&shop_prod, change).await.unwrap(),
            false => publisher.stage(&shop_prod, &digest(2), audience(CANARIES), change).await.unwrap(),
        };
        assert!(generation > last && row(&publisher).await.aborted.is_none());
    }
    assert_eq!(in_force(&shop_prod), (digest(2), false));
}

#[tokio::test(start_paused = true)]
async fn an_earlier_version_that_is_promoted_is_a_rollback() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    publish_number(&publisher, &shop_prod, 2).await;
    publisher.stage(&shop_prod, &digest(1), audience(CANARIES), change("ann", 3)).await.unwrap();
    publisher.promote(&shop_prod, change("ann", 4)).await.unwrap();
    assert_eq!((in_force(&shop_prod), shop_prod.is_pinned()), ((digest(1), false), true));
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 1).await.unwrap();
    assert_eq!(history.publications[0].entry.why, Why::RolledBack);
}
