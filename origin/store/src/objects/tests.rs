use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use object_store::local::LocalFileSystem;
use prometheus::Registry;
use weir_model::ServerClocks;
use weir_runtime::bounds::Bounds;

use super::faulty::FaultyStore;
use super::*;
use crate::config::StoreConfig;
use crate::object_writer::ObjectWriter;

fn metrics() -> StoreMetrics {
    StoreMetrics::register(&Registry::new()).unwrap()
}

fn shop() -> RepositoryName {
    "shop".parse().unwrap()
}

async fn local(data_dir: &std::path::Path) -> Objects {
    let bounds = Bounds::register(&Registry::new()).unwrap();
    Objects::open(&StoreConfig::default(), data_dir, metrics(), (&bounds, &ServerClocks::default())).await.unwrap()
}

fn file(data_dir: &std::path::Path, digest: &ObjectDigest) -> PathBuf {
    data_dir.join("objects/shop/public").join(digest.hex())
}

#[tokio::test]
async fn an_object_belongs_to_its_repository_and_area() {
    let dir = tempfile::tempdir().unwrap();
    let objects = local(dir.path()).await;
    let other = "shop2".parse().unwrap();
    let frame = objects.put(&shop(), Area::Public, "frame".into()).await.unwrap();
    let page = objects.put(&shop(), Area::Private, "page".into()).await.unwrap();
    assert_eq!(frame, ObjectDigest::of(b"frame"));
    for (repository, area, digest, there) in [
        (&shop(), Area::Public, frame, true),
        (&shop(), Area::Private, page, true),
        (&shop(), Area::Public, page, false),
        (&other, Area::Public, frame, false),
    ] {
        assert_eq!(objects.exists(repository, area, &digest).await.unwrap(), there);
        let missing = matches!(objects.get(repository, area, &digest).await, Err(ObjectError::Missing(_)));
        assert_eq!(missing, !there, "{repository} {area:?}");
    }
    let listed = objects.list(&shop(), Area::Public).await.unwrap();
    assert_eq!(listed, [StoredObject { digest: frame, size: 5 }]);
    assert_eq!(objects.list(&other, Area::Public).await.unwrap(), []);
    drop(objects);

    let objects = local(dir.path()).await;
    assert_eq!(objects.get(&shop(), Area::Public, &frame).await.unwrap(), "frame");
    for _ in 0..2 {
        objects.delete(&shop(), Area::Public, &frame).await.unwrap();
        assert!(!objects.exists(&shop(), Area::Public, &frame).await.unwrap());
    }
}

#[tokio::test]
async fn damage_is_found_and_a_put_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let objects = local(dir.path()).await;
    let bytes = Bytes::from(vec![7; 100_000]);
    for damaged in [&b""[..], &bytes[..99_999], &[8; 100_000], &[7; 100_001]] {
        let digest = objects.put(&shop(), Area::Public, bytes.clone()).await.unwrap();
        fs::write(file(dir.path(), &digest), damaged).unwrap();
        let error = objects.get(&shop(), Area::Public, &digest).await.unwrap_err();
        assert!(matches!(error, ObjectError::Corrupt(_)) && error.to_string().contains(&digest.to_string()), "{error}");
    }
    let digest = objects.put(&shop(), Area::Public, bytes.clone()).await.unwrap();
    assert_eq!(objects.get(&shop(), Area::Public, &digest).await.unwrap(), bytes);
    let file = File::options().write(true).open(file(dir.path(), &digest)).unwrap();
    file.set_len(MAX_OBJECT_BYTES + 1).unwrap();
    assert!(matches!(objects.get(&shop(), Area::Public, &digest).await, Err(ObjectError::Corrupt(_))));
}

#[tokio::test]
async fn a_write_that_failed_is_never_relied_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = FaultyStore::over(Arc::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap().with_fsync(true)));
    let objects = Objects::over(store.clone(), metrics());
    // The bytes are readable, like those in the page cache after a failed fsync.
    store.fail_puts(true);
    let error = objects.put(&shop(), Area::Public, "frame".into()).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable(_)), "{error}");
    let digest = ObjectDigest::of(b"frame");
    let path = dir.path().join("shop/public").join(digest.hex());
    let unproved = File::open(&path).unwrap();
    store.fail_puts(false);
    objects.put(&shop(), Area::Public, "frame".into()).await.unwrap();
    assert_eq!(store.puts(), 2, "it was written again");
    // A new file: an fsync of the first one would prove nothing.
    assert_ne!(fs::metadata(&path).unwrap().ino(), unproved.metadata().unwrap().ino());
}

