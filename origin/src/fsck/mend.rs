//! Mending: by the parts that publish and heal in a running origin.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use prometheus::Registry;
use weir_shared::digest::BlobDigest;

use super::faults::missing;
use super::forms;
use super::look::{CATALOG, STATE, Seen, Unsound};
use super::report::Fault;
use super::set_aside::set_aside;
use crate::blob_store::{BlobError, Bytes};
use crate::catalog::{Definitions, Documents, Store};
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::database::DatabaseFile;
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::publication::{RowKind, UnreadableRow};
use crate::publisher::Publisher;
use crate::repository_agent::Restorer;
use crate::signing::Signer;

/// What was done about a fault, beyond what is the same for all of its kind.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) object: String,
    pub(super) fault: Fault,
    pub(super) is_lost: bool,
    pub(super) remark: String,
}

/// Mends what can be mended.
pub(super) fn mend(config: &Config, data_dir: &DataDir, seen: &Seen) -> anyhow::Result<Vec<Fate>> {
    let defined = Definitions::of(&Documents::new(&config.repositories, &config.services), &seen.api);
    if !data_dir.catalog().exists() && !data_dir.state().exists() {
        // That of operators is made first: one of publications beside none would say that it was lost.
        Store::open(data_dir.clone())?;
    }
    let is_damaged = |which: &str| {
        seen.unsound.iter().any(|(name, unsound)| *name == which && matches!(unsound, Unsound::Damaged(_)))
    };
    if is_damaged(STATE) && is_damaged(CATALOG) {
        // Which services are defined is what pins on damaged pages are believed by.
        let remark =
            "what it holds is taken over when catalog.redb is back: put back a copy, or begin a new one, first";
        let waits =
            Fate { object: STATE.to_owned(), fault: Fault::Database, is_lost: false, remark: remark.to_owned() };
        return Ok(vec![waits, catalog_is_gone()]);
    }
    let mut fates = databases(config, data_dir, &defined, seen)?;
    let metrics = Metrics::register(&Registry::new())?;
    let events = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let (floor, retention) = (config.generation_floor, config.retention.clone());
    // What a killed process left goes with this.
    let mut publisher = Publisher::open(data_dir.clone(), floor, retention, events, metrics.clone())?;
    let is_new = is_damaged(STATE);
    let state = if is_new { &publisher.inspect()? } else { &seen.state };
    publisher.mend_rows(state, SystemTime::now())?;
    publisher.sign_with(Arc::new(Signer::new(config.signing.read()?)))?;
    let publisher = Arc::new(publisher);
    fates.extend(remove_damaged(&publisher, data_dir, seen));

    fates.extend(state.unreadable.iter().map(dropped));
    let limits = config.limits.clone();
    let restorer = Restorer { limits, data_dir: data_dir.clone(), publisher, metrics };
    for version in &state.versions {
        fates.extend(forms::make_again(&defined, &restorer, version, &missing(version, seen))?);
    }
    Ok(fates)
}

/// Repairs the databases, or has that of the publications replaced, which Git can bring back.
fn databases(config: &Config, data_dir: &DataDir, defined: &Definitions, seen: &Seen) -> anyhow::Result<Vec<Fate>> {
    let mut fates = Vec::new();
    for (name, unsound) in &seen.unsound {
        let is_state = *name == STATE;
        let path = if is_state { data_dir.state() } else { data_dir.catalog() };
        let (is_lost, remark) = match unsound {
            Unsound::Repairable => {
                DatabaseFile::repair(&path).with_context(|| format!("{name} cannot be repaired"))?;
                (false, "repaired")
            }
            Unsound::Damaged(_) if is_state => {
                let services = defined.services.keys().map(ToString::to_string).collect();
                fates.push(set_aside(config, data_dir, &services)?);
                continue;
            }
            Unsound::Damaged(_) => {
                fates.push(catalog_is_gone());
                continue;
            }
        };
        fates.push(Fate { object: (*name).to_owned(), fault: Fault::Database, is_lost, remark: remark.to_owned() });
    }
    Ok(fates)
}

fn catalog_is_gone() -> Fate {
    let remark = "put back a copy of it: Git cannot bring back what operators defined".to_owned();
    Fate { object: CATALOG.to_owned(), fault: Fault::Database, is_lost: false, remark }
}

/// What is damaged is removed, so that it is never taken for what its name says; what stands wrongly beside a blob is made
/// again when it is needed. One that cannot be removed holds up no other.
fn remove_damaged(publisher: &Publisher, data_dir: &DataDir, seen: &Seen) -> Vec<Fate> {
    let (blobs, mut fates) = (publisher.blobs(), Vec::new());
    let mut try_to = |fault, digest: &BlobDigest, removed: Result<bool, io::Error>| {
        fates.extend(removed.err().map(|error| {
            let remark = data_dir.redact(&format!("it cannot be removed: {error}"));
            Fate { object: digest.to_string(), fault, is_lost: false, remark }
        }));
    };
    for (digest, blob) in &seen.blobs {
        if blob.bytes == Bytes::Damaged {
            // It is read once more before it goes: a disk that failed for a moment has lost nothing.
            let removed = match blobs.open_verified(digest) {
                Ok(_) | Err(BlobError::Missing | BlobError::Corrupt) => Ok(true),
                Err(BlobError::Unreadable(error)) => Err(error),
            };
            try_to(Fault::DamagedBlob, digest, removed);
            continue;
        }
        if blob.has_wrong_pieces {
            try_to(Fault::WrongPieces, digest, blobs.remove_pieces(digest));
        }
        if blob.has_wrong_fragments {
            try_to(Fault::WrongFragments, digest, blobs.remove_fragments(digest));
        }
    }
    for folder in 0..=u8::MAX {
        // What stands beside no blob goes with the look.
        if let Err(error) = blobs.in_folder(folder) {
            tracing::warn!(folder = format!("{folder:02x}"), %error, "a folder of blobs cannot be looked at");
        }
    }
    fates
}

fn dropped(row: &UnreadableRow) -> Fate {
    let (is_lost, remark) = match row.kind {
        RowKind::Current => (true, "dropped: the origin publishes the service anew, under a higher generation"),
        RowKind::Superseded => (true, "dropped: nobody can go back to this version any more"),
        RowKind::History => (true, "dropped: the history has no such entry any more"),
        RowKind::Pin => (true, "dropped: no service of that name is pinned"),
        RowKind::Content => (false, "dropped: it is found out again when it is needed"),
    };
    Fate { object: row.of.clone(), fault: Fault::UnreadableRow, is_lost, remark: remark.to_owned() }
}
