//! Gauges with one series per service, or one series that aggregates all services.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::GaugeVec;
use weir_protocol::name::ServiceName;

/// A family. It has no series before its first service.
#[derive(Clone)]
pub(super) struct ServiceGauges {
    shown: GaugeVec,
    by_service: bool,
    /// Aggregates the values of two services.
    fold: fn(f64, f64) -> f64,
    values: Arc<Mutex<BTreeMap<ServiceName, f64>>>,
}

/// The gauge of one service, initially 0.
#[derive(Clone)]
pub(crate) struct ServiceGauge {
    family: ServiceGauges,
    service: ServiceName,
}

impl ServiceGauges {
    pub(super) fn new(shown: GaugeVec, by_service: bool, fold: fn(f64, f64) -> f64) -> Self {
        Self { shown, by_service, fold, values: Arc::default() }
    }

    pub(super) fn of(&self, service: &ServiceName) -> ServiceGauge {
        self.change(service, |_| {});
        ServiceGauge { family: self.clone(), service: service.clone() }
    }

    /// Removes the value of a service.
    pub(super) fn forget(&self, service: &ServiceName) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if values.remove(service).is_none() {
            return;
        }
        let shown = if self.by_service { vec![service.as_str()] } else { Vec::new() };
        match values.values().copied().reduce(self.fold).filter(|_| !self.by_service) {
            Some(all) => self.shown.with_label_values(&shown).set(all),
            // It has a series, because it had a value.
            None => drop(self.shown.remove_label_values(&shown)),
        }
    }

    fn change(&self, service: &ServiceName, change: impl FnOnce(&mut f64)) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let value = values.entry(service.clone()).or_default();
        change(value);
        if self.by_service {
            self.shown.with_label_values(&[service.as_str()]).set(*value);
        } else if let Some(all) = values.values().copied().reduce(self.fold) {
            self.shown.with_label_values::<&str>(&[]).set(all);
        }
    }
}

impl ServiceGauge {
    pub(crate) fn set(&self, value: f64) {
        self.family.change(&self.service, |own| *own = value);
    }
}
