//! Fetches the shards that the access list of an origin names and the edge lacks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::task::spawn_blocking;
use weir_cache::OriginError;
use weir_protocol::digest::ObjectDigest;

use crate::access::{Access, ShardOutcome};
use crate::origin_client::Origin;

/// Requests at a time: an edge far away is to have 64 shards within the second after which the next list may come.
const CONCURRENT: usize = 32;

/// The pause before what has failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Fetches all of them, unless one cannot be used: only a complete list applies. What came damaged is fetched again. What the origin
/// does not have any longer the next list does not name.
pub(super) async fn fetch(origin: Arc<Origin>, access: Access, mut lacking: BTreeSet<ObjectDigest>) {
    loop {
        let fetched = stream::iter(lacking).map(async |digest| (digest, one(&origin, &access, digest).await));
        let outcomes: Vec<_> = fetched.buffer_unordered(CONCURRENT).collect().await;
        if let Some((_, Err(error))) = outcomes.iter().find(|(_, outcome)| outcome.is_err()) {
            let origin = origin.name();
            tracing::warn!(origin, %error, "agents, assignments or issuers cannot be fetched; the previous ones apply");
        }
        if outcomes.iter().any(|(_, outcome)| matches!(outcome, Ok(ShardOutcome::Unusable))) {
            return;
        }
        let is_there = |outcome: &Result<_, _>| matches!(outcome, Ok(ShardOutcome::Added));
        lacking = outcomes.into_iter().filter(|(_, outcome)| !is_there(outcome)).map(|(digest, _)| digest).collect();
        if lacking.is_empty() {
            return;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn one(origin: &Origin, access: &Access, digest: ObjectDigest) -> Result<ShardOutcome, OriginError> {
    let json = origin.access_shard(&digest).await?;
    let (access, origin) = (access.clone(), origin.name().to_owned());
    let added = spawn_blocking(move || access.add_shard(&origin, &digest, &json));
    // Without it the edge stops.
    Ok(added.await.unwrap_or(ShardOutcome::Unusable))
}
