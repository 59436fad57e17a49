//! Reads commits as git does: a tree, parents and a time.
//!
//! gix's reader rejects commits whose author or committer line is unusual, which git accepts.

use gix::hash::Kind;
use gix::objs::{self, Data, Find};
use gix::prelude::FindExt;
use gix::{ObjectId, OdbHandle, oid};

/// What Weir needs of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) tree: ObjectId,
    pub(crate) parents: Vec<ObjectId>,
    /// When it was committed, in seconds since 1970; 0 if that cannot be read. Whoever made the commit chose it.
    pub(crate) time: i64,
}

impl Commit {
    /// Reads a commit.
    ///
    /// # Errors
    /// The object is missing, unreadable or not a commit, or has no tree.
    pub(crate) fn read(objects: &OdbHandle, id: ObjectId) -> gix::Result<Self> {
        let mut buffer = Vec::new();
        let object = objects.find(&id, &mut buffer)?;
        let commit = Some(object.data).filter(|_| object.kind == objs::Kind::Commit);
        let commit = commit.and_then(|data| Self::parse(data, id.kind()));
        commit.ok_or_else(|| gix::error::message!("{id} is not a commit, or names no tree").corrupted_error())
    }

    /// Parses the lines of the tree and of the parents, and the time if possible.
    fn parse(data: &[u8], hash: Kind) -> Option<Self> {
        let mut lines = data.split(|byte| *byte == b'\n').peekable();
        let id =
            |line: &[u8], name: &[u8]| ObjectId::from_hex(line.strip_prefix(name)?).ok().filter(|id| id.kind() == hash);
        let tree = id(lines.next()?, b"tree ")?;
        let parents =
            std::iter::from_fn(|| lines.next_if(|line| line.starts_with(b"parent "))).map(|line| id(line, b"parent "));
        let parents = parents.collect::<Option<_>>()?;
        let committer = lines.take_while(|line| !line.is_empty()).find(|line| line.starts_with(b"committer "));
        Some(Self { tree, parents, time: committer.and_then(seconds).unwrap_or_default() })
    }
}

/// The number after the last `>` of a line.
fn seconds(committer: &[u8]) -> Option<i64> {
    let time = committer.rsplit(|byte| *byte == b'>').next()?.trim_ascii_start();
    let digits = time.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&time[..digits]).ok()?.parse().ok()
}

/// Objects for the negotiation of gix, which needs commits only: each is rewritten so that gix can read it, and an
/// unreadable one counts as missing. So no object can make the negotiation fail.
pub(super) struct ReadableCommits<'a>(pub(super) &'a OdbHandle);

impl Find for ReadableCommits<'_> {
    fn try_find<'b>(&self, id: &oid, buffer: &'b mut Vec<u8>) -> gix::Result<Option<Data<'b>>> {
        let commit = match self.0.try_find(id, buffer) {
            Ok(Some(Data { kind: objs::Kind::Commit, data, .. })) => Commit::parse(data, id.kind()),
            _ => None,
        };
        let Some(Commit { tree, parents, time }) = commit else { return Ok(None) };
        let parents: String = parents.iter().map(|parent| format!("parent {parent}\n")).collect();
        *buffer = format!("tree {tree}\n{parents}author a <a> {time} +0000\ncommitter a <a> {time} +0000\n\n").into();
        Ok(Some(Data { kind: objs::Kind::Commit, object_hash: id.kind(), data: buffer }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_read_whatever_its_author_and_committer_are() {
        let [tree, first, second] =
            ["1", "2", "3"].map(|digit| ObjectId::from_hex(digit.repeat(40).as_bytes()).unwrap());
        let parse = |rest: &str| Commit::parse(format!("tree {tree}\n{rest}").as_bytes(), Kind::Sha1);
        let parents = format!("parent {first}\nparent {second}\n");
        for (committer, time) in [
            ("a <a@b> 1700000000 +0000", 1_700_000_000),
            ("a <a@b> 17 GMT and more", 17),
            ("a <a@b> 17.25 +0000", 17),
            ("a <a <b>> 17 +0000", 17),
            ("a <> Fri Jan 2 2015", 0),
            ("a <a@b 17 +0000", 0),
            ("a", 0),
            ("", 0),
            ("a <a@b> 99999999999999999999 +0000", 0),
            ("a <a@b> -5 +0000", 0),
        ] {
            let commit = parse(&format!("{parents}author x\ncommitter {committer}\n\ncommitter a <a> 1 +0000\n"));
            assert_eq!(commit, Some(Commit { tree, parents: vec![first, second], time }), "{committer}");
        }
        for rest in ["", "author x\n", "\n", "\ncommitter a <a> 5 +0000\n"] {
            assert_eq!(parse(rest), Some(Commit { tree, parents: Vec::new(), time: 0 }), "{rest:?}");
        }
        assert_eq!((parse("parent 22\n"), Commit::parse(b"author x\n", Kind::Sha1)), (None, None));
    }
}
