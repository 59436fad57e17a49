use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::Registry;
use serde_json::json;
use weir_store::testing::{FaultyEngine, WriteFault};
use weir_store::{Expect, PutOutcome, StoreMetrics};

use super::*;

const BOUNDS: FleetBounds = FleetBounds { agents: 1_000, assignments: 10, issuers: 10, issuer_urls: 2, bytes: 1 << 20 };

fn agent(name: &str, ring: &str) -> Agent {
    serde_json::from_value(json!({ "name": name, "labels": { "ring": ring } })).unwrap()
}

fn records(engine: &Arc<FaultyEngine>) -> Records {
    Records::over(engine.clone(), StoreMetrics::register(&Registry::new()).unwrap())
}

/// An origin on these records. `may_shard`: it is one of several.
async fn origin(engine: &Arc<FaultyEngine>, may_shard: Option<&Arc<AtomicBool>>, bounds: FleetBounds) -> FleetStore {
    let (registry, shown) = (Registry::new(), Bounds::default());
    let may_shard = may_shard.cloned().map(|may| Arc::new(move || may.load(Ordering::Relaxed)) as MayShard);
    let metrics = FleetMetrics::register(&registry).unwrap();
    let drain = Drain::new();
    FleetStore::start(records(engine), &Fleet::default(), may_shard, bounds, (metrics, &shown), &drain).await
}

async fn put(origin: &FleetStore, name: &str, ring: &str) -> Result<Outcome, FleetError> {
    origin.put(agent(name, ring), &Precondition::default()).await
}

fn names(origin: &FleetStore) -> Vec<String> {
    origin.current().agents.iter().map(|agent| agent.name.to_string()).collect()
}

async fn keys(engine: &Arc<FaultyEngine>) -> Vec<String> {
    records(engine).list("cluster/").await.unwrap().iter().map(ToString::to_string).collect()
}

/// What origins of 0.1 read, if they can.
async fn of_old_origin(engine: &Arc<FaultyEngine>) -> Option<usize> {
    #[derive(serde::Deserialize)]
    struct Document {
        revision: u64,
        documents: Vec<Agent>,
    }
    let record = records(engine).get(&"cluster/agents".parse().unwrap()).await.unwrap()?;
    let read: Document = serde_json::from_slice(&zstd::bulk::decompress(&record.bytes, 1 << 20).unwrap()).ok()?;
    assert!(read.revision > 0);
    Some(read.documents.len())
}

/// Writes a record as origins of 0.1 do.
async fn write_as_old_origin(engine: &Arc<FaultyEngine>, agents: usize) {
    let documents: Vec<Agent> = (0..agents).map(|number| agent(&format!("old-{number:03}"), "1")).collect();
    let json = serde_json::to_vec(&json!({ "revision": 7, "documents": documents })).unwrap();
    let bytes = zstd::bulk::compress(&json, 9).unwrap();
    let written = records(engine).put(&"cluster/agents".parse().unwrap(), bytes.into(), Expect::Absent).await;
    assert!(matches!(written, PutOutcome::Done(_)), "{written:?}");
}

#[tokio::test]
async fn a_change_writes_one_shard_and_a_start_reads_all() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let one = origin(&engine, None, BOUNDS).await;
    assert_eq!(keys(&engine).await, [""; 0], "nothing was defined");
    assert_eq!(put(&one, "a", "1").await.unwrap(), Outcome::Created);
    let shard = |name: &str| format!("cluster/agents.{:02x}", shard_of(name));
    assert_eq!(keys(&engine).await, ["cluster/agents".to_owned(), shard("a")]);
    for number in 0..300 {
        put(&one, &format!("n{number}"), "1").await.unwrap();
    }
    assert_eq!(put(&one, "a", "2").await.unwrap(), Outcome::Changed);
    assert_eq!(put(&one, "a", "2").await.unwrap(), Outcome::Unchanged);
    one.delete::<Agent>(&"n7".parse().unwrap(), &Precondition::default()).await.unwrap();
    let again = origin(&engine, None, BOUNDS).await;
    assert_eq!(again.current(), one.current());
    assert_eq!((names(&again).len(), of_old_origin(&engine).await), (300, None));
    assert_eq!(again.get::<Agent>(&"a".parse().unwrap()).unwrap().0, agent("a", "2"));

    // The record that says that there are shards was lost.
    fs_remove(dir.path(), "agents.");
    let again = origin(&engine, None, BOUNDS).await;
    assert_eq!((again.current(), of_old_origin(&engine).await), (one.current(), None));
    assert!(keys(&engine).await.contains(&"cluster/agents".to_owned()));
}

