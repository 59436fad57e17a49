//! The families of all parts of an origin.

use weir_publish::PublishMetrics;
use weir_runtime::bounds::BoundMetrics;
use weir_runtime::metric_families::Family;
use weir_runtime::serve::AccessLog;
use weir_source::SourceMetrics;
use weir_store::StoreMetrics;

use crate::catalog::CatalogMetrics;
use crate::certificates::CertificateMetrics;
use crate::cluster::ClusterMetrics;
use crate::fleet::FleetMetrics;
use crate::freezes::FreezeMetrics;
use crate::member_client::MemberMetrics;
use crate::metrics::OriginMetrics;
use crate::names::NameMetrics;
use crate::operator_api::OperatorMetrics;
use crate::plans::PlanMetrics;
use crate::rollouts::RolloutMetrics;

/// The table of an origin's families, for the reference.
pub fn families() -> Vec<Family> {
    let own = [
        OriginMetrics::FAMILIES,
        SourceMetrics::FAMILIES,
        CatalogMetrics::FAMILIES,
        PublishMetrics::FAMILIES,
        StoreMetrics::FAMILIES,
        ClusterMetrics::FAMILIES,
        NameMetrics::FAMILIES,
        FleetMetrics::FAMILIES,
        FreezeMetrics::FAMILIES,
        PlanMetrics::FAMILIES,
        RolloutMetrics::FAMILIES,
    ];
    let of_listeners =
        [OperatorMetrics::FAMILIES, CertificateMetrics::FAMILIES, BoundMetrics::FAMILIES, AccessLog::families()];
    [own.concat(), of_listeners.concat(), MemberMetrics::FAMILIES.to_vec()].concat()
}
