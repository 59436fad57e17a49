//! Services that are deleted: nothing is published of them any more, also when that cannot be written at once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::SystemTime;

use weir_shared::descriptor::Generation;
use weir_shared::name::ServiceName;

use super::Publisher;
use crate::publication::StateError;
use crate::service::Service;

impl Publisher {
    /// Waits until nobody publishes any more who had looked whether a service is withdrawn before it was.
    pub(crate) fn let_publications_end(&self) {
        drop(self.order.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes services that were deleted out of what is current, all at once. Nothing is published of them after this.
    /// Returns those of which anything was published, each with its last generation. What cannot be written now is
    /// written before anything else is.
    pub(crate) fn retire(
        &self,
        services: &[Arc<Service>],
        now: SystemTime,
    ) -> Result<HashMap<ServiceName, Generation>, StateError> {
        services.iter().for_each(|service| service.withdraw());
        let _order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        self.lock_doubted().retain(|doubted| !services.iter().any(|service| service.name == *doubted));
        self.lock_unretired().extend(services.iter().map(|service| service.name.clone()));
        self.retire_the_rest(now)
    }

    /// A service may be defined again before it could be written that it was deleted: what was current then is not.
    pub(super) fn retire_the_rest(&self, now: SystemTime) -> Result<HashMap<ServiceName, Generation>, StateError> {
        let mut unretired = self.lock_unretired();
        if unretired.is_empty() {
            return Ok(HashMap::new());
        }
        let retired = self.state.retire(&unretired.iter().map(ServiceName::as_str), now)?;
        unretired.clear();
        Ok(retired.into_iter().collect())
    }

    pub(super) fn lock_unretired(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.unretired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