/// Removes the record `cluster/agents` with its previous copy.
fn fs_remove(dir: &Path, prefix: &str) {
    for name in ["record", "previous"] {
        let _ = std::fs::remove_file(dir.join("cluster").join(format!("{prefix}{name}")));
    }
}

#[tokio::test]
async fn one_record_stays_until_the_last_origin_of_the_release_before_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    write_as_old_origin(&engine, 200).await;
    let may = Arc::new(AtomicBool::new(false));
    let one = origin(&engine, Some(&may), BOUNDS).await;
    assert_eq!(names(&one).len(), 200);
    put(&one, "a", "1").await.unwrap();
    assert_eq!((of_old_origin(&engine).await, keys(&engine).await.len()), (Some(201), 1));
    let two = origin(&engine, Some(&may), BOUNDS).await;
    assert_eq!(names(&two), names(&one));
    may.store(true, Ordering::Relaxed);

    // Both make shards of it at the same time, and change something.
    let (first, second) = tokio::join!(put(&one, "b", "1"), put(&two, "c", "1"));
    assert_eq!((first.unwrap(), second.unwrap()), (Outcome::Created, Outcome::Created));
    assert_eq!(of_old_origin(&engine).await, None, "it cannot read the record, and changes nothing");
    one.read_again::<Agent>().await.unwrap();
    assert_eq!(names(&one).len(), 203);
    two.read_again::<Agent>().await.unwrap();
    let alone = origin(&engine, None, BOUNDS).await;
    assert!(two.current() == one.current() && alone.current() == one.current(), "with their revisions");
    put(&one, "d", "1").await.unwrap();
    two.read_again::<Agent>().await.unwrap();
    assert_eq!(names(&two), names(&one));
}

/// Two origins that have the agents `a` and `b`, which are in two shards.
async fn two_origins(engine: &Arc<FaultyEngine>) -> [FleetStore; 2] {
    let may = Arc::new(AtomicBool::new(true));
    let [one, two] = [origin(engine, Some(&may), BOUNDS).await, origin(engine, Some(&may), BOUNDS).await];
    assert_ne!(shard_of("a"), shard_of("b"));
    put(&one, "a", "1").await.unwrap();
    put(&one, "b", "1").await.unwrap();
    two.read_again::<Agent>().await.unwrap();
    [one, two]
}

#[tokio::test]
async fn no_list_of_a_higher_revision_has_what_another_origin_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let [one, two] = two_origins(&engine).await;
    two.delete::<Agent>(&"b".parse().unwrap(), &Precondition::default()).await.unwrap();
    put(&one, "a", "2").await.unwrap();
    assert_eq!(names(&one), ["a"]);
    assert!(one.current().agents.revision() > two.current().agents.revision());
}

