//! The table of an edge's metric families: each component defines its own.

use weir_cache::CacheMetrics;
use weir_runtime::bounds::BoundMetrics;
use weir_runtime::metric_families::Family;
use weir_runtime::serve::AccessLog;

use crate::access::AccessFamilies;
use crate::agent_api::ApiFamilies;
use crate::catalog::CatalogMetrics;
use crate::heartbeats::HeartbeatFamilies;
use crate::observed::ObservedMetrics;
use crate::operator_api::PurgeMetrics;
use crate::origin_client::OriginMetrics;
use crate::origin_follower::FollowerMetrics;
use crate::peer_api::PeerMetrics;
use crate::reload::ReloadMetrics;
use crate::self_api::SelfMetrics;

/// The table of an edge's families, for the reference.
pub fn families() -> Vec<Family> {
    let of_agents = [ApiFamilies::FAMILIES, AccessFamilies::FAMILIES, CatalogMetrics::FAMILIES, CacheMetrics::FAMILIES];
    let of_origins = [OriginMetrics::FAMILIES, FollowerMetrics::FAMILIES];
    let others = [
        SelfMetrics::FAMILIES,
        ObservedMetrics::FAMILIES,
        HeartbeatFamilies::FAMILIES,
        PeerMetrics::FAMILIES,
        PurgeMetrics::FAMILIES,
        ReloadMetrics::FAMILIES,
        BoundMetrics::FAMILIES,
        AccessLog::families(),
    ];
    [of_agents.concat(), of_origins.concat(), others.concat()].concat()
}
