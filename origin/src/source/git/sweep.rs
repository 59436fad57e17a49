//! Removing LFS objects that nothing needs any more.
//!
//! Needed is what the services that ask for LFS hold at their current and retained versions, and at what their refs are at:
//! all that may have to be built. Where that cannot be told, because a ref or a commit is not in the mirror, nothing goes: it
//! may be on its way still, and what was fetched may be large.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use super::GitSource;
use super::lfs::{Amount, LfsOid};
use super::revision::{self, Reach, RevisionError};
use super::tree::{content_key, lfs_files};
use crate::service::Service;
use crate::source::{RetainedCommits, ServiceFailure};
use crate::tarball::TarballError;

/// Parts that are older were left behind: what comes just now has newer ones.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 3600);

impl GitSource {
    /// Removes the objects that no service needs and that came longer ago than `spared`. What stays. Not for a repository
    /// that is being cloned anew: its mirror does not say what is needed.
    pub(super) fn sweep(
        &self,
        services: &[Arc<Service>],
        published: &RetainedCommits,
        spared: Duration,
        stop: &AtomicBool,
    ) -> Result<Amount, ServiceFailure> {
        let (objects, failed) =
            (self.mirror.lfs_objects(), |error: io::Error| ServiceFailure::transient("lfs", error.to_string()));
        let before = SystemTime::now().checked_sub(spared).unwrap_or(SystemTime::UNIX_EPOCH);
        let left_behind = SystemTime::now().checked_sub(LEFT_BEHIND).unwrap_or(SystemTime::UNIX_EPOCH);
        objects.remove_leftovers(left_behind).map_err(failed)?;
        let held = objects.held().map_err(failed)?;
        if held.objects == 0 {
            return Ok(held);
        }
        let needed = self.needed(services, published, stop)?;
        let (removed, stays) = objects.remove_except(&needed, before).map_err(failed)?;
        if removed.objects > 0 {
            let Amount { objects, bytes } = removed;
            tracing::info!(repository = %self.repository, objects, bytes, "LFS objects that nothing needs any more were removed");
        }
        Ok(stays)
    }

    fn needed(
        &self,
        services: &[Arc<Service>],
        published: &RetainedCommits,
        stop: &AtomicBool,
    ) -> Result<HashSet<LfsOid>, ServiceFailure> {
        let mirror = self.open()?;
        let unclear = |service: &Service, error: &dyn std::fmt::Display| {
            ServiceFailure::transient("lfs", format!("what service `{}` needs is unclear: {error}", service.name))
        };
        let (mut needed, mut known) = (HashSet::new(), HashSet::new());
        for service in services.iter().filter(|service| service.selection.lfs) {
            let of_it =
                published.as_ref().map_err(|error| error.clone())?.iter().filter(|(name, _)| *name == service.name);
            let mut commits: Vec<_> = of_it.map(|(_, commit)| commit.clone()).collect();
            match revision::tip(&mirror, &service.revision, &mut Reach::default(), stop) {
                Ok(tip) => commits.push(tip.commit),
                Err(error @ (RevisionError::Unreadable { .. } | RevisionError::Interrupted)) => {
                    return Err(unclear(service, &error));
                }
                // The mirror is whole, and what is followed is not there: nothing can be built of it.
                Err(_) => {}
            }
            for commit in commits {
                if let Err(RevisionError::CommitMissing(_)) = revision::look_up(&mirror, &commit) {
                    continue;
                }
                let key = content_key(&mirror, &commit, &self.repository, &service.selection);
                if key.is_ok_and(|key| !known.insert(key)) {
                    continue;
                }
                match lfs_files(&mirror, &commit, &service.selection, &self.shared.limits, stop) {
                    Ok(files) => needed.extend(files.into_iter().map(|file| file.pointer.oid)),
                    Err(
                        error @ (TarballError::Object { .. }
                        | TarballError::Malformed { .. }
                        | TarballError::Interrupted),
                    ) => return Err(unclear(service, &error)),
                    // Without the folder, say, there is nothing to be built.
                    Err(_) => {}
                }
            }
        }
        Ok(needed)
    }
}