/// Time stands until nothing else is to be done.
#[tokio::test(start_paused = true)]
async fn of_two_changes_at_once_the_list_that_has_both_has_the_higher_revision() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let [one, two] = two_origins(&engine).await;
    engine.stall(Some(format!("cluster/agents.{:02x}", shard_of("b")).parse().unwrap()));
    let deleting = tokio::spawn({
        let two = two.clone();
        async move { two.delete::<Agent>(&"b".parse().unwrap(), &Precondition::default()).await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    put(&one, "a", "2").await.unwrap();
    assert_eq!(names(&one), ["a", "b"], "it is not deleted yet");
    engine.stall(None);
    deleting.await.unwrap().unwrap();
    assert_eq!((names(&two), two.get::<Agent>(&"a".parse().unwrap()).unwrap().0), (vec!["a".into()], agent("a", "2")));
    assert!(two.current().agents.revision() > one.current().agents.revision());
    one.read_again::<Agent>().await.unwrap();
    assert!(one.current() == two.current());
}

#[tokio::test]
async fn an_origin_with_files_makes_shards_at_its_start() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    write_as_old_origin(&engine, 5).await;
    // It was killed before it could say that there are shards.
    engine.fail_writes([WriteFault::Lost]);
    let killed = origin(&engine, None, BOUNDS).await;
    assert_eq!((of_old_origin(&engine).await, killed.inner.metrics.readable.get()), (Some(5), 0));
    let one = origin(&engine, None, BOUNDS).await;
    assert_eq!((names(&one).len(), of_old_origin(&engine).await, one.current().agents.revision()), (5, None, 7));
    put(&killed, "a", "1").await.unwrap();
    assert_eq!(names(&killed).len(), 6, "it reads again");
}

#[tokio::test]
async fn the_previous_copy_of_the_one_record_does_not_replace_shards() {
    for is_gone in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let engine = FaultyEngine::local(dir.path());
        write_as_old_origin(&engine, 5).await;
        let one = origin(&engine, None, BOUNDS).await;
        put(&one, "a", "1").await.unwrap();
        one.delete::<Agent>(&"old-000".parse().unwrap(), &Precondition::default()).await.unwrap();
        let record = dir.path().join("cluster/agents.record");
        if is_gone {
            std::fs::remove_file(record).unwrap();
        } else {
            std::fs::write(record, "damaged").unwrap();
        }
        assert_eq!(of_old_origin(&engine).await, Some(5), "its previous copy has all that there was");
        let again = origin(&engine, None, BOUNDS).await;
        assert!(again.current() == one.current(), "{:?}", names(&again));
        assert_eq!(of_old_origin(&engine).await, None);
    }
}

#[tokio::test]
async fn a_shard_that_cannot_be_read_empties_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let one = origin(&engine, None, BOUNDS).await;
    for number in 0..100 {
        put(&one, &format!("n{number}"), "1").await.unwrap();
    }
    let shard = format!("agents.{:02x}.", shard_of("n7"));
    fs_remove(dir.path(), &shard);
    std::fs::write(dir.path().join("cluster").join(format!("{shard}record")), "damaged").unwrap();
    let two = origin(&engine, None, BOUNDS).await;
    assert_eq!((names(&two).len(), two.current().agents.revision()), (0, 0), "edges use what they have");
    assert_eq!(two.inner.metrics.readable.get(), 0);
    assert!(matches!(put(&two, "a", "1").await, Err(FleetError::Unreadable(_))), "whatever its shard is");
}

#[tokio::test]
async fn outcomes_that_are_not_known_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let one = origin(&engine, None, BOUNDS).await;
    put(&one, "a", "1").await.unwrap();
    engine.fail_writes([WriteFault::Unconfirmed]);
    assert_eq!(put(&one, "a", "2").await.unwrap(), Outcome::Changed);
    engine.fail_writes([WriteFault::Lost]);
    assert!(matches!(put(&one, "a", "3").await, Err(FleetError::Unknown(_))));
    engine.fail_writes([WriteFault::Refused]);
    assert_eq!(put(&one, "a", "4").await.unwrap(), Outcome::Changed, "it is tried again");
    assert_eq!(origin(&engine, None, BOUNDS).await.current(), one.current());
}

