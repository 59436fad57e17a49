//! Writes that failed and may have landed all the same.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use weir_shared::name::ServiceName;

use super::Publisher;
use crate::publication::{Change, OrderError, StateError};
use crate::service::Service;

impl Publisher {
    pub(super) fn doubt_after(&self, error: &OrderError, service: &Service) {
        if matches!(error, OrderError::State(_)) {
            self.doubt(service);
        }
    }

    /// A write of a service failed, and may have landed all the same: the disk took it, and could not say so. What it
    /// holds is shown as soon as it can be read: now, or before the service is looked at next.
    pub(super) fn doubt(&self, service: &Service) {
        self.lock_doubted().insert(service.name.clone());
        if let Err(error) = self.be_sure_of(service) {
            tracing::warn!(service = %service.name, %error, "whether a write that failed has landed is not known yet");
        }
    }

    /// Shows what is stored of a service, when that may not be what is shown.
    pub(super) fn be_sure_of(&self, service: &Service) -> Result<(), StateError> {
        if !self.lock_doubted().contains(&service.name) {
            return Ok(());
        }
        let (current, pinned) = self.state.standing(&service.name)?;
        match pinned {
            Some(since) => service.pinned(since),
            None => service.unpinned(),
        }
        self.show(service, Change::Kept(current));
        self.lock_doubted().remove(&service.name);
        Ok(())
    }

    pub(super) fn lock_doubted(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
