//! Versions that an operator holds.

use std::sync::{PoisonError, RwLockWriteGuard};
use std::time::SystemTime;

use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;

use super::Publisher;
use crate::publication::{Order, OrderError};
use crate::service::Service;

impl Publisher {
    /// Pins a service to a digest, the current one (`None`) or a retained one, which is published under a new
    /// generation. Whether its blob is good is the caller's to see to.
    pub(crate) fn pin(
        &self,
        service: &Service,
        order: &Order<'_>,
        digest: Option<&TarballDigest>,
    ) -> Result<(), OrderError> {
        let _alone = self.alone_with(service)?;
        let pinned = self.state.pin(order, digest, self.generation_floor);
        let pinned = pinned.inspect_err(|error| self.doubt_after(error, service))?;
        // First: who sees the new generation sees why.
        service.pinned(pinned.since);
        self.show(service, pinned.change);
        Ok(())
    }

    /// Whether what a service is pinned to, and was lost, is there again.
    pub(crate) fn look_for_lost(&self, service: &Service) {
        if service.condition().lost().is_some()
            && let Some(held) = service.current()
            && let Some(zstd) = held.representation(Encoding::Zstd)
            && self.blobs.contains(&zstd.digest, zstd.size)
        {
            service.found_its_blob();
        }
    }

    /// Lets a service follow its ref again, from its repository's next look on. False: it was not pinned.
    pub(crate) fn unpin(&self, service: &Service, order: &Order<'_>) -> Result<bool, OrderError> {
        let _alone = self.alone_with(service)?;
        let was_pinned = self.state.unpin(order).inspect_err(|error| self.doubt_after(error, service))?;
        service.unpinned();
        Ok(was_pinned)
    }

    /// Nobody else publishes or pins meanwhile, so that what is durable and what is shown change together.
    fn alone_with(&self, service: &Service) -> Result<RwLockWriteGuard<'_, ()>, OrderError> {
        let alone = self.order.write().unwrap_or_else(PoisonError::into_inner);
        if service.is_withdrawn() {
            return Err(OrderError::Withdrawn(service.name.clone()));
        }
        self.retire_the_rest(SystemTime::now())?;
        self.be_sure_of(service)?;
        Ok(alone)
    }
}
