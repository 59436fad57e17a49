//! Garbage collection and retention.

use std::time::Instant;

use bytesize::ByteSize;
use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Collections of `shop`, hours after the start.
struct Collections {
    publisher: Arc<Publisher>,
    collector: Collector,
    start: Instant,
}

impl Collections {
    fn new(store: &TestStore, publisher: &Arc<Publisher>) -> Self {
        let collector = Collector::new(publisher, store.retention.clone());
        Self { publisher: publisher.clone(), collector, start: Instant::now() }
    }

    async fn collect(&mut self, hours: u32) {
        let repository = self.publisher.repositories.existing(&shop()).unwrap();
        self.collector.collect(&repository, self.start + hours * HOUR).await;
    }

    fn is_due(&self, hours: u32) -> bool {
        !self.collector.due(self.start + hours * HOUR).is_empty()
    }

    fn deleted(&self) -> u64 {
        self.publisher.repositories.shared.metrics.gc_deleted.get()
    }

    fn blocked(&self) -> i64 {
        self.publisher.repositories.shared.metrics.gc_blocked_repositories.get()
    }
}

/// With one retained version, and a grace period of four hours.
fn store() -> TestStore {
    let mut store = TestStore::new();
    store.retention = RetentionConfig { versions: 1, gc_grace_period: 4 * HOUR, ..RetentionConfig::default() };
    store
}

async fn has(store: &TestStore, frame: &str) -> bool {
    store.objects.exists(&shop(), Area::Public, &ObjectDigest::of(frame.as_bytes())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn frames_of_expired_versions_are_deleted_after_two_marks_unless_shared() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for (number, frames) in [["a", "shared"], ["b", "shared"], ["c", "shared"]].iter().enumerate() {
        publish(&publisher, &shop_prod, number as u64, frames).await.unwrap();
    }
    let mut collector = Collections::new(&store, &publisher);
    assert!(collector.is_due(0));
    collector.collect(0).await;
    assert!(!collector.is_due(3) && collector.is_due(4), "until a grace period has passed, its objects are not listed");
    collector.collect(3).await;
    assert_eq!(collector.deleted(), 0, "a grace period has not passed");
    assert!(has(&store, "a").await);
    collector.collect(4).await;
    // The frame and the manifest of the first version, its recipe is that of all, and what the record before the last named.
    assert!(!has(&store, "a").await && collector.deleted() >= 2, "{}", collector.deleted());
    for frame in ["b", "c", "shared"] {
        assert!(has(&store, frame).await, "{frame}");
    }
    let (_, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], current(&shop_prod));
    collector.collect(9).await;
    let deleted = collector.deleted();
    collector.collect(14).await;
    assert_eq!((collector.deleted(), collector.blocked()), (deleted, 0), "nothing is left to do");
}

#[tokio::test(start_paused = true)]
async fn what_only_a_blob_references_stays_with_its_version() {
    let store = store();
    let (publisher, shop) = (store.open().await, oci::service("shop", true));
    oci::publish_whole(&publisher, &shop, &["archive", "s end"]).await;
    let mut collector = Collections::new(&store, &publisher);
    for hours in [0, 4, 8] {
        collector.collect(hours).await;
    }
    for frame in ["files", "archive", "s end"] {
        assert!(has(&store, frame).await, "{frame}");
    }
    let manifest = current(&shop).oci().unwrap().blobs[0].digest;
    assert!(store.objects.exists(&super::shop(), Area::Public, &manifest).await.unwrap());
    std::fs::remove_file(store.object(Area::Public, &ObjectDigest::of(b"archive"))).unwrap();
    let lost = publisher.queries.find_reference(&super::shop(), &ObjectDigest::of(b"archive")).await.unwrap();
    assert_eq!(lost, Some(current(&shop)), "so it can be built again");
}

