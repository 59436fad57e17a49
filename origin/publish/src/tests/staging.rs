//! Staged versions: how they are stored, what ends them, and that nothing of them is lost.

use weir_protocol::descriptor::{MAX_DESCRIPTOR_BYTES, Omission, OmissionReason};
use weir_protocol::staged::Audience;
use weir_protocol::token::SigningKey;

use super::decide::draft::Draft;
use super::stored::row::{Row, Staging};
use super::*;

pub(super) const CANARIES: &str = r#"{"for":[{"labels":{"ring":"canary"}}]}"#;
const MORE: &str = r#"{"for":[{"labels":{"ring":"canary"}},{"agents":"eu-*"}],"percent":10}"#;

pub(super) fn audience(json: &str) -> Audience {
    serde_json::from_str(json).unwrap()
}

pub(super) async fn stage_build(
    publisher: &Publisher,
    service: &Arc<Service>,
    number: u64,
    built: Built,
    to: &str,
) -> Result<Generation, StageError> {
    let attempt = publisher.repositories.begin_attempt(&service.repository);
    let put = tokio::task::spawn_blocking(move || attempt.put(number.to_string().into()).map(|_| attempt));
    let (attempt, candidate) = (put.await.unwrap().unwrap(), candidate(service, number));
    publisher.stage_built(&candidate, built, attempt, audience(to), change("ann", number)).await
}

/// Stages a build whose only frame is its number.
pub(super) async fn stage(
    publisher: &Publisher,
    service: &Arc<Service>,
    number: u64,
) -> Result<Generation, StageError> {
    stage_build(publisher, service, number, built(&[&number.to_string()]), CANARIES).await
}

pub(super) async fn publish_number(publisher: &Publisher, service: &Arc<Service>, number: u64) -> Descriptor {
    publish(publisher, service, number, &[&number.to_string()]).await.unwrap();
    current(service)
}

pub(super) async fn row(publisher: &Publisher) -> Row {
    publisher.repositories.row(&shop(), &name("shop-prod")).await.unwrap().unwrap()
}

pub(super) fn digest(number: u64) -> TarballDigest {
    TarballDigest::of(number.to_string().as_bytes())
}

/// What a descriptor stages.
pub(super) fn staged(descriptor: &Descriptor) -> Option<(Descriptor, Audience)> {
    let staged = descriptor.fields().staged.as_ref()?;
    let bytes = Bytes::copy_from_slice(staged.descriptor.get().as_bytes());
    Some((Descriptor::parse(bytes).unwrap(), staged.audience.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_staged_version_is_published_inside_the_one_in_force() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let first = publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let in_force = current(&shop_prod);
    assert_eq!((in_force.publication(), in_force.revision()), (first.publication(), 2));
    let (later, to) = staged(&in_force).unwrap();
    assert_eq!((later.publication().generation, later.publication().digest), (generation, digest(2)));
    assert!(generation > first.publication().generation && to == audience(CANARIES));
    assert_eq!(store.events(), 2, "edges are told");

    // Everything that reads versions knows it, also after a restart.
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], in_force);
    let Staging { author, in_force: of, .. } = row(&publisher).await.staged.unwrap();
    assert_eq!((author.by.as_deref(), of), (Some("ann"), first.publication().generation));
    let queries = &publisher.queries;
    assert_eq!(queries.version(&shop(), &name("shop-prod"), &digest(2)).await.unwrap(), Some(later.clone()));
    assert_eq!(queries.find_reference(&shop(), &ObjectDigest::of(b"2")).await.unwrap(), Some(later.clone()));
    let listed = queries.versions(&shop(), &name("shop-prod")).await.unwrap().versions;
    assert_eq!(listed.iter().map(|listed| listed.followed).collect::<Vec<_>>(), [true, false], "it has no tags");
    assert!(queries.called(&shop(), &name("shop-prod"), PREVIOUS).await.unwrap().is_empty(), "it was never in force");
    let history = queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    assert_eq!(history.publications.len(), 1);

    // The repository holds the service, and its tip is published.
    let again =
        Arc::new(Service::new(&ServiceConfig::new(name("shop-prod"), shop()), |_| None, Some(in_force)).unwrap());
    assert!(publisher.repositories.unheld(&shop(), &[name("shop-prod")]).is_empty());
    let before = store.record().await;
    let cached = publisher.publish_cached(&shop(), &[candidate(&again, 1)], at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]));
    assert_eq!(store.record().await, before);
    let (followed_ref, revision_id) = ("main".to_owned(), revision(9));
    let in_force = vec![(name("shop-prod"), first.publication().generation)];
    publisher.add_tips(&shop(), vec![SeenTip { followed_ref, revision_id, in_force }]).await.unwrap();
    assert_ne!(store.record().await, before, "a tip that changed nothing is stored while something is staged");
}

