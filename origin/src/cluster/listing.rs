//! What the engine of records says about a cluster, for `weir-origin members`. It needs no running origin.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use prometheus::Registry;
use serde::Serialize;
use weir_protocol::name::{NodeName, RepositoryName};

use crate::config::Config;
use crate::ownership::{Claim, NodeRecord, NodeState};
use crate::publish::claim_of;
use crate::store::{RecordKey, Records, StoreMetrics};

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

/// The record of a member. Whether its session lives only time can tell: then `renewals` grow.
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
    let records = Records::open_shared(cluster, &config.store, metrics).map_err(anyhow::Error::msg)?;
    let mut listing = Listing::default();
    let nodes = read(&records, "nodes/", &mut listing.unreadable, |_, bytes| {
        serde_json::from_slice::<NodeRecord>(bytes).map_err(|error| error.to_string())
    });
    let nodes = nodes.await?;
    let claims = read(&records, "repositories/", &mut listing.unreadable, |key, bytes| {
        let name: RepositoryName = key.name().parse().map_err(|error| format!("{error}"))?;
        let claim = claim_of(&name, bytes).map_err(|error| error.to_string())?;
        Ok((name, claim))
    });
    for (name, claim) in claims.await? {
        let Claim { owner, session, fence, is_released } = claim;
        let is_current = nodes
            .iter()
            .any(|node| node.node == owner && node.session == session && node.state != NodeState::Left && !is_released);
        let owner = (!is_released).then_some(owner);
        listing.repositories.push(ListedRepository { name, owner, fence, is_current });
    }
    listing.members = nodes
        .into_iter()
        .map(|NodeRecord { node, url, zone, state, renewals, .. }| {
            let owned = listing.repositories.iter().filter(|repository| repository.owner.as_ref() == Some(&node));
            let repositories = owned.count();
            ListedMember { name: node, url, zone, state, renewals, repositories }
        })
        .collect();
    Ok(listing)
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