#[tokio::test(start_paused = true)]
async fn objects_of_an_attempt_stay_until_it_is_published_or_abandoned() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || attempt.put("two".into()).map(|_| attempt));
    let (protection, _) = put.await.unwrap().unwrap().finish().await.unwrap();
    let mut collector = Collections::new(&store, &publisher);
    for hours in [0, 4, 8] {
        collector.collect(hours).await;
    }
    assert!(has(&store, "two").await);
    assert!(!collector.is_due(9));
    drop(protection);
    assert!(collector.is_due(9), "its objects are found without another publication");
    collector.collect(9).await;
    assert!(has(&store, "two").await, "from the end of the attempt on");
    collector.collect(13).await;
    assert!(!has(&store, "two").await && has(&store, "one").await);
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_write_with_an_unknown_outcome_stay() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let mut collector = Collections::new(&store, &publisher);
    (store.fail_writes)(&[WriteFault::Lost]);
    publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap_err();
    for hours in [0, 4, 8] {
        collector.collect(hours).await;
    }
    assert!(has(&store, "two").await);
    let mut shown = shop_prod.follow();
    shown
        .wait_for(|shown| shown.as_ref().is_some_and(|shown| shown.publication().revision_id == revision(2)))
        .await
        .unwrap();
    let (_, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], current(&shop_prod), "its pages were not deleted");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_manifest_blocks_its_repository_until_it_is_built_again() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["x"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["one", "two"]).await.unwrap();
    publish(&publisher, &shop_prod, 3, &["three"]).await.unwrap();
    let version =
        publisher.queries.version(&shop(), &name("shop-prod"), &TarballDigest::of(b"onetwo")).await.unwrap().unwrap();
    let manifest = version.representations()[0].digest;
    std::fs::write(store.object(Area::Public, &manifest), "damaged").unwrap();
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(0).await;
    collector.collect(5).await;
    assert!(has(&store, "x").await && has(&store, "one").await);
    assert_eq!(
        (
            collector.blocked(),
            collector.publisher.repositories.shared.metrics.gc_runs.with_label_values(&["blocked"]).get()
        ),
        (1, 2)
    );

    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || {
        ["one", "two"].iter().try_for_each(|frame| attempt.put((*frame).into()).map(drop)).map(|()| attempt)
    });
    let attempt = put.await.unwrap().unwrap();
    assert!(publisher.publish_rebuilt(&shop_prod, &version, built(&["one", "two"]), attempt).await.unwrap());
    collector.collect(6).await;
    collector.collect(10).await;
    assert_eq!(collector.blocked(), 0);
    assert!(!has(&store, "x").await && has(&store, "one").await && has(&store, "two").await);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_page_blocks_its_repository_and_is_counted() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in 0..3 {
        publish(&publisher, &shop_prod, number, &[&number.to_string()]).await.unwrap();
    }
    let page = store.pages().await.remove(0);
    let bytes = std::fs::read(&page).unwrap();
    std::fs::write(&page, "damaged").unwrap();
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(0).await;
    collector.collect(5).await;
    assert!(has(&store, "0").await);
    assert_eq!(collector.blocked(), 1);
    std::fs::write(&page, bytes).unwrap();
    collector.collect(6).await;
    collector.collect(10).await;
    assert!(!has(&store, "0").await);
    assert_eq!(collector.blocked(), 0, "not for good");
}

#[tokio::test(start_paused = true)]
async fn a_repository_whose_collections_fail_one_after_another_counts_as_blocked() {
    let store = store();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let mut collector = Collections::new(&store, &publisher);
    store.store.fail_gets(true);
    for (number, blocked) in [0, 0, 1, 1].into_iter().enumerate() {
        collector.collect(number as u32).await;
        assert_eq!(collector.blocked(), blocked);
    }
    store.store.fail_gets(false);
    collector.collect(5).await;
    assert_eq!(collector.blocked(), 0);
}

