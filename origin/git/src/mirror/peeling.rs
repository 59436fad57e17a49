//! Peels refs: follows annotated tags to the object behind them.

use std::sync::atomic::{AtomicBool, Ordering};

use gix::objs::{Data, Find, FindHeader, Kind, TagRefIter};
use gix::{ObjectId, OdbHandle, oid};

use super::limits::MAX_TAG_DEPTH;

/// Peels refs until `interrupt` is set.
pub(super) struct Peeling<'a> {
    pub(super) objects: &'a OdbHandle,
    pub(super) interrupt: &'a AtomicBool,
}

/// Why a ref cannot be peeled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefError {
    /// An object is missing.
    Missing,
    /// The chain of tags is too long.
    TooManyTags,
    /// A tag is malformed.
    BrokenTag,
}

impl Peeling<'_> {
    /// Why an object cannot be peeled, or `None` if it can.
    pub(super) fn check(&self, mut id: ObjectId) -> gix::Result<Option<RefError>> {
        let mut buffer = Vec::new();
        for _ in 0..=MAX_TAG_DEPTH {
            match self.try_find(&id, &mut buffer)? {
                None => return Ok(Some(RefError::Missing)),
                Some(Data { kind: Kind::Tag, data, object_hash }) => {
                    let Ok(target) = TagRefIter::from_bytes(data, object_hash).target_id() else {
                        return Ok(Some(RefError::BrokenTag));
                    };
                    id = target;
                }
                Some(_) => return Ok(None),
            }
        }
        Ok(Some(RefError::TooManyTags))
    }
}

/// Reads tags only. For other objects the kind is sufficient.
impl Find for Peeling<'_> {
    fn try_find<'b>(&self, id: &oid, buffer: &'b mut Vec<u8>) -> gix::Result<Option<Data<'b>>> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(gix::error::message("interrupted").cancelled_error());
        }
        match self.objects.try_header(id)? {
            Some(header) if header.kind != Kind::Tag => {
                Ok(Some(Data { kind: header.kind, object_hash: id.kind(), data: &[] }))
            }
            Some(_) => self.objects.try_find(id, buffer),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use gix::objs::Write;

    use super::*;
    use crate::mirror::Mirror;

    #[test]
    fn chains_of_tags_are_peeled() {
        let dir = tempfile::tempdir().unwrap();
        let repo = Mirror::open(&dir.path().join("shop.git"), 1 << 20).unwrap().repository().unwrap().to_thread_local();
        let interrupt = AtomicBool::new(false);
        let peeling = Peeling { objects: &repo.objects, interrupt: &interrupt };
        let tag = |of: ObjectId, kind: &str| {
            let text = format!("object {of}\ntype {kind}\ntag t\n\n");
            repo.objects.write_buf(Kind::Tag, text.as_bytes()).unwrap()
        };
        let check = |id| peeling.check(id).unwrap();

        let blob = repo.objects.write_buf(Kind::Blob, b"x").unwrap();
        let missing = ObjectId::from_bytes_or_panic(&[7; 20]);
        assert_eq!((check(blob), check(missing)), (None, Some(RefError::Missing)));
        assert_eq!((check(tag(blob, "blob")), check(tag(missing, "blob"))), (None, Some(RefError::Missing)));
        let broken = repo.objects.write_buf(Kind::Tag, b"no tag").unwrap();
        assert_eq!((check(broken), check(tag(broken, "tag"))), (Some(RefError::BrokenTag), Some(RefError::BrokenTag)));

        let tags = |count| (1..count).fold(tag(blob, "blob"), |inner, _| tag(inner, "tag"));
        assert_eq!((check(tags(MAX_TAG_DEPTH)), check(tags(MAX_TAG_DEPTH + 1))), (None, Some(RefError::TooManyTags)));
        interrupt.store(true, Ordering::Relaxed);
        peeling.check(blob).unwrap_err();
    }
}
