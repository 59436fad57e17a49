use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::name::ServiceName;
use weir_runtime::directory_lock::DirectoryLock;

use super::apply::UpdateOutcome;
use super::entries::CatalogBounds;
use super::entry::tests::descriptor;
use super::entry::{PurgeMode, VersionNumber};
use super::freshness::tests::limits;
use super::freshness::{Freshness, FreshnessPolicies};
use super::metrics::CatalogMetrics;
use super::record::JournalContents;
use super::store::Catalog;
use super::update::{Update, UpdateContent, UpdateSource};
use crate::origin_client::Origins;

const ROOMY: CatalogBounds = CatalogBounds { services: 1000, bytes: 1 << 30 };

fn file(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("cache/catalog.log")
}

fn load(dir: &tempfile::TempDir, bounds: CatalogBounds) -> Arc<Catalog> {
    fs::create_dir_all(dir.path().join("cache")).unwrap();
    let lock = DirectoryLock::take(dir.path()).unwrap().0;
    let policies = Arc::new(FreshnessPolicies::new([], limits(15, None), false));
    let metrics = CatalogMetrics::register(&Registry::new()).unwrap();
    Catalog::load(&file(dir), lock, bounds, Arc::new(Origins::new(Vec::new())), policies, Clock::start(), metrics)
}

/// Waits until the writer thread has released the catalog, then drops it as a crash would.
async fn kill(catalog: Arc<Catalog>) {
    while Arc::strong_count(&catalog) > 1 {
        tokio::task::yield_now().await;
    }
}

fn name(service: &str) -> ServiceName {
    service.parse().unwrap()
}

fn update(source: UpdateSource, at: Moment, service: &str, generation: u64) -> Update {
    let content = UpdateContent::Current(descriptor(service, generation, 1, b"content").into());
    Update { origin: None, source, at, content }
}

fn pushed(catalog: &Catalog, service: &str, generation: u64) -> Update {
    update(UpdateSource::Stream, catalog.clock.now(), service, generation)
}

/// The response to a query sent now.
fn queried(catalog: &Catalog, service: &str, generation: u64) -> Update {
    let known = catalog.highest(&name(service));
    update(UpdateSource::Query(known), catalog.clock.now(), service, generation)
}

fn gone(catalog: &Catalog, service: &str) -> Update {
    let source = UpdateSource::Query(catalog.highest(&name(service)));
    Update { origin: None, source, at: catalog.clock.now(), content: UpdateContent::Gone(name(service), None) }
}

