//! Writes that fail, or whose outcome is not known.

use weir_store::{Expect, PutOutcome};

use super::*;

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_stored_publishes_nothing() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let (record, descriptor) = (store.record().await, current(&shop_prod));
    store.store.fail_puts(true);
    let error = publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap_err();
    assert!(matches!(error, PublishError::Object(_)), "{error}");
    let pinned = publisher.pin(&shop_prod, None, change("ann", 3)).await;
    assert!(pinned.is_err() && !shop_prod.is_pinned(), "its page cannot be stored");
    assert_eq!((store.record().await, current(&shop_prod), store.events()), (record, descriptor, 1));
    store.store.fail_puts(false);
    // What the failed writes left is not relied on.
    let puts = store.store.puts();
    assert_eq!(publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap(), Outcome::Published);
    assert_eq!(store.store.puts() - puts, 4, "the frame, the recipe, a page and a segment");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_committed_without_an_answer_is_shown() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in 1..4 {
        (store.fail_writes)(&[WriteFault::Unconfirmed]);
        let outcome = publish(&publisher, &shop_prod, number, &[&number.to_string()]).await.unwrap();
        assert_eq!((outcome, store.events() as u64), (Outcome::Published, number));
    }
    assert_eq!(store.start(&["shop-prod"]).await.1.current[&name("shop-prod")], current(&shop_prod));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_shown_until_an_unknown_outcome_is_settled() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let descriptor = current(&shop_prod);
    (store.fail_writes)(&[WriteFault::Lost, WriteFault::Lost]);
    let error = publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap_err();
    assert!(matches!(error, PublishError::UnknownOutcome(_)), "{error}");
    let error = publish(&publisher, &shop_prod, 3, &["three"]).await.unwrap_err();
    assert!(matches!(error, PublishError::UnknownOutcome(_)), "the one before is not settled: {error}");
    assert_eq!((current(&shop_prod), store.events()), (descriptor, 1));
    // The next request settles it, and comes after it.
    assert_eq!(publish(&publisher, &shop_prod, 4, &["four"]).await.unwrap(), Outcome::Published);
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    let revisions: Vec<_> = history.publications.iter().map(|listed| listed.entry.revision_id.clone()).collect();
    assert_eq!(revisions, [revision(4), revision(2), revision(1)]);
    assert_eq!(store.events(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_settled_without_another_request() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    (store.fail_writes)(&[WriteFault::Lost]);
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap_err();
    let mut shown = shop_prod.follow();
    let shown = shown.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    assert_eq!(shown.publication().revision_id, revision(1));
    assert_eq!(store.start(&["shop-prod"]).await.1.current[&name("shop-prod")], *shown);
}

#[tokio::test(start_paused = true)]
async fn a_superseded_candidate_is_not_published() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let descriptor = current(&shop_prod);
    let record_key = RecordKey::repository(&shop());
    let mut theirs = record::RepositoryRecord::parse(&shop(), &store.record().await).unwrap();
    theirs.sequence += 1;
    let version = store.records.get(&record_key).await.unwrap().unwrap().version;
    let put = store.records.put(&record_key, theirs.to_bytes(), Expect::Version(version)).await;
    assert!(matches!(put, PutOutcome::Done(_)));
    for number in 2..4 {
        let error = publish(&publisher, &shop_prod, number, &["two"]).await.unwrap_err();
        assert!(matches!(error, PublishError::Suspended { .. }), "{error}");
    }
    assert_eq!((store.record().await, current(&shop_prod), store.events()), (theirs.to_bytes(), descriptor, 1));
    assert_eq!(publisher.repositories.suspended().len(), 1);
    assert!(publisher.confirm(&shop()).await.is_err(), "what it serves is not what is stored");
    let publisher = store.open().await;
    assert_eq!(publish(&publisher, &shop_prod, 4, &["two"]).await.unwrap(), Outcome::Published);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_took_too_long_starts_over() {
    let mut store = TestStore::new();
    store.retention.gc_grace_period = Duration::ZERO;
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let error = publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap_err();
    assert!(matches!(error, PublishError::AttemptExpired(_)), "{error}");
    assert!(shop_prod.current().is_none());
}
