//! Mending: by the parts that publish and heal in a running origin.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use prometheus::Registry;
use weir_shared::encoding::Encoding;

use super::faults::{missing, object_of};
use super::look::{Seen, Unsound};
use super::report::Fault;
use crate::blob_store::{BlobError, Bytes};
use crate::catalog::{Definitions, Documents};
use crate::config::Config;
use crate::data_dir::DataDir;
use crate::database::DatabaseFile;
use crate::event_log::EventLog;
use crate::metrics::Metrics;
use crate::publication::{Reference, RowKind, UnreadableRow, Version};
use crate::publisher::Publisher;
use crate::repository_agent::{NotRestored, Restorer};
use crate::service::Service;
use crate::signing::Signer;

/// What becomes of a damaged database of publications.
const SET_ASIDE: &str = "set aside as state.redb.damaged: histories, pins and superseded versions are lost, and the origin \
                         publishes everything anew, with the same digests and higher generations";

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
    let mut fates = databases(data_dir, seen)?;
    let metrics = Metrics::register(&Registry::new())?;
    let events = Arc::new(EventLog::new(&config.limits, metrics.clone()));
    let (floor, retention) = (config.generation_floor, config.retention.clone());
    // What a killed process left goes with this.
    let mut publisher = Publisher::open(data_dir.clone(), floor, retention, events, metrics.clone())?;
    publisher.mend_rows(&seen.state, SystemTime::now())?;
    publisher.sign_with(Arc::new(Signer::new(config.signing.read()?)))?;
    let publisher = Arc::new(publisher);
    remove_damaged(&publisher, seen)?;

    fates.extend(seen.state.unreadable.iter().map(dropped));
    let limits = config.limits.clone();
    let restorer = Restorer { limits, data_dir: data_dir.clone(), publisher, metrics };
    let defined = Definitions::of(&Documents::new(&config.repositories, &config.services), &seen.api);
    for version in &seen.state.versions {
        let lacking = missing(version, seen);
        if lacking.is_empty() {
            continue;
        }
        let (is_lost, remark) = restored(&defined, &restorer, version)?;
        fates.extend(lacking.into_iter().map(|form| {
            let (object, remark) = (object_of(version, form), remark.clone());
            Fate { object, fault: Fault::MissingForm, is_lost, remark }
        }));
    }
    Ok(fates)
}

/// Repairs the databases, or sets aside that of the publications, which Git can bring back.
fn databases(data_dir: &DataDir, seen: &Seen) -> anyhow::Result<Vec<Fate>> {
    let mut fates = Vec::new();
    for (name, unsound) in &seen.unsound {
        let is_state = *name == "state.redb";
        let path = if is_state { data_dir.state() } else { data_dir.catalog() };
        let (is_lost, remark) = match unsound {
            Unsound::Repairable => {
                DatabaseFile::repair(&path).with_context(|| format!("{name} cannot be repaired"))?;
                (false, "repaired")
            }
            Unsound::Damaged(_) if is_state => {
                let aside = path.with_extension("redb.damaged");
                std::fs::rename(&path, &aside).with_context(|| format!("{name} cannot be set aside"))?;
                (true, SET_ASIDE)
            }
            Unsound::Damaged(_) => (false, "put back a copy of it: Git cannot bring back what operators defined"),
        };
        fates.push(Fate { object: (*name).to_owned(), fault: Fault::Database, is_lost, remark: remark.to_owned() });
    }
    Ok(fates)
}

/// What is damaged is removed, so that it is never taken for what its name says; what stands wrongly beside a blob is made
/// again when it is needed.
fn remove_damaged(publisher: &Publisher, seen: &Seen) -> anyhow::Result<()> {
    let blobs = publisher.blobs();
    for (digest, blob) in &seen.blobs {
        if blob.bytes == Bytes::Damaged {
            // It is read once more before it goes: a disk that failed for a moment has lost nothing.
            match blobs.open_verified(digest) {
                Ok(_) | Err(BlobError::Missing | BlobError::Corrupt) => {}
                Err(BlobError::Unreadable(error)) => return Err(error.into()),
            }
            continue;
        }
        if blob.has_wrong_pieces {
            blobs.remove_pieces(digest)?;
        }
        if blob.has_wrong_fragments {
            blobs.remove_fragments(digest)?;
        }
    }
    for folder in 0..=u8::MAX {
        // What stands beside no blob goes with the look.
        blobs.in_folder(folder)?;
    }
    Ok(())
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

/// Has the forms of a version made again: whether it is lost, and a remark. What cannot be made again, and never will be,
/// is dropped, unless it is what a service is at.
fn restored(defined: &Definitions, restorer: &Restorer, version: &Version) -> anyhow::Result<(bool, String)> {
    Ok(match restore(defined, restorer, version)? {
        Ok(()) => (false, "made again from the mirror".to_owned()),
        Err(NotRestored::Now(reason)) => {
            (false, format!("not made again: {reason}; the origin tries again when somebody asks for it"))
        }
        Err(NotRestored::Ever(reason)) if version.is_current => {
            (false, format!("not made again: {reason}; the origin publishes the service anew by its next poll"))
        }
        Err(NotRestored::Ever(reason)) => {
            restorer.publisher.forget_version(&version.service, &version.digest)?;
            (true, format!("dropped: {reason}, and nothing can make it again"))
        }
    })
}

fn restore(defined: &Definitions, restorer: &Restorer, version: &Version) -> anyhow::Result<Result<(), NotRestored>> {
    let not_defined = |what: &str| Ok(Err(NotRestored::Now(format!("{what} is not defined (any more)"))));
    let Some(service) = defined.services.get(&version.service) else { return not_defined("the service") };
    let repository = defined.repositories.get(&service.document.repository);
    let Some(repository) = repository else { return not_defined("its repository") };
    let publisher = &restorer.publisher;
    let known = || publisher.version(&version.service, &version.digest);
    let Some(descriptor) = known()? else { return not_defined("the version") };
    let current = version.is_current.then(|| descriptor.clone());
    let service = Service::new(&service.document, current)?;
    let is_there = |encoding| {
        let form = descriptor.representation(encoding);
        form.is_none_or(|form| publisher.blobs().contains(&form.digest, form.size))
    };
    let (has_zstd, has_gzip) = (is_there(Encoding::Zstd), is_there(Encoding::Gzip));
    if !has_zstd {
        let stated = Reference { descriptor, current: version.is_current };
        if let Err(reason) = restorer.restore(&repository.document, &service, &stated) {
            return Ok(Err(reason));
        }
    }
    if !has_gzip {
        let descriptor = known()?;
        let zstd = descriptor.as_ref().and_then(|descriptor| descriptor.representation(Encoding::Zstd));
        let Some(zstd) = zstd else { return not_defined("the version") };
        let mut file = publisher.open_verified(&zstd.digest)?;
        std::io::Seek::rewind(&mut file)?;
        publisher.with_gzip(&service, &version.digest, file, restorer.limits.min_free.as_u64())?;
    }
    Ok(Ok(()))
}
