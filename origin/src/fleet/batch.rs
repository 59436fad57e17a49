//! Several documents of a kind together: all are checked before one is written, then they are written shard by shard.

use std::collections::BTreeMap;

use weir_protocol::access_list::shard_of;

use super::error::FleetError;
use super::fleet_entry::FleetEntry;
use super::store::{Change, FleetStore};
use crate::catalog::{Outcome, Precondition};

impl FleetStore {
    /// What would become of documents if they were put one after the other. Nothing is changed.
    ///
    /// # Errors
    /// The records cannot be read, or a bound would be exceeded.
    pub(crate) async fn check_all<T: FleetEntry>(
        &self,
        documents: &[(T, Precondition)],
    ) -> Result<Vec<Result<Outcome, FleetError>>, FleetError> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        let (mut table, is_in_shards) = self.read_to_change::<T>().await?;
        let checked = documents.iter().map(|document| self.apply(&mut table, &change(document)));
        let checked: Vec<Result<Outcome, FleetError>> = checked.collect();
        let outcomes: Vec<Outcome> = checked.iter().filter_map(|checked| checked.as_ref().ok().copied()).collect();
        self.within_bounds(&table, is_in_shards, &outcomes)?;
        Ok(checked)
    }

    /// Creates or replaces entries, shard by shard. An error ends it, and leaves what was stored before.
    pub(crate) async fn put_all<T: FleetEntry>(
        &self,
        documents: &[(T, Precondition)],
    ) -> (BTreeMap<T::Name, Outcome>, Option<FleetError>) {
        let (mut shards, mut stored) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::new());
        for document in documents {
            shards.entry(shard_of(&document.0.name().to_string())).or_default().push(change(document));
        }
        for (shard, changes) in shards {
            match self.edit_shard(shard, &changes).await {
                Ok(outcomes) => stored.extend(changes.iter().map(|change| change.name.clone()).zip(outcomes)),
                Err(error) => return (stored, Some(error)),
            }
        }
        (stored, None)
    }
}

fn change<T: FleetEntry>((entry, precondition): &(T, Precondition)) -> Change<'_, T> {
    Change { name: entry.name(), new: Some(entry), precondition, may_be_done: true }
}
