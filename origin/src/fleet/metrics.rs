//! Metrics of agents, assignments and issuers.

use prometheus::{IntGauge, IntGaugeVec};
use weir_protocol::access_list::{Entries, Fleet};
use weir_runtime::metric_families;
use weir_upstream::DefinedBy;

use super::fleet_entry::FleetEntry;

metric_families! {
    /// The families of agents, assignments and issuers.
    pub(crate) struct FleetMetrics {
        /// Agents, assignments and issuers that are defined. A document of the API that the file overrides is not counted.
        entries: IntGaugeVec = "weir_origin_fleet_entries"
            { kind: ["agents", "assignments", "issuers"], defined_by: ["file", "api"] };
        /// 1 while the records of agents, assignments and issuers can be read. At 0 edges use what they have, and operators
        /// cannot change anything.
        pub(super) readable: IntGauge = "weir_origin_fleet_readable";
    }
}

impl FleetMetrics {
    pub(super) fn set(&self, fleet: &Fleet) {
        fn of<T: FleetEntry>(metrics: &FleetMetrics, entries: &Entries<T>) {
            let (file, all) = (entries.file().count(), entries.iter().count());
            for (by, count) in [(DefinedBy::File, file), (DefinedBy::Api, all - file)] {
                let gauge = metrics.entries.with_label_values(&[T::KIND, by.as_str()]);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        of(self, &fleet.agents);
        of(self, &fleet.assignments);
        of(self, &fleet.issuers);
    }
}