/// Does what ends the staging of version 3 over version 2.
async fn end(why: &str, publisher: &Publisher, service: &Arc<Service>) {
    let change = change("ann", 5);
    match why {
        "a pin" => publisher.pin(service, None, change).await.unwrap(),
        "a rollback" => publisher.pin(service, Some(&digest(1)), change).await.unwrap(),
        "an operator" => assert!(publisher.abort(service, change).await.unwrap()),
        "a loss" => publisher.drop_version(service, &digest(3)).await.unwrap(),
        "another ref" => {
            let mut config = ServiceConfig::new(name("shop-prod"), shop());
            config.followed_ref = "release".parse().unwrap();
            let moved = Service::new(&config, |_| None, None).unwrap().replacing(service);
            publisher.publish_cached(&shop(), &[candidate(&Arc::new(moved), 2)], at(5)).await.unwrap();
            assert_eq!(current(service).followed_ref(), "release");
        }
        "a move" => drop(publisher.withdraw_services(&shop(), vec![name("shop-prod")]).await.unwrap()),
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn what_replaces_the_version_in_force_ends_what_is_staged_above_it() {
    for (why, expected) in
        [("a pin", 2), ("a rollback", 1), ("an operator", 2), ("a loss", 2), ("another ref", 2), ("a move", 2)]
    {
        let store = TestStore::new();
        let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
        publish_number(&publisher, &shop_prod, 1).await;
        let second = publish_number(&publisher, &shop_prod, 2).await;
        let generation = stage(&publisher, &shop_prod, 3).await.unwrap();
        end(why, &publisher, &shop_prod).await;
        let row = row(&publisher).await;
        let last = row.current.as_ref().unwrap().descriptor().unwrap();
        assert_eq!(last.publication().digest, digest(expected), "{why}");
        assert!(last.publication().generation > generation, "{why}: agents that had it must be offered more");
        assert_eq!((row.generation, row.staged.is_none()), (last.publication().generation, true), "{why}");
        assert!(row.versions().all(|version| staged(&version.descriptor().unwrap()).is_none()), "{why}");
        let superseded = row.retained.iter().find(|retained| retained.version.digest == digest(2));
        let superseded = superseded.map(|retained| retained.version.descriptor().unwrap());
        assert!(superseded.is_none_or(|superseded| superseded.publication() == second.publication()), "{why}");
        if why != "a move" {
            assert_eq!(current(&shop_prod).publication(), last.publication(), "{why}: requests see it");
        }
        let (_, started) = store.start(&["shop-prod"]).await;
        assert_eq!(started.current[&name("shop-prod")], last, "{why}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_document_ends_it_and_the_next_resolution_shows_that() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let define = async |folder: &str| {
        let services = vec![(name("shop-prod"), Some(serde_json::json!({ "folder": folder })))];
        publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
    };
    define("a").await;
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    define("a").await;
    assert!(row(&publisher).await.staged.is_some(), "the document is the same");
    define("b").await;
    assert!(row(&publisher).await.staged.is_none());
    publisher.publish_cached(&shop(), &[candidate(&shop_prod, 1)], at(3)).await.unwrap();
    assert!(current(&shop_prod).publication().generation > generation && staged(&current(&shop_prod)).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ends_it_and_the_tombstone_is_above_it() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let retired = publisher.retire(&shop(), std::slice::from_ref(&shop_prod), at(3)).await.unwrap();
    assert_eq!(retired[&name("shop-prod")], generation);
    let row = row(&publisher).await;
    assert!(row.staged.is_none() && row.versions().all(|version| staged(&version.descriptor().unwrap()).is_none()));
    let again = service("shop-prod");
    assert_eq!(publish(&publisher, &again, 0, &["1"]).await.unwrap(), Outcome::Published);
    assert!(current(&again).publication().generation > generation);
}

#[tokio::test(start_paused = true)]
async fn a_floor_above_either_generation_ends_it_and_lowered_generations_do() {
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let first = publish_number(&publisher, &shop_prod, 1).await.publication().generation;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    // Between the two: what everybody gets must be above it.
    store.floor = first + 1;
    assert!(generation > first + 1);
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let raised = started.current[&name("shop-prod")].publication().clone();
    assert_eq!((raised.digest, raised.generation > generation), (digest(1), true));
    assert!(row(&publisher).await.staged.is_none());

    // Only the staged one is ahead of what agents believe.
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let first = publish_number(&publisher, &shop_prod, 1_000).await.publication().generation;
    stage(&publisher, &shop_prod, 9_000).await.unwrap();
    store.lower_generations = true;
    let (_, started) = store.start(&["shop-prod"]).await;
    let lowered = started.current[&name("shop-prod")].publication().generation;
    assert!(lowered > first && lowered < first + 1000, "above the one in force, and believed: {lowered} after {first}");
}

#[tokio::test(start_paused = true)]
async fn signing_again_signs_both() {
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    stage(&publisher, &shop_prod, 2).await.unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let public = key.public().clone();
    store.signer = Arc::new(Signer::new(vec![key]));
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let in_force = &started.current[&name("shop-prod")];
    let (later, _) = staged(in_force).unwrap();
    assert!(in_force.publication_signed_by(&public).is_some());
    assert_eq!(later.publication_signed_by(&public).unwrap().digest, digest(2));
    assert_eq!(row(&publisher).await.version(&digest(2)).unwrap().descriptor().unwrap(), later);
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_of_the_staged_version_is_shown_inside_the_one_in_force() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    stage(&publisher, &shop_prod, 2).await.unwrap();
    let (before, (later, _)) = (current(&shop_prod), staged(&current(&shop_prod)).unwrap());
    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || attempt.put("other".into()).map(|_| attempt));
    let other = Built { zstd: built(&["other"]).zstd, ..built(&["2"]) };
    assert!(publisher.publish_rebuilt(&shop_prod, &later, other, put.await.unwrap().unwrap()).await.unwrap());
    let (after, (rebuilt, _)) = (current(&shop_prod), staged(&current(&shop_prod)).unwrap());
    assert_eq!(after.version(), (before.version().0, before.version().1 + 1));
    assert_eq!(rebuilt.representations()[0].digest, ObjectDigest::of(b"other"));
    assert_eq!(row(&publisher).await.version(&digest(2)).unwrap().descriptor().unwrap(), rebuilt);
}

#[tokio::test(start_paused = true)]
async fn more_agents_get_the_same_version_and_others_are_offered_nothing_older() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let restage = async |to| publisher.stage(&shop_prod, &digest(2), audience(to), change("bob", 3)).await.unwrap();
    assert_eq!(restage(MORE).await, generation);
    let (in_force, (_, to)) = (current(&shop_prod), staged(&current(&shop_prod)).unwrap());
    assert_eq!((in_force.revision(), to), (3, audience(MORE)));

    // Fewer agents, and then another version: agents with the former are above what was in force.
    for (number, before, again) in [
        (2, generation, restage(CANARIES).await),
        (3, current(&shop_prod).publication().generation, stage(&publisher, &shop_prod, 3).await.unwrap()),
    ] {
        assert!(again > before + 1, "{number}: there is room for the one in force");
    }
    let (in_force, (later, _)) = (current(&shop_prod), staged(&current(&shop_prod)).unwrap());
    assert_eq!((in_force.publication().digest, later.publication().digest), (digest(1), digest(3)));
    assert!(in_force.publication().generation < later.publication().generation && in_force.revision() == 1);
    let (_, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], in_force);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_staged_changes_nothing_and_says_why() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let error = stage(&publisher, &shop_prod, 1).await.unwrap_err();
    assert!(matches!(error, StageError::NothingInForce(_)), "{error}");
    let omitting = |number: u64, bytes: usize| {
        let omitted = vec![Omission { path: "x".repeat(bytes), reason: OmissionReason::Symlink }];
        Built { omitted, ..built(&[&number.to_string()]) }
    };
    let attempt = publisher.repositories.begin_attempt(&shop());
    let put = tokio::task::spawn_blocking(move || attempt.put("1".into()).map(|_| attempt)).await.unwrap().unwrap();
    let large = omitting(1, MAX_DESCRIPTOR_BYTES * 2 / 3);
    publisher.publish_built(&candidate(&shop_prod, 1), large, put, at(1)).await.unwrap();
    let (before, shown) = (store.record().await, current(&shop_prod));
    let error =
        stage_build(&publisher, &shop_prod, 2, omitting(2, MAX_DESCRIPTOR_BYTES / 3), CANARIES).await.unwrap_err();
    assert!(matches!(&error, StageError::TooLarge(_, bytes) if *bytes > MAX_DESCRIPTOR_BYTES), "{error}");
    let error = stage(&publisher, &shop_prod, 1).await.unwrap_err();
    assert!(matches!(error, StageError::InForce(_)), "{error}");
    let error = publisher.stage(&shop_prod, &digest(7), audience(CANARIES), change("ann", 2)).await.unwrap_err();
    assert!(matches!(error, StageError::Change(VersionChangeError::NotRetained(..))), "{error}");
    let expected = VersionChange { expected: Some(1), ..change("ann", 2) };
    let error = publisher.stage(&shop_prod, &digest(7), audience(CANARIES), expected).await.unwrap_err();
    assert!(matches!(error, StageError::Change(VersionChangeError::GenerationConflict { .. })), "{error}");
    assert!(!publisher.abort(&shop_prod, change("ann", 3)).await.unwrap());
    assert_eq!((store.record().await, current(&shop_prod)), (before, shown));
    publisher.pin(&shop_prod, None, change("ann", 4)).await.unwrap();
    let error = stage(&publisher, &shop_prod, 2).await.unwrap_err();
    assert!(matches!(error, StageError::Pinned(_)), "{error}");
    publisher.unpin(&shop_prod, change("ann", 5)).await.unwrap();
    stage(&publisher, &shop_prod, 2).await.unwrap();
}

/// Writes a row as another version of the program does.
pub(super) async fn write(publisher: &Publisher, row: Row) {
    let put = move |draft: &mut Draft<'_>| {
        draft.put(row);
        Ok(())
    };
    publisher.repositories.handle(&shop()).edit(vec![name("shop-prod")], put).await.unwrap();
}

