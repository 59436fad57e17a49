use prometheus::Registry;

use super::*;

const LIMIT_BYTES: u64 = 64 << 10;

fn open(folder: &Path) -> DiskCache {
    DiskCache::open(folder.to_owned(), LIMIT_BYTES, StoreMetrics::register(&Registry::new()).unwrap()).unwrap()
}

fn object(area: Area, bytes: &[u8]) -> ObjectLocation {
    ObjectLocation { repository: "shop".parse().unwrap(), area, digest: ObjectDigest::of(bytes) }
}

fn bytes_on_disk(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test]
async fn areas_are_cached_apart() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let page = object(Area::Private, b"page");
    assert_eq!(cache.get(&page).await, None);
    cache.insert(page.clone(), "page".into()).await;
    assert_eq!(cache.get(&page).await.unwrap(), "page");
    assert_eq!(cache.get(&object(Area::Public, b"page")).await, None);
    cache.remove(&page).await;
    assert_eq!(cache.get(&page).await, None);
}

#[tokio::test]
async fn a_damaged_or_lost_file_is_a_miss_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let frame = object(Area::Public, b"frame");
    for damage in [|path: &Path| fs::write(path, "other").unwrap(), |path: &Path| fs::remove_file(path).unwrap()] {
        cache.insert(frame.clone(), "frame".into()).await;
        damage(&cache.path(&frame));
        assert_eq!(cache.get(&frame).await, None);
        assert_eq!((bytes_on_disk(dir.path()), cache.metrics.cache_bytes.get()), (0, 0));
    }
}

#[tokio::test]
async fn the_cache_is_bounded_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let bodies: Vec<Bytes> = (0..20_u8).map(|i| vec![i; 10_000].into()).collect();
    for body in &bodies {
        cache.insert(object(Area::Public, body), body.clone()).await;
    }
    for i in 0..100_u8 {
        cache.insert(object(Area::Private, &[i]), vec![i].into()).await;
    }
    let small_files = fs::read_dir(dir.path()).unwrap().count();
    assert!(small_files <= 16, "small files count for what they take on a disk: {small_files}");
    let last = bodies.last().unwrap();
    cache.insert(object(Area::Public, last), last.clone()).await;
    assert!(bytes_on_disk(dir.path()) <= LIMIT_BYTES && cache.metrics.cache_bytes.get() <= LIMIT_BYTES as i64);
    drop(cache);

    fs::write(dir.path().join(".tmp-of-a-killed-write"), "half").unwrap();
    let cache = open(dir.path());
    assert_eq!(cache.get(&object(Area::Public, last)).await.as_ref(), Some(last));
    assert!(!dir.path().join(".tmp-of-a-killed-write").exists());
    assert!(cache.metrics.cache_bytes.get() > 0);
}