#[tokio::test(start_paused = true)]
async fn versions_expire_by_age_and_by_bytes() {
    let mut store = store();
    store.retention.versions = 10;
    store.retention.age = 48 * HOUR;
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in 0..4 {
        // Wall clocks that are far apart make nothing old.
        publish(&publisher, &shop_prod, number * 1_000_000, &[&number.to_string()]).await.unwrap();
    }
    let retained = |publisher: &Publisher| publisher.repositories.shared.metrics.retained_versions.get();
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(47).await;
    assert_eq!(retained(&publisher), 3);
    collector.collect(49).await;
    assert_eq!(retained(&publisher), 0);
    assert_eq!(publisher.repositories.shared.metrics.expired_versions.with_label_values(&["age"]).get(), 3);

    store.retention.bytes = Some(bytesize::ByteSize(2));
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in 5..9 {
        publish(&publisher, &shop_prod, number, &[&number.to_string()]).await.unwrap();
    }
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(0).await;
    collector.collector.expire_bytes().await;
    assert_eq!(retained(&publisher), 1, "the current one and the newest of the others");
    assert_eq!(publisher.repositories.shared.metrics.expired_versions.with_label_values(&["bytes"]).get(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_oldest_versions_of_all_repositories_expire_by_bytes() {
    let mut store = store();
    (store.retention.versions, store.retention.bytes) = (10, Some(bytesize::ByteSize(4)));
    let publisher = store.open().await;
    let (shop, blog) = (service_of("shop", "shop"), service_of("blog", "blog"));
    // Those of `shop` were superseded first.
    for (number, service) in [(1, &blog), (2, &shop), (3, &shop), (4, &blog), (5, &blog), (6, &blog)] {
        publish(&publisher, service, number, &[&number.to_string()]).await.unwrap();
    }
    let retained = |repository: &str| {
        let known = publisher.repositories.repository(&repository.parse().unwrap()).unwrap();
        known.known().retained()
    };
    let (mut collector, now) = (Collector::new(&publisher, store.retention.clone()), Instant::now());
    for repository in collector.due(now) {
        collector.collect(&repository, now).await;
    }
    assert_eq!((retained("shop"), retained("blog")), (1, 3), "the sum is known only now");
    collector.expire_bytes().await;
    assert_eq!((retained("shop"), retained("blog")), (0, 2), "the two that were superseded first");
}

#[tokio::test(start_paused = true)]
async fn bundles_stay_while_the_record_names_them() {
    let store = store();
    let publisher = store.open().await;
    let set = async |texts: &[&'static str]| {
        let upload = publisher.mirrors.begin(&shop());
        let mut parts = Vec::new();
        for text in texts {
            let digest = upload.put(Bytes::from_static(text.as_bytes())).await.unwrap();
            parts.push(Part { digest, size: text.len() as u64 });
        }
        let list = format!(r#"[{{"oid":"aa","parts":[{{"digest":"{}","size":3}}]}}]"#, parts[0].digest);
        let lfs = Some(Part { digest: upload.put(list.into()).await.unwrap(), size: 100 });
        let bundles = vec![Bundle { made_at: 1, rank: 0, parts: parts.split_off(1) }];
        publisher.mirrors.set(&upload, &MirrorManifest { bundles, lfs }).await.unwrap();
    };
    let left = async || {
        let mut left = Vec::new();
        for text in ["lfs", "one", "two", "three"] {
            let digest = ObjectDigest::of(text.as_bytes());
            if store.objects.exists(&shop(), Area::Private, &digest).await.unwrap() {
                left.push(text);
            }
        }
        left.join(" ")
    };
    set(&["lfs", "one", "two"]).await;
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(0).await;
    collector.collect(5).await;
    assert_eq!(left().await, "lfs one two");
    set(&["lfs", "two", "three"]).await;
    collector.collect(10).await;
    collector.collect(15).await;
    assert_eq!(left().await, "lfs two three");
    // A start reads what the record names.
    let again = store.open().await;
    assert_eq!(again.mirrors.read(&shop()).await.unwrap().unwrap().bundles[0].parts.len(), 2);
    assert_eq!(again.mirrors.stored_lfs(&shop()).await.len(), 1);
    drop(again);
    publisher.mirrors.forget(&shop()).await.unwrap();
    collector.collect(20).await;
    collector.collect(25).await;
    assert_eq!((left().await.as_str(), collector.blocked()), ("", 0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_list_of_bundles_blocks_nothing() {
    let store = store();
    let publisher = store.open().await;
    let upload = publisher.mirrors.begin(&shop());
    publisher.mirrors.set(&upload, &MirrorManifest::default()).await.unwrap();
    for file in std::fs::read_dir(store.dir.path().join("objects/shop/private")).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let mut collector = Collections::new(&store, &publisher);
    collector.collect(0).await;
    assert_eq!(collector.blocked(), 0);
    assert_eq!(publisher.mirrors.read(&shop()).await.unwrap(), None);
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u64),
    Stage(u64),
    EndStaging,
    Pin,
    Unpin,
    /// After so many hours.
    Collect(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u64..4).prop_map(Step::Publish),
        (0u64..4).prop_map(Step::Stage),
        Just(Step::EndStaging),
        Just(Step::Pin),
        Just(Step::Unpin),
        (1u32..20).prop_map(Step::Collect),
        (1u32..20).prop_map(Step::Collect),
    ]
}

/// Runs the steps with the tightest limits; what is staged must be whole after each.
async fn collect_around_what_is_staged(steps: Vec<Step>) {
    let mut store = store();
    let retention = RetentionConfig { versions: 1, age: HOUR, bytes: Some(ByteSize::b(1)), ..store.retention };
    store.retention = retention;
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 0, &["0"]).await.unwrap();
    let (mut collector, mut hours) = (Collections::new(&store, &publisher), 0);
    for (minute, step) in (1..).zip(steps) {
        let change = change("ann", minute);
        match step {
            Step::Publish(number) => {
                publish(&publisher, &shop_prod, number, &[&number.to_string()]).await.unwrap();
            }
            // What is in force cannot be staged.
            Step::Stage(number) => _ = staging::stage(&publisher, &shop_prod, number).await,
            Step::EndStaging => _ = publisher.abort(&shop_prod, change).await.unwrap(),
            Step::Pin => publisher.pin(&shop_prod, None, change).await.unwrap(),
            Step::Unpin => _ = publisher.unpin(&shop_prod, change).await.unwrap(),
            Step::Collect(after) => {
                hours += after;
                collector.collect(hours).await;
                collector.collector.expire_bytes().await;
            }
        }
        let row = staging::row(&publisher).await;
        let Some(staged) = row.staged.as_ref().map(|staged| row.version(&staged.digest)) else { continue };
        let (recipe, version) = (staged.unwrap().recipe.unwrap(), staged.unwrap().descriptor().unwrap());
        let frame = version.representations()[0].digest;
        assert!(store.objects.exists(&shop(), Area::Public, &frame).await.unwrap(), "{step:?}");
        assert!(store.objects.exists(&shop(), Area::Private, &recipe).await.unwrap(), "{step:?}");
        assert_eq!(row.generation, version.publication().generation, "{step:?}");
    }
}

proptest! {
    // Each case is a store on disk.
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn nothing_that_a_staged_version_needs_is_removed(steps in proptest::collection::vec(step(), 1..16)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(collect_around_what_is_staged(steps));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_staged_expires_once_that_has_ended() {
    let mut store = store();
    store.retention = RetentionConfig { versions: 10, age: HOUR, ..store.retention };
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 0, &["0"]).await.unwrap();
    staging::stage(&publisher, &shop_prod, 1).await.unwrap();
    let mut collector = Collections::new(&store, &publisher);
    for hours in [2, 7, 12] {
        collector.collect(hours).await;
    }
    assert!(has(&store, "1").await);
    publisher.abort(&shop_prod, change("ann", 2)).await.unwrap();
    for hours in [13, 18] {
        collector.collect(hours).await;
    }
    assert!(!has(&store, "1").await && has(&store, "0").await);
}
