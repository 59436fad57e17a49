//! A database of publications that cannot be repaired is set aside, and a new one takes over what can be read of it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::{self, TarballDigest};
use weir_shared::encoding::Encoding;

use super::look::STATE;
use super::mend::Fate;
use super::report::Fault;
use crate::blob_store::BlobStore;
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::database::DatabaseFile;
use crate::publication::{Salvage, Salvaged, State, Tarball};

/// Databases that are kept aside at the most. One is written over by nobody: it may be all that is left of something.
const MOST: usize = 9;

/// Names that are told one by one, of one table.
const NAMED: usize = 20;

/// Sets the database aside, and has a new one in its place. A process that is killed meanwhile leaves the old one there.
pub(super) fn set_aside(config: &Config, data_dir: &DataDir, services: &BTreeSet<String>) -> anyhow::Result<Fate> {
    let path = data_dir.state();
    let aside = free_name(&path)?;
    let new = path.with_extension("redb.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context("state.redb.new"),
        _ => {}
    }
    let blobs = BlobStore::untouched(&data_dir.blobs());
    let known = RefCell::new(HashMap::new());
    let tarball = |version: &Descriptor| {
        let bytes = blake3::hash(version.bytes());
        *known.borrow_mut().entry(bytes).or_insert_with(|| tarball(&blobs, version))
    };
    let salvage = {
        let state = State::of(DatabaseFile::open(&new)?, config.retention.clone())?;
        let taken = state.take_over(&path, services, tarball, SystemTime::now());
        taken.context("what can be read of state.redb cannot be written")?
    };
    fs::hard_link(&path, &aside).context("state.redb cannot be set aside")?;
    fs::rename(&new, &path).context("state.redb cannot be set aside")?;
    fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    let aside = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Fate {
        object: STATE.to_owned(),
        fault: Fault::Database,
        is_lost: !salvage.tables.iter().all(Salvaged::is_complete),
        remark: told(&aside, &salvage),
    })
}

/// `state.redb.damaged`, `state.redb.damaged-2` and so on.
fn free_name(path: &Path) -> anyhow::Result<PathBuf> {
    let name = |number: usize| match number {
        1 => path.with_extension("redb.damaged"),
        number => path.with_extension(format!("redb.damaged-{number}")),
    };
    match (1..=MOST).map(name).find(|aside| fs::symlink_metadata(aside).is_err()) {
        Some(free) => Ok(free),
        None => {
            bail!("state.redb cannot be set aside: {MOST} of them are there already; remove those that nobody needs")
        }
    }
}

fn told(aside: &str, Salvage { tables, pinned_to_nothing }: &Salvage) -> String {
    let mut remark = format!("set aside as {aside}; taken over from it:");
    for (place, table) in tables.iter().enumerate() {
        let all = if table.is_complete() { "all " } else { "" };
        remark += &format!("{} {all}{} {}", if place == 0 { "" } else { "," }, table.rows, table.what);
    }
    for table in tables.iter().filter(|table| !table.is_complete()) {
        remark += &format!("; not all {} could be read", table.what);
        for (names, why) in [(&table.wrong, "wrong"), (&table.unknown, "unreadable, if there are any")] {
            if !names.is_empty() {
                remark += &format!(" ({why}: {})", shown(names));
            }
        }
    }
    if tables.iter().any(|table| table.is_older) {
        remark += "; some are those of before the last write: a pin or a history may lack that, and every service is \
                   published again above every generation that was read";
    }
    if tables.iter().any(|table| !table.is_complete()) {
        remark += "; what is not there any more is published anew, with higher generations, at what its ref is at";
    }
    if !pinned_to_nothing.is_empty() {
        remark += &format!(
            "; what these were pinned to is lost, and the pin holds what is published next, which need not be the same: {}",
            shown(pinned_to_nothing)
        );
    }
    remark
}

/// Some names, and how many more there are.
fn shown(names: &[String]) -> String {
    let shown: Vec<_> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = names.len() - shown.len();
    shown.join(", ") + &if more == 0 { String::new() } else { format!(" and {more} more") }
}

/// Whether a version's tarball is what it states. One that cannot be had may be made again.
fn tarball(blobs: &BlobStore, version: &Descriptor) -> Tarball {
    let Some(zstd) = version.representation(Encoding::Zstd) else { return Tarball::Wrong };
    let Ok(blob) = blobs.open_verified(&zstd.digest) else { return Tarball::Unknown };
    match found(blob.bytes.reader()) {
        Ok(found) if found == stated(version) => Tarball::Right,
        Err(error) if error.raw_os_error().is_some() => Tarball::Unknown,
        // Also what is no tarball, and is the blob of its name.
        _ => Tarball::Wrong,
    }
}

type Content = (u64, TarballDigest, digest::Sha256);

fn stated(version: &Descriptor) -> Content {
    let publication = version.publication();
    (publication.size, publication.digest, publication.sha256)
}

fn found(blob: impl Read) -> io::Result<Content> {
    let mut tarball = zstd::Decoder::new(blob)?;
    let (mut blake3, mut sha256) = (blake3::Hasher::new(), Sha256::new());
    let mut buffer = vec![0; 256 << 10];
    loop {
        match tarball.read(&mut buffer)? {
            0 => break,
            read => {
                blake3.update(&buffer[..read]);
                sha256.update(&buffer[..read]);
            }
        }
    }
    let (size, digest) = (blake3.count(), TarballDigest::from(blake3.finalize()));
    Ok((size, digest, digest::Sha256::from_bytes(sha256.finalize().into())))
}
