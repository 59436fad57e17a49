//! The kinds of entries.

use serde::de::DeserializeOwned;
use weir_protocol::access_list::{Entries, Entry, Fleet, Table};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;

use super::stored::{AllStored, OfKind};
use crate::config::LimitsConfig;

/// Agents, assignments and issuers. Clones are cheap.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    pub(crate) agents: Table<Agent>,
    pub(crate) assignments: Table<Assignment>,
    pub(crate) issuers: Table<Issuer>,
}

impl Tables {
    /// Replaces the entries of the file.
    pub(crate) fn set_file(&mut self, file: &Fleet) {
        self.agents.set_file(file.agents.table());
        self.assignments.set_file(file.assignments.table());
        self.issuers.set_file(file.issuers.table());
    }

    /// What edges get.
    pub(crate) fn fleet(&self) -> Fleet {
        Fleet {
            agents: Entries::of(&self.agents),
            assignments: Entries::of(&self.assignments),
            issuers: Entries::of(&self.issuers),
        }
    }

    /// The labels of an agent: those of its token, and those that operators assert, which win.
    pub(crate) fn labels_of(&self, agent: &NodeName, of_token: &Labels) -> Labels {
        let asserted = self.agents.get(agent).map(|entry| &entry.labels);
        asserted.map_or_else(|| of_token.clone(), |asserted| of_token.clone().overridden_by(asserted))
    }

    /// The bytes of all documents as JSON.
    pub(crate) fn bytes(&self) -> usize {
        self.agents.bytes() + self.assignments.bytes() + self.issuers.bytes()
    }
}

/// How many documents operators may define.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetBounds {
    pub(crate) agents: usize,
    pub(crate) assignments: usize,
    pub(crate) issuers: usize,
    /// Issuers whose keys edges fetch.
    pub(crate) issuer_urls: usize,
    /// Of all of them, as JSON.
    pub(crate) bytes: usize,
}

impl FleetBounds {
    /// Those of the configuration.
    pub(crate) fn of(limits: &LimitsConfig) -> Self {
        Self {
            agents: limits.max_agents,
            assignments: limits.max_assignments,
            issuers: limits.max_issuers,
            issuer_urls: limits.max_issuer_urls,
            bytes: usize::try_from(limits.fleet_bytes.as_u64()).unwrap_or(usize::MAX),
        }
    }
}

/// A kind of entries.
pub(crate) trait FleetEntry: Entry<Name: Send + Sync> + DeserializeOwned + Send + Sync + 'static {
    /// One of them, for messages.
    const ONE: &'static str;

    /// The key of the configuration that bounds their number.
    const LIMIT_KEY: &'static str;

    /// The entries of this kind.
    fn of(tables: &Tables) -> &Table<Self>;

    /// The entries of this kind.
    fn of_mut(tables: &mut Tables) -> &mut Table<Self>;

    /// The most documents of this kind.
    fn bound(bounds: &FleetBounds) -> usize;

    /// Whether edges fetch its keys from a URL.
    fn is_fetched(&self) -> bool {
        false
    }

    /// The records of this kind.
    fn stored(all: &AllStored) -> &OfKind<Self>;

    /// Why an entry cannot stand beside another one that has one of its keys.
    fn conflict(&self, _other: &Self) -> Option<String> {
        None
    }
}

macro_rules! kind {
    ($type:ty, $one:literal, $kind:ident, $limit:literal $(, $item:item)*) => {
        impl FleetEntry for $type {
            const ONE: &'static str = $one;
            const LIMIT_KEY: &'static str = $limit;

            fn of(tables: &Tables) -> &Table<Self> {
                &tables.$kind
            }

            fn of_mut(tables: &mut Tables) -> &mut Table<Self> {
                &mut tables.$kind
            }

            fn bound(bounds: &FleetBounds) -> usize {
                bounds.$kind
            }

            fn stored(all: &AllStored) -> &OfKind<Self> {
                &all.$kind
            }

            $($item)*
        }
    };
}

kind!(Agent, "agent", agents, "max_agents");
kind!(Assignment, "assignment", assignments, "max_assignments");
kind!(
    Issuer,
    "issuer",
    issuers,
    "max_issuers",
    fn conflict(&self, other: &Self) -> Option<String> {
        let of_both = self.key_ids().find(|id| self.issuer == other.issuer && other.key_ids().any(|key| key == *id))?;
        Some(format!(
            "issuer `{}` has the key `{of_both}` of `{}` already: change that entry, or remove it first",
            other.name, self.issuer
        ))
    },
    fn is_fetched(&self) -> bool {
        self.has_url()
    }
);
