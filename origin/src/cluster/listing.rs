//! What the record store says about a cluster, for `weir-origin members`. It needs no running origin.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};
use prometheus::Registry;
use serde::Serialize;
use weir_ownership::{Claim, NodeRecord, NodeState};
use weir_protocol::name::{NodeName, RepositoryName};
use weir_publish::claim_of;
use weir_store::{RecordKey, Records, StoreMetrics};

use super::engine::StoredNode;
use crate::config::Config;

/// Records that are read at a time.
const CONCURRENT_READS: usize = 32;

/// The records of a cluster.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// Sorted by name.
    pub members: Vec<ListedMember>,
    /// Sorted by name.
    pub repositories: Vec<ListedRepository>,
    /// Records that cannot be read, and why.
    pub unreadable: BTreeMap<String, String>,
}

/// The record of a member. Whether its session lives only time can tell: then `renewals` grow. Members judge that without
/// the clocks of others.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ListedMember {
    /// Its name.
    pub name: NodeName,
    /// Where other members and edges reach it.
    pub url: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Active, draining, or left.
    pub state: NodeState,
    /// How often the session was renewed.
    pub renewals: u64,
    /// How long ago the session was renewed, in seconds, by the clocks of the member and of this machine. `None`: a member
    /// of an earlier version does not say.
    pub renewed_seconds_ago: Option<u64>,
    /// That is longer ago than half of the session's time to live: a renewal is missing.
    pub is_overdue: bool,
    /// How many repositories it owns by their records.
    pub repositories: usize,
}

/// The claim in the record of a repository.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ListedRepository {
    /// Its name.
    pub name: RepositoryName,
    /// The owner by the record. `None`: it was released.
    pub owner: Option<NodeName>,
    /// The fence of the claim.
    pub fence: u64,
    /// The session of the claim is that of the owner's record.
    pub is_current: bool,
}

/// Reads the records of the cluster.
///
/// # Errors
/// There is no section `[cluster]`, or the engine does not answer.
pub async fn list(config: &Config) -> anyhow::Result<Listing> {
    let cluster = config.cluster.as_ref();
    let cluster =
        cluster.ok_or_else(|| anyhow::anyhow!("there is no section [cluster]: this origin is the only one"))?;
    let metrics = StoreMetrics::register(&Registry::new())?;
    let records = Records::open_shared(cluster.shared_engine(&config.store).map_err(anyhow::Error::msg)?, metrics)
        .map_err(anyhow::Error::msg)?;
    let mut listing = Listing::default();
    let nodes = read(&records, "nodes/", &mut listing.unreadable, |_, bytes| {
        serde_json::from_slice::<StoredNode>(bytes).map_err(|error| error.to_string())
    });
    let (nodes, now) = (nodes.await?, SystemTime::now());
    let claims = read(&records, "repositories/", &mut listing.unreadable, |key, bytes| {
        let name: RepositoryName = key.name().parse().map_err(|error| format!("{error}"))?;
        let claim = claim_of(&name, bytes).map_err(|error| error.to_string())?;
        Ok((name, claim))
    });
    for (name, claim) in claims.await? {
        let Claim { owner, session, fence, is_released } = claim;
        let is_current = nodes
            .iter()
            .map(|stored| &stored.record)
            .any(|node| node.node == owner && node.session == session && node.state != NodeState::Left && !is_released);
        let owner = (!is_released).then_some(owner);
        listing.repositories.push(ListedRepository { name, owner, fence, is_current });
    }
    listing.members = nodes
        .into_iter()
        .map(|stored| {
            let owned = listing.repositories.iter().filter(|each| each.owner.as_ref() == Some(&stored.record.node));
            let repositories = owned.count();
            listed(stored, repositories, now)
        })
        .collect();
    Ok(listing)
}

fn listed(StoredNode { record, written_at, .. }: StoredNode, repositories: usize, now: SystemTime) -> ListedMember {
    let renewed = written_at.map(|at| now.duration_since(at.into()).unwrap_or_default());
    // Stored times are whole seconds.
    let longest = Duration::from_millis(record.ttl_millis / 2) + Duration::from_secs(1);
    let NodeRecord { node: name, url, zone, state, renewals, .. } = record;
    ListedMember {
        name,
        url,
        zone,
        state,
        renewals,
        renewed_seconds_ago: renewed.map(|ago| ago.as_secs()),
        is_overdue: state != NodeState::Left && renewed.is_some_and(|ago| ago > longest),
        repositories,
    }
}

async fn read<T>(
    records: &Records,
    prefix: &str,
    unreadable: &mut BTreeMap<String, String>,
    parse: impl Fn(&RecordKey, &[u8]) -> Result<T, String>,
) -> anyhow::Result<Vec<T>> {
    let keys = records.list(prefix).await?;
    let mut reads = stream::iter(keys.into_iter().map(|key| async move { (records.get(&key).await, key) }))
        .buffered(CONCURRENT_READS);
    let mut all = Vec::new();
    while let Some((read, key)) = reads.next().await {
        let parsed = read.map_err(|error| error.to_string()).and_then(|record| match record {
            Some(record) => parse(&key, &record.bytes).map(Some),
            None => Ok(None),
        });
        match parsed {
            Ok(record) => all.extend(record),
            Err(error) => drop(unreadable.insert(key.to_string(), error)),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_renewal_is_seen_before_the_session_ends() {
        let json = r#"{"format":1,"node":"origin-2","session":1,"renewals":7,"state":"active","ttl_millis":30000,
            "url":"https://origin-2.example:7400","weight":1}"#;
        let mut stored: StoredNode = serde_json::from_str(json).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let seen = |stored: &StoredNode, seconds| {
            let member = listed(stored.clone(), 2, at + Duration::from_secs(seconds));
            (member.renewed_seconds_ago, member.is_overdue)
        };
        assert_eq!(seen(&stored, 0), (None, false), "of an earlier version");
        stored.written_at = Some(at.into());
        let again: StoredNode = serde_json::from_str(&serde_json::to_string(&stored).unwrap()).unwrap();
        assert_eq!(again, stored);
        assert_eq!(seen(&stored, 12), (Some(12), false));
        assert_eq!(seen(&stored, 17), (Some(17), true));
        stored.written_at = Some((at + Duration::from_secs(60)).into());
        assert_eq!(seen(&stored, 0), (Some(0), false), "its clock is ahead");
        stored.record.state = NodeState::Left;
        assert_eq!(seen(&stored, 900), (Some(840), false));
    }
}
