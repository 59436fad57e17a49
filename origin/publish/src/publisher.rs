//! The publisher: the parts of publishing, and the changes that need no other part than the repository that they are of.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_source::Service;

use super::decide::draft::Draft;
use super::error::{PublishError, VersionChangeError};
use super::freezes::Freezes;
use super::plans::Plans;
use super::read::queries::Queries;
use super::read::reloads::Reloads;
use super::request::{Author, DefinitionChange, VersionChange};
use super::stored::history_line::{Line, Tip};
use super::stored::row::{Definition, Row, unix_milliseconds};
use super::stored::store_identity::StoreIdentity;
use super::write::deltas::Deltas;
use super::write::mirror::Mirrors;
use super::write::ownership::Ownership;
use super::write::repositories::Repositories;
use super::write::writer::Request;

/// The most refs whose last tip the record has. Beyond it, a tip may be stored twice.
const MAX_REFS: usize = 1_000;

/// Publishes, and changes versions and definitions. A method that writes returns when the change is durable and
/// visible. If the caller gives up, the change is completed anyway.
pub struct Publisher {
    /// What is known of each repository.
    pub repositories: Arc<Repositories>,
    /// What is read of what they have stored.
    pub queries: Queries,
    /// Which of them this origin writes.
    pub ownership: Ownership,
    /// Those that were read again.
    pub reloads: Reloads,
    /// Deltas of their current versions.
    pub deltas: Deltas,
    /// Their stored mirrors.
    pub mirrors: Mirrors,
    /// The plans that services may name.
    pub plans: Plans,
    /// The services of which nothing new is published now.
    pub freezes: Freezes,
    /// The store.
    pub identity: StoreIdentity,
}

/// A tip at which not all services of its ref published something.
#[derive(Debug, Clone)]
pub struct SeenTip {
    /// The ref.
    pub followed_ref: String,
    /// Its tip.
    pub revision_id: RevisionId,
    /// The services of the ref with what was published of them when it was seen.
    pub in_force: Vec<(ServiceName, Generation)>,
}

impl Publisher {
    /// Pins a service to a digest: the current one (`None`), or a retained one, which is published under a new
    /// generation. The caller must check that its objects can be read.
    pub async fn pin(
        &self,
        service: &Arc<Service>,
        digest: Option<&TarballDigest>,
        change: VersionChange,
    ) -> Result<(), VersionChangeError> {
        let (owned, digest) = (service.clone(), digest.copied());
        let pin = move |draft: &mut Draft<'_>| draft.pin(&owned, digest.as_ref(), &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], pin).await
    }

