//! Refs of an upstream that cannot be followed: they keep no other ref back.

use std::collections::BTreeMap;

use gix::bstr::{BString, ByteSlice};
use gix::{ObjectId, oid};

use super::peeling::RefError;
use super::refs::Refs;
use super::{MirrorError, listing};

/// Such refs, by name, with what they point at.
#[derive(Debug, Default)]
pub(super) struct BrokenRefs(BTreeMap<BString, (ObjectId, RefError)>);

impl BrokenRefs {
    pub(super) fn add(&mut self, name: &BString, id: ObjectId, error: RefError) {
        self.0.insert(name.clone(), (id, error));
    }

    /// Forgets what the upstream does not name any more, and what may come with another fetch. For the rest nothing has to
    /// be fetched: an object with the same id is the same object.
    pub(super) fn retain(&mut self, advertised: &Refs) {
        self.0.retain(|name, (id, error)| *error != RefError::Missing && advertised.get(name) == Some(id));
    }

    /// Whether it is known that a ref to this object cannot be followed.
    pub(super) fn has(&self, name: &BString, id: &oid) -> bool {
        self.0.get(name).is_some_and(|(known, _)| *known == id)
    }

    /// What to say of them, if there are any: the first by name, of those that did not come if there are such. `moved`:
    /// whether anything else in the mirror was changed by the same poll.
    pub(super) fn error(&self, moved: bool) -> Option<MirrorError> {
        let missing = self.0.iter().find(|(_, (_, error))| *error == RefError::Missing);
        let (name, (_, error)) = missing.or_else(|| self.0.first_key_value())?;
        let reference = listing::shown(name.as_bstr());
        Some(match error {
            RefError::Missing => MirrorError::Incomplete { reference, moved },
            RefError::TooManyTags => {
                MirrorError::NotFollowed { reference, reason: "too many tags, one on the other", moved }
            }
            RefError::BrokenTag => {
                MirrorError::NotFollowed { reference, reason: "a tag that does not say what it was put on", moved }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> ObjectId {
        ObjectId::from_bytes_or_panic(&[byte; 20])
    }

    #[test]
    fn what_was_not_sent_may_come_and_a_tag_is_known_by_what_it_points_at() {
        let [a, b, c] = ["refs/tags/a", "refs/tags/b", "refs/tags/c"].map(BString::from);
        let mut broken = BrokenRefs::default();
        assert!(broken.error(true).is_none());
        for (name, error) in [(&a, RefError::TooManyTags), (&b, RefError::Missing), (&c, RefError::BrokenTag)] {
            broken.add(name, id(1), error);
        }
        assert!(matches!(broken.error(true), Some(MirrorError::Incomplete { moved: true, .. })));
        broken.retain(&[(a.clone(), id(1)), (b.clone(), id(1)), (c.clone(), id(2))].into());
        assert!(broken.has(&a, &id(1)) && !broken.has(&a, &id(2)));
        assert!(!broken.has(&b, &id(1)) && !broken.has(&c, &id(1)));
        assert!(matches!(broken.error(false), Some(MirrorError::NotFollowed { moved: false, .. })));
    }
}
