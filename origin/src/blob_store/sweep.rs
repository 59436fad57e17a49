//! Removing blobs and what is kept beside them, and looking for those that nobody knows of.

use std::fs;
use std::io;
use std::path::Path;

use weir_shared::digest::BlobDigest;

use super::stored::{delete, found};
use super::{BlobStore, fragments, pieces, stored};

impl BlobStore {
    /// Removes a blob and what is kept beside it. A download that runs keeps its open file. False: it was not there. The caller
    /// sees to it that nothing is published meanwhile.
    pub(crate) fn remove(&self, digest: &BlobDigest) -> io::Result<bool> {
        self.remove_pieces(digest)?;
        self.remove_fragments(digest)?;
        let names = self.names();
        let was_there = remove_file(&self.path(digest))?;
        let unnamed = self.unname(&self.parts_path(digest))?;
        drop(names);
        delete(unnamed.as_deref())?;
        Ok(was_there || unnamed.is_some())
    }

    /// Removes the piece list of a blob: it is made again when it is needed. False: it was not there.
    pub(crate) fn remove_pieces(&self, digest: &BlobDigest) -> io::Result<bool> {
        remove_file(&self.pieces_path(digest))
    }

    /// Removes what is known of the fragments of a blob: the next build makes all of them. False: it was not there.
    pub(crate) fn remove_fragments(&self, digest: &BlobDigest) -> io::Result<bool> {
        remove_file(&self.fragments_path(digest))
    }

    /// The blobs in one of the folders. What stands beside a blob that is not there is removed. What has another kind of name is
    /// not ours, and is passed over.
    pub(crate) fn in_folder(&self, folder: u8) -> io::Result<Vec<BlobDigest>> {
        let path = self.root.join(format!("{folder:02x}"));
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut blobs = Vec::new();
        for file in entries {
            let file = file?;
            match file.file_name().to_str().and_then(read_name) {
                // Half of what took the place of the other was done by a process that was killed.
                Some((digest, Kind::Parts)) if self.path(&digest).exists() => {
                    if let Err(error) = self.remove_other_form(&digest) {
                        tracing::warn!(path = %file.path().display(), %error, "what no blob needs cannot be removed");
                    }
                }
                Some((digest, Kind::Blob | Kind::Parts)) => blobs.push(digest),
                Some((digest, Kind::Beside)) if !self.has_name(&digest) => {
                    if let Err(error) = remove_file(&file.path()) {
                        tracing::warn!(path = %file.path().display(), %error, "what no blob needs cannot be removed");
                    }
                }
                Some((_, Kind::Beside)) | None => {}
            }
        }
        Ok(blobs)
    }
}

impl BlobStore {
    /// Removes the folder of a blob that is a file as well.
    fn remove_other_form(&self, digest: &BlobDigest) -> io::Result<()> {
        let names = self.names();
        let unnamed = if self.path(digest).exists() { self.unname(&self.parts_path(digest))? } else { None };
        drop(names);
        delete(unnamed.as_deref())
    }
}

fn remove_file(path: &Path) -> io::Result<bool> {
    // It never was, or a request found it corrupt and was faster.
    Ok(found(fs::remove_file(path))?.is_some())
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A blob in a file of its own.
    Blob,
    /// One in files that it shares.
    Parts,
    /// A piece list, or what the blob is made of.
    Beside,
}

pub(super) fn read_name(name: &str) -> Option<(BlobDigest, Kind)> {
    let suffixes = [(pieces::SUFFIX, Kind::Beside), (fragments::SUFFIX, Kind::Beside), (stored::SUFFIX, Kind::Parts)];
    let suffixed = suffixes.iter().find_map(|(suffix, kind)| Some((name.strip_suffix(suffix)?, *kind)));
    let (hex, kind) = suffixed.unwrap_or((name, Kind::Blob));
    Some((format!("b3-{hex}").parse().ok()?, kind))
}

#[cfg(test)]
mod tests {
    use super::super::tests::keep;
    use super::*;

    fn folder(digest: &BlobDigest) -> u8 {
        digest.as_bytes()[0]
    }

    #[test]
    fn a_blob_goes_with_its_list_and_a_running_download_keeps_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let long: Vec<u8> = (0..(5 << 20) / 2).map(|i: u32| (i % 251) as u8).collect();
        let digest = keep(&store, &long);
        let download = store.open_pieces(&digest).unwrap();
        assert!(store.pieces_path(&digest).exists());
        assert!(store.remove(&digest).unwrap() && !store.remove(&digest).unwrap());
        assert!(!store.pieces_path(&digest).exists() && store.in_folder(folder(&digest)).unwrap().is_empty());
        for piece in 0..3 {
            store.piece(&download, piece).unwrap();
        }
    }

    #[test]
    fn a_look_finds_blobs_removes_lists_without_one_and_leaves_what_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::open(dir.path()).unwrap();
        let digest = keep(&store, b"a blob");
        let path = store.path(&digest);
        let lost = store.pieces_path(&format!("b3-{}{}", &digest.hex()[..62], "00").parse().unwrap());
        let foreign = path.with_file_name("notes.txt");
        fs::write(&lost, [0; 64]).unwrap();
        fs::write(&foreign, "").unwrap();
        assert_eq!(store.in_folder(folder(&digest)).unwrap(), [digest]);
        assert!(!lost.exists() && foreign.exists() && path.exists());
        assert_eq!(store.in_folder(folder(&digest).wrapping_add(1)).unwrap(), []);
    }
}
