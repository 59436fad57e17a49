//! Metrics of the catalog, counted when they are collected.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, IntGauge, IntGaugeVec, Registry};
use weir_protocol::name::ServiceName;
use weir_protocol::token::unix_seconds;
use weir_runtime::metric_families;
use weir_source::Condition;
use weir_upstream::DefinedBy;

use super::{Catalog, Snapshot};
use crate::lost_definitions::LostDefinitions;

metric_families! {
    /// The families of the catalog.
    pub(crate) struct CatalogMetrics {
        /// Repositories and services that are defined, by the file or by operators.
        objects: IntGaugeVec = "weir_origin_catalog_objects" { kind: ["repository", "service"], defined_by: ["file", "api"] };
        /// Stored definitions that this version rejects, and repositories that are not mirrored because of one. `/status` has
        /// the reason.
        refused: IntGaugeVec = "weir_origin_catalog_refused" { kind: ["repository", "service"] };
        /// Configured services.
        services: IntGauge = "weir_origin_services";
        /// Services that were never published.
        unpublished: IntGauge = "weir_origin_services_unpublished";
        /// Services that cannot follow their ref, or are pinned to a version that cannot be served. `/status` has the reason.
        unhealthy: IntGauge = "weir_origin_services_unhealthy";
        /// When a service was pinned, in Unix seconds, at the origin that owns its repository. Only pinned services have it.
        pinned: GaugeVec = "weir_origin_service_pinned_timestamp_seconds" { service };
        /// 1 while data may have been lost: an edge has a service of which the store has no trace and operators have defined
        /// nothing, or a repository has objects and no record. Requests for unknown services get 503. Alert on 1.
        definitions_missing: IntGauge = "weir_origin_definitions_missing";
    }
}

/// Counts repositories and services by state.
pub(crate) struct CatalogCollector {
    catalog: Arc<Catalog>,
    lost_definitions: LostDefinitions,
    metrics: CatalogMetrics,
    /// The services that have a time of their pin.
    pinned: Mutex<BTreeSet<ServiceName>>,
}

impl CatalogCollector {
    pub(crate) fn register(
        registry: &Registry,
        catalog: Arc<Catalog>,
        lost_definitions: LostDefinitions,
    ) -> prometheus::Result<()> {
        let (metrics, pinned) = (CatalogMetrics::build("")?, Mutex::default());
        registry.register(Box::new(Self { catalog, lost_definitions, metrics, pinned }))
    }

    fn count(&self, snapshot: &Snapshot) {
        let Snapshot { definitions, not_mirrored, services, .. } = snapshot;
        for by in DefinedBy::ALL {
            let repositories = definitions.repositories.values().filter(|each| each.by == by).count();
            let services = definitions.services.values().filter(|each| each.by == by).count();
            self.metrics.objects.with_label_values(&["repository", by.as_str()]).set(number(repositories));
            self.metrics.objects.with_label_values(&["service", by.as_str()]).set(number(services));
        }
        let refused = definitions.services.values().filter(|each| each.document.refused().is_some()).count();
        self.metrics.refused.with_label_values(&["repository"]).set(number(not_mirrored.size()));
        self.metrics.refused.with_label_values(&["service"]).set(number(refused));
        self.metrics.services.set(number(services.size()));
        self.metrics.unpublished.set(number(services.values().filter(|service| service.current().is_none()).count()));
        let is_unhealthy =
            |condition: Condition| matches!(condition, Condition::Unhealthy { .. }) || condition.lost().is_some();
        self.metrics
            .unhealthy
            .set(number(services.values().filter(|service| is_unhealthy(service.condition())).count()));
        self.show_pins(snapshot);
        let lost = &self.lost_definitions;
        let missing = lost.is_suspected() || lost.without_record() > 0;
        self.metrics.definitions_missing.set(missing.into());
    }

    fn show_pins(&self, snapshot: &Snapshot) {
        // Two collections at a time would remove each other's series.
        let mut shown = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *shown);
        for service in snapshot.services.values().filter(|it| snapshot.owns(&it.repository)) {
            if let Condition::Pinned { pin, .. } = service.condition() {
                let gauge = self.metrics.pinned.with_label_values(&[service.name.as_str()]);
                #[expect(clippy::cast_precision_loss, reason = "seconds")]
                gauge.set(unix_seconds(pin.since) as f64);
                shown.insert(service.name.clone());
            }
        }
        for gone in before.difference(&shown) {
            // A missing series is no error.
            let _ = self.metrics.pinned.remove_label_values(&[gone.as_str()]);
        }
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Collector for CatalogCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.metrics.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.count(&self.catalog.snapshot());
        self.metrics.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}
