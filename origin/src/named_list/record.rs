//! Pure: a record that lists documents, and changes of it.

use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weir_publish::unix_milliseconds;
use weir_upstream::DefinedBy;

use crate::catalog::{Outcome, Precondition, changeable, version};
use crate::fleet::FleetError;

/// The most bytes of a record.
pub(crate) const MAX_BYTES: usize = 256 << 10;

/// The key of the record's own number.
const REVISION: &str = "revision";

/// What a record lists.
pub(crate) trait Item: Serialize + DeserializeOwned + Clone + PartialEq + Send + Sync + 'static {
    /// The key of the record.
    const KEY: &'static str;
    /// What operators call several of them.
    const LIST: &'static str;
    /// What operators call one.
    const ONE: &'static str;
    /// The most of them.
    const MOST: usize;

    fn name(&self) -> &str;

    /// Whether it has not ended.
    fn is_in_force(&self, _now: SystemTime) -> bool {
        true
    }
}

/// What the record says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Document<T> {
    /// It grows with each change: a previous copy is known by it.
    pub(super) revision: u64,
    pub(super) items: Vec<T>,
    /// What a later release stores beside them stays.
    more: Map<String, Value>,
}

impl<T> Default for Document<T> {
    fn default() -> Self {
        Self { revision: 0, items: Vec::new(), more: Map::new() }
    }
}

impl<T: Item> Document<T> {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, FleetError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            FleetError::Unreadable(format!(
                "The record {} cannot be read, or was written by a later version: {error}",
                T::KEY
            ))
        };
        if bytes.len() > MAX_BYTES {
            return Err(unreadable(&format!("it has {} bytes, more than {MAX_BYTES}", bytes.len())));
        }
        let mut more: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| unreadable(&error))?;
        let revision = serde_json::from_value(more.remove(REVISION).unwrap_or_default());
        let items = more.remove(T::LIST).map_or(Ok(Vec::new()), serde_json::from_value);
        let unreadable = |error: serde_json::Error| unreadable(&error);
        Ok(Self { revision: revision.map_err(unreadable)?, items: items.map_err(unreadable)?, more })
    }

    pub(super) fn to_bytes(&self) -> Result<Bytes, FleetError> {
        let mut all = self.more.clone();
        all.insert(REVISION.to_owned(), self.revision.into());
        all.insert(T::LIST.to_owned(), serde_json::to_value(&self.items).expect("plain data"));
        let bytes = serde_json::to_vec(&all).expect("plain data");
        if bytes.len() > MAX_BYTES {
            return Err(FleetError::Full(format!(
                "The record of {} would have {} bytes, more than {MAX_BYTES}: delete some, or make some shorter",
                T::LIST,
                bytes.len()
            )));
        }
        Ok(bytes.into())
    }

    /// What has a name and is in force.
    pub(super) fn get(&self, name: &str, now: SystemTime) -> Option<&T> {
        self.items.iter().find(|item| item.name() == name && item.is_in_force(now))
    }

    /// The document after a change. `new`: `None` to delete it. What has ended goes with it.
    pub(super) fn changed(
        &self,
        name: &str,
        new: Option<&T>,
        precondition: &Precondition,
        now: SystemTime,
    ) -> Result<(Outcome, Self), FleetError> {
        let current = self.get(name, now);
        if current.is_none() && new.is_none() {
            return Err(FleetError::Missing { kind: T::ONE, name: name.to_owned() });
        }
        let of = |current: &T| (DefinedBy::Api, version(current));
        changeable(T::ONE, name, current.map(of), precondition).map_err(FleetError::Refused)?;
        let outcome = match (current, new) {
            (Some(current), Some(new)) if current == new => return Ok((Outcome::Unchanged, self.clone())),
            (_, None) => Outcome::Deleted,
            (None, Some(_)) => Outcome::Created,
            (Some(_), Some(_)) => Outcome::Changed,
        };
        let mut changed = self.clone();
        // Above what others have read, also if the record was lost since.
        changed.revision = (changed.revision + 1).max(unix_milliseconds(now));
        changed.items.retain(|item| item.name() != name && item.is_in_force(now));
        changed.items.extend(new.cloned());
        changed.items.sort_by(|one, other| one.name().cmp(other.name()));
        if changed.items.len() > T::MOST {
            return Err(FleetError::Full(format!("There are {} {} already: delete one", T::MOST, T::LIST)));
        }
        Ok((outcome, changed))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_rollout::Freeze;

    use super::*;

    fn freeze(name: &str, until: Option<SystemTime>) -> Freeze {
        Freeze { name: name.parse().unwrap(), services: vec!["*".parse().unwrap()], until, reason: None }
    }

    #[test]
    fn what_has_ended_is_gone_and_what_a_later_release_stored_stays() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(1);
        let before = Document::<Freeze>::parse(br#"{"revision":7,"rollouts":[{"name":"careful"}]}"#).unwrap();
        let none = Precondition::default();
        let put =
            |to: &Document<Freeze>, freeze: &Freeze, now| to.changed(freeze.name(), Some(freeze), &none, now).unwrap();
        let (outcome, one) = put(&before, &freeze("sale", Some(now + Duration::from_secs(1))), now);
        assert_eq!((outcome, one.revision), (Outcome::Created, 3_600_000));
        assert_eq!(put(&one, &one.items[0], now).0, Outcome::Unchanged);
        let later = now + Duration::from_secs(1);
        assert_eq!(one.get("sale", later), None);
        let missing = one.changed("sale", None, &none, later);
        assert!(matches!(missing, Err(FleetError::Missing { .. })));
        let (outcome, two) = put(&one, &freeze("audit", None), later);
        assert_eq!((outcome, two.items.len()), (Outcome::Created, 1));
        let written = String::from_utf8(two.to_bytes().unwrap().to_vec()).unwrap();
        assert!(written.contains(r#""rollouts":[{"name":"careful"}]"#), "{written}");
        assert_eq!(Document::<Freeze>::parse(written.as_bytes()).unwrap(), two);
        let is_new = Precondition { is_new: true, ..Precondition::default() };
        let refused = two.changed("audit", Some(&freeze("audit", Some(later))), &is_new, later);
        assert!(matches!(refused, Err(FleetError::Refused(_))));
    }

    #[test]
    fn there_are_so_many_freezes_and_so_many_bytes_at_most() {
        let (now, none) = (SystemTime::UNIX_EPOCH, Precondition::default());
        let put = |to: &Document<Freeze>, freeze: &Freeze| to.changed(freeze.name(), Some(freeze), &none, now);
        let mut all = Document::default();
        for number in 0..Freeze::MOST {
            all = put(&all, &freeze(&format!("f{number}"), None)).unwrap().1;
        }
        assert!(matches!(put(&all, &freeze("more", None)), Err(FleetError::Full(_))));
        assert!(put(&all, &freeze("f7", Some(now + Duration::from_secs(1)))).is_ok());
        for freeze in &mut all.items {
            freeze.reason = Some("x".repeat(MAX_BYTES / Freeze::MOST));
        }
        assert!(matches!(all.to_bytes(), Err(FleetError::Full(_))));
    }
}