fn stored(path: &Path) -> HashMap<ServiceName, VersionNumber> {
    let mut stored = JournalContents::default();
    fs::read(path).unwrap_or_default().split(|byte| *byte == b'\n').for_each(|line| stored.apply_line(line));
    stored.entries.into_iter().map(|(service, row)| (service, row.highest)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_updates_are_all_durable_and_the_highest_wins() {
    let dir = tempfile::tempdir().unwrap();
    let first = load(&dir, ROOMY);
    let updates = (0..64u64).flat_map(|n| (0..4u64).map(move |g| (format!("s{n}"), 1 + (g * 7 + n) % 4)));
    let tasks: Vec<_> = updates
        .map(|(service, generation)| {
            let catalog = first.clone();
            tokio::spawn(async move { catalog.apply(pushed(&catalog, &service, generation)).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    first.durable().await.unwrap();
    kill(first).await;
    let second = load(&dir, ROOMY);
    for n in 0..64 {
        assert_eq!(second.get(&name(&format!("s{n}"))).unwrap().highest, (4, 1), "{n}");
    }
    kill(second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_generation_is_durable_before_it_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = load(&dir, ROOMY);
    let shop = name("shop");
    catalog.apply(pushed(&catalog, "shop", 1)).await;
    catalog.durable().await.unwrap();
    let reader = {
        let (catalog, path, shop) = (catalog.clone(), file(&dir), shop.clone());
        tokio::task::spawn_blocking(move || {
            let mut seen = 0;
            while seen < 200 {
                // What a reader sees now must survive a crash now.
                let served = catalog.get(&shop).unwrap().highest;
                assert!(stored(&path)[&shop] >= served);
                seen = served.0;
            }
        })
    };
    for generation in 2..=200 {
        let outcome = catalog.apply(pushed(&catalog, "shop", generation)).await;
        assert!(matches!(outcome, UpdateOutcome::Stored(entry) if entry.highest == (generation, 1)));
        assert_eq!(catalog.get(&shop).unwrap().highest, (generation, 1), "it is served once it is answered");
    }
    reader.await.unwrap();
    kill(catalog).await;
}

#[tokio::test]
async fn evicted_services_keep_their_generation_and_hard_purge() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = CatalogBounds { services: 8, ..ROOMY };
    let first = load(&dir, bounds);
    first.apply(pushed(&first, "a", 7)).await;
    first.purge(&name("a"), PurgeMode::Hard);
    for n in 0..20 {
        first.apply(queried(&first, &format!("s{n}"), 1)).await;
    }
    assert!(first.entries.count() <= 8 && first.get(&name("a")).is_none(), "nobody has requested it");
    assert!(first.was_evicted(&name("a")) && first.names(|_| true).len() == 21, "their names stay known");
    first.flush();
    first.durable().await.unwrap();
    kill(first).await;
    assert!(stored(&file(&dir)).len() <= 8);
    let second = load(&dir, ROOMY);
    assert_eq!(second.names(|_| true).len(), 21, "over a restart, too");
    assert!(matches!(second.apply(queried(&second, "a", 6)).await, UpdateOutcome::Regressed));
    // The response to a query from before the purge arrives late.
    let early = Moment::EARLIEST;
    second.apply(update(UpdateSource::Query((7, 1)), early, "a", 7)).await;
    let entry = second.get(&name("a")).unwrap();
    assert_eq!(entry.evaluate(Duration::ZERO), Freshness::Revalidate, "it stays purged");
    second.durable().await.unwrap();
    kill(second).await;
    let third = load(&dir, ROOMY);
    assert!(third.get(&name("a")).unwrap().pending_hard_purge().is_some(), "over the next restart, too");
    third.apply(queried(&third, "a", 7)).await;
    kill(third).await;
}

#[tokio::test]
async fn an_evicted_service_is_known_until_it_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = load(&dir, CatalogBounds { services: 1, ..ROOMY });
    catalog.apply(pushed(&catalog, "a", 7)).await;
    catalog.apply(pushed(&catalog, "b", 7)).await;
    // They came in one moment, so either may have gone.
    let [evicted, kept] = if catalog.was_evicted(&name("a")) { ["a", "b"] } else { ["b", "a"] };
    assert!(catalog.was_evicted(&name(evicted)) && catalog.get(&name(evicted)).is_none());
    let before = catalog.names_version();
    catalog.apply(gone(&catalog, evicted)).await;
    assert_eq!(catalog.names(|_| true), [name(kept)]);
    assert!(catalog.names_version() > before && !catalog.was_evicted(&name(evicted)));
    assert_eq!(catalog.highest(&name(evicted)), (7, 1), "its generation is remembered");
    catalog.flush();
    catalog.durable().await.unwrap();
    kill(catalog).await;
    let second = load(&dir, ROOMY);
    assert_eq!(second.names(|_| true), [name(kept)]);
    kill(second).await;
}

#[tokio::test]
async fn a_tombstone_expires_and_keeps_its_generation() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = load(&dir, ROOMY);
    catalog.apply(pushed(&catalog, "a", 5)).await;
    let long_ago = catalog.clock.now().before(Duration::from_secs(8 * 24 * 3600));
    catalog.apply(Update { at: long_ago, ..gone(&catalog, "a") }).await;
    catalog.apply(pushed(&catalog, "b", 5)).await;
    catalog.apply(gone(&catalog, "b")).await;
    catalog.flush();
    assert!(catalog.get(&name("a")).is_none() && catalog.get(&name("b")).is_some());
    assert_eq!(catalog.names(|_| true), [name("b")]);
    assert!(matches!(catalog.apply(queried(&catalog, "a", 4)).await, UpdateOutcome::Regressed));
}

#[tokio::test]
async fn a_hanging_disk_delays_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = load(&dir, ROOMY);
    // Opening a FIFO for writing blocks until it has a reader.
    let fifo = file(&dir).with_extension("unfinished");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    catalog.apply(pushed(&catalog, "a", 1)).await;
    while catalog.write_queue().write_started.is_none() {
        tokio::task::yield_now().await;
    }
    let waiting = tokio::spawn({
        let (catalog, update) = (catalog.clone(), pushed(&catalog, "a", 2));
        async move { catalog.apply(update).await }
    });
    while catalog.write_queue().pending.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(catalog.get(&name("a")).unwrap().highest, (1, 1), "it is not on disk yet");
    catalog.write_queue().write_started = Some(Moment::EARLIEST);
    assert!(catalog.durable().await.is_err());
    assert!(matches!(waiting.await.unwrap(), UpdateOutcome::Stored(_)));
    assert_eq!(catalog.get(&name("a")).unwrap().highest, (2, 1));
    assert_eq!((catalog.metrics.writable.get(), catalog.write_failure().is_some()), (0, true));
    catalog.apply(pushed(&catalog, "a", 3)).await;
    assert_eq!(catalog.get(&name("a")).unwrap().highest, (3, 1), "and nobody waits again");
    assert!(matches!(catalog.apply(queried(&catalog, "a", 2)).await, UpdateOutcome::Regressed), "it is remembered");

    // The write returns and fails, because a FIFO is no file; the next one succeeds.
    let mut writes = catalog.writes.subscribe();
    let reader = fs::File::open(&fifo).unwrap();
    while catalog.write_queue().write_started.is_some() {
        writes.changed().await.unwrap();
    }
    drop(reader);
    assert_eq!(catalog.get(&name("a")).unwrap().highest, (3, 1), "nothing older takes its place");
    catalog.write_queue().retry_now();
    catalog.flush();
    catalog.durable().await.unwrap();
    assert_eq!((stored(&file(&dir))[&name("a")], catalog.metrics.writable.get()), ((3, 1), 1));
}

#[tokio::test]
async fn a_failing_disk_is_tolerated_and_rewritten_once_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = load(&dir, ROOMY);
    catalog.apply(pushed(&catalog, "a", 1)).await;
    catalog.durable().await.unwrap();
    // No file can be created there.
    fs::rename(dir.path().join("cache"), dir.path().join("away")).unwrap();
    catalog.write_queue().rewrite = true;
    for generation in 2..5 {
        assert!(matches!(catalog.apply(pushed(&catalog, "a", generation)).await, UpdateOutcome::Stored(_)));
        assert_eq!(catalog.get(&name("a")).unwrap().highest, (generation, 1));
    }
    assert!(matches!(catalog.apply(queried(&catalog, "a", 3)).await, UpdateOutcome::Regressed), "it is remembered");
    assert!(catalog.write_failure().is_some() && catalog.durable().await.is_err());
    assert_eq!(catalog.metrics.writable.get(), 0);
    fs::rename(dir.path().join("away"), dir.path().join("cache")).unwrap();
    catalog.write_queue().retry_now();
    catalog.flush();
    catalog.durable().await.unwrap();
    assert_eq!((stored(&file(&dir))[&name("a")], catalog.metrics.writable.get()), ((4, 1), 1));
}
