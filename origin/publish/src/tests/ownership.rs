//! Two members of a cluster on one store. The claims in the record are written as the core of ownership does.

use std::collections::HashSet;
use std::time::Instant;

use tokio::sync::{mpsc, watch};
use weir_ownership::{Claim, SessionId};
use weir_protocol::token::SigningKey;
use weir_store::{Expect, PutOutcome, Version};

use super::stored::known::KnownService;
use super::*;

struct Member {
    publisher: Arc<Publisher>,
    /// The end of its session.
    until: watch::Sender<Option<Instant>>,
    superseded: mpsc::UnboundedReceiver<RepositoryName>,
    events: Arc<AtomicUsize>,
}

impl TestStore {
    async fn join(&self) -> Member {
        let (until, receiver) = watch::channel(Some(Instant::now() + Duration::from_secs(3600)));
        #[expect(clippy::disallowed_methods, reason = "as the cluster's task has it")]
        let (sender, superseded) = mpsc::unbounded_channel();
        let events = Arc::default();
        let options = Options {
            announce: announce(&events),
            validity: Validity::of_session(receiver),
            superseded: Some(sender),
            ..self.options()
        };
        let opened = open(self.objects.clone(), self.records.clone(), self.data_dir.clone(), options);
        Member { publisher: opened.await.unwrap().0, until, superseded, events }
    }

    /// Writes a claim, and returns the version of the record.
    async fn claim(&self, node: &str, fence: u64, is_released: bool) -> Version {
        let key = RecordKey::repository(&shop());
        let before = self.records.get(&key).await.unwrap();
        let owner = node.parse().unwrap();
        let claim = Claim { owner, session: SessionId(100 + fence), fence, is_released };
        let bytes = reclaimed(&shop(), before.as_ref().map(|record| &*record.bytes), &claim).unwrap();
        let expect = before.map_or(Expect::Absent, |record| Expect::Version(record.version));
        match self.records.put(&key, bytes, expect).await {
            PutOutcome::Done(version) => version,
            other => panic!("{other:?}"),
        }
    }

    async fn owner(&self) -> String {
        claim_of(&shop(), &self.record().await).unwrap().owner.to_string()
    }
}

impl Member {
    async fn take(&self, store: &TestStore, node: &str, fence: u64) {
        let version = store.claim(node, fence, false).await;
        self.publisher.ownership.take(&shop(), &version).await.unwrap();
    }

    fn events(&self) -> usize {
        self.events.load(Ordering::SeqCst)
    }

    fn published(&self) -> Descriptor {
        let current = |known: &KnownService| Some(Descriptor::clone(&known.current.as_ref()?.descriptor));
        let published = self.publisher.repositories.known_service(&shop(), &name("shop-prod"), current);
        published.flatten().expect("it is published")
    }
}

fn is_refused(published: &Result<Outcome, PublishError>) -> bool {
    matches!(published, Err(PublishError::NotOwner(repository)) if *repository == shop())
}

#[tokio::test(start_paused = true)]
async fn a_repository_moves_and_is_published_above() {
    let store = TestStore::new();
    let (one, two) = (store.join().await, store.join().await);
    let (of_one, of_two) = (service("shop-prod"), service("shop-prod"));
    assert!(is_refused(&publish(&one.publisher, &of_one, 1, &["one"]).await), "it is not taken");
    one.take(&store, "one", 1).await;
    publish(&one.publisher, &of_one, 1, &["one"]).await.unwrap();
    assert_eq!((store.owner().await, one.events()), ("one".to_owned(), 1));

    assert!(one.publisher.ownership.release(&shop()).await);
    assert!(is_refused(&publish(&one.publisher, &of_one, 2, &["two"]).await));
    store.claim("one", 1, true).await;
    two.take(&store, "two", 2).await;
    assert_eq!(two.published(), current(&of_one), "the state is read when it is taken");
    // By an earlier clock.
    publish(&two.publisher, &of_two, 0, &["two"]).await.unwrap();
    assert!(current(&of_two).publication().generation > current(&of_one).publication().generation);
    assert_eq!(store.owner().await, "two");

    assert_eq!(one.published(), current(&of_one));
    one.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    assert_eq!(one.published(), current(&of_two));
    let retained =
        one.publisher.queries.version(&shop(), &name("shop-prod"), &TarballDigest::of(b"one")).await.unwrap();
    assert!(retained.is_some(), "a view has the retained versions too");
    assert_eq!(one.events(), 1, "events are of owned repositories alone");
}

