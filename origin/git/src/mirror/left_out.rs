//! Refs of an upstream that are left out, because they cannot be stored, fetched or decoded. They stop no other ref.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gix::ObjectId;
use gix::bstr::{BString, ByteSlice};

use super::peeling::RefError;
use super::refs::Refs;
use super::{MirrorError, listing};

/// When a ref that nobody follows is fetched again.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(3600);

/// These refs by name.
#[derive(Debug, Default)]
pub(super) struct LeftOut(BTreeMap<BString, Entry>);

#[derive(Debug)]
struct Entry {
    /// `None`: the listing itself is unusable.
    id: Option<ObjectId>,
    error: MirrorError,
    /// When the same object is fetched again if nobody follows the ref. `None`: never, because it stays broken.
    retry_at: Option<Instant>,
}

impl LeftOut {
    /// Starts a poll: replaces the refs that the listing leaves out, and forgets those that were deleted or moved.
    pub(super) fn listed(&mut self, advertised: &Refs, unusable: BTreeMap<BString, MirrorError>) {
        self.0.retain(|name, entry| entry.id.is_some() && advertised.get(name) == entry.id.as_ref());
        let unusable = unusable.into_iter().map(|(name, error)| (name, Entry { id: None, error, retry_at: None }));
        self.0.extend(unusable);
    }

    /// Leaves out a ref that points to this object.
    pub(super) fn add(&mut self, name: &BString, id: ObjectId, error: MirrorError, retry_at: Option<Instant>) {
        self.0.insert(name.clone(), Entry { id: Some(id), error, retry_at });
    }

    pub(super) fn remove(&mut self, name: &BString) {
        self.0.remove(name);
    }

    /// Whether an earlier poll has left it out, at the id that the upstream lists now.
    pub(super) fn has(&self, name: &BString) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the upstream lists it in a form that cannot be used.
    pub(super) fn is_unusable(&self, name: &BString) -> bool {
        self.0.get(name).is_some_and(|entry| entry.id.is_none())
    }

    /// Whether the ref must not be fetched yet. A followed one is fetched with each poll.
    pub(super) fn must_wait(&self, name: &BString, is_followed: impl Fn(&BString) -> bool, now: Instant) -> bool {
        self.0.get(name).is_some_and(|entry| entry.retry_at.is_none_or(|at| now < at && !is_followed(name)))
    }

    /// Why the fetch of a ref failed that somebody follows.
    pub(super) fn failure(&self, is_followed: impl Fn(&BString) -> bool) -> Option<&MirrorError> {
        let is_failure = |error: &MirrorError| !matches!(error, MirrorError::NotFollowed { .. });
        self.iter().find(|(name, error)| is_failure(error) && is_followed(name)).map(|(_, error)| error)
    }

    /// Why each is left out.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&BString, &MirrorError)> {
        self.0.iter().map(|(name, entry)| (name, &entry.error))
    }
}

impl RefError {
    /// The error for a ref of this name.
    pub(super) fn of(self, name: &BString) -> MirrorError {
        let reference = listing::display_name(name.as_bstr());
        match self {
            Self::Missing => MirrorError::Incomplete { reference },
            Self::TooManyTags => {
                MirrorError::NotFollowed { reference, reason: "it points to a chain of too many tags" }
            }
            Self::BrokenTag => MirrorError::NotFollowed { reference, reason: "it points to a malformed tag" },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ref_waits_until_it_moves_or_until_its_time() {
        let id = |byte| ObjectId::from_bytes_or_panic(&[byte; 20]);
        let [a, b, c] = ["refs/tags/a", "refs/tags/b", "refs/tags/c"].map(BString::from);
        let (mut left_out, now) = (LeftOut::default(), Instant::now());
        left_out.add(&a, id(1), RefError::BrokenTag.of(&a), None);
        left_out.add(&b, id(1), RefError::Missing.of(&b), Some(now + RETRY_INTERVAL));
        left_out
            .listed(&[(a.clone(), id(1)), (b.clone(), id(1))].into(), [(c.clone(), RefError::Missing.of(&c))].into());
        assert!(left_out.must_wait(&a, |_| true, now + RETRY_INTERVAL) && left_out.must_wait(&b, |_| false, now));
        assert!(!left_out.must_wait(&b, |_| false, now + RETRY_INTERVAL) && !left_out.must_wait(&b, |_| true, now));
        assert!(left_out.is_unusable(&c) && !left_out.is_unusable(&a));
        left_out.listed(&[(a.clone(), id(2)), (b.clone(), id(1))].into(), BTreeMap::new());
        assert_eq!(left_out.iter().map(|(name, _)| name).collect::<Vec<_>>(), [&b]);
    }
}
