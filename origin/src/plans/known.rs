//! Pure: the plans of both authors. If both define a name, the file counts.

use std::collections::BTreeMap;

use serde::Deserialize as _;
use weir_protocol::name::RolloutName;
use weir_rollout::{Plan, StoredPlan};
use weir_upstream::DefinedBy;

use crate::catalog::Map;

/// A plan and its author.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DefinedPlan {
    pub(crate) by: DefinedBy,
    pub(crate) plan: StoredPlan,
}

impl DefinedPlan {
    /// Why this release does not follow it.
    pub(crate) fn refused(&self) -> Option<String> {
        refused(&self.plan)
    }
}

/// Why this release does not follow a plan.
pub(super) fn refused(plan: &StoredPlan) -> Option<String> {
    match plan {
        StoredPlan::Known(_) => None,
        StoredPlan::Later(stored) => Plan::deserialize(stored).err().map(|error| error.to_string()),
    }
}

/// What both authors define.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) file: BTreeMap<RolloutName, Plan>,
    pub(super) api: Vec<StoredPlan>,
}

impl Known {
    /// All plans, by name.
    pub(super) fn all(&self) -> Map<RolloutName, DefinedPlan> {
        let name = |plan: &StoredPlan| plan.name().parse::<RolloutName>().ok();
        let api = self.api.iter().filter_map(|plan| Some((name(plan)?, (DefinedBy::Api, plan.clone()))));
        let file =
            self.file.iter().map(|(name, plan)| (name.clone(), (DefinedBy::File, StoredPlan::Known(plan.clone()))));
        api.chain(file).map(|(name, (by, plan))| (name, DefinedPlan { by, plan })).collect()
    }

    /// Those that can be followed.
    pub(super) fn valid(&self) -> BTreeMap<RolloutName, Plan> {
        let all = self.all();
        all.iter().filter_map(|(name, defined)| Some((name.clone(), defined.plan.known()?.clone()))).collect()
    }

    /// The names that both define.
    pub(super) fn overridden(&self) -> impl Iterator<Item = &str> {
        self.api.iter().map(StoredPlan::name).filter(|name| self.file.keys().any(|of_file| of_file.as_str() == *name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(name: &str, percent: u8) -> serde_json::Value {
        json!({ "name": name, "stages": [{ "name": "some", "percent": percent }, { "name": "all" }] })
    }

    #[test]
    fn the_file_counts_and_a_plan_of_a_later_release_is_shown_and_not_followed() {
        let later = json!({ "name": "later", "stages": [{ "name": "some", "errors": 1 }, { "name": "all" }] });
        let of_file: Plan = serde_json::from_value(plan("both", 10)).unwrap();
        let known = Known {
            file: BTreeMap::from([("both".parse().unwrap(), of_file.clone())]),
            api: serde_json::from_value(json!([plan("api", 20), plan("both", 30), later])).unwrap(),
        };
        let all = known.all();
        let shown: Vec<_> = all.iter().map(|(name, it)| (name.as_str(), it.by, it.refused().is_some())).collect();
        let expected =
            [("api", DefinedBy::Api, false), ("both", DefinedBy::File, false), ("later", DefinedBy::Api, true)];
        assert_eq!(shown, expected);
        let valid = known.valid();
        assert_eq!(valid.keys().map(RolloutName::as_str).collect::<Vec<_>>(), ["api", "both"]);
        assert_eq!(valid.values().last(), Some(&of_file));
        assert_eq!(known.overridden().collect::<Vec<_>>(), ["both"]);
        let reason = all.get("later").and_then(DefinedPlan::refused).unwrap();
        assert!(reason.contains("`errors`"), "{reason}");
    }
}
