use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::super::contract;
use super::super::engine::Engine;
use super::*;

fn shop() -> RecordKey {
    "repositories/shop".parse().unwrap()
}

/// A folder with a record that was written as `one`, then as `two`.
async fn written(folder: &Path) -> LocalEngine {
    let engine = LocalEngine::open(folder).unwrap();
    let first = put(&engine, "one", Expect::Absent).await;
    put(&engine, "two", Expect::Version(first)).await;
    engine
}

async fn put(engine: &LocalEngine, bytes: &'static str, expect: Expect) -> super::super::Version {
    match engine.put(&shop(), bytes.into(), expect).await {
        PutOutcome::Done(version) => version,
        other => panic!("{other:?}"),
    }
}

async fn get(engine: &LocalEngine) -> Record {
    engine.get(&shop()).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_holds() {
    let dir = tempfile::tempdir().unwrap();
    contract::holds(Engine::Local(LocalEngine::open(dir.path()).unwrap())).await;
}

#[tokio::test]
async fn a_damaged_copy_falls_back_to_the_one_before_and_never_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let engine = written(dir.path()).await;
    let (current, previous) = (engine.0.path(&shop(), CURRENT), engine.0.path(&shop(), PREVIOUS));
    fs::write(&current, "damaged").unwrap();
    let read = get(&engine).await;
    assert_eq!(read.bytes, "one");
    assert!(read.recovered.as_ref().is_some_and(|why| why.contains("repositories/shop")), "{:?}", read.recovered);

    let third = put(&engine, "three", Expect::Version(read.version)).await;
    assert_eq!(get(&engine).await.recovered, None);
    fs::remove_file(&current).unwrap();
    assert_eq!(get(&engine).await.bytes, "one", "the damaged copy did not become the previous one");
    assert_eq!(engine.list("repositories/").await.unwrap(), [(shop(), None)]);

    fs::write(&previous, "").unwrap();
    let error = engine.get(&shop()).await.unwrap_err();
    assert!(matches!(&error, RecordError::Damaged { key, .. } if *key == shop()), "{error}");
    for expect in [Expect::Absent, Expect::Version(third)] {
        let outcome = engine.put(&shop(), "four".into(), expect).await;
        assert!(matches!(outcome, PutOutcome::Unknown(RecordError::Damaged { .. })), "{outcome:?}");
    }
}

proptest! {
    #[test]
    fn no_damage_of_a_file_is_taken_for_a_record(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        flip in 1..=255_u8,
        cut in any::<bool>(),
    ) {
        let (mut file, version) = encode(&bytes);
        prop_assert_eq!(decode(&file.clone().into()), Ok((Bytes::from(bytes), version)));
        let at = at.index(file.len());
        if cut { file.truncate(at) } else { file[at] ^= flip }
        prop_assert!(decode(&file.into()).is_err());
    }
}

#[tokio::test]
async fn a_kill_between_two_steps_leaves_a_whole_record() {
    let dir = tempfile::tempdir().unwrap();
    let engine = written(dir.path()).await;
    let path = |suffix| engine.0.path(&shop(), suffix);
    let whole = encode(b"three").0;
    // A kill while the new copy is written, after it, and at each step of naming the previous one.
    type Step<'a> = &'a dyn Fn();
    let steps: [Step<'_>; 4] = [
        &|| fs::write(path(NEW), &whole[..20]).unwrap(),
        &|| fs::write(path(NEW), &whole).unwrap(),
        &|| fs::hard_link(path(CURRENT), path(LINK)).unwrap(),
        &|| fs::rename(path(LINK), path(PREVIOUS)).unwrap(),
    ];
    for step in steps {
        step();
        let restarted = LocalEngine::open(dir.path()).unwrap();
        let read = get(&restarted).await;
        assert_eq!((&read.bytes[..], read.recovered), (&b"two"[..], None));
    }
    // What is left behind is in nobody's way.
    fs::hard_link(path(CURRENT), path(LINK)).unwrap();
    let engine = LocalEngine::open(dir.path()).unwrap();
    let second = get(&engine).await.version;
    put(&engine, "three", Expect::Version(second)).await;
    assert_eq!(get(&engine).await.bytes, "three");
    fs::write(path(CURRENT), "damaged").unwrap();
    assert_eq!(get(&engine).await.bytes, "two");
    assert!(!path(NEW).exists() && !path(LINK).exists());
}

#[tokio::test]
async fn a_record_that_is_perhaps_not_durable_is_written_again_before_it_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let first = get(&written(dir.path()).await).await.version;
    let failing = Arc::new(AtomicBool::new(false));
    let fails = failing.clone();
    let engine = LocalEngine::open_with(dir.path(), move |path| {
        if fails.load(Ordering::SeqCst) { Err(io::Error::other("fsync failed")) } else { sync_folder(path) }
    });
    let engine = engine.unwrap();

    failing.store(true, Ordering::SeqCst);
    let outcome = engine.put(&shop(), "three".into(), Expect::Version(first.clone())).await;
    assert!(matches!(outcome, PutOutcome::Unknown(_)), "{outcome:?}");
    let unproved = File::open(engine.0.path(&shop(), CURRENT)).unwrap();
    let error = engine.get(&shop()).await.unwrap_err();
    assert!(matches!(error, RecordError::Unavailable { .. }), "what the page cache holds is not shown: {error}");

    failing.store(false, Ordering::SeqCst);
    let read = get(&engine).await;
    assert_eq!((&read.bytes[..], read.recovered), (&b"three"[..], None));
    let current = fs::metadata(engine.0.path(&shop(), CURRENT)).unwrap();
    assert_ne!(current.ino(), unproved.metadata().unwrap().ino(), "a flush of the first file would prove nothing");
    let stale = engine.put(&shop(), "four".into(), Expect::Version(first)).await;
    assert!(matches!(stale, PutOutcome::Conflict), "{stale:?}");
}

#[test]
fn a_key_is_safe_as_a_file_path() {
    for key in ["repositories/shop", "nodes/origin-1", "cluster/agents", "repositories/a..b"] {
        assert!(key.parse::<RecordKey>().is_ok(), "{key}");
    }
    for key in ["", "shop", "repositories/", "repositories/..", "repositories/a/b", "../shop", "other/shop", "/shop"] {
        let error = key.parse::<RecordKey>().unwrap_err().to_string();
        assert!(error.contains("repositories/<name>"), "{error}");
    }
}
