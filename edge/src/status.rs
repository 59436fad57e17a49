//! `/status` and `/readyz`: what a person and a probe want to know.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_shared::process::admin::Readiness;

use crate::blob_cache::BlobCache;
use crate::clock::Clock;
use crate::origin_client::Origins;
use crate::service_table::{Entry, Table};

/// Services that `/status` lists at the most.
const MAX_LISTED: usize = 1000;

/// What `/status` and `/readyz` look at.
pub(crate) struct Status {
    pub(crate) name: String,
    pub(crate) table: Arc<Table>,
    pub(crate) blobs: BlobCache,
    pub(crate) origins: Arc<Origins>,
    pub(crate) clock: Clock,
}

impl Status {
    /// An edge can work without its origins once it holds something; a new one has to have reached one.
    pub(crate) fn readiness(&self) -> Readiness {
        if self.origins.any_reached() || !self.table.is_empty() {
            return Ok(());
        }
        Err("nothing is held yet and no origin has been reached".to_owned())
    }

    pub(crate) fn document(&self) -> Value {
        let now = self.clock.now();
        let mut services = self.table.snapshot();
        services.sort_by(|(one, _), (other, _)| one.cmp(other));
        let total = services.len();
        let listed: Vec<Value> =
            services.iter().take(MAX_LISTED).map(|(name, entry)| self.service(name.as_str(), entry)).collect();
        json!({
            "name": self.name,
            "ready": self.readiness().is_ok(),
            "origins": self.origins.all().iter().enumerate().map(|(id, origin)| json!({
                "name": origin.name(),
                "up": origin.is_up(),
                "circuit": origin.circuit().as_str(),
                "last_error": origin.last_error(),
                "events_followed": self.table.vouch(id).is_in_step(),
                "last_heartbeat_seconds": self.table.vouch(id).last_heartbeat().map(|at| now.since(at).as_secs()),
            })).collect::<Vec<_>>(),
            "cache": self.blobs.usage(),
            "services_total": total,
            "services": listed,
        })
    }

    fn service(&self, name: &str, entry: &Entry) -> Value {
        let age = self.table.age(entry, self.clock.now());
        let origin = entry.origin.map(|id| &self.origins.all()[id]);
        let publication = entry.version.as_ref().map(|version| version.descriptor().publication());
        let why = match (publication, origin) {
            (None, _) if entry.is_unreadable => "what stands on disk cannot be read; the origin is asked",
            (None, _) => "the origin says that it is gone",
            (_, None) => "the origin it came from is no longer configured; all are asked",
            (_, Some(origin)) if !origin.is_up() => "the origin does not answer; what is held is served",
            _ if self.table.is_vouched_for(entry) => "the origin's event stream says that nothing has changed",
            _ => "as the origin last said",
        };
        json!({
            "service": name,
            "held": publication.is_some(),
            "digest": publication.map(|p| p.digest.to_string()),
            "commit": publication.map(|p| p.commit.to_string()),
            "size": publication.map(|p| p.size),
            "generation": entry.highest.0,
            "revision": entry.highest.1,
            "freshness": entry.rule.parameters.judge(age).as_str(),
            "age_seconds": age.as_secs(),
            "stale_seconds": entry.rule.parameters.stale_for(age),
            "origin": origin.map(|origin| origin.name()),
            "why": why,
        })
    }
}