#[tokio::test]
async fn bounds_are_those_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let bounds = FleetBounds { agents: 2, bytes: 150, ..BOUNDS };
    let one = origin(&engine, None, bounds).await;
    let full = |outcome: Result<Outcome, FleetError>| match outcome {
        Err(FleetError::Full(text)) => text,
        other => panic!("{other:?}"),
    };
    put(&one, "a", "1").await.unwrap();
    put(&one, "b", "1").await.unwrap();
    let text = full(put(&one, "c", "1").await);
    assert!(text.contains("more than 2 agents") && text.contains("`[limits] max_agents`"), "{text}");
    let text = full(put(&one, "a", &"1".repeat(90)).await);
    assert!(text.contains("more than 150: remove some, or raise `[limits] fleet_bytes`"), "{text}");
    put(&one, "a", "2").await.unwrap();
    one.delete::<Agent>(&"b".parse().unwrap(), &Precondition::default()).await.unwrap();
    put(&one, "c", "1").await.unwrap();
    // Beyond a bound that is lower now, what is there can be replaced and deleted.
    let lower = origin(&engine, None, FleetBounds { agents: 1, bytes: 10, ..BOUNDS }).await;
    put(&lower, "a", "3").await.unwrap();
    lower.delete::<Agent>(&"a".parse().unwrap(), &Precondition::default()).await.unwrap();
}

#[tokio::test]
async fn documents_of_a_batch_are_stored_shard_by_shard() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let one = origin(&engine, None, BOUNDS).await;
    let batch: Vec<_> = (0..30).map(|number| (agent(&format!("n{number}"), "1"), Precondition::default())).collect();
    let checked = one.check_all(&batch).await.unwrap();
    assert!(checked.iter().all(|it| *it.as_ref().unwrap() == Outcome::Created) && names(&one).is_empty());
    // The record that says that there are shards, and the first shard.
    engine.fail_writes([WriteFault::Unconfirmed, WriteFault::Unconfirmed, WriteFault::Lost]);
    let (stored, error) = one.put_all(&batch).await;
    assert!(matches!(error, Some(FleetError::Unknown(_))) && (1..30).contains(&stored.len()), "{error:?}");
    assert_eq!(names(&one), stored.keys().map(ToString::to_string).collect::<Vec<_>>());
    let (again, error) = one.put_all(&batch).await;
    assert!(error.is_none() && again.len() == 30);
    assert!(again.iter().all(|(name, outcome)| (*outcome == Outcome::Unchanged) == stored.contains_key(name)));
    assert_eq!(origin(&engine, None, BOUNDS).await.current(), one.current());

    let more: Vec<_> = (0..1_001).map(|number| (agent(&format!("m{number}"), "1"), Precondition::default())).collect();
    assert!(matches!(one.check_all(&more).await, Err(FleetError::Full(_))));
}

#[tokio::test]
async fn issuers_with_urls_have_a_bound_and_wait_until_every_origin_reads_them() {
    let issuer = |number: usize, jwks: serde_json::Value| -> Issuer {
        serde_json::from_value(json!({ "name": format!("i{number}"), "issuer": format!("https://{number}"),
            "audience": "weir", "subjects": ["s"], "jwks": jwks, "agent": "a", "services": ["*"] }))
        .unwrap()
    };
    let ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let url = |number| issuer(number, json!({ "url": "https://a/", "ca": ca }));
    let keys = |number| issuer(number, json!({ "keys": [{ "kid": "k" }] }));
    let dir = tempfile::tempdir().unwrap();
    let engine = FaultyEngine::local(dir.path());
    let may = Arc::new(AtomicBool::new(false));
    let one = origin(&engine, Some(&may), BOUNDS).await;
    let put = async |issuer: Issuer| one.put(issuer, &Precondition::default()).await.map_err(|error| error.to_string());
    assert_eq!(put(keys(0)).await, Ok(Outcome::Created));
    let refused = put(url(1)).await.unwrap_err();
    assert!(refused.contains("origins of the release before"), "{refused}");
    may.store(true, Ordering::Relaxed);
    for number in [1, 2] {
        assert_eq!(put(url(number)).await, Ok(Outcome::Created));
    }
    for number in [0, 3] {
        let refused = put(url(number)).await.unwrap_err();
        assert!(refused.contains("more than 2 issuers whose `jwks` has a `url`"), "{refused}");
    }
    assert_eq!((put(keys(3)).await, put(keys(2)).await), (Ok(Outcome::Created), Ok(Outcome::Changed)));
    assert_eq!(put(url(3)).await, Ok(Outcome::Changed), "there is room again");
}
