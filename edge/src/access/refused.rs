//! The names that failed credentials claimed. Nobody has proved them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use weir_protocol::name::NodeName;
use weir_protocol::observed::RefusedName;
use weir_protocol::token::UnverifiedToken;
use weir_runtime::bounds::Bound;
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::Peer;

use super::credential::Credential;
use super::refusal::Refusal;

/// The most names. Beyond it the one that was refused the longest ago is forgotten.
const MAX_NAMES: usize = 1_000;

/// A name that is refused again and again changes once in this time.
const STATED_EVERY: Duration = Duration::from_secs(60);

/// The names that failed credentials claimed, within a bound. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RefusedNames(Arc<Mutex<Names>>);

#[derive(Debug, Default)]
struct Names {
    names: BTreeMap<NodeName, Refused>,
    /// The number of the last change.
    number: u64,
}

#[derive(Debug)]
struct Refused {
    refusal: Refusal,
    since: SystemTime,
    last: SystemTime,
    count: u64,
    number: u64,
    stated: SystemTime,
}

/// The name that a credential claims, whether it is right or not.
pub(super) fn claimed_name(headers: &HeaderMap, peer: &Peer) -> Option<NodeName> {
    match (Credential::of(headers), &peer.identity) {
        (Credential::Token(token), _) => UnverifiedToken::parse(token).ok()?.claimed_name(),
        (Credential::None, Some(Identity { role: Role::Agent, name })) => Some(name.clone()),
        _ => None,
    }
}

impl RefusedNames {
    /// A credential that claims this name was refused.
    pub(super) fn record(&self, name: NodeName, refusal: Refusal, now: SystemTime) {
        let mut names = self.names();
        let Names { names, number } = &mut *names;
        if names.len() >= MAX_NAMES && !names.contains_key(&name) {
            let oldest = names.iter().min_by_key(|(_, refused)| refused.last).map(|(name, _)| name.clone());
            oldest.and_then(|oldest| names.remove(&oldest));
        }
        let refused =
            names.entry(name).or_insert(Refused { refusal, since: now, last: now, count: 0, number: 0, stated: now });
        let is_due = now.duration_since(refused.stated).is_ok_and(|since| since >= STATED_EVERY);
        if refused.count == 0 || refused.refusal != refusal || is_due {
            *number += 1;
            (refused.number, refused.stated) = (*number, now);
        }
        (refused.refusal, refused.last) = (refusal, now);
        refused.count += 1;
    }

    /// The names that changed after a number, and the number of the last change.
    pub(crate) fn above(&self, number: u64) -> (Vec<RefusedName>, u64) {
        let names = self.names();
        let changed = names.names.iter().filter(|(_, refused)| refused.number > number);
        let changed = changed.map(|(name, refused)| RefusedName {
            name: name.clone(),
            reason: refused.refusal.into_str().to_owned(),
            since: refused.since,
            count: refused.count,
        });
        (changed.collect(), names.number)
    }

    pub(super) fn bound(&self) -> Bound {
        ("refused_names", self.names().names.len() as u64, MAX_NAMES as u64)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_change_rarely_and_are_bounded() {
        let refused = RefusedNames::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        let record = |name: &str, refusal, seconds| refused.record(name.parse().unwrap(), refusal, at(seconds));
        record("a", Refusal::Expired, 0);
        let (first, number) = refused.above(0);
        assert_eq!((first[0].name.as_str(), &*first[0].reason, first[0].count), ("a", "expired", 1));
        record("a", Refusal::Expired, 30);
        assert_eq!(refused.above(number), (vec![], number));
        record("a", Refusal::Denied, 31);
        let (again, number) = refused.above(number);
        assert_eq!((again[0].since, &*again[0].reason, again[0].count), (at(0), "denied", 3));
        record("a", Refusal::Denied, 91);
        assert_eq!(refused.above(number).0[0].count, 4);
        for n in 0..MAX_NAMES as u64 {
            record(&format!("b{n}"), Refusal::UnknownKey, 100 + n);
        }
        assert!(refused.above(0).0.iter().all(|name| name.name.as_str() != "a"), "it was refused the longest ago");
        assert_eq!(refused.bound().1, MAX_NAMES as u64);
    }
}