    /// Lets a service follow its ref again. Returns false if it was not pinned.
    pub async fn unpin(&self, service: &Arc<Service>, change: VersionChange) -> Result<bool, VersionChangeError> {
        let owned = service.clone();
        let unpin = move |draft: &mut Draft<'_>| draft.unpin(&owned, &change);
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], unpin).await
    }

    /// Drops a retained version whose objects are lost. If it is staged, that ends.
    pub async fn drop_version(&self, service: &Arc<Service>, digest: &TarballDigest) -> Result<(), PublishError> {
        let (owned, digest) = (service.clone(), *digest);
        let drop_lost = move |draft: &mut Draft<'_>| draft.drop_lost(&owned, &digest, SystemTime::now());
        self.repositories.handle(&service.repository).change(vec![service.name.clone()], drop_lost).await
    }

    /// Retires deleted services in one write; nothing more is published for them. Returns those that had a current
    /// version, with its generation.
    pub async fn retire(
        &self,
        repository: &RepositoryName,
        services: &[Arc<Service>],
        now: SystemTime,
    ) -> Result<HashMap<ServiceName, Generation>, PublishError> {
        services.iter().for_each(|service| service.withdraw());
        let names: Vec<ServiceName> = services.iter().map(|service| service.name.clone()).collect();
        // A service of another repository has moved there.
        let is_home = |service: &Arc<Service>| (service.name.clone(), service.repository == *repository);
        let gone: Vec<_> = services.iter().map(is_home).collect();
        let retire = move |draft: &mut Draft<'_>| {
            let mut retired = HashMap::new();
            for (service, is_home) in gone {
                let generation = draft.retire(&service, is_home, now)?;
                retired.extend(generation.map(|generation| (service, generation)));
            }
            Ok(retired)
        };
        self.repositories.handle(repository).edit(names, retire).await
    }

    /// Stores a change of operators' definitions. It ends what is staged of the changed services.
    pub async fn define(&self, repository: &RepositoryName, change: DefinitionChange) -> Result<(), PublishError> {
        let services: Vec<ServiceName> = change.services.iter().map(|(service, _)| service.clone()).collect();
        // The newest document of a service decides. What this origin has seen is older, whatever the clocks say.
        let seen = services
            .iter()
            .filter_map(|service| self.repositories.shared.homes.newest(service))
            .max()
            .unwrap_or_default();
        let now = SystemTime::now();
        let written_at = unix_milliseconds(now).max(seen.saturating_add(1));
        let define = move |draft: &mut Draft<'_>| {
            let mut rows = Vec::with_capacity(change.services.len());
            for (service, document) in change.services {
                let mut row = draft.row(&service)?;
                if row.is_moving && document.is_some() {
                    return Err(PublishError::Moving(service));
                }
                let is_same = row.definition.as_ref().map(|it| &it.document) == document.as_ref();
                let ended = if is_same { None } else { draft.ended(&row, now)? };
                // An abort is forgotten when the document changes.
                row.aborted = row.aborted.filter(|_| is_same);
                // What another repository stores is older than the generation that was passed on.
                let written_at = written_at.max(row.generation.saturating_add(1));
                row.definition = document.map(|document| Definition { written_at, document });
                rows.push((row, ended));
            }
            for (mut row, ended) in rows {
                if let Some(ended) = ended {
                    draft.publish_again(
                        &mut row,
                        &ended,
                        now,
                        Author::origin("the document of the service was changed"),
                    );
                }
                draft.put(row);
            }
            if let Some(document) = change.repository {
                draft.record.definition = document;
                draft.set_changed();
            }
            draft.record.operators_have_defined = true;
            Ok(())
        };
        self.repositories.handle(repository).edit(services, define).await
    }

    /// Withdraws services of an owned repository: from then on they are not published, rolled back, pinned or raised to the
    /// floor there, also by the next owner. Returns for each what its next repository publishes above. The rows are withdrawn
    /// in the one order of the writer, and only then the names are passed on: so two repositories never hold a service at once.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub async fn withdraw_services(
        &self,
        repository: &RepositoryName,
        services: Vec<ServiceName>,
    ) -> Result<Vec<Generation>, PublishError> {
        let handle =
            self.repositories.existing(repository).ok_or_else(|| PublishError::NotOwner(repository.clone()))?;
        let (of, names) = (handle.repository.clone(), services.clone());
        let withdraw = move |draft: &mut Draft<'_>| {
            of.withdrawals.fetch_add(1, Ordering::SeqCst);
            names.iter().map(|name| draft.withdraw(name, SystemTime::now())).collect()
        };
        handle.edit(services, withdraw).await
    }

    /// Lets an owned repository publish services whose names it took, above their last generations in others. `withdrawals`: as
    /// counted before that.
    ///
    /// # Errors
    /// A service was withdrawn since then, this origin does not own the repository, or the record cannot be
    /// written.
    pub async fn adopt(
        &self,
        repository: &RepositoryName,
        services: Vec<(ServiceName, Generation)>,
        withdrawals: u64,
    ) -> Result<(), PublishError> {
        let differs = |(service, last): &(ServiceName, Generation)| {
            let differs = self
                .repositories
                .known_service(repository, service, |known| known.is_moving || known.generation < *last);
            differs.unwrap_or(*last > 0)
        };
        let services: Vec<_> = services.into_iter().filter(differs).collect();
        let Some((first, _)) = services.first().cloned() else { return Ok(()) };
        let handle = self.repositories.handle(repository);
        let (of, names) = (handle.repository.clone(), services.iter().map(|(service, _)| service.clone()).collect());
        let adopt = move |draft: &mut Draft<'_>| {
            if of.withdrawals.load(Ordering::SeqCst) != withdrawals {
                return Err(PublishError::Moving(first));
            }
            services.iter().try_for_each(|(service, last)| draft.adopt(service, *last))
        };
        handle.edit(names, adopt).await
    }

    /// Writes the record of a repository as it is.
    ///
    /// # Errors
    /// This origin does not own the repository, or the record cannot be written.
    pub async fn confirm_ownership(&self, repository: &RepositoryName) -> Result<(), PublishError> {
        let write = |draft: &mut Draft<'_>| {
            draft.set_changed();
            Ok(())
        };
        self.repositories.handle(repository).edit(Vec::new(), write).await
    }

    /// Stores tips. One that is the last of its ref already is not stored again, and neither is one that a publication has
    /// overtaken: its line would say that this publication was in force at it.
    pub async fn add_tips(&self, repository: &RepositoryName, tips: Vec<SeenTip>) -> Result<(), PublishError> {
        let handle = self.repositories.handle(repository);
        let of_repository = handle.repository.clone();
        let add = move |draft: &mut Draft<'_>| {
            if draft.record.tips.len() >= MAX_REFS {
                draft.record.tips.clear();
            }
            for SeenTip { followed_ref, revision_id, in_force } in tips {
                let known = of_repository.known();
                let is_overtaken = in_force.iter().any(|(service, generation)| {
                    let written = || known.services.get(service).map(|known| known.generation_for_all);
                    let last = draft.rows.get(service).map(Row::generation_for_all).or_else(written);
                    last.is_some_and(|last| last > *generation)
                });
                if is_overtaken {
                    continue;
                }
                let last = draft.record.tips.insert(followed_ref.clone(), revision_id.clone());
                if last.as_ref() != Some(&revision_id) {
                    draft.lines.push(Line::Tip(Tip { tip: followed_ref, revision_id }));
                    draft.set_changed();
                }
            }
            Ok(())
        };
        handle.edit(Vec::new(), add).await
    }

    /// An operator accepts the readable state of a repository, and publishing goes on from there. Returns false if
    /// the repository was not suspended.
    ///
    /// # Errors
    /// The stored state is not the one that is served, or cannot be read or written.
    pub async fn confirm(&self, repository: &RepositoryName) -> Result<bool, PublishError> {
        let Some(handle) = self.repositories.existing(repository) else { return Ok(false) };
        handle.ask(Request::Confirm).await?
    }
}
