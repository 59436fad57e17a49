//! Spools on the disk.

use std::fs;
use std::io::Read;
use std::path::Path;

use weir_protocol::digest::Sha256;
use weir_tarball::{Contents, FolderPath, TarballError};

use super::*;
use crate::archive::SpoolStore;

fn key(archive: &[u8]) -> (Sha256, Layout) {
    (Sha256::of(archive), Layout::AsIs)
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn spools_are_removed_with_their_last_user_and_never_survive_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.artifacts");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("left"), "").unwrap();
    let store = SpoolStore::new(path.clone());
    drop(store.temporary().unwrap());
    assert_eq!(files(&path), 0, "a killed process left it");

    let [one, other] = [b"one", b"two"].map(|contents| tar(&[file("a", contents)]));
    let spool = store.add(key(&one), &one[..], &BOUNDS, &RUN).unwrap();
    store.add(key(&other), &other[..], &BOUNDS, &RUN).unwrap();
    assert!(store.get(&key(&one)).is_some());
    assert!(store.get(&(Sha256::of(&one), Layout::StripTop)).is_none(), "another folder of the same bytes");
    assert_eq!(files(&path), 2);
    drop(store.retain(|known| *known == key(&other)));
    assert!(store.get(&key(&one)).is_none());
    assert_eq!(files(&path), 2, "a build uses it");
    drop(spool);
    assert_eq!(files(&path), 1);

    let bad = tar(&[file("a", b"good"), file("../b", b"bad")]);
    assert!(store.add(key(&bad), &bad[..], &BOUNDS, &RUN).unwrap_err().is_in_archive());
    assert_eq!(files(&path), 1, "nothing of a refused archive stays");
}

#[test]
fn the_spools_of_a_repository_share_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let store = SpoolStore::new(dir.path().join("x.artifacts"));
    let [one, other] = [1, 2].map(|byte| tar(&[file("a", &[byte; 3000])]));
    let bounds = Bounds { max_spools: 5000, ..BOUNDS };
    store.add(key(&one), &one[..], &bounds, &RUN).unwrap();
    let error = store.add(key(&other), &other[..], &bounds, &RUN).unwrap_err();
    assert!(error.to_string().contains("`[upstreams] max_mirror` = 5000 bytes"), "{error}");
    assert!(!error.is_in_archive(), "it fits once others are removed");
    let used = store.retain(|_| false);
    store.add(key(&other), &other[..], &bounds, &RUN).unwrap_err();
    assert!(store.bytes() > 3000, "a build may still use it");
    drop(used);
    assert_eq!(store.bytes(), 0, "nothing of a refused archive counts");
    store.add(key(&other), &other[..], &bounds, &RUN).unwrap();
}

#[test]
fn the_spools_of_a_former_url_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let [former, now] = ["former.artifacts", "now.artifacts"].map(|name| SpoolStore::new(dir.path().join(name)));
    let archive = tar(&[file("a", b"one")]);
    for store in [&former, &now] {
        store.add(key(&archive), &archive[..], &BOUNDS, &RUN).unwrap();
    }
    now.remove_siblings();
    assert_eq!((files(dir.path()), files(&dir.path().join("now.artifacts"))), (1, 1));
}

#[test]
fn a_disk_that_fails_is_not_the_fault_of_the_archive() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("bad sector"))
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let store = SpoolStore::new(dir.path().join("x.artifacts"));
    let error = store.add(key(b""), Broken, &BOUNDS, &RUN).unwrap_err();
    assert!(!error.is_in_archive() && error.to_string().contains("bad sector"), "{error}");
}

#[test]
fn bytes_that_changed_on_the_disk_are_never_published() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.artifacts");
    let store = SpoolStore::new(path.clone());
    let contents: Vec<u8> = (0..5 << 19).map(|at: u32| (at % 251) as u8).collect();
    let archive = tar(&[file("a", &contents)]);
    let spool = store.add(key(&archive), &archive[..], &BOUNDS, &RUN).unwrap();
    let root = FolderPath::default();
    let tree = spool.open(&root).unwrap();
    let Some(EntryKind::File { file, .. }) = tree.index.get(b"a") else { panic!() };
    let (file, mut buffer) = (*file, vec![1; 100]);
    tree.read(b"a", &file, &mut buffer).unwrap();
    assert_eq!(buffer, contents);
    let in_pieces = || {
        let mut pieces = Vec::new();
        let read = tree.read_in_pieces(b"a", &file, &mut |size, piece| {
            assert_eq!(size, file.size);
            pieces.push(piece);
            Ok(())
        });
        read.map(|()| pieces)
    };
    let pieces = in_pieces().unwrap();
    assert_eq!((pieces.len(), pieces.concat()), (3, contents));

    let on_disk = fs::read_dir(&path).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&on_disk).unwrap();
    bytes[0] ^= 1;
    fs::write(&on_disk, &bytes).unwrap();
    for error in [tree.read(b"a", &file, &mut buffer).unwrap_err(), in_pieces().unwrap_err()] {
        assert!(matches!(&error, TarballError::Spool { path, .. } if path == "a"), "{error}");
    }
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&on_disk, &bytes).unwrap();
    assert!(spool.open(&root).is_err(), "the index is verified, too");
}
