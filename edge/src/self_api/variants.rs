//! The rows of agents that get staged versions: those of their group, with these versions in place of the ones in force.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use weir_protocol::batch_poll::BatchPollError;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_runtime::bounds::Bound;

use super::rows::{Following, Row, Rows};
use crate::version::Version;

/// The most memory for such rows, in bytes, about. What has no room is made for each request.
const MAX_BYTES: u64 = 32 << 20;

/// What is not asked for so long is forgotten.
const IDLE: Duration = Duration::from_secs(600);

/// The tag of a group's rows, and the positions of the services of which an agent gets the staged version.
type Key = (String, Box<[usize]>);

/// The rows that were made. Agents that get the same share them.
pub(super) struct Variants {
    made: Cache<Key, Arc<Rows>>,
}

impl Default for Variants {
    fn default() -> Self {
        let weigh = |(tag, others): &Key, rows: &Arc<Rows>| {
            let states = size_of_val(&rows.states[..]) + size_of_val(&others[..]);
            u32::try_from(500 + tag.len() + states + rows.body.len()).unwrap_or(u32::MAX)
        };
        Self { made: Cache::builder().max_capacity(MAX_BYTES).weigher(weigh).time_to_idle(IDLE).build() }
    }
}

impl Variants {
    /// The fill level.
    pub(super) fn bound(&self) -> Bound {
        self.made.run_pending_tasks();
        ("agent_staged_bytes", self.made.weighted_size(), MAX_BYTES)
    }

    /// The rows of an agent of a group, which has these asserted labels. Costs nothing while nothing is staged.
    ///
    /// # Errors
    /// There are too many services.
    pub(super) fn of(
        &self,
        following: &Following,
        rows: Arc<Rows>,
        agent: &NodeName,
        labels: impl FnOnce() -> Labels,
    ) -> Result<Arc<Rows>, BatchPollError> {
        if rows.staged.is_empty() {
            return Ok(rows);
        }
        let labels = labels();
        let later = |position: usize| match &rows.states[position] {
            Row::Current(version) => version.later_for(agent, &labels),
            Row::NotPublished | Row::TooStale => None,
        };
        let others: Vec<(usize, &Arc<Version>)> =
            rows.staged.iter().filter_map(|position| Some((*position, later(*position)?))).collect();
        if others.is_empty() {
            return Ok(rows);
        }
        let key = (rows.tag.clone(), others.iter().map(|(position, _)| *position).collect());
        if let Some(made) = self.made.get(&key) {
            return Ok(made);
        }
        let mut states = rows.states.clone();
        others.into_iter().for_each(|(position, version)| states[position] = Row::Current(version.clone()));
        let made = Arc::new(Rows::new(&following.services, states)?);
        self.made.insert(key, made.clone());
        Ok(made)
    }
}
