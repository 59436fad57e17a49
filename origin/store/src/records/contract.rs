//! The test suite for every record engine. An engine's own tests call [`holds`] with an empty engine.

use std::collections::HashSet;

use bytes::Bytes;

use super::engine::Engine;
use super::faulty::{FaultyEngine, WriteFault};
use super::proof::prove_engine;
use super::{Expect, PutOutcome, RecordKey, Version};

fn key(text: &str) -> RecordKey {
    text.parse().unwrap()
}

pub(crate) async fn holds(engine: Engine) {
    a_record_is_created_once_and_replaced_by_its_version(&engine).await;
    a_version_is_never_used_again(&engine).await;
    keys_are_listed_by_prefix(&engine).await;
    a_record_is_deleted_by_its_version(&engine).await;
    of_many_writers_one_wins_each_version(&engine).await;
    an_unknown_outcome_is_settled_by_reading_or_writing(&engine).await;
    an_engine_is_proved(&engine).await;
}

async fn put(engine: &Engine, key: &RecordKey, bytes: &'static str, expect: Expect) -> Option<Version> {
    match engine.put(key, bytes.into(), expect).await {
        PutOutcome::Done(version) => Some(version),
        PutOutcome::Conflict => None,
        PutOutcome::Unknown(error) => panic!("{error}"),
    }
}

async fn a_record_is_created_once_and_replaced_by_its_version(engine: &Engine) {
    let key = key("repositories/shop");
    assert!(engine.get(&key).await.unwrap().is_none());
    let foreign = put(engine, &self::key("repositories/other"), "other", Expect::Absent).await.unwrap();
    assert_eq!(put(engine, &key, "one", Expect::Version(foreign.clone())).await, None, "there is none to replace");
    let first = put(engine, &key, "one", Expect::Absent).await.unwrap();
    for expect in [Expect::Absent, Expect::Version(foreign)] {
        assert_eq!(put(engine, &key, "lost", expect).await, None);
    }
    let read = engine.get(&key).await.unwrap().unwrap();
    assert_eq!((&read.bytes[..], &read.version, read.recovered), (&b"one"[..], &first, None));
    let second = put(engine, &key, "", Expect::Version(first)).await.unwrap();
    let read = engine.get(&key).await.unwrap().unwrap();
    assert_eq!((&read.bytes[..], read.version), (&b""[..], second), "a record may be empty");
}

async fn a_version_is_never_used_again(engine: &Engine) {
    let key = key("cluster/issuers");
    let first = put(engine, &key, "a", Expect::Absent).await.unwrap();
    let second = put(engine, &key, "b", Expect::Version(first.clone())).await.unwrap();
    let third = put(engine, &key, "a", Expect::Version(second.clone())).await.unwrap();
    assert_ne!(first, third);
    for old in [first, second] {
        assert_eq!(put(engine, &key, "c", Expect::Version(old)).await, None);
    }
}

async fn a_record_is_deleted_by_its_version(engine: &Engine) {
    let key = key("cluster/deleted");
    let first = put(engine, &key, "a", Expect::Absent).await.unwrap();
    let second = put(engine, &key, "b", Expect::Version(first.clone())).await.unwrap();
    engine.delete(&key, &first).await.unwrap();
    assert_eq!(engine.get(&key).await.unwrap().unwrap().version, second, "it was written since");
    for _ in 0..2 {
        engine.delete(&key, &second).await.unwrap();
        assert!(engine.get(&key).await.unwrap().is_none());
    }
    assert_eq!(put(engine, &key, "c", Expect::Version(second.clone())).await, None);
    let third = put(engine, &key, "b", Expect::Absent).await.unwrap();
    assert_ne!(third, second);
    engine.delete(&key, &second).await.unwrap();
    assert_eq!(engine.get(&key).await.unwrap().unwrap().version, third, "a late deletion");
}

