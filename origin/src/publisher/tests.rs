mod doubts;
mod rows;
mod start;
mod sweeping;
mod versions;

use super::sweep::Swept;
use super::*;
use crate::config::ServiceConfig;
use crate::publication::history::Why;
use crate::publication::tests::content;
use crate::publication::{Order, OrderError};
use crate::wall_clock::Clock;
use prometheus::Registry;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use weir_shared::descriptor::Representation;
use weir_shared::encoding::Encoding;

const HOUR: Duration = Duration::from_secs(3600);

fn at(minute: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_000_000 + 60 * minute)
}

/// With the defaults, but that a blob goes with its last name.
fn open(dir: &Path) -> Publisher {
    open_with(dir, RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() })
}

fn open_with(dir: &Path, retention: RetentionConfig) -> Publisher {
    let metrics = Metrics::register(&Registry::new()).unwrap();
    let events = Arc::new(crate::event_log::tests::log(100, 1 << 20));
    Publisher::open(DataDir::open(dir).unwrap().0, 0, retention, events, metrics).unwrap()
}

fn service(name: &str) -> Arc<Service> {
    let config = ServiceConfig::new(name.parse().unwrap(), "shop".parse().unwrap());
    Arc::new(Service::new(&config, None).unwrap())
}

fn commit(number: u64) -> CommitId {
    format!("{number:040x}").parse().unwrap()
}

fn key(number: u64) -> ContentKey {
    ContentKey::from_bytes(*blake3::hash(&number.to_be_bytes()).as_bytes())
}

/// Publishes the content of that number, a minute per number.
fn publish(publisher: &Publisher, service: &Service, number: u64) -> BlobDigest {
    let bytes = format!("blob {number}");
    let mut blob = publisher.temporary(None).unwrap();
    blob.write_all(bytes.as_bytes()).unwrap();
    let content = content(&format!("tar {number}"), &bytes);
    let digest = content.blob;
    publisher.settle_built(service, &commit(number), &key(number), content, blob, at(number)).unwrap();
    digest
}

/// Sweeps, and once more: what one finds the next one removes.
fn sweep(publisher: &Publisher, now: SystemTime) {
    for _ in 0..2 {
        publisher.sweep(now, Clock::Steady).unwrap();
    }
}

fn stored(publisher: &Publisher, blobs: &[BlobDigest]) -> Vec<usize> {
    (0..blobs.len()).filter(|i| publisher.blobs().size(&blobs[*i]).is_ok()).collect()
}

#[test]
fn the_current_and_the_last_ten_of_two_days_stay_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let blobs: Vec<_> = (0..13).map(|number| publish(&publisher, &service, number)).collect();
    sweep(&publisher, at(13));
    assert_eq!(stored(&publisher, &blobs), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "the current one and ten");
    let gone = content("tar 1", "").digest;
    assert!(publisher.version(&service.name, &gone).unwrap().is_none());

    // Number 9 was superseded in minute 10.
    sweep(&publisher, at(10) + 48 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [10, 11, 12]);
    sweep(&publisher, at(10) + 480 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [12], "the current one for good");
    let kept = content("tar 12", "").digest;
    assert!(publisher.version(&service.name, &kept).unwrap().is_some());
}

#[test]
fn a_content_that_is_known_is_published_without_a_build_as_long_as_its_blob_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (one, other) = (service("one"), service("other"));
    let blob = publish(&publisher, &one, 1);
    let sighting =
        |service: &Arc<Service>, number| Sighting { service: service.clone(), commit: commit(number), key: key(1) };
    let looked = [sighting(&one, 1), sighting(&one, 2), sighting(&other, 2)];
    assert_eq!(publisher.settle_known(&looked[..1], at(2)).unwrap(), [true]);
    assert_eq!(publisher.metrics.publications.get(), 1, "nothing new");
    assert_eq!(publisher.settle_known(&looked[1..], at(2)).unwrap(), [true, true]);
    assert_eq!(publisher.metrics.publications.get(), 3);
    assert_eq!(one.current().unwrap().publication().commit, commit(2));
    assert_eq!(one.current().unwrap().representations(), other.current().unwrap().representations());

    let unknown = Sighting { key: key(7), ..sighting(&one, 3) };
    assert_eq!(publisher.settle_known(&[unknown, sighting(&one, 3)], at(3)).unwrap(), [false, true]);
    let hex = blob.hex();
    std::fs::remove_file(dir.path().join("blobs").join(&hex[..2]).join(&hex)).unwrap();
    assert_eq!(publisher.settle_known(&[sighting(&one, 4)], at(4)).unwrap(), [false]);
}

