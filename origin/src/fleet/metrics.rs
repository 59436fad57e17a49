//! Metrics of agents, assignments and issuers.

use prometheus::{IntGauge, IntGaugeVec};
use weir_protocol::access_list::{Entry, Table};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
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
        /// 1 if a kind had more documents than an edge of an earlier release can take, when such an edge was sent the list last. They
        /// are left out for it, and it uses the documents of that kind that it has.
        pub(crate) left_out: IntGaugeVec = "weir_origin_fleet_left_out" { kind: ["agents", "assignments", "issuers"] };
    }
}

impl FleetMetrics {
    /// Notes which kinds are left out of whole lists now.
    pub(crate) fn set_left_out(&self, left_out: &[&str]) {
        for kind in [Agent::KIND, Assignment::KIND, Issuer::KIND] {
            let (gauge, is_left_out) = (self.left_out.with_label_values(&[kind]), left_out.contains(&kind));
            if is_left_out && gauge.get() == 0 {
                tracing::error!(
                    kind,
                    "edges of an earlier release do not get these documents, and use what they have: there are too many for them"
                );
            }
            gauge.set(is_left_out.into());
        }
    }

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
