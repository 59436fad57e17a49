//! Several documents of a kind together: all are checked before one is written, then they are written shard by shard.

use std::collections::BTreeMap;

use weir_protocol::access_list::{Table, shard_of};

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
        let before = table.clone();
        let checked = documents.iter().map(|document| {
            let outcome = self.apply(&mut table, &change(document))?;
            free_key(&before, &document.0, outcome)?;
            Ok(outcome)
        });
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

/// Shards are not stored in the order of the documents, so an entry cannot get a key that another gives up in the same batch.
fn free_key<T: FleetEntry>(before: &Table<T>, entry: &T, outcome: Outcome) -> Result<(), FleetError> {
    let holder = before.holder_of_key(entry).filter(|_| outcome != Outcome::Unchanged);
    let Some(reason) = holder.and_then(|holder| entry.conflict(holder)) else { return Ok(()) };
    let reason = format!("{reason}, in a request before this batch");
    Err(FleetError::Conflict { kind: T::ONE, name: entry.name().to_string(), reason })
}

fn change<T: FleetEntry>((entry, precondition): &(T, Precondition)) -> Change<'_, T> {
    Change { name: entry.name(), new: Some(entry), precondition, may_be_done: true }
}
