//! Metrics of agents, assignments and issuers.

use prometheus::{IntGauge, IntGaugeVec};
use weir_protocol::access_list::Table;
use weir_runtime::metric_families;
use weir_upstream::DefinedBy;

use super::fleet_entry::{FleetEntry, Tables};

metric_families! {
    /// The families of agents, assignments and issuers.
    pub(crate) struct FleetMetrics {
        /// Agents, assignments and issuers that are defined. A document of the API that the file overrides is not counted.
        entries: IntGaugeVec = "weir_origin_fleet_entries"
            { kind: ["agents", "assignments", "issuers"], defined_by: ["file", "api"] };
        /// 1 while the records of agents, assignments and issuers can be read. At 0 edges use what they have, and operators
        /// cannot change anything.
        pub(super) readable: IntGauge = "weir_origin_fleet_readable";
        /// 1 while a kind has more documents than the lists of edges can have. They are left out then, and edges use the
        /// documents of that kind that they have.
        pub(crate) left_out: IntGaugeVec = "weir_origin_fleet_left_out" { kind: ["agents", "assignments", "issuers"] };
    }
}

impl FleetMetrics {
    pub(super) fn set(&self, tables: &Tables) {
        fn of<T: FleetEntry>(metrics: &FleetMetrics, table: &Table<T>) {
            let overridden = table.file().filter(|entry| table.document(entry.name()).is_some()).count();
            for (by, count) in [(DefinedBy::File, table.file().len()), (DefinedBy::Api, table.len() - overridden)] {
                let gauge = metrics.entries.with_label_values(&[T::KIND, by.as_str()]);
                gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        of(self, &tables.agents);
        of(self, &tables.assignments);
        of(self, &tables.issuers);
    }
}
