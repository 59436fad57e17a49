//! What a killed process or a failed fetch leaves behind in a bare repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::source::git::commit_policy::SIGNATURE_FILE_PREFIX;

/// What the folder of a fetch is called, in a mirror.
pub(super) const INCOMING_PREFIX: &str = "incoming-";

/// Removes what fetches left, half-written packs, `.keep` files without a meaning any more, and locks. Only while nobody
/// fetches.
pub(super) fn remove(repository: &Path) -> io::Result<()> {
    let packs = repository.join("objects/pack");
    let names = names_in(&packs)?;
    for name in &names {
        if is_leftover_pack_file(name, &names) {
            fs::remove_file(packs.join(name))?;
        }
    }
    for entry in read_dir(repository)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(INCOMING_PREFIX) {
            fs::remove_dir_all(entry.path())?;
        } else if is_lock(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    remove_ref_locks(&repository.join("refs"))
}

/// Removes signatures that were being verified. Only while nobody verifies any.
pub(super) fn remove_signature_files(repository: &Path) -> io::Result<()> {
    for name in names_in(repository)? {
        if name.starts_with(SIGNATURE_FILE_PREFIX) {
            fs::remove_file(repository.join(name))?;
        }
    }
    Ok(())
}

/// Removes what a repack left that was stopped. Only while no repack runs; fetches have folders of their own.
pub(super) fn remove_repack_files(repository: &Path) -> io::Result<()> {
    let packs = repository.join("objects/pack");
    let mut temporary = names_in(&packs)?.into_iter().filter(|name| is_repack_file(name));
    temporary.try_for_each(|name| fs::remove_file(packs.join(name)))
}

/// Whether a file among the packs is one that a repack has not finished.
pub(super) fn is_repack_file(name: &str) -> bool {
    name.starts_with("tmp_") || name.starts_with(".tmp-")
}

/// Removes directories without anything in them below `directory`, but not itself: an empty `refs/heads/del/` stands in
/// the way of a branch `del`.
pub(super) fn remove_empty_directories(directory: &Path) -> io::Result<()> {
    // Deeper ones come later, so the way back empties a directory before it is looked at.
    for below in directories(directory)?.iter().skip(1).rev() {
        match fs::remove_dir(below) {
            Err(error) if !matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

fn remove_ref_locks(directory: &Path) -> io::Result<()> {
    for directory in directories(directory)? {
        for name in names_in(&directory)? {
            if is_lock(&name) {
                fs::remove_file(directory.join(name))?;
            }
        }
    }
    Ok(())
}

/// A directory and all below it, each after the one that it is in. Not by recursion: names of refs come from outside, and
/// a deep one would take a file descriptor and a piece of the stack for each level.
fn directories(top: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next) {
        let entries = read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
        for entry in entries {
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        next += 1;
    }
    Ok(found)
}

/// No ref's name may end like this, so it is nothing but a lock.
fn is_lock(name: &str) -> bool {
    name.ends_with(".lock")
}

/// A pack counts once its index is there too; what is neither pack nor index is temporary.
fn is_leftover_pack_file(name: &str, all: &[String]) -> bool {
    let has = |name: String| all.contains(&name);
    match name.strip_prefix("pack-").and_then(|rest| rest.rsplit_once('.')) {
        Some((id, "pack")) => !has(format!("pack-{id}.idx")),
        Some((id, "idx" | "rev" | "bitmap" | "mtimes")) => !has(format!("pack-{id}.pack")),
        _ => !name.starts_with("multi-pack-index") || is_lock(name),
    }
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let entries = read_dir(directory)?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    Ok(names)
}

fn read_dir(directory: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(Some(entries).into_iter().flatten()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None.into_iter().flatten()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_half_done_goes_and_what_is_whole_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for parent in ["objects/pack", "refs/heads/a", "refs/tags", "incoming-a1b2c3/pack"] {
            fs::create_dir_all(at(parent)).unwrap();
        }
        let whole = ["objects/pack/pack-1.pack", "objects/pack/pack-1.idx", "objects/pack/pack-1.rev"];
        let also = ["objects/pack/multi-pack-index", "refs/heads/a/main", "HEAD", "packed-refs"];
        let gone = ["objects/pack/pack-1.keep", "objects/pack/pack-2.pack", "objects/pack/pack-3.idx"];
        let scratch = at("signature-a1b2c3");
        fs::write(&scratch, "").unwrap();
        let gone_too = ["objects/pack/.tmpX1", "refs/heads/a/main.lock", "incoming-a1b2c3/pack/x", "HEAD.lock"];
        for name in [&whole[..], &also, &gone, &gone_too].concat() {
            fs::write(at(name), "").unwrap();
        }
        remove(dir.path()).unwrap();
        remove(dir.path()).unwrap();
        assert!(scratch.exists(), "somebody may be reading it");
        remove_signature_files(dir.path()).unwrap();
        assert!(!scratch.exists());
        for name in [&whole[..], &also].concat() {
            assert!(at(name).exists(), "{name}");
        }
        for name in [&gone[..], &gone_too].concat() {
            assert!(!at(name).exists(), "{name}");
        }
    }

    #[test]
    fn what_a_repack_left_goes_and_what_a_fetch_is_about_to_let_in_stays() {
        let dir = tempfile::tempdir().unwrap();
        let packs = dir.path().join("objects/pack");
        fs::create_dir_all(&packs).unwrap();
        // The index of the second comes in a moment.
        let stay = ["multi-pack-index", "pack-1.idx", "pack-1.pack", "pack-2.pack"];
        for name in [&stay[..], &["tmp_pack_a1b2c3", ".tmp-17-pack-3.idx"]].concat() {
            fs::write(packs.join(name), "").unwrap();
        }
        remove_repack_files(dir.path()).unwrap();
        let mut left = names_in(&packs).unwrap();
        left.sort();
        assert_eq!(left, stay);
    }

    #[test]
    fn a_deep_name_takes_neither_stack_nor_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let refs = dir.path().join("refs");
        let deep = refs.join("a/".repeat(1900));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("main.lock"), "").unwrap();
        let removed = std::thread::Builder::new().stack_size(128 << 10).spawn({
            let refs = refs.clone();
            move || remove_ref_locks(&refs).and_then(|()| remove_empty_directories(&refs))
        });
        removed.unwrap().join().unwrap().unwrap();
        assert_eq!(fs::read_dir(refs).unwrap().count(), 0);
    }

    #[test]
    fn only_empty_directories_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["heads/del/deep/er", "heads/keep/x", "tags"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("heads/keep/x/ref"), "").unwrap();
        let heads = dir.path().join("heads");
        remove_empty_directories(&heads).unwrap();
        assert!(!heads.join("del").exists());
        assert!(heads.join("keep/x/ref").exists());
        remove_empty_directories(&dir.path().join("absent")).unwrap();
    }
}
