//! How many services are published and well: for the gauges.

use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics::Metrics;
use crate::service::{Condition, Service};

/// Counts services when something about one changed.
pub(crate) struct Census {
    services: Mutex<Vec<Arc<Service>>>,
    metrics: Metrics,
}

impl Census {
    /// A census of no services yet.
    pub(crate) fn new(metrics: Metrics) -> Self {
        Self { services: Mutex::default(), metrics }
    }

    /// These are the services from now on.
    pub(crate) fn replace(&self, services: Vec<Arc<Service>>) {
        *self.services.lock().unwrap_or_else(PoisonError::into_inner) = services;
        self.count();
    }

    /// Counts them all anew.
    pub(crate) fn count(&self) {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |is: fn(&Service) -> bool| services.iter().filter(|service| is(service)).count() as i64;
        self.metrics.services.set(services.len() as i64);
        self.metrics.services_unpublished.set(count(|service| service.current().is_none()));
        let is_ill =
            |condition: Condition| matches!(condition, Condition::Unhealthy { .. }) || condition.lost().is_some();
        let ill = services.iter().filter(|service| is_ill(service.condition())).count();
        self.metrics.services_unhealthy.set(ill as i64);
    }
}