#[tokio::test]
async fn a_failing_store_does_not_report_an_object_as_missing() {
    let store = FaultyStore::in_memory();
    let objects = Objects::over(store.clone(), metrics());
    let digest = objects.put(&shop(), Area::Public, "frame".into()).await.unwrap();
    store.fail_gets(true);
    let read = objects.get(&shop(), Area::Public, &digest).await;
    assert!(matches!(&read, Err(ObjectError::Unavailable(cause)) if cause.contains("Input/output error")), "{read:?}");
    assert!(matches!(objects.exists(&shop(), Area::Public, &digest).await, Err(ObjectError::Unavailable(_))));
    store.fail_gets(false);
    assert_eq!(objects.get(&shop(), Area::Public, &digest).await.unwrap(), "frame");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_ends() {
    let store = FaultyStore::in_memory();
    let objects = Objects::over(store.clone(), metrics());
    store.hang_gets(true);
    let read = objects.get(&shop(), Area::Public, &ObjectDigest::of(b"")).await;
    assert!(matches!(&read, Err(ObjectError::Unavailable(cause)) if cause.contains("no answer")), "{read:?}");
}

#[tokio::test]
async fn a_missing_folder_is_not_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let objects = local(dir.path()).await;
    fs::rename(dir.path().join("objects"), dir.path().join("unmounted")).unwrap();
    let read = objects.get(&shop(), Area::Public, &ObjectDigest::of(b"")).await;
    assert!(matches!(read, Err(ObjectError::Unavailable(_))), "{read:?}");
    let listed = objects.list(&shop(), Area::Public).await;
    assert!(matches!(listed, Err(ObjectError::Unavailable(_))), "{listed:?}");
    assert!(objects.put(&shop(), Area::Public, "frame".into()).await.is_err(), "nothing is written in its place");

    let url = Some(format!("file://{}/absent", dir.path().display()));
    let bounds = Bounds::register(&Registry::new()).unwrap();
    let opened = Objects::open(
        &StoreConfig { url, ..StoreConfig::default() },
        dir.path(),
        metrics(),
        (&bounds, &ServerClocks::default()),
    )
    .await;
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
}

#[tokio::test]
async fn temporary_files_of_killed_writes_are_removed_after_a_delay() {
    let dir = tempfile::tempdir().unwrap();
    let objects = local(dir.path()).await;
    let digest = objects.put(&shop(), Area::Public, "frame".into()).await.unwrap();
    let staged = |number: u32| dir.path().join(format!("objects/shop/public/{}#{number}", digest.hex()));
    for (number, age) in [(1, 2 * 3600), (2, 60)] {
        let file = File::create(staged(number)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    let listed = objects.list(&shop(), Area::Public).await.unwrap();
    assert_eq!(listed, [StoredObject { digest, size: 5 }]);
    assert!(!staged(1).exists() && staged(2).exists(), "one may be in progress still");
    objects.put(&shop(), Area::Public, "frame".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_takes_objects_from_many_threads_and_reports_a_failure() {
    let store = FaultyStore::in_memory();
    let objects = Objects::over(store.clone(), metrics());
    let write = |writer: Arc<ObjectWriter>| {
        let threads = (0..4_u8).map(|thread| {
            let writer = writer.clone();
            tokio::task::spawn_blocking(move || {
                (0..50_u8).try_for_each(|i| writer.put(vec![thread, i].into()).map(drop))
            })
        });
        futures_util::future::join_all(threads.collect::<Vec<_>>())
    };
    let writer = Arc::new(ObjectWriter::new(&objects, &shop(), Area::Public));
    assert!(write(writer.clone()).await.into_iter().all(|thread| thread.unwrap().is_ok()));
    Arc::into_inner(writer).unwrap().finish().await.unwrap();
    assert_eq!(objects.list(&shop(), Area::Public).await.unwrap().len(), 200);

    store.fail_puts(true);
    let writer = Arc::new(ObjectWriter::new(&objects, &shop(), Area::Public));
    assert!(write(writer.clone()).await.into_iter().all(|thread| thread.unwrap().is_err()), "no thread goes on");
    assert!(Arc::into_inner(writer).unwrap().finish().await.is_err());
    assert!(store.puts() < 300, "a build that failed ends early");
}
