//! The plans of rollouts, as publications look them up.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use weir_protocol::name::RolloutName;
use weir_rollout::Plan;
use weir_source::Service;

use crate::error::PublishError;

/// The plans that services may name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Plans(Arc<RwLock<Arc<BTreeMap<RolloutName, Plan>>>>);

impl Plans {
    /// Replaces all plans. Rollouts in progress keep the plan that they began with.
    pub fn set(&self, plans: BTreeMap<RolloutName, Plan>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(plans);
    }

    fn all(&self) -> Arc<BTreeMap<RolloutName, Plan>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The plan by which new content of a service is staged. `None`: it is published for everybody.
    ///
    /// # Errors
    /// The plan is not defined: then nothing says who may have the content.
    pub(crate) fn of(&self, service: &Service) -> Result<Option<Plan>, PublishError> {
        let Some(name) = &service.rollout else { return Ok(None) };
        let unknown = || PublishError::NoSuchRollout { service: service.name.clone(), rollout: name.clone() };
        self.all().get(name).cloned().map(Some).ok_or_else(unknown)
    }
}
