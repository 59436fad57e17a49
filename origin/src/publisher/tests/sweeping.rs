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

    assert_eq!(publisher.sweep(at(21)).unwrap().removed, 18);
    assert_eq!(stored(&publisher, &blobs), [0]);
    assert_eq!(publisher.state.next_folder().unwrap(), 1);
    publisher.sweep(at(22)).unwrap();
    publisher.sweep(at(23)).unwrap();
    assert!(!unknown.exists());
    assert!(publisher.open_verified(&current).is_ok());

    // It is tried again with each sweep, and goes when that can be.
    fs::remove_dir(path(dir.path(), &blobs[0])).unwrap();
    assert_eq!(publisher.state.kept().unwrap().unnamed, 1);
    publisher.sweep(at(24)).unwrap();
    assert_eq!(publisher.state.kept().unwrap().unnamed, 0);
}