#[test]
fn keys_of_one_blob_are_bounded_and_what_is_current_is_known_without() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (busy, quiet) = (service("busy"), service("quiet"));
    let state = |service: &Service, number| {
        let mut blob = publisher.temporary(None).unwrap();
        blob.write_all(b"blob 0").unwrap();
        publisher
            .settle_built(service, &commit(number), &key(number), content("tar 0", "blob 0"), blob, at(number))
            .unwrap();
    };
    state(&quiet, 1000);
    // With patterns each commit has another key, and this one always the same content.
    (0..100).for_each(|number| state(&busy, number));
    let other = service("other").name.clone();
    let remembered = |number| publisher.state.content(&other, &key(number)).unwrap().is_some();
    assert_eq!((0..100).chain([1000]).filter(|number| remembered(*number)).count(), 16);
    assert!(remembered(99), "the newest");

    // Nothing of it is built again, at another commit either; whether or not its key was among those that went.
    let key_of_quiet = key(1000);
    publisher.state.forget_content(&key_of_quiet);
    let sighting = |number| Sighting { service: quiet.clone(), commit: commit(number), key: key_of_quiet };
    assert_eq!(publisher.settle_known(&[sighting(1000)], at(1000)).unwrap(), [true]);
    assert_eq!(publisher.settle_known(&[sighting(1001)], at(1001)).unwrap(), [true]);
    assert_eq!(quiet.current().unwrap().publication().commit, commit(1001));
    // But it is known of what is current alone.
    publish(&publisher, &quiet, 1002);
    publisher.state.forget_content(&key_of_quiet);
    assert_eq!(publisher.settle_known(&[sighting(1003)], at(1003)).unwrap(), [false]);
}

#[test]
fn what_is_published_is_there_after_a_restart_and_a_retired_service_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (kept, dropped) = (service("kept"), service("dropped"));
    publish(&publisher, &kept, 1);
    let orphan = publish(&publisher, &dropped, 2);
    let generation = dropped.current().unwrap().publication().generation;
    drop(publisher);

    let publisher = open(dir.path());
    let loaded = publisher.load(&["kept"].into(), at(3)).unwrap();
    assert_eq!(loaded.current.len(), 1);
    assert_eq!(loaded.current[0].1.bytes(), kept.current().unwrap().bytes());
    assert_eq!(loaded.retired, [(dropped.name.clone(), generation)]);
    assert!(publisher.load(&["kept"].into(), at(3)).unwrap().retired.is_empty(), "it is told once");
    sweep(&publisher, at(4));
    assert!(publisher.blobs().size(&orphan).is_ok(), "kept as any superseded version is");
    sweep(&publisher, at(3) + 48 * HOUR);
    assert!(publisher.blobs().size(&orphan).is_err());

    // It comes back, by a clock that stands still: its generation grows all the same.
    let again = service("dropped");
    publish(&publisher, &again, 2);
    assert_eq!(again.current().unwrap().publication().generation, generation + 1);
}

#[test]
fn a_deleted_service_is_not_published_by_a_build_that_ends_later() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (gone, never) = (service("gone"), service("never"));
    publish(&publisher, &gone, 1);
    let generation = gone.current().unwrap().publication().generation;
    let retired = publisher.retire(&[gone.clone(), never], at(2)).unwrap();
    assert_eq!(retired, [(gone.name.clone(), generation)].into(), "nothing was published of the other");
    publish(&publisher, &gone, 3);
    let sighting = Sighting { service: gone.clone(), commit: commit(4), key: key(1) };
    assert_eq!(publisher.settle_known(&[sighting], at(4)).unwrap(), [true], "nothing is to be done");
    assert_eq!(gone.current().unwrap().publication().generation, generation);
    assert!(publisher.load(&HashSet::new(), at(5)).unwrap().current.is_empty());
    // By the same name it is newer.
    let again = service("gone");
    publish(&publisher, &again, 1);
    assert!(again.current().unwrap().publication().generation > generation);
}

