//! How many services are published and well: for the gauges.

use std::sync::Arc;

use crate::metrics::Metrics;
use crate::service::{Condition, Service};

/// Counts services when something about one changed.
pub(crate) struct Census {
    services: Vec<Arc<Service>>,
    metrics: Metrics,
}

impl Census {
    /// A census of these services.
    pub(crate) fn new(services: Vec<Arc<Service>>, metrics: Metrics) -> Self {
        let census = Self { services, metrics };
        census.count();
        census
    }

    /// Counts them all anew.
    pub(crate) fn count(&self) {
        let count = |is: fn(&Service) -> bool| self.services.iter().filter(|service| is(service)).count() as i64;
        self.metrics.services.set(self.services.len() as i64);
        self.metrics.services_unpublished.set(count(|service| service.current().is_none()));
        self.metrics
            .services_unhealthy
            .set(count(|service| matches!(service.condition(), Condition::Unhealthy { .. })));
    }
}
