//! `weir-origin verify`.

use super::verify::{Report, Severity, Verifier};
use super::*;

async fn verify(world: &World, delete_corrupt: bool) -> Report {
    let (objects, records) = (world.objects.clone(), world.records.clone());
    Verifier { objects, records, delete_corrupt, report: Report::default() }.run().await.unwrap()
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