#[test]
fn many_services_are_retired_at_once_and_the_others_stay() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let all: Vec<_> = (0..20).map(|number| service(&format!("service-{number}"))).collect();
    for service in &all {
        publish(&publisher, service, 1);
    }
    let (gone, stay) = all.split_at(15);
    publisher.pin(&gone[0], &order(&gone[0], 2), None).unwrap();
    let retired = publisher.retire(gone, at(3)).unwrap();
    assert_eq!(retired, gone.iter().filter_map(|service| service.generation()).collect());
    assert!(publisher.retire(gone, at(3)).unwrap().is_empty(), "it is told once");
    let left: BTreeSet<_> = stay.iter().map(|service| service.name.to_string()).collect();
    assert_eq!(publisher.state.services().unwrap(), left, "the pin went with its service");
}

#[test]
fn what_could_not_be_retired_is_retired_before_its_name_is_published_again() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let gone = service("shop-prod");
    publish(&publisher, &gone, 1);
    publisher.pin(&gone, &order(&gone, 2), None).unwrap();
    let told_as_gone = gone.current().unwrap().publication().generation;
    // As after a retirement that the disk refused.
    let refused = || publisher.lock_unretired().insert(gone.name.clone());
    gone.withdraw();
    refused();
    let again = service("shop-prod");
    let nothing = publisher.pin(&again, &order(&again, 3), None);
    assert!(matches!(nothing, Err(OrderError::NothingPublished(_))), "the new one has nothing yet");
    let sighting = |service: &Arc<Service>| Sighting { service: service.clone(), commit: commit(1), key: key(1) };
    assert_eq!(publisher.settle_known(&[sighting(&again)], at(4)).unwrap(), [true]);
    let generation = again.current().unwrap().publication().generation;
    assert!(generation > told_as_gone, "who was told that it is gone takes nothing of that generation any more");

    again.withdraw();
    refused();
    sweep(&publisher, at(5));
    assert!(publisher.state.services().unwrap().is_empty(), "a sweep writes it down as well");
}

#[test]
fn what_is_durable_and_not_shown_is_shown_by_the_next_look() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let shown = service("shop-prod");
    publish(&publisher, &shown, 1);
    // As after a commit that was durable, and that the disk failed to say so of.
    let behind = service("shop-prod");
    let sighting = Sighting { service: behind.clone(), commit: commit(1), key: key(1) };
    assert_eq!(publisher.settle_known(&[sighting], at(2)).unwrap(), [true]);
    assert_eq!(behind.current().unwrap().bytes(), shown.current().unwrap().bytes());

    publisher.pin(&shown, &order(&shown, 3), None).unwrap();
    let behind = service("shop-prod");
    publish(&publisher, &behind, 4);
    assert_eq!(behind.current().unwrap().bytes(), shown.current().unwrap().bytes());
    assert_eq!(behind.condition(), shown.condition(), "and that it is pinned, since when");
}

#[test]
fn a_blob_is_on_the_disk_before_it_waits_for_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let (ended, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        // As while a pin or a sweep is at work.
        let alone = publisher.order.write().unwrap();
        scope.spawn(|| {
            // Other bytes than it should have, which shows as soon as it is written.
            let blob = publisher.temporary(None).unwrap();
            let settled = publisher.settle_built(&service, &commit(1), &key(1), content("tar 1", "1"), blob, at(1));
            ended.send(settled.is_err()).unwrap();
        });
        let refused = told.recv_timeout(Duration::from_secs(30));
        drop(alone);
        assert_eq!(refused, Ok(true));
    });
}

#[test]
fn a_publication_on_its_way_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (ended, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let publication = publisher.order.read().unwrap();
        scope.spawn(|| {
            publisher.let_publications_end();
            ended.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        drop(publication);
        told.recv().unwrap();
    });
}