/// What an origin of 0.1 reads of a row, and writes again.
#[tokio::test(start_paused = true)]
async fn an_origin_of_the_release_before_reads_the_row_and_publishes_above_it() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let first = publish_number(&publisher, &shop_prod, 1).await;
    let generation = stage(&publisher, &shop_prod, 2).await.unwrap();
    let mut former = serde_json::to_value(row(&publisher).await).unwrap();
    let known = ["service", "generation", "current", "retained"];
    former.as_object_mut().unwrap().retain(|key, _| known.contains(&key.as_str()));
    let retained = former["retained"][0].as_object_mut().unwrap();
    retained.retain(|key, _| ["superseded_at", "version"].contains(&key.as_str()));
    // As it writes the row: the staged version is a retained one, and what is in force is below the row's generation, as it
    // is when another repository has published since. So the tip is published again, above it.
    write(&publisher, serde_json::from_value(former).unwrap()).await;
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")].publication(), first.publication());
    assert!(publisher.queries.version(&shop(), &name("shop-prod"), &digest(2)).await.unwrap().is_some());
    let again = service("shop-prod");
    publisher.publish_cached(&shop(), &[candidate(&again, 1)], at(3)).await.unwrap();
    assert_eq!(current(&again).publication().digest, digest(1));
    assert!(current(&again).publication().generation > generation);
}
