//! `weir-origin verify`.

use std::collections::BTreeSet;

use super::verify::{Finding, Report, Severity};
use super::*;

#[tokio::test(start_paused = true)]
async fn verify_reads_the_store_and_not_the_cache() {
    let mut store = TestStore::new();
    let metrics = StoreMetrics::register(&Registry::new()).unwrap();
    store.objects = Objects::over_cached(store.store.clone(), store.dir.path().join("object-cache"), metrics);
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one", "two"]).await.unwrap();
    let frame = ObjectDigest::of(b"one");
    for file in [store.object(Area::Public, &frame), store.pages().await.remove(0)] {
        std::fs::write(file, "damaged").unwrap();
    }
    assert_eq!(store.objects.get(&shop(), Area::Public, &frame).await.unwrap(), "one", "it is in the cache");
    let report = verify(&store, false).await;
    assert_eq!(report.exit_code(), 4, "the page");
    std::fs::write(store.pages().await.remove(0), page_bytes(&store).await).unwrap();
    let report = verify(&store, false).await;
    assert!(report.exit_code() == 1 && report.findings[0].object.contains(&frame.to_string()), "{report:?}");
}

/// The first state page, as the cache has it.
async fn page_bytes(store: &TestStore) -> Bytes {
    let record = record::RepositoryRecord::parse(&shop(), &store.record().await).unwrap();
    store.objects.get(&shop(), Area::Private, &record.pages[0].digest).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_record_are_named() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let attempt = publisher.repositories.begin_attempt(&"blog".parse().unwrap());
    tokio::task::spawn_blocking(move || attempt.put("a frame".into())).await.unwrap().unwrap();
    publish(&publisher, &service("shop-prod"), 1, &["one"]).await.unwrap();
    assert_eq!(verify(&store, false).await.exit_code(), 0, "a build that did not end has frames");
    std::fs::remove_file(store.dir.path().join("records/repositories/shop.record")).unwrap();
    let report = verify(&store, true).await;
    assert_eq!((report.exit_code(), report.findings.len()), (4, 1), "{report:?}");
    assert!(report.findings[0].object.contains("repositories/shop") && !report.findings[0].deleted, "{report:?}");
}

async fn verify(store: &TestStore, delete_corrupt: bool) -> Report {
    let (objects, records) = (store.objects.clone(), store.records.clone());
    verify::verify(&objects, records, BTreeSet::from([shop()]), delete_corrupt).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn damage_is_reported_by_service_and_only_rebuildable_objects_are_deleted() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one", "shared"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["two", "shared"]).await.unwrap();
    let whole = verify(&store, true).await;
    assert_eq!((whole.exit_code(), whole.findings.len(), whole.versions), (0, 0, 2), "{whole:?}");

    let frame = store.object(Area::Public, &ObjectDigest::of(b"two"));
    std::fs::write(&frame, "damaged").unwrap();
    std::fs::remove_file(store.object(Area::Public, &ObjectDigest::of(b"one"))).unwrap();
    let report = verify(&store, false).await;
    assert_eq!((report.exit_code(), report.findings.len()), (1, 2), "{report:?}");
    assert!(report.findings.iter().all(|finding| finding.consequence.contains("`shop-prod`")), "{report:?}");
    assert!(frame.exists());
    let report = verify(&store, true).await;
    assert_eq!(report.findings.iter().filter(|finding| finding.deleted).count(), 1, "the other one is gone anyway");
    assert!(!frame.exists());

    staging::stage(&publisher, &shop_prod, 3).await.unwrap();
    std::fs::write(store.object(Area::Public, &ObjectDigest::of(b"3")), "damaged").unwrap();
    let report = verify(&store, true).await;
    let found = |finding: &Finding| finding.consequence.contains("the staged version") && finding.deleted;
    assert!(report.findings.iter().any(found) && report.versions == 3, "{report:?}");

    let page = store.pages().await.remove(0);
    std::fs::write(&page, "damaged").unwrap();
    let report = verify(&store, true).await;
    let lost = report.findings.iter().find(|finding| finding.severity == Severity::Lost).unwrap();
    assert!(lost.consequence.contains("operator confirms") && !lost.deleted && page.exists(), "{lost:?}");
    assert_eq!(report.exit_code(), 4);

    store.store.fail_gets(true);
    let report = verify(&store, true).await;
    assert_eq!(report.findings[0].severity, Severity::Unread, "nothing is deleted that cannot be read");
    store.store.fail_gets(false);
    std::fs::write(store.dir.path().join("records/repositories/shop.record"), "damaged").unwrap();
    assert!(verify(&store, false).await.findings[0].object.contains("repositories/shop"));
}