#[test]
fn a_blob_of_several_services_is_found_for_each_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (one, other) = (service("one"), service("other"));
    let blob = publish(&publisher, &one, 1);
    publish(&publisher, &other, 1);
    for name in ["one", "other"] {
        let reference = publisher.reference(&blob, |service| service == name).unwrap().unwrap();
        assert_eq!(reference.descriptor.publication().service.as_str(), name);
    }
    assert!(publisher.reference(&blob, |_| false).unwrap().is_none());
}

#[test]
fn other_bytes_of_the_same_content_are_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    publish(&publisher, &service, 1);
    let before = service.current().unwrap();
    let mut blob = publisher.temporary(None).unwrap();
    blob.write_all(b"of a newer codec").unwrap();
    let rebuilt = content("tar 1", "of a newer codec");
    publisher.settle_built(&service, &commit(1), &key(1), rebuilt, blob, at(5)).unwrap();
    let after = service.current().unwrap();
    assert_eq!(after.publication(), before.publication());
    assert_eq!(after.revision(), before.revision() + 1);
}

#[test]
fn a_blob_that_was_built_again_takes_no_other_form_from_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    publish(&publisher, &service, 1);
    publish(&publisher, &service, 2);
    let rebuilt = content("tar 1", "of a newer codec");
    let restore = |content: &Content| {
        let mut blob = publisher.temporary(None).unwrap();
        blob.write_all(b"of a newer codec").unwrap();
        publisher.restore_superseded(&service, &rebuilt.digest, content, blob).unwrap();
        publisher.version(&service.name, &rebuilt.digest).unwrap().unwrap()
    };
    // While it was being built, somebody had its gzip form made.
    let gzip = Representation { encoding: Encoding::Gzip, dictionary: None, digest: BlobDigest::of(b"gzip"), size: 4 };
    publisher.state.add_representation(&service.name, &rebuilt.digest, &gzip, at(3)).unwrap();
    let restored = restore(&rebuilt);
    assert_eq!((restored.revision(), restored.representations()), (3, [rebuilt.zstd(), gzip].as_slice()));
    assert_eq!(restore(&rebuilt).bytes(), restored.bytes(), "it has it already");

    // And when it was gone back to meanwhile, whoever follows sees where it is.
    publisher.pin(&service, &order(&service, 4), Some(&rebuilt.digest)).unwrap();
    let other = content("tar 1", "of a newer codec still");
    let mut blob = publisher.temporary(None).unwrap();
    blob.write_all(b"of a newer codec still").unwrap();
    publisher.restore_superseded(&service, &rebuilt.digest, &other, blob).unwrap();
    let current = service.current().unwrap();
    assert_eq!((current.revision(), &current.representations()[0]), (2, &other.zstd()));
}

fn order<'a>(service: &'a Service, minute: u64) -> Order<'a> {
    Order { service: &service.name, expected: None, by: Some("ann"), now: at(minute) }
}

#[test]
fn of_too_many_bytes_the_oldest_versions_go_and_shared_blobs_count_once() {
    let dir = tempfile::tempdir().unwrap();
    let retention = RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() };
    let publisher = open_with(dir.path(), RetentionConfig { bytes: Some(ByteSize(6 * 6)), ..retention });
    let (one, other) = (service("one"), service("other"));
    // Six bytes each, and each is published by both services.
    let blobs: Vec<_> = (0..8)
        .map(|number| {
            publish(&publisher, &other, number);
            publish(&publisher, &one, number)
        })
        .collect();
    assert_eq!(publisher.state.kept().unwrap().bytes, 8 * 6);
    publisher.pin(&one, &order(&one, 9), Some(&content("tar 0", "").digest)).unwrap();
    sweep(&publisher, at(10));
    assert_eq!(stored(&publisher, &blobs), [0, 3, 4, 5, 6, 7], "what is pinned stays, the oldest of the others go");
    assert_eq!(publisher.metrics.expired_versions.with_label_values(&["bytes"]).get(), 5);
    let kept = publisher.state.kept().unwrap();
    assert_eq!((kept.bytes, kept.blobs, kept.unnamed), (36, 6, 0));

    // What is current stays even when it alone is too much.
    drop(publisher);
    let retention = RetentionConfig { linger: Duration::ZERO, ..RetentionConfig::default() };
    let publisher = open_with(dir.path(), RetentionConfig { bytes: Some(ByteSize(1)), ..retention });
    sweep(&publisher, at(11));
    assert_eq!(stored(&publisher, &blobs), [0, 7]);
    assert_eq!(publisher.state.kept().unwrap().superseded, 0);
}