#[tokio::test(start_paused = true)]
async fn a_superseded_owner_publishes_nothing_and_reports_it() {
    let store = TestStore::new();
    let (mut one, two) = (store.join().await, store.join().await);
    let (of_one, of_two) = (service("shop-prod"), service("shop-prod"));
    one.take(&store, "one", 1).await;
    publish(&one.publisher, &of_one, 1, &["one"]).await.unwrap();
    two.take(&store, "two", 2).await;
    publish(&two.publisher, &of_two, 2, &["two"]).await.unwrap();
    let record = store.record().await;
    assert!(is_refused(&publish(&one.publisher, &of_one, 3, &["three"]).await));
    assert_eq!(one.superseded.recv().await, Some(shop()));
    assert!(is_refused(&publish(&one.publisher, &of_one, 4, &["four"]).await));
    assert!(one.superseded.is_empty() && one.publisher.repositories.suspended().is_empty());
    assert!(one.publisher.ownership.release(&shop()).await, "no write of it can follow");
    assert_eq!((store.record().await, one.events()), (record, 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_or_trusted_after_the_end_of_the_session() {
    let store = TestStore::new();
    let (one, two) = (store.join().await, store.join().await);
    let shop_prod = service("shop-prod");
    one.take(&store, "one", 1).await;
    publish(&one.publisher, &shop_prod, 1, &["one"]).await.unwrap();
    one.until.send_replace(Some(Instant::now()));
    let record = store.record().await;
    assert!(is_refused(&publish(&one.publisher, &shop_prod, 2, &["two"]).await));
    assert_eq!(store.record().await, record);
    one.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    two.take(&store, "two", 2).await;
    assert!(
        one.publisher.ownership.refresh(&shop(), Duration::ZERO).await.is_err(),
        "its state may be another owner's past"
    );
    one.publisher.ownership.release(&shop()).await;
    one.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_repository_is_not_taken_with_another_version_of_its_record() {
    let store = TestStore::new();
    let one = store.join().await;
    let old = store.claim("one", 1, false).await;
    store.claim("two", 2, false).await;
    let taken = one.publisher.ownership.take(&shop(), &old).await;
    assert!(matches!(taken, Err(TakeError::Superseded)), "{taken:?}");
    assert!(is_refused(&publish(&one.publisher, &service("shop-prod"), 1, &["one"]).await));
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_writes_nothing_and_an_alignment_retires_and_signs() {
    let mut store = TestStore::new();
    let one = store.join().await;
    one.take(&store, "one", 1).await;
    let (stays, goes) = (service("stays"), service("goes"));
    for service in [&stays, &goes] {
        publish(&one.publisher, service, 1, &["one"]).await.unwrap();
    }
    let (signing_key, _) = SigningKey::generate().unwrap();
    let public = signing_key.public().clone();
    store.signer = Arc::new(Signer::new(vec![signing_key]));
    let two = store.join().await;
    let configured = HashSet::from([name("stays")]);
    let is_configured = |service: &ServiceName| configured.contains(service);
    let started = two.publisher.ownership.start(&configured, at(2)).await.unwrap();
    assert!(started.retired.is_empty() && started.current.len() == 1);
    let sequence = store.sequence().await;
    two.take(&store, "two", 2).await;
    assert_eq!(store.sequence().await, sequence + 1, "the claim");
    assert!(two.publisher.repositories.tombstones(&shop()).is_empty());
    let aligned = two.publisher.ownership.align(&shop(), &is_configured, at(2)).await.unwrap();
    assert!(aligned.retired.is_empty(), "the catalog has not applied yet what the publisher has read");
    for Member { publisher, .. } in [&one, &two] {
        publisher.reloads.unapplied().iter().for_each(|reload| publisher.reloads.mark_applied(reload));
    }
    let aligned = two.publisher.ownership.align(&shop(), &is_configured, at(3)).await.unwrap();
    assert_eq!(aligned.retired.iter().map(|retired| retired.service.as_str()).collect::<Vec<_>>(), ["goes"]);
    assert!(aligned.current[&name("stays")].publication_signed_by(&public).is_some());
    assert_eq!(two.publisher.repositories.tombstones(&shop()).keys().collect::<Vec<_>>(), [&name("goes")]);
    let superseded = one.publisher.ownership.align(&shop(), &is_configured, at(4)).await;
    assert!(matches!(superseded, Err(PublishError::NotOwner(_))), "{superseded:?}");
}

#[tokio::test(start_paused = true)]
async fn generations_below_the_floor_are_raised_when_a_repository_is_taken() {
    let mut store = TestStore::new();
    let one = store.join().await;
    one.take(&store, "one", 1).await;
    publish(&one.publisher, &service("shop-prod"), 1, &["one"]).await.unwrap();
    store.floor = 9_000_000_000_000_000;
    let two = store.join().await;
    two.take(&store, "two", 2).await;
    assert_eq!(two.published().publication().generation, store.floor);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_reads_changed_pages_alone_and_knows_what_is_gone() {
    let store = TestStore::new();
    let (one, two) = (store.join().await, store.join().await);
    one.take(&store, "one", 1).await;
    let filler = serde_json::Value::from("x".repeat(2000));
    let services = (0..300).map(|number| (name(&format!("s{number:03}")), Some(filler.clone()))).collect();
    one.publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
    let reloaded = async || {
        two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
        let due = two.publisher.reloads.unapplied();
        let reloaded = two.publisher.reloads.read(&due[0]);
        two.publisher.reloads.mark_applied(&due[0]);
        reloaded
    };
    assert_eq!(reloaded().await.stored.services.len(), 300);
    let pages = store.pages().await;
    let change =
        DefinitionChange { repository: None, services: vec![(name("s000"), None), (name("s001"), Some(7.into()))] };
    one.publisher.define(&shop(), change).await.unwrap();
    std::fs::write(pages.last().unwrap(), "damaged").unwrap();
    let Reloaded { stored, undefined, .. } = reloaded().await;
    assert!(two.publisher.repositories.suspended().is_empty(), "the damaged page was not read");
    assert_eq!(undefined, [name("s000")]);
    assert!(stored.services.len() < 200 && stored.services[&name("s001")].1 == 7);
    two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    assert!(two.publisher.reloads.unapplied().is_empty(), "nothing has changed");
}

#[tokio::test(start_paused = true)]
async fn a_view_stays_as_it_is_while_the_store_does_not_answer() {
    let store = TestStore::new();
    let (one, two) = (store.join().await, store.join().await);
    one.take(&store, "one", 1).await;
    let shop_prod = service("shop-prod");
    publish(&one.publisher, &shop_prod, 1, &["one"]).await.unwrap();
    two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    publish(&one.publisher, &shop_prod, 2, &["two"]).await.unwrap();
    let before = two.published();
    store.store.fail_gets(true);
    assert!(two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.is_err());
    assert_eq!(two.published(), before);
    assert!(two.publisher.repositories.suspended().is_empty());
    store.store.fail_gets(false);
    two.publisher.ownership.refresh(&shop(), Duration::from_secs(3600)).await.unwrap();
    assert_eq!(two.published(), before, "the last read is recent enough");
    two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    assert_eq!(two.published(), current(&shop_prod));
}

#[tokio::test(start_paused = true)]
async fn a_refused_write_of_an_unchanged_record_is_repeated() {
    let store = TestStore::new();
    let mut one = store.join().await;
    one.take(&store, "one", 1).await;
    let shop_prod = service("shop-prod");
    (store.fail_writes)(&[WriteFault::Refused, WriteFault::Refused]);
    assert_eq!(publish(&one.publisher, &shop_prod, 1, &["one"]).await.unwrap(), Outcome::Published);
    (store.fail_writes)(&[WriteFault::Refused; 4]);
    let error = publish(&one.publisher, &shop_prod, 2, &["two"]).await.unwrap_err();
    assert!(matches!(error, PublishError::UnknownOutcome(_)), "{error}");
    assert!(!one.publisher.ownership.release(&shop()).await, "it is not settled");
    assert!(one.superseded.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_collects_garbage() {
    let mut store = TestStore::new();
    store.retention =
        RetentionConfig { versions: 1, gc_grace_period: Duration::from_secs(4), ..RetentionConfig::default() };
    let (one, two) = (store.join().await, store.join().await);
    one.take(&store, "one", 1).await;
    let shop_prod = service("shop-prod");
    for (number, frames) in [["a"], ["b"], ["c"]].iter().enumerate() {
        publish(&one.publisher, &shop_prod, number as u64, frames).await.unwrap();
    }
    two.publisher.ownership.refresh(&shop(), Duration::ZERO).await.unwrap();
    let collector = |member: &Member| Collector::new(&member.publisher, store.retention.clone());
    let (mut collector, of_two, begun) = (collector(&one), collector(&two), Instant::now());
    assert!(of_two.due(begun).is_empty() && !collector.due(begun).is_empty());
    let repository = one.publisher.repositories.existing(&shop()).unwrap();
    collector.collect(&repository, begun).await;
    store.claim("two", 2, false).await;
    collector.collect(&repository, begun + Duration::from_secs(5)).await;
    let frame = ObjectDigest::of(b"a");
    assert!(store.objects.exists(&shop(), Area::Public, &frame).await.unwrap(), "the record is another origin's");
    one.publisher.ownership.release(&shop()).await;
    one.take(&store, "one", 3).await;
    collector.collect(&repository, begun + Duration::from_secs(10)).await;
    assert!(store.objects.exists(&shop(), Area::Public, &frame).await.unwrap(), "the other may have stored it since");
    collector.collect(&repository, begun + Duration::from_secs(15)).await;
    assert!(!store.objects.exists(&shop(), Area::Public, &frame).await.unwrap());
    assert!(collector.due(begun).is_empty());
    one.publisher.ownership.release(&shop()).await;
    one.take(&store, "one", 4).await;
    assert!(!collector.due(begun).is_empty(), "what is left of others is found");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ends_with_the_session() {
    let mut store = TestStore::new();
    store.retention =
        RetentionConfig { versions: 1, gc_grace_period: Duration::from_secs(4), ..RetentionConfig::default() };
    let one = store.join().await;
    one.take(&store, "one", 1).await;
    for (number, frames) in [["a"], ["b"], ["c"]].iter().enumerate() {
        publish(&one.publisher, &service("shop-prod"), number as u64, frames).await.unwrap();
    }
    let (mut collector, begun) = (Collector::new(&one.publisher, store.retention.clone()), Instant::now());
    let repository = one.publisher.repositories.existing(&shop()).unwrap();
    collector.collect(&repository, begun).await;
    store.store.hang_deletes(true);
    one.until.send_replace(Some(Instant::now() + Duration::from_secs(60)));
    let collects = collector.collect(&repository, begun + Duration::from_secs(5));
    assert!(tokio::time::timeout(Duration::from_secs(120), collects).await.is_ok(), "it goes on after the session");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_moves_away_is_fenced_until_it_comes_back() {
    let mut store = TestStore::new();
    let (one, of_one, shop_prod) = (store.join().await, service("shop-prod"), name("shop-prod"));
    let refused = one.publisher.withdraw_services(&shop(), vec![shop_prod.clone()]).await;
    assert!(matches!(refused, Err(PublishError::NotOwner(_))), "{refused:?}");
    one.take(&store, "one", 1).await;
    publish(&one.publisher, &of_one, 1, &["one"]).await.unwrap();
    publish(&one.publisher, &of_one, 2, &["two"]).await.unwrap();
    let last = current(&of_one).publication().generation;
    for _ in 0..2 {
        assert_eq!(one.publisher.withdraw_services(&shop(), vec![shop_prod.clone()]).await.unwrap(), [last]);
    }
    let is_fenced = |published: Result<Outcome, PublishError>| matches!(published, Err(PublishError::Moving(_)));
    assert!(is_fenced(publish(&one.publisher, &of_one, 3, &["three"]).await));
    let cached = one.publisher.publish_cached(&shop(), &[candidate(&of_one, 1)], at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::NeedsBuild]), "the build reports why: {cached:?}");
    let retained = TarballDigest::of(b"one");
    for digest in [None, Some(&retained)] {
        let pinned = one.publisher.pin(&of_one, digest, change("ann", 3)).await;
        assert!(matches!(pinned, Err(VersionChangeError::Withdrawn(_))), "{pinned:?}");
    }

    // It holds after a hand-over, and also by a higher floor.
    store.floor = 9_000_000_000_000_000;
    let (two, of_two) = (store.join().await, service("shop-prod"));
    two.take(&store, "two", 2).await;
    assert_eq!(two.published().publication().generation, last);
    assert!(is_fenced(publish(&two.publisher, &of_two, 3, &["three"]).await));

    // It comes back from a repository that has published since.
    let elsewhere = vec![(shop_prod.clone(), store.floor + 500)];
    let asked = two.publisher.repositories.withdrawals(&shop());
    two.publisher.withdraw_services(&shop(), vec![shop_prod.clone()]).await.unwrap();
    let late = two.publisher.adopt(&shop(), elsewhere.clone(), asked).await;
    assert!(matches!(late, Err(PublishError::Moving(_))), "it was asked for after the others were: {late:?}");
    two.publisher.adopt(&shop(), elsewhere, asked + 1).await.unwrap();
    let unheld = || two.publisher.repositories.unheld(&shop(), std::slice::from_ref(&shop_prod));
    assert_eq!(unheld(), std::slice::from_ref(&shop_prod), "what it has is not the last version");
    assert_eq!(publish(&two.publisher, &of_two, 2, &["two"]).await.unwrap(), Outcome::Published);
    assert_eq!(two.published().publication().generation, store.floor + 501, "the same content, published again");
    assert!(unheld().is_empty());
    two.publisher.pin(&of_two, None, change("ann", 4)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_moved_service_is_retired_without_a_tombstone() {
    let store = TestStore::new();
    let one = store.join().await;
    one.take(&store, "one", 1).await;
    let (moves, goes) = (service("moves"), service("goes"));
    for service in [&moves, &goes] {
        publish(&one.publisher, service, 1, &["one"]).await.unwrap();
    }
    one.publisher.withdraw_services(&shop(), vec![moves.name.clone()]).await.unwrap();
    one.publisher.withdraw_services(&shop(), vec![goes.name.clone()]).await.unwrap();
    // It is deleted while it is still of this repository: the move never came to its end.
    let moved = service_of("moves", "other");
    let retired = one.publisher.retire(&shop(), &[moved, goes], at(2)).await.unwrap();
    assert_eq!(retired.keys().collect::<Vec<_>>(), [&name("goes")]);
    assert_eq!(one.publisher.repositories.tombstones(&shop()).keys().collect::<Vec<_>>(), [&name("goes")]);
}
