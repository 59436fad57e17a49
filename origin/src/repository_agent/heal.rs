//! Building a blob again that is missing, or whose bytes were found to be wrong.

use std::sync::Arc;
use std::time::SystemTime;

use weir_shared::digest::BlobDigest;

use super::handle::Heal;
use super::lfs::Who;
use super::task::Task;
use crate::publication::Reference;
use crate::service::Service;

impl Task {
    /// Tries to have a blob again, and tells so. When LFS objects have to be fetched for it, that is later.
    pub(super) async fn heal(&mut self, heal: Heal) {
        // Who does not wait any more asks again; a build that fails each time must not be queued behind itself.
        if heal.done.is_closed() {
            return;
        }
        if self.was_tried(&heal.blob).await {
            let _ = heal.done.send(());
        } else {
            self.heal_later(heal);
        }
        self.settle_lfs();
    }

    /// From the commit of the descriptor that names the blob; when that gives another content or nothing, from the gzip form;
    /// and when there is none, by bringing the service to where its ref is. False: it waits for LFS objects.
    async fn was_tried(&mut self, blob: &BlobDigest) -> bool {
        let Some(reference) = self.reference(*blob).await.map(Arc::new) else { return true };
        let descriptor = &reference.descriptor;
        let publication = descriptor.publication();
        let stored = descriptor.representations().iter().find(|representation| representation.digest == *blob);
        if stored.is_some_and(|stored| self.crew.publisher.blobs().contains(blob, stored.size)) {
            // Whoever asked before got it healed.
            if let Some(service) = self.services.iter().find(|service| service.name == publication.service) {
                self.crew.publisher.look_for_lost(service);
            }
            return true;
        }
        let Some(service) = self.services.iter().find(|service| service.name == publication.service).cloned() else {
            return true;
        };
        let (rebuilt, stated) = (service.clone(), reference.clone());
        let result = match self.has_lfs(Who::Blob(*blob), &service, &publication.commit, true).await {
            Ok(true) => self.at_the_workshop(&service, move |at, stop| at.rebuild(&rebuilt, &stated, stop)).await,
            Ok(false) => return false,
            Err(failure) => Err(failure),
        };
        let mut why = "its commit gives another content by how the service is configured now".to_owned();
        let healed = match result {
            Ok(true) => true,
            Ok(false) if self.recoded(&service, &reference).await => true,
            Ok(false) if reference.current => self.brought_up(&service).await,
            // What is whole may be made of it another time, as when there is room.
            Ok(false) if self.crew.publisher.has_gzip(&reference.descriptor) => false,
            Ok(false) => {
                self.forget(reference.clone()).await;
                false
            }
            Err(failure) => {
                let reason = self.crew.data_dir.redact(&failure.reason);
                self.mend_mirror();
                tracing::warn!(%blob, step = failure.step, reason, "a blob cannot be built again");
                why = reason;
                self.recoded(&service, &reference).await || (reference.current && self.brought_up(&service).await)
            }
        };
        self.tell_of_a_pinned(&service, &reference, if healed { Ok(()) } else { Err(why) });
        let label = if healed { "healed" } else { "failed" };
        self.crew.metrics.blob_heals.with_label_values(&[label]).inc();
        tracing::info!(service = %service.name, %blob, result = label, "a blob was missing or corrupt");
        true
    }

    /// Makes the zstd form from the gzip form, where Git cannot bring it back as it was. Its bytes may be others then, so that
    /// the version names another blob.
    async fn recoded(&self, service: &Arc<Service>, reference: &Reference) -> bool {
        let descriptor = &reference.descriptor;
        if !self.crew.publisher.has_gzip(descriptor) {
            return false;
        }
        let (version, of) = (descriptor.publication().digest, service.clone());
        let made = self.at_the_workshop(service, move |at, _| at.zstd_from_gzip(&of, &version)).await;
        if let Err(failure) = &made {
            let reason = self.crew.data_dir.redact(&failure.reason);
            tracing::warn!(service = %service.name, %version, reason, "a blob cannot be made from the gzip form");
        }
        made.is_ok()
    }

    /// A service that is pinned to what cannot be had is not well: no look at its ref brings it on.
    fn tell_of_a_pinned(&mut self, service: &Service, reference: &Reference, healed: Result<(), String>) {
        if !(reference.current && service.is_pinned()) {
            return;
        }
        match healed {
            Ok(()) => service.found_its_blob(),
            // What the mirror will hold is not known yet.
            Err(_) if !self.state.borrow().mirrored => {}
            Err(why) => {
                let reason =
                    format!("a blob of the version that it is pinned to is lost, and cannot be made again: {why}");
                service.lost_its_blob(reason, SystemTime::now());
                self.unsettled = true;
            }
        }
        self.crew.census.count();
    }

    /// Brings a service to where its ref is; whether its current blob is there then.
    async fn brought_up(&mut self, service: &Arc<Service>) -> bool {
        let quietly = !self.state.borrow().mirrored;
        self.pass(std::slice::from_ref(service), quietly).await;
        let publisher = &self.crew.publisher;
        service.current().is_some_and(|current| {
            current.representations().iter().all(|stored| publisher.blobs().contains(&stored.digest, stored.size))
        })
    }

    /// Of its own services alone: those of other repositories may hold the same blob.
    async fn reference(&self, blob: BlobDigest) -> Option<Reference> {
        let (publisher, services) = (self.crew.publisher.clone(), self.services.clone());
        let own = move |name: &str| services.iter().any(|service| service.name.as_str() == name);
        let read = tokio::task::spawn_blocking(move || publisher.reference(&blob, own)).await;
        match read {
            Ok(Ok(reference)) => reference,
            Ok(Err(error)) => {
                tracing::warn!(%error, "whose blob it is cannot be read");
                None
            }
            Err(_) => None,
        }
    }

    async fn forget(&self, reference: Arc<Reference>) {
        let publisher = self.crew.publisher.clone();
        let forgotten = tokio::task::spawn_blocking(move || publisher.forget_superseded(&reference.descriptor)).await;
        if let Ok(Err(error)) = forgotten {
            tracing::warn!(%error, "a superseded version cannot be dropped");
        }
    }
}