#[test]
fn a_blob_lingers_for_downloads_that_come_back_and_stays_when_it_is_named_again() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open_with(dir.path(), RetentionConfig { versions: 0, ..RetentionConfig::default() });
    let service = service("shop-prod");
    let blobs = [1, 2].map(|number| publish(&publisher, &service, number));
    sweep(&publisher, at(11));
    assert_eq!(stored(&publisher, &blobs), [0, 1], "nine minutes are not ten");
    let name = service.name.clone();
    let back = Sighting { commit: commit(3), key: key(1), service };
    assert_eq!(publisher.settle_known(&[back], at(11)).unwrap(), [true], "it needs no build while it lingers");
    sweep(&publisher, at(20));
    assert_eq!(stored(&publisher, &blobs), [0, 1]);
    sweep(&publisher, at(21));
    assert_eq!(stored(&publisher, &blobs), [0]);
    assert!(publisher.state.content(&name, &key(2)).unwrap().is_none(), "what was built into it is forgotten with it");
    assert!(publisher.state.content(&name, &key(1)).unwrap().is_some());
}

#[test]
fn a_sweep_looks_at_one_folder_of_all_and_every_folder_has_its_turn() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let named = publish(&publisher, &service("shop-prod"), 1);
    let unknown: Vec<_> = (0..200)
        .map(|number: u32| {
            let digest = BlobDigest::of(&number.to_be_bytes());
            let path = dir.path().join("blobs").join(&digest.hex()[..2]);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(digest.hex()), number.to_be_bytes()).unwrap();
            digest
        })
        .collect();
    drop(publisher);
    let publisher = open(dir.path());
    let mut swept = Swept::default();
    for _ in 0..256 {
        let once = publisher.sweep(at(2), Clock::Steady).unwrap();
        assert!(once.looked_at < 10, "far from all: {once:?}");
        swept.looked_at += once.looked_at;
        swept.removed += once.removed;
    }
    // What the last one found goes with the next.
    swept.removed += publisher.sweep(at(2), Clock::Steady).unwrap().removed;
    assert_eq!(swept, Swept { removed: 200, looked_at: 201 });
    assert_eq!(stored(&publisher, &unknown), [] as [usize; 0]);
    assert_eq!(stored(&publisher, &[named]), [0]);
}

#[test]
fn versions_of_a_clock_that_was_far_ahead_do_not_push_out_those_that_came_after() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open_with(dir.path(), RetentionConfig { versions: 2, ..RetentionConfig::default() });
    let service = service("shop-prod");
    for number in [1_000_000, 1_000_001, 1, 2, 3] {
        publish(&publisher, &service, number);
    }
    let retained = |number: u64| {
        publisher.version(&service.name, &content(&format!("tar {number}"), "").digest).unwrap().is_some()
    };
    assert_eq!([1_000_000, 1_000_001, 1, 2, 3].map(retained), [false, false, true, true, true]);
}

#[test]
fn the_index_of_a_directory_that_has_none_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let blobs = [1, 2, 3].map(|number| publish(&publisher, &service, number));
    let kept = publisher.state.kept().unwrap();
    publisher.state.forget_index();
    assert!(publisher.state.reference(&blobs[0], |_| true).is_err());
    drop(publisher);
    let publisher = open(dir.path());
    publisher.load(&["shop-prod"].into(), at(4)).unwrap();
    assert_eq!(publisher.state.kept().unwrap(), kept);
    assert!(!publisher.reference(&blobs[0], |_| true).unwrap().unwrap().current);
    assert!(publisher.reference(&blobs[2], |_| true).unwrap().unwrap().current);
    sweep(&publisher, at(4) + 480 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [2]);
}
