//! Pure: the record of freezes, and changes of it.

use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_protocol::name::FreezeName;
use weir_publish::unix_milliseconds;
use weir_rollout::Freeze;
use weir_upstream::DefinedBy;

use crate::catalog::{Outcome, Precondition, changeable, version};
use crate::fleet::FleetError;

/// The key of the record.
pub(super) const KEY: &str = "cluster/freezes";

/// The most freezes.
pub(crate) const MAX_FREEZES: usize = 100;

/// The most bytes of the record.
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// What operators call one.
pub(crate) const KIND: &str = "freeze";

/// What the record says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Document {
    /// It grows with each change: a previous copy is known by it.
    pub(super) revision: u64,
    #[serde(default)]
    pub(super) freezes: Vec<Freeze>,
    /// What a later release stores beside them stays.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Document {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FleetError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            FleetError::Unreadable(format!(
                "The record {KEY} cannot be read, or was written by a later version: {error}"
            ))
        };
        if bytes.len() > MAX_BYTES {
            return Err(unreadable(&format!("it has {} bytes, more than {MAX_BYTES}", bytes.len())));
        }
        serde_json::from_slice(bytes).map_err(|error| unreadable(&error))
    }

    pub(super) fn to_bytes(&self) -> Result<Bytes, FleetError> {
        let bytes = serde_json::to_vec(self).expect("plain data");
        if bytes.len() > MAX_BYTES {
            let detail = format!("The record of freezes would have {} bytes, more than {MAX_BYTES}", bytes.len());
            return Err(FleetError::Full(format!("{detail}: delete some, or give shorter reasons")));
        }
        Ok(bytes.into())
    }

    /// The freeze of a name that is in force.
    pub(super) fn get(&self, name: &FreezeName, now: SystemTime) -> Option<&Freeze> {
        self.freezes.iter().find(|freeze| freeze.name == *name && freeze.is_in_force(now))
    }

    /// The document after a change. `new`: `None` to delete it. What has ended goes with it.
    pub(super) fn changed(
        &self,
        name: &FreezeName,
        new: Option<&Freeze>,
        precondition: &Precondition,
        now: SystemTime,
    ) -> Result<(Outcome, Self), FleetError> {
        let current = self.get(name, now);
        if current.is_none() && new.is_none() {
            return Err(FleetError::Missing { kind: KIND, name: name.to_string() });
        }
        let of = |current: &Freeze| (DefinedBy::Api, version(current));
        changeable(KIND, name.as_str(), current.map(of), precondition).map_err(FleetError::Refused)?;
        let outcome = match (current, new) {
            (Some(current), Some(new)) if current == new => return Ok((Outcome::Unchanged, self.clone())),
            (_, None) => Outcome::Deleted,
            (None, Some(_)) => Outcome::Created,
            (Some(_), Some(_)) => Outcome::Changed,
        };
        let mut changed = self.clone();
        // Above what others have read, also if the record was lost since.
        changed.revision = (changed.revision + 1).max(unix_milliseconds(now));
        changed.freezes.retain(|freeze| freeze.name != *name && freeze.is_in_force(now));
        changed.freezes.extend(new.cloned());
        changed.freezes.sort_by(|one, other| one.name.cmp(&other.name));
        if changed.freezes.len() > MAX_FREEZES {
            return Err(FleetError::Full(format!(
                "There are {MAX_FREEZES} freezes: delete one, or name more services in one"
            )));
        }
        Ok((outcome, changed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn freeze(name: &str, until: Option<SystemTime>) -> Freeze {
        Freeze { name: name.parse().unwrap(), services: vec!["*".parse().unwrap()], until, reason: None }
    }

    #[test]
    fn what_has_ended_is_gone_and_what_a_later_release_stored_stays() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        let before = Document::parse(br#"{"revision":7,"rollouts":[{"name":"careful"}]}"#).unwrap();
        let none = Precondition::default();
        let put = |to: &Document, freeze: &Freeze, now| to.changed(&freeze.name, Some(freeze), &none, now).unwrap();
        let (outcome, one) = put(&before, &freeze("sale", Some(now + Duration::from_secs(1))), now);
        assert_eq!((outcome, one.revision), (Outcome::Created, 3_600_000));
        assert_eq!(put(&one, &one.freezes[0], now).0, Outcome::Unchanged);
        let later = now + Duration::from_secs(1);
        assert_eq!(one.get(&"sale".parse().unwrap(), later), None);
        let missing = one.changed(&"sale".parse().unwrap(), None, &none, later);
        assert!(matches!(missing, Err(FleetError::Missing { .. })));
        let (outcome, two) = put(&one, &freeze("audit", None), later);
        assert_eq!((outcome, two.freezes.len()), (Outcome::Created, 1));
        let written = String::from_utf8(two.to_bytes().unwrap().to_vec()).unwrap();
        assert!(written.contains(r#""rollouts":[{"name":"careful"}]"#), "{written}");
        assert_eq!(Document::parse(written.as_bytes()).unwrap(), two);
        let is_new = Precondition { is_new: true, ..Precondition::default() };
        let refused = two.changed(&"audit".parse().unwrap(), Some(&freeze("audit", Some(later))), &is_new, later);
        assert!(matches!(refused, Err(FleetError::Refused(_))));
    }

    #[test]
    fn there_are_so_many_freezes_and_so_many_bytes_at_most() {
        let (now, none) = (SystemTime::UNIX_EPOCH, Precondition::default());
        let put = |to: &Document, freeze: &Freeze| to.changed(&freeze.name, Some(freeze), &none, now);
        let mut all = Document::default();
        for number in 0..MAX_FREEZES {
            all = put(&all, &freeze(&format!("f{number}"), None)).unwrap().1;
        }
        assert!(matches!(put(&all, &freeze("more", None)), Err(FleetError::Full(_))));
        assert!(put(&all, &freeze("f7", Some(now + Duration::from_secs(1)))).is_ok());
        for freeze in &mut all.freezes {
            freeze.reason = Some("x".repeat(MAX_BYTES / MAX_FREEZES));
        }
        assert!(matches!(all.to_bytes(), Err(FleetError::Full(_))));
    }
}
