//! Pure: decides whether an entry may be changed, and what the documents are then.

use weir_protocol::access_list::{AccessListError, Entries};
use weir_upstream::DefinedBy;

use super::error::FleetError;
use super::fleet_entry::FleetEntry;
use crate::catalog::{Outcome, Precondition, changeable, version};

/// The author of an entry that applies.
pub(crate) fn defined_by<T: FleetEntry>(entries: &Entries<T>, name: &T::Name) -> DefinedBy {
    let is_of_file = entries.file().any(|entry| entry.name() == name);
    if is_of_file { DefinedBy::File } else { DefinedBy::Api }
}

/// Decides a change of an entry; `new` is `None` when it is deleted. `now`: Unix milliseconds. Without entries nothing
/// changes.
pub(super) fn decide<T: FleetEntry>(
    entries: &Entries<T>,
    name: &T::Name,
    new: Option<&T>,
    precondition: &Precondition,
    now: u64,
) -> Result<(Outcome, Option<Entries<T>>), FleetError> {
    let current = entries.get(name);
    let of = |current: &T| (defined_by(entries, name), version(current));
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
    let mut others = entries.iter().filter(|entry| entry.name() != name);
    if let Some(reason) = new.and_then(|new| others.find_map(|other| new.conflict(other))) {
        return Err(FleetError::Conflict { kind: T::ONE, name: name.to_string(), reason });
    }
    let documents = entries.documents().filter(|entry| entry.name() != name).chain(new).cloned();
    let revision = now.max(entries.revision() + 1);
    let changed = Entries::new(revision, documents, entries.file().cloned());
    Ok((outcome, Some(changed.map_err(|error: AccessListError| FleetError::Full(error.to_string()))?)))
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
        entries: &Entries<Agent>,
        name: &str,
        new: Option<&Agent>,
        precondition: &Precondition,
    ) -> Result<(Outcome, Option<Entries<Agent>>), FleetError> {
        decide(entries, &name.parse().unwrap(), new, precondition, 1_000)
    }

    #[test]
    fn documents_change_and_their_revision_grows() {
        let none = Precondition::default();
        let (outcome, made) = change(&Entries::default(), "a", Some(&agent("a", "1")), &none).unwrap();
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
        let entries = Entries::new(7, [agent("a", "1"), agent("b", "1")], [agent("b", "2")]).unwrap();
        for new in [None, Some(&agent("b", "3"))] {
            let refused = change(&entries, "b", new, &Precondition::default());
            assert!(matches!(refused, Err(FleetError::Refused(Refusal::DefinedByFile { kind: "agent", .. }))));
        }
        let is_new = Precondition { is_new: true, ..Precondition::default() };
        assert!(matches!(change(&entries, "a", Some(&agent("a", "2")), &is_new), Err(FleetError::Refused(_))));
        let versions =
            |versions| Precondition { matches: Some(Matches::Versions(versions)), ..Precondition::default() };
        assert!(change(&entries, "a", None, &versions(vec!["other".to_owned()])).is_err());
        assert!(change(&entries, "a", None, &versions(vec![version(&agent("a", "1"))])).is_ok());
    }

    #[test]
    fn two_issuers_never_have_one_key() {
        let issuer = |name: &str, issuer: &str, kid: &str| -> Issuer {
            let jwks = json!({ "keys": [{ "kid": kid }] });
            serde_json::from_value(json!({ "name": name, "issuer": issuer, "audience": "weir", "subjects": ["s"],
                "jwks": jwks, "agent": "a", "services": ["*"] }))
            .unwrap()
        };
        let entries = Entries::new(1, [issuer("one", "https://i", "k1")], []).unwrap();
        for (new, expected) in [
            (issuer("two", "https://i", "k1"), false),
            (issuer("two", "https://i", "k2"), true),
            (issuer("two", "https://j", "k1"), true),
            (issuer("one", "https://i", "k1"), true),
        ] {
            let decided = decide(&entries, &new.name, Some(&new), &Precondition::default(), 1);
            assert_eq!(decided.is_ok(), expected, "{decided:?}");
        }
    }
}
