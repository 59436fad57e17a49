//! Pure: decides whether an entry may be changed, and what its shard is then.

use weir_protocol::access_list::{Shard, Table};
use weir_upstream::DefinedBy;

use super::error::FleetError;
use super::fleet_entry::FleetEntry;
use crate::catalog::{Outcome, Precondition, changeable, version};

/// The author of an entry that applies.
pub(crate) fn defined_by<T: FleetEntry>(table: &Table<T>, name: &T::Name) -> DefinedBy {
    if table.is_of_file(name) { DefinedBy::File } else { DefinedBy::Api }
}

/// A shard after a change, with its index.
pub(super) type ChangedShard<T> = (usize, Shard<T>);

/// Decides a change of an entry; `new` is `None` when it is deleted. `now`: Unix milliseconds. Without a shard nothing
/// changes. Only the document itself and its shard cost time.
pub(super) fn decide<T: FleetEntry>(
    table: &Table<T>,
    name: &T::Name,
    new: Option<&T>,
    precondition: &Precondition,
    now: u64,
) -> Result<(Outcome, Option<ChangedShard<T>>), FleetError> {
    let current = table.get(name);
    let of = |current: &T| (defined_by(table, name), version(current));
    if current.is_none() && new.is_none() {
        return Err(FleetError::Missing { kind: T::ONE, name: name.to_string() });
    }
    changeable(T::ONE, &name.to_string(), current.map(of), precondition).map_err(FleetError::Refused)?;
    let outcome = match (current, new) {
        (Some(current), Some(new)) if current == new => return Ok((Outcome::Unchanged, None)),
        (_, None) => Outcome::Deleted,
        (None, Some(_)) => Outcome::Created,
        (Some(_), Some(_)) => Outcome::Changed,
    };
    let conflict = new.and_then(|new| new.conflict(table.holder_of_key(new)?));
    if let Some(reason) = conflict {
        return Err(FleetError::Conflict { kind: T::ONE, name: name.to_string(), reason });
    }
    Ok((outcome, Some(table.changed(name, new.cloned(), now))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_protocol::assignment::Agent;
    use weir_protocol::issuer::Issuer;

    use super::*;
    use crate::catalog::{Matches, Refusal};

    fn agent(name: &str, ring: &str) -> Agent {
        serde_json::from_value(json!({ "name": name, "labels": { "ring": ring } })).unwrap()
    }

    fn change(
        table: &Table<Agent>,
        name: &str,
        new: Option<&Agent>,
        precondition: &Precondition,
    ) -> Result<(Outcome, Option<Table<Agent>>), FleetError> {
        let (outcome, changed) = decide(table, &name.parse().unwrap(), new, precondition, 1_000)?;
        let with = |(index, shard)| {
            let mut table = table.clone();
            table.set_shard(index, shard);
            table
        };
        Ok((outcome, changed.map(with)))
    }

    #[test]
    fn documents_change_and_their_revision_grows() {
        let none = Precondition::default();
        let (outcome, made) = change(&Table::default(), "a", Some(&agent("a", "1")), &none).unwrap();
        let made = made.unwrap();
        assert_eq!((outcome, made.revision(), made.documents().count()), (Outcome::Created, 1_000, 1));
        let (outcome, next) = change(&made, "a", Some(&agent("a", "2")), &none).unwrap();
        assert_eq!((outcome, next.as_ref().unwrap().revision()), (Outcome::Changed, 1_001), "also when a clock stands");
        assert_eq!(change(&made, "a", Some(&agent("a", "1")), &none).unwrap(), (Outcome::Unchanged, None));
        let (outcome, next) = change(&made, "a", None, &none).unwrap();
        assert_eq!((outcome, next.unwrap().documents().count()), (Outcome::Deleted, 0));
        assert!(matches!(change(&made, "b", None, &none), Err(FleetError::Missing { kind: "agent", .. })));
    }

    #[test]
    fn the_file_wins_and_preconditions_hold() {
        let table = Table::new(7, [agent("a", "1"), agent("b", "1")], [agent("b", "2")]).unwrap();
        for new in [None, Some(&agent("b", "3"))] {
            let refused = change(&table, "b", new, &Precondition::default());
            assert!(matches!(refused, Err(FleetError::Refused(Refusal::DefinedByFile { kind: "agent", .. }))));
        }
        let is_new = Precondition { is_new: true, ..Precondition::default() };
        assert!(matches!(change(&table, "a", Some(&agent("a", "2")), &is_new), Err(FleetError::Refused(_))));
        let versions =
            |versions| Precondition { matches: Some(Matches::Versions(versions)), ..Precondition::default() };
        assert!(change(&table, "a", None, &versions(vec!["other".to_owned()])).is_err());
        assert!(change(&table, "a", None, &versions(vec![version(&agent("a", "1"))])).is_ok());
    }

    #[test]
    fn two_issuers_never_have_one_key() {
        let issuer = |name: &str, issuer: &str, kid: &str| -> Issuer {
            let jwks = json!({ "keys": [{ "kid": kid }] });
            serde_json::from_value(json!({ "name": name, "issuer": issuer, "audience": "weir", "subjects": ["s"],
                "jwks": jwks, "agent": "a", "services": ["*"] }))
            .unwrap()
        };
        let table = Table::new(1, [issuer("one", "https://i", "k1")], []).unwrap();
        for (new, expected) in [
            (issuer("two", "https://i", "k1"), false),
            (issuer("two", "https://i", "k2"), true),
            (issuer("two", "https://j", "k1"), true),
            (issuer("one", "https://i", "k1"), true),
        ] {
            let decided = decide(&table, &new.name, Some(&new), &Precondition::default(), 1);
            assert_eq!(decided.is_ok(), expected, "{decided:?}");
        }
    }
}
