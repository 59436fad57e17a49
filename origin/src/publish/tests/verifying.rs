//! `weir-origin verify`.

use super::verify::{Report, Severity, Verifier};
use super::*;
use crate::store::ObjectError;
use crate::tar_reader::{ReadError, TarReader};

#[tokio::test(start_paused = true)]
async fn what_is_verified_is_what_is_stored_and_not_what_is_cached() {
    let mut world = World::new();
    let metrics = StoreMetrics::register(&Registry::new()).unwrap();
    world.objects = Objects::over_cached(world.store.clone(), world.dir.path().join("object-cache"), metrics);
    let (publisher, shop_prod) = (world.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one", "two"]).await.unwrap();
    let frame = ObjectDigest::of(b"one");
    for file in [world.object(Area::Public, &frame), world.pages().await.remove(0)] {
        std::fs::write(file, "damaged").unwrap();
    }
    assert_eq!(world.objects.get(&shop(), Area::Public, &frame).await.unwrap(), "one", "it is in the cache");
    let report = verify(&world, false).await;
    assert_eq!(report.exit_code(), 4, "the page");
    std::fs::write(world.pages().await.remove(0), page_bytes(&world).await).unwrap();
    let report = verify(&world, false).await;
    assert!(report.exit_code() == 1 && report.findings[0].object.contains(&frame.to_string()), "{report:?}");
    let rolled_back_to = TarReader::open(&world.objects, &current(&shop_prod)).await;
    assert!(matches!(rolled_back_to, Err(ReadError::Object(ObjectError::Corrupt(_)))), "{rolled_back_to:?}");
}

/// The first state page, as the cache has it.
async fn page_bytes(world: &World) -> Bytes {
    let record = record::RepositoryRecord::parse(&shop(), &world.record().await).unwrap();
    world.objects.get(&shop(), Area::Private, &record.pages[0].digest).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_record_are_named() {
    let world = World::new();
    let publisher = world.open().await;
    let attempt = publisher.begin_attempt(&"blog".parse().unwrap());
    tokio::task::spawn_blocking(move || attempt.put("a frame".into())).await.unwrap().unwrap();
    publish(&publisher, &service("shop-prod"), 1, &["one"]).await.unwrap();
    assert_eq!(verify(&world, false).await.exit_code(), 0, "a build that did not end has frames");
    std::fs::remove_file(world.dir.path().join("records/repositories/shop.record")).unwrap();
    let report = verify(&world, true).await;
    assert_eq!((report.exit_code(), report.findings.len()), (4, 1), "{report:?}");
    assert!(report.findings[0].object.contains("repositories/shop") && !report.findings[0].deleted, "{report:?}");
}

async fn verify(world: &World, delete_corrupt: bool) -> Report {
    let (objects, records) = (world.objects.clone(), world.records.clone());
    Verifier::new(&objects, records, delete_corrupt).run().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn damage_is_named_with_its_service_and_only_what_can_be_built_again_is_deleted() {
    let world = World::new();
    let (publisher, shop_prod) = (world.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one", "shared"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["two", "shared"]).await.unwrap();
    let whole = verify(&world, true).await;
    assert_eq!((whole.exit_code(), whole.findings.len(), whole.versions), (0, 0, 2), "{whole:?}");

    let frame = world.object(Area::Public, &ObjectDigest::of(b"two"));
    std::fs::write(&frame, "damaged").unwrap();
    std::fs::remove_file(world.object(Area::Public, &ObjectDigest::of(b"one"))).unwrap();
    let report = verify(&world, false).await;
    assert_eq!((report.exit_code(), report.findings.len()), (1, 2), "{report:?}");
    assert!(report.findings.iter().all(|finding| finding.consequence.contains("`shop-prod`")), "{report:?}");
    assert!(frame.exists());
    let report = verify(&world, true).await;
    assert_eq!(report.findings.iter().filter(|finding| finding.deleted).count(), 1, "the other one is gone anyway");
    assert!(!frame.exists());

    let page = world.pages().await.remove(0);
    std::fs::write(&page, "damaged").unwrap();
    let report = verify(&world, true).await;
    let lost = report.findings.iter().find(|finding| finding.severity == Severity::Lost).unwrap();
    assert!(lost.consequence.contains("operator confirms") && !lost.deleted && page.exists(), "{lost:?}");
    assert_eq!(report.exit_code(), 4);

    world.store.fail_gets(true);
    let report = verify(&world, true).await;
    assert_eq!(report.findings[0].severity, Severity::Unread, "nothing is deleted that cannot be read");
    world.store.fail_gets(false);
    std::fs::write(world.dir.path().join("records/repositories/shop.record"), "damaged").unwrap();
    assert!(verify(&world, false).await.findings[0].object.contains("repositories/shop"));
}
