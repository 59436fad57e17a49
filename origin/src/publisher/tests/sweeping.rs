//! Sweeps that meet trouble.

use super::*;
use std::fs;

fn path(dir: &Path, blob: &BlobDigest) -> std::path::PathBuf {
    let hex = blob.hex();
    dir.join("blobs").join(&hex[..2]).join(hex)
}

#[test]
fn a_folder_that_cannot_be_read_and_a_blob_that_cannot_be_removed_hold_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let publisher =
        open_with(dir.path(), RetentionConfig { versions: 0, linger: Duration::ZERO, ..RetentionConfig::default() });
    let service = service("shop-prod");
    let mut blobs: Vec<_> = (0..20).map(|number| publish(&publisher, &service, number)).collect();
    let current = blobs.pop().unwrap();
    blobs.sort_by_key(|blob| *blob.as_bytes());
    // Something else has the name of the first: a folder is no file that can be removed.
    fs::remove_file(path(dir.path(), &blobs[0])).unwrap();
    fs::create_dir(path(dir.path(), &blobs[0])).unwrap();
    // The folder that is looked through first is none.
    assert_eq!(publisher.state.next_folder().unwrap(), 0);
    fs::write(dir.path().join("blobs/00"), "").unwrap();
    let unknown = dir.path().join("blobs/01");
    fs::create_dir_all(&unknown).unwrap();
    let unknown = unknown.join(format!("01{}", "0".repeat(62)));
    fs::write(&unknown, "").unwrap();

    assert_eq!(publisher.sweep(at(21), Clock::Steady).unwrap().removed, 18);
    assert_eq!(stored(&publisher, &blobs), [0]);
    assert_eq!(publisher.state.next_folder().unwrap(), 1);
    publisher.sweep(at(22), Clock::Steady).unwrap();
    publisher.sweep(at(23), Clock::Steady).unwrap();
    assert!(!unknown.exists());
    assert!(publisher.open_verified(&current).is_ok());

    // It is tried again with each sweep, and goes when that can be.
    fs::remove_dir(path(dir.path(), &blobs[0])).unwrap();
    assert_eq!(publisher.state.kept().unwrap().unnamed, 1);
    publisher.sweep(at(24), Clock::Steady).unwrap();
    assert_eq!(publisher.state.kept().unwrap().unnamed, 0);
}

#[test]
fn a_clock_that_jumps_ahead_and_is_set_right_costs_no_version_and_leaves_none_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (service, other) = (service("shop-prod"), service("other"));
    let week = 7 * 24 * 60;
    let mut blobs: Vec<_> = (0..3).map(|number| publish(&publisher, &service, number)).collect();
    assert_eq!(publisher.sweep(at(3 + week), Clock::Doubtful).unwrap().removed, 0);
    // Published by the wrong clock, and let go by it.
    blobs.extend((0..3).map(|number| publish(&publisher, &other, 10 + week + number)));
    publisher.retire(std::slice::from_ref(&other), at(20 + week)).unwrap();
    publisher.sweep(at(21 + week), Clock::Doubtful).unwrap();
    assert_eq!(stored(&publisher, &blobs), [0, 1, 2, 3, 4, 5]);

    // Set right: the age of these begins now.
    publisher.sweep(at(10), Clock::Steady).unwrap();
    let oldest = publisher.state.kept().unwrap().oldest;
    assert_eq!(oldest, Some(u64::try_from(at(1).duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()));
    sweep(&publisher, at(2) + 48 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [2, 3, 4, 5]);
    sweep(&publisher, at(10) + 48 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [2]);
}

#[test]
fn a_clock_that_falls_behind_for_a_while_costs_no_version() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let blobs: Vec<_> = (0..3).map(|number| publish(&publisher, &service, number)).collect();
    // As a machine starts that has not asked what time it is.
    publisher.sweep(UNIX_EPOCH + HOUR, Clock::Doubtful).unwrap();
    sweep(&publisher, at(70));
    assert_eq!(stored(&publisher, &blobs), [0, 1, 2]);
}

#[test]
fn a_blob_without_a_name_since_a_time_that_has_not_come_goes_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open_with(dir.path(), RetentionConfig { versions: 0, ..RetentionConfig::default() });
    let service = service("shop-prod");
    let blobs = [1, 2].map(|number| publish(&publisher, &service, 10_000 + number));
    sweep(&publisher, at(3));
    sweep(&publisher, at(12));
    assert_eq!(stored(&publisher, &blobs), [0, 1]);
    sweep(&publisher, at(13));
    assert_eq!(stored(&publisher, &blobs), [1]);
}

#[test]
fn versions_of_a_clock_that_was_ahead_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open_with(
        dir.path(),
        RetentionConfig { bytes: Some(ByteSize(3 * 10)), linger: Duration::ZERO, ..RetentionConfig::default() },
    );
    let service = service("shop-prod");
    // Ten bytes each.
    let blobs: Vec<_> = (0..6).map(|number| publish(&publisher, &service, 1000 + number)).collect();
    publisher.sweep(at(1), Clock::Doubtful).unwrap();
    publisher.sweep(at(1), Clock::Doubtful).unwrap();
    assert_eq!(stored(&publisher, &blobs), [3, 4, 5]);
}

#[test]
fn a_row_among_the_ages_that_is_no_version_s_goes_alone() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let blobs = [1, 2, 3].map(|number| publish(&publisher, &service, number));
    for number in [0, 1] {
        // The one was dropped, the other superseded at another time, both by a version that knew of no ages.
        publisher.state.add_age(at(0), &service.name, &content(&format!("tar {number}"), "").digest);
    }
    let kept = publisher.state.kept().unwrap().superseded;
    publisher.sweep(at(1) + 48 * HOUR, Clock::Steady).unwrap();
    assert_eq!(publisher.state.kept().unwrap().superseded, kept - 2);
    assert_eq!(publisher.metrics.expired_versions.with_label_values(&["age"]).get(), 0);
    sweep(&publisher, at(2) + 48 * HOUR);
    assert_eq!(stored(&publisher, &blobs), [1, 2]);
}

#[test]
fn the_history_of_what_is_quiet_or_gone_ends_too() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (quiet, gone, late) = (service("quiet"), service("gone"), service("late"));
    for number in 0..3 {
        publish(&publisher, &quiet, number);
        publish(&publisher, &gone, 10 + number);
        publish(&publisher, &late, 1000 + number);
    }
    publisher.retire(std::slice::from_ref(&gone), at(20)).unwrap();
    publisher.pin(&quiet, &order(&quiet, 21), None).unwrap();
    let days = |number| at(60) + 24 * HOUR * number;
    let entries = |clock, number| {
        assert_eq!(publisher.state.next_folder().unwrap(), 0);
        publisher.sweep(days(number), clock).unwrap();
        // One sweep of each round looks at it.
        (1..=255).for_each(|folder| publisher.state.found_in_folder(folder, &[], days(number)).unwrap());
        let count = |service: &Arc<Service>| publisher.history(&service.name, None, 200).unwrap().publications.len();
        [&quiet, &gone, &late].map(count)
    };
    assert_eq!(entries(Clock::Steady, 89), [3, 3, 3]);
    assert_eq!(entries(Clock::Doubtful, 90), [3, 3, 3]);
    assert_eq!(entries(Clock::Steady, 90), [1, 0, 3], "what is current has its entry");
    let current = publisher.history(&quiet.name, None, 1).unwrap().publications.remove(0);
    assert!(current.current && current.entry.pinned_at.is_some());
    assert_eq!(entries(Clock::Steady, 91), [1, 0, 1]);
}
