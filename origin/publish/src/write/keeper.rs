//! Keeps the state of a repository in memory in step with what is stored. Only the [writer](super::writer) of the repository
//! has its keeper.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::EventKind;
use weir_store::Version;

use super::protection::Protection;
use super::repository::{Repository, Shared};
use crate::decide::draft::{Change, VisibleChange};
use crate::error::PublishError;
use crate::stored::known::{SuspendedUntil, Suspension};
use crate::stored::load::{Loaded, load};
use crate::stored::record::RepositoryRecord;
use crate::stored::row::Row;

pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) repository: Arc<Repository>,
}

/// A state whose objects are stored, ready to be written.
pub(crate) struct Prepared {
    pub(crate) record: RepositoryRecord,
    pub(crate) bytes: Bytes,
    pub(crate) rows: Vec<Row>,
    pub(crate) visible: Vec<VisibleChange>,
    pub(crate) dropped_versions: usize,
    /// Protect the objects until the record names them.
    pub(crate) _protections: Vec<Protection>,
}

impl Keeper {
    /// Whether this origin owns the repository now.
    pub(crate) fn may_write(&self) -> bool {
        self.repository.is_taken() && self.shared.validity.holds()
    }

    pub(crate) fn not_owner(&self) -> PublishError {
        PublishError::NotOwner(self.repository.name.clone())
    }

    /// Reads the stored state, but of its pages only those that are not known.
    pub(crate) async fn load(&self) -> Loaded {
        let pages = {
            let known = self.repository.known();
            // What is in memory may stand in for a damaged page.
            if known.suspension.is_none() { known.record.pages.clone() } else { Vec::new() }
        };
        let Shared { objects, records, .. } = &*self.shared;
        let mut loaded = load(objects, records, &self.repository.name, &pages).await;
        loaded.complete(&self.repository.known());
        loaded
    }

    /// Reads the stored state. After an error the one before stays.
    pub(crate) async fn read(&self) -> Result<(), PublishError> {
        let loaded = self.load().await;
        if let Some(failure) = loaded.problems.failures.first() {
            return Err(PublishError::Object(failure.clone()));
        }
        {
            let known = self.repository.known();
            if known.version.is_some() && loaded.known.version.is_none() {
                let damage = loaded.problems.damage.first().map_or("there is none any more", String::as_str);
                return Err(PublishError::Record(damage.to_owned()));
            }
            if known.version == loaded.known.version && known.suspension.is_none() && loaded.known.suspension.is_none()
            {
                return Ok(());
            }
        }
        self.replace_known(loaded);
        Ok(())
    }

    /// Suspends after damage during this run.
    pub(crate) fn suspend(&self, reason: &str) {
        let reason = format!("{reason}; restart the origin, compare, then confirm");
        self.suspend_for(Suspension { since: SystemTime::now(), reason, until: SuspendedUntil::Restarted });
    }

    pub(crate) fn suspend_for(&self, suspension: Suspension) {
        let reason = &suspension.reason;
        tracing::error!(repository = %self.repository.name, reason, "publishing is suspended for the repository");
        let before = self.repository.change_known().suspension.replace(suspension);
        self.shared.metrics.suspended_repositories.add(i64::from(before.is_none()));
    }

    pub(crate) fn refuse_suspended(&self) -> Result<(), PublishError> {
        let refused =
            |Suspension { reason, .. }| PublishError::Suspended { repository: self.repository.name.clone(), reason };
        self.repository.suspension().map_or(Ok(()), |suspension| Err(refused(suspension)))
    }

    pub(crate) fn replace_known(&self, Loaded { known: next, read, .. }: Loaded) {
        self.repository.unapplied.lock().unwrap_or_else(PoisonError::into_inner).extend(read);
        let mut known = self.repository.change_known();
        for service in known.services.keys().filter(|service| !next.services.contains_key(*service)) {
            self.shared.homes.set(service, &self.repository.name, None);
        }
        for (service, next) in &next.services {
            self.shared.homes.set(service, &self.repository.name, next.defined_at);
        }
        self.count_retained(known.retained(), next.retained());
        let suspended = i64::from(next.suspension.is_some()) - i64::from(known.suspension.is_some());
        self.shared.metrics.suspended_repositories.add(suspended);
        *known = next;
        // Counted before the suspension ends, so that no reader sees neither.
        let mut unapplied = self.shared.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
        unapplied.insert(self.repository.name.clone());
        self.repository.reloads.fetch_add(1, Ordering::SeqCst);
        drop(unapplied);
        drop(known);
        self.shared.reloaded.notify_one();
    }

    /// Takes over a state that has become durable.
    pub(crate) fn adopt(&self, prepared: Prepared, version: Version) {
        let now = std::time::Instant::now();
        {
            let mut known = self.repository.change_known();
            let before = known.retained();
            known.record = prepared.record;
            known.version = Some(version);
            for row in &prepared.rows {
                known.take(row, now);
                let written_at = row.definition.as_ref().map(|definition| definition.written_at);
                self.shared.homes.set(&row.service, &self.repository.name, written_at);
            }
            self.count_retained(before, known.retained());
        }
        {
            let mut unapplied = self.repository.unapplied.lock().unwrap_or_else(PoisonError::into_inner);
            for row in &prepared.rows {
                if let Some(definition) = unapplied.get_mut(&row.service) {
                    definition.clone_from(&row.definition);
                }
            }
        }
        let dropped = self.shared.metrics.expired_versions.with_label_values(&["versions"]);
        dropped.inc_by(prepared.dropped_versions as u64);
        self.repository.is_dirty.store(true, Ordering::Relaxed);
        prepared.visible.into_iter().for_each(|visible| self.show(visible));
    }

    fn count_retained(&self, before: usize, after: usize) {
        self.shared.metrics.retained_versions.add(after as i64 - before as i64);
    }

    /// Makes a durable change visible, and announces it to edges: in a cluster only as the owner, because an announcement
    /// claims that this origin follows the service.
    pub(crate) fn show(&self, VisibleChange { service, change }: VisibleChange) {
        let taken = self.repository.taken();
        let announce = |descriptor: &Descriptor| {
            if *taken {
                (self.shared.announce)(EventKind::Descriptor(descriptor.bytes().clone()));
            }
        };
        match change {
            Change::Pinned(pin) => service.pinned(pin),
            Change::Unpinned => service.unpinned(),
            Change::Current(descriptor) => service.show(descriptor, announce),
            Change::Revised(descriptor) => {
                self.shared.metrics.revisions.inc();
                tracing::info!(service = %service.name, descriptor_revision = descriptor.revision(), "revised");
                service.show(descriptor, announce);
            }
            Change::Published(descriptor) => {
                self.shared.metrics.publications.inc();
                let publication = descriptor.publication();
                tracing::info!(
                    service = %service.name,
                    generation = publication.generation,
                    commit = publication.commit.as_ref().map(tracing::field::display),
                    revision_id = %publication.revision_id,
                    digest = %publication.digest,
                    size = publication.size,
                    omitted = publication.omitted.len(),
                    "published"
                );
                service.show(descriptor, announce);
                if *taken {
                    self.shared.delta_queue.add(service);
                }
            }
        }
    }
}
