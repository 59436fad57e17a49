//! The kinds of entries.

use serde::de::DeserializeOwned;
use weir_protocol::access_list::{Entries, Entry, Fleet};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_store::RecordKey;

/// A kind of entries.
pub(crate) trait FleetEntry: Entry + DeserializeOwned + Send + Sync + 'static {
    /// One of them, for messages.
    const ONE: &'static str;

    /// The entries of this kind.
    fn of(fleet: &Fleet) -> &Entries<Self>;

    /// The entries of this kind.
    fn of_mut(fleet: &mut Fleet) -> &mut Entries<Self>;

    /// Why an entry cannot stand beside another one.
    fn conflict(&self, _other: &Self) -> Option<String> {
        None
    }

    /// The record of the documents.
    fn key() -> RecordKey {
        format!("cluster/{}", Self::KIND).parse().expect("the kinds are names")
    }
}

impl FleetEntry for Agent {
    const ONE: &'static str = "agent";

    fn of(fleet: &Fleet) -> &Entries<Self> {
        &fleet.agents
    }

    fn of_mut(fleet: &mut Fleet) -> &mut Entries<Self> {
        &mut fleet.agents
    }
}

impl FleetEntry for Assignment {
    const ONE: &'static str = "assignment";

    fn of(fleet: &Fleet) -> &Entries<Self> {
        &fleet.assignments
    }

    fn of_mut(fleet: &mut Fleet) -> &mut Entries<Self> {
        &mut fleet.assignments
    }
}

impl FleetEntry for Issuer {
    const ONE: &'static str = "issuer";

    fn of(fleet: &Fleet) -> &Entries<Self> {
        &fleet.issuers
    }

    fn of_mut(fleet: &mut Fleet) -> &mut Entries<Self> {
        &mut fleet.issuers
    }

    fn conflict(&self, other: &Self) -> Option<String> {
        let of_both = self.key_ids().find(|id| self.issuer == other.issuer && other.key_ids().any(|key| key == *id))?;
        Some(format!(
            "issuer `{}` has the key `{of_both}` of `{}` already: change that entry, or remove it first",
            other.name, self.issuer
        ))
    }
}
