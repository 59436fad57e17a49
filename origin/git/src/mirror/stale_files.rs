//! Removes files that a killed process or a failed fetch left in a mirror.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use weir_upstream::signatures::SIGNATURE_FILE_PREFIX;

/// The prefix of quarantine folders.
pub(super) const INCOMING_PREFIX: &str = "incoming-";

/// Removes quarantines, incomplete packs, `.keep` files and locks. Must not run during a fetch.
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

/// Removes files of signatures. Must not run while signatures are verified.
pub(super) fn remove_signature_files(repository: &Path) -> io::Result<()> {
    for name in names_in(repository)? {
        if name.starts_with(SIGNATURE_FILE_PREFIX) {
            fs::remove_file(repository.join(name))?;
        }
    }
    Ok(())
}

/// Removes files of an interrupted repack. Must not run during a repack; fetches have their own folders.
pub(super) fn remove_repack_files(repository: &Path) -> io::Result<()> {
    let packs = repository.join("objects/pack");
    let mut temporary = names_in(&packs)?.into_iter().filter(|name| is_repack_file(name));
    temporary.try_for_each(|name| fs::remove_file(packs.join(name)))
}

/// Whether a file among the packs belongs to an unfinished repack.
pub(super) fn is_repack_file(name: &str) -> bool {
    name.starts_with("tmp_") || name.starts_with(".tmp-")
}

/// Removes empty directories below `directory`: an empty `refs/heads/del/` would prevent a branch `del`.
pub(super) fn remove_empty_directories(directory: &Path) -> io::Result<()> {
    // In reverse order a directory comes after its subdirectories.
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

/// A directory and all below it, parents first. Iterative, because names of refs come from outside and may be nested
/// deeply.
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

/// No ref may have a name with this end.
fn is_lock(name: &str) -> bool {
    name.ends_with(".lock")
}

/// A pack needs its index; files that are neither are temporary.
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
    fn incomplete_files_are_removed_and_complete_ones_stay() {
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
        assert!(scratch.exists(), "a verification may read it");
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
    fn files_of_a_repack_are_removed_and_those_of_a_fetch_stay() {
        let dir = tempfile::tempdir().unwrap();
        let packs = dir.path().join("objects/pack");
        fs::create_dir_all(&packs).unwrap();
        // The fetch moves the index of the second pack last.
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
    fn a_deeply_nested_ref_needs_little_stack() {
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
    fn only_empty_directories_are_removed() {
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
