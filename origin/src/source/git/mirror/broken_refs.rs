//! Refs of an upstream that cannot be followed. They do not prevent updates of others.

use std::collections::BTreeMap;

use gix::bstr::{BString, ByteSlice};
use gix::{ObjectId, oid};

use super::peeling::RefError;
use super::refs::Refs;
use super::{MirrorError, listing};

/// These refs by name, with the object and the error.
#[derive(Debug, Default)]
pub(super) struct BrokenRefs(BTreeMap<BString, (ObjectId, RefError)>);

impl BrokenRefs {
    pub(super) fn add(&mut self, name: &BString, id: ObjectId, error: RefError) {
        self.0.insert(name.clone(), (id, error));
    }

    /// Forgets refs that the upstream no longer has, and missing objects, which the next fetch may bring. A broken tag
    /// stays broken as long as its id is the same.
    pub(super) fn retain(&mut self, advertised: &Refs) {
        self.0.retain(|name, (id, error)| *error != RefError::Missing && advertised.get(name) == Some(id));
    }

    /// Whether a ref to this object is known to be broken.
    pub(super) fn has(&self, name: &BString, id: &oid) -> bool {
        self.0.get(name).is_some_and(|(known, _)| *known == id)
    }

    /// The error for the first of the refs, missing objects first. `changed`: whether the poll changed other refs.
    pub(super) fn error(&self, changed: bool) -> Option<MirrorError> {
        let missing = self.0.iter().find(|(_, (_, error))| *error == RefError::Missing);
        let (name, (_, error)) = missing.or_else(|| self.0.first_key_value())?;
        let reference = listing::display_name(name.as_bstr());
        Some(match error {
            RefError::Missing => MirrorError::Incomplete { reference, changed },
            RefError::TooManyTags => {
                MirrorError::NotFollowed { reference, reason: "a chain of too many tags", changed }
            }
            RefError::BrokenTag => MirrorError::NotFollowed { reference, reason: "a malformed tag", changed },
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
    fn a_missing_object_is_retried_and_a_broken_tag_is_remembered_by_its_id() {
        let [a, b, c] = ["refs/tags/a", "refs/tags/b", "refs/tags/c"].map(BString::from);
        let mut broken = BrokenRefs::default();
        assert!(broken.error(true).is_none());
        for (name, error) in [(&a, RefError::TooManyTags), (&b, RefError::Missing), (&c, RefError::BrokenTag)] {
            broken.add(name, id(1), error);
        }
        assert!(matches!(broken.error(true), Some(MirrorError::Incomplete { changed: true, .. })));
        broken.retain(&[(a.clone(), id(1)), (b.clone(), id(1)), (c.clone(), id(2))].into());
        assert!(broken.has(&a, &id(1)) && !broken.has(&a, &id(2)));
        assert!(!broken.has(&b, &id(1)) && !broken.has(&c, &id(1)));
        assert!(matches!(broken.error(false), Some(MirrorError::NotFollowed { changed: false, .. })));
    }
}
