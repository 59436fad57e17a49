//! Names that failed credentials claimed.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_protocol::name::NodeName;
use weir_protocol::observed::RefusedName;

use crate::bounds::MAX_REFUSED_NAMES;
use crate::reporter::Reporter;

/// The last refusal of each name.
#[derive(Debug, Default, Clone)]
pub(crate) struct Refusals(BTreeMap<NodeName, Refusal>);

/// The last refusal of a name.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    /// The edge that reported it.
    pub(crate) reporter: Reporter,
    pub(crate) at: Instant,
    pub(crate) claim: RefusedName,
}

impl Refusals {
    /// Takes in what an edge reports. Beyond the bound the names heard first are dropped.
    pub(crate) fn accept(&mut self, reporter: &Reporter, claims: Vec<RefusedName>, at: Instant) {
        for claim in claims {
            self.0.insert(claim.name.clone(), Refusal { reporter: reporter.clone(), at, claim });
        }
        let excess = self.0.len().saturating_sub(MAX_REFUSED_NAMES);
        if excess > 0 {
            let mut by_age: Vec<_> = self.0.iter().map(|(name, refusal)| (refusal.at, name.clone())).collect();
            by_age.sort_unstable();
            by_age.iter().take(excess).for_each(|(_, name)| _ = self.0.remove(name));
        }
    }

    pub(crate) fn get(&self, name: &NodeName) -> Option<&Refusal> {
        self.0.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&NodeName, &Refusal)> {
        self.0.iter()
    }

    /// Forgets what is older.
    pub(crate) fn retain(&mut self, is_recent: impl Fn(Instant) -> bool) {
        self.0.retain(|_, refusal| is_recent(refusal.at));
    }
}
