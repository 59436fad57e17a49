//! Metrics of the catalog, counted when they are collected.

use std::sync::Arc;
use std::time::SystemTime;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use super::{Catalog, DefinedBy, Snapshot};
use crate::lost_definitions::LostDefinitions;
use crate::service::Condition;

/// Counts repositories and services by state.
pub(crate) struct CatalogCollector {
    catalog: Arc<Catalog>,
    lost_definitions: LostDefinitions,
    /// By kind (`repository`, `service`) and author (`file`, `api`).
    objects: IntGaugeVec,
    /// By kind (`repository`, `service`).
    refused: IntGaugeVec,
    services: IntGauge,
    unpublished: IntGauge,
    unhealthy: IntGauge,
    definitions_missing: IntGauge,
}

impl CatalogCollector {
    pub(crate) fn register(
        registry: &Registry,
        catalog: Arc<Catalog>,
        lost_definitions: LostDefinitions,
    ) -> prometheus::Result<()> {
        let gauges = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        registry.register(Box::new(Self {
            catalog,
            lost_definitions,
            objects: gauges(
                "weir_origin_catalog_objects",
                "Repositories and services that are defined, by kind (repository, service) and by whom (file, api).",
                &["kind", "defined_by"],
            )?,
            refused: gauges(
                "weir_origin_catalog_refused",
                "Documents that are stored and refused by the rules of now, by kind (repository, service): /status says why.",
                &["kind"],
            )?,
            services: IntGauge::new("weir_origin_services", "Services that are configured.")?,
            unpublished: IntGauge::new(
                "weir_origin_services_unpublished",
                "Services of which nothing was ever published.",
            )?,
            unhealthy: IntGauge::new(
                "weir_origin_services_unhealthy",
                "Services that cannot follow their ref, or are pinned to what cannot be had; /status says which and why.",
            )?,
            definitions_missing: IntGauge::new(
                "weir_origin_definitions_missing",
                "1 while the store is new and holds nothing that operators defined, or a repository has objects and no record, \
                 as after a loss of data: requests for unknown services are answered with 503.",
            )?,
        }))
    }

    fn count(&self, snapshot: &Snapshot) {
        let Snapshot { definitions, not_mirrored, services, .. } = snapshot;
        for by in DefinedBy::ALL {
            let repositories = definitions.repositories.values().filter(|each| each.by == by).count();
            let services = definitions.services.values().filter(|each| each.by == by).count();
            self.objects.with_label_values(&["repository", by.as_str()]).set(number(repositories));
            self.objects.with_label_values(&["service", by.as_str()]).set(number(services));
        }
        let refused = definitions.services.values().filter(|each| each.document.refused().is_some()).count();
        self.refused.with_label_values(&["repository"]).set(number(not_mirrored.size()));
        self.refused.with_label_values(&["service"]).set(number(refused));
        self.services.set(number(services.size()));
        self.unpublished.set(number(services.values().filter(|service| service.current().is_none()).count()));
        let is_unhealthy =
            |condition: Condition| matches!(condition, Condition::Unhealthy { .. }) || condition.lost().is_some();
        self.unhealthy.set(number(services.values().filter(|service| is_unhealthy(service.condition())).count()));
        let lost = &self.lost_definitions;
        let missing = lost.is_store_new(snapshot, SystemTime::now()) || lost.without_record() > 0;
        self.definitions_missing.set(missing.into());
    }

    fn families(&self) -> [&dyn Collector; 6] {
        [&self.objects, &self.refused, &self.services, &self.unpublished, &self.unhealthy, &self.definitions_missing]
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Collector for CatalogCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.families().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.count(&self.catalog.snapshot());
        self.families().into_iter().flat_map(Collector::collect).collect()
    }
}