/// The keys of a listing, whose versions are those of the records.
async fn listed(engine: &Engine, prefix: &str) -> Vec<RecordKey> {
    let mut keys = Vec::new();
    for (key, version) in engine.list(prefix).await.unwrap() {
        let read = engine.get(&key).await.unwrap().unwrap();
        assert!(version.is_none_or(|version| version == read.version), "{key}");
        keys.push(key);
    }
    keys
}

async fn keys_are_listed_by_prefix(engine: &Engine) {
    // Names that collide with files or keys of an engine if it is careless.
    let names = ["list", "list.new", "list.previous", "list.record", "list.record.previous", "list2"];
    let keys: Vec<_> = names.map(|name| key(&format!("repositories/{name}"))).into();
    for (index, key) in keys.iter().enumerate() {
        let version = put(engine, key, names[index], Expect::Absent).await.unwrap();
        put(engine, key, names[index], Expect::Version(version)).await.unwrap();
    }
    for (name, key) in names.iter().zip(&keys) {
        assert_eq!(engine.get(key).await.unwrap().unwrap().bytes, name.as_bytes());
    }
    assert_eq!(listed(engine, "repositories/list").await, keys, "in order");
    assert_eq!(listed(engine, "repositories/list.").await, keys[1..5]);
    assert_eq!(listed(engine, "nodes/").await, []);
}

async fn of_many_writers_one_wins_each_version(engine: &Engine) {
    const WRITERS: u64 = 8;
    const WRITES_EACH: u64 = 10;
    let key = key("nodes/counter");
    put(engine, &key, "0", Expect::Absent).await.unwrap();
    let write = |engine: Engine, key: RecordKey| async move {
        let mut versions = Vec::new();
        while versions.len() < WRITES_EACH as usize {
            let read = engine.get(&key).await.unwrap().unwrap();
            let count: u64 = std::str::from_utf8(&read.bytes).unwrap().parse().unwrap();
            let next = Bytes::from((count + 1).to_string());
            match engine.put(&key, next, Expect::Version(read.version)).await {
                PutOutcome::Done(version) => versions.push(version),
                PutOutcome::Conflict => {}
                PutOutcome::Unknown(error) => panic!("{error}"),
            }
        }
        versions
    };
    let writers: Vec<_> = (0..WRITERS).map(|_| tokio::spawn(write(engine.clone(), key.clone()))).collect();
    let mut versions = HashSet::new();
    for writer in writers {
        versions.extend(writer.await.unwrap());
    }
    let total = WRITERS * WRITES_EACH;
    assert_eq!(versions.len() as u64, total);
    assert_eq!(engine.get(&key).await.unwrap().unwrap().bytes, total.to_string(), "no update is lost");
}

async fn an_unknown_outcome_is_settled_by_reading_or_writing(engine: &Engine) {
    let faulty = FaultyEngine::over(engine.clone());
    let key = key("nodes/unknown");
    let unknown = async |fault, bytes: &'static str, version: &Version| {
        faulty.fail_writes([fault]);
        let outcome = faulty.put(&key, bytes.into(), Expect::Version(version.clone())).await;
        assert!(matches!(outcome, PutOutcome::Unknown(_)), "{outcome:?}");
        engine.get(&key).await.unwrap().unwrap()
    };
    let first = put(engine, &key, "first", Expect::Absent).await.unwrap();
    assert_eq!(unknown(WriteFault::Lost, "lost", &first).await.bytes, "first");
    let second = put(engine, &key, "second", Expect::Version(first)).await.expect("nothing was committed");

    let read = unknown(WriteFault::Unconfirmed, "third", &second).await;
    assert_eq!(read.bytes, "third");
    assert_eq!(put(engine, &key, "fourth", Expect::Version(second)).await, None, "it was committed");
    put(engine, &key, "fourth", Expect::Version(read.version)).await.unwrap();
}

async fn an_engine_is_proved(engine: &Engine) {
    let before = engine.list("").await.unwrap();
    prove_engine(engine).await.unwrap();
    assert_eq!(engine.list("").await.unwrap(), before, "a proof leaves no records behind");
}
