//! Garbage collection of LFS objects.
//!
//! An object is needed by a service with `lfs` if its current version, a retained version or the current commit of its
//! ref refers to it: these are the versions that may be built. If a ref or a commit cannot be read, nothing is removed,
//! because a later fetch may bring it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use weir_git::lfs::{LfsOid, LfsUsage};
use weir_git::revision::{self, ReachabilityCache, RevisionError};
use weir_git::tree::{content_key, lfs_files};
use weir_tarball::TarballError;

use super::GitSource;
use crate::{RetainedRevisions, Service, ServiceFailure};

/// Partial downloads above this age belong to a killed process.
const PARTIAL_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

impl GitSource {
    /// Removes objects that no service needs and that are older than `grace_period`. Returns the usage afterwards. Must
    /// not be called while the repository is being cloned again: its mirror does not know all needed objects.
    pub(super) fn collect_lfs_garbage(
        &self,
        services: &[Arc<Service>],
        published: &RetainedRevisions,
        grace_period: Duration,
        stop: &AtomicBool,
    ) -> Result<LfsUsage, ServiceFailure> {
        let (objects, failed) =
            (self.mirror.lfs_objects(), |error: io::Error| ServiceFailure::transient("lfs", error.to_string()));
        let before = SystemTime::now().checked_sub(grace_period).unwrap_or(SystemTime::UNIX_EPOCH);
        let partial_before = SystemTime::now().checked_sub(PARTIAL_MAX_AGE).unwrap_or(SystemTime::UNIX_EPOCH);
        objects.remove_partial(partial_before).map_err(failed)?;
        let usage = objects.usage().map_err(failed)?;
        if usage.objects == 0 {
            return Ok(usage);
        }
        let needed = self.needed(services, published, stop)?;
        let (removed, remaining) = objects.remove_except(&needed, before).map_err(failed)?;
        if removed.objects > 0 {
            let LfsUsage { objects, bytes } = removed;
            tracing::info!(repository = %self.repository, objects, bytes, "removed LFS objects that no service needs");
        }
        Ok(remaining)
    }

    fn needed(
        &self,
        services: &[Arc<Service>],
        published: &RetainedRevisions,
        stop: &AtomicBool,
    ) -> Result<HashSet<LfsOid>, ServiceFailure> {
        let mirror = self.open()?;
        let unknown = |service: &Service, error: &dyn std::fmt::Display| {
            ServiceFailure::transient(
                "lfs",
                format!("the LFS objects of service `{}` are unknown: {error}", service.name),
            )
        };
        let (mut needed, mut known) = (HashSet::new(), HashSet::new());
        for service in services.iter().filter(|service| service.selection.lfs) {
            let versions = published.as_ref().map_err(Clone::clone)?.iter().filter(|(name, _)| *name == service.name);
            let mut commits: Vec<_> = versions.filter_map(|(_, revision)| revision.commit()).collect();
            let followed = Self::revision_of(&service.followed)?;
            match revision::tip(&mirror, followed, &mut ReachabilityCache::default(), stop) {
                Ok(tip) => commits.push(tip.commit),
                Err(error @ (RevisionError::Unreadable { .. } | RevisionError::Interrupted)) => {
                    return Err(unknown(service, &error));
                }
                // The mirror is intact and lacks the revision, so nothing can be built from it.
                Err(_) => {}
            }
            for commit in commits {
                if let Err(RevisionError::CommitMissing(_)) = revision::find_commit(&mirror, &commit) {
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
                    ) => return Err(unknown(service, &error)),
                    // Nothing can be built, for example because the folder is missing.
                    Err(_) => {}
                }
            }
        }
        Ok(needed)
    }
}
