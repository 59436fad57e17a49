//! The record of a repository: the one thing that a publication replaces. It names everything else.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;

use super::page::PageRef;

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// What `owner` is while there is one origin.
const LOCAL_OWNER: &str = "local";

/// A repository's record. About 150 bytes for each page and segment, so below 200 kB for 10,000 services with a full history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RepositoryRecord {
    format: u32,
    pub(super) repository: RepositoryName,
    /// The origin that publishes for it.
    owner: String,
    /// One run of that origin.
    session: u64,
    /// Grows with each change of the owner.
    fence: u64,
    /// Grows with each write.
    pub(super) sequence: u64,
    /// The public keys that its descriptors are signed with, a line each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) signed_with: String,
    /// The document that operators wrote of the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) definition: Option<Value>,
    /// Operators defined something here once. A store that remembers this was not emptied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) operators_have_defined: bool,
    /// In the order of the services.
    pub(super) pages: Vec<PageRef>,
    /// The oldest first; the last one may grow.
    pub(super) history: Vec<SegmentRef>,
    /// What the record before this one named and this one does not: the record's previous copy still does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    superseded: Vec<ObjectDigest>,
}

/// A history segment, as a record names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SegmentRef {
    pub(super) digest: ObjectDigest,
    /// Its bytes.
    pub(super) size: u64,
    /// How many entries it has.
    pub(super) entries: u64,
    /// When its first and its last entry were written: Unix milliseconds.
    pub(super) first: u64,
    pub(super) last: u64,
}

/// The bytes are not the record of the repository.
#[derive(Debug, thiserror::Error)]
pub(super) enum RepositoryRecordError {
    #[error("the record cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the record has format {0}, and this version knows {FORMAT}: upgrade this origin")]
    UnknownFormat(u32),
    #[error("the record is that of repository `{0}`")]
    OtherRepository(RepositoryName),
}

impl RepositoryRecord {
    /// The record before the first one is written.
    pub(super) fn new(repository: RepositoryName) -> Self {
        Self {
            format: FORMAT,
            repository,
            owner: LOCAL_OWNER.to_owned(),
            session: 0,
            fence: 0,
            sequence: 0,
            signed_with: String::new(),
            definition: None,
            operators_have_defined: false,
            pages: Vec::new(),
            history: Vec::new(),
            superseded: Vec::new(),
        }
    }

    /// Reads a record.
    pub(super) fn parse(repository: &RepositoryName, bytes: &[u8]) -> Result<Self, RepositoryRecordError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        match serde_json::from_slice::<Format>(bytes)?.format {
            FORMAT => {}
            other => return Err(RepositoryRecordError::UnknownFormat(other)),
        }
        let record: Self = serde_json::from_slice(bytes)?;
        if record.repository == *repository {
            Ok(record)
        } else {
            Err(RepositoryRecordError::OtherRepository(record.repository))
        }
    }

    /// The bytes of the record.
    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record is plain data").into()
    }

    /// This record as the one after `before`.
    pub(super) fn following(mut self, before: &Self) -> Self {
        self.sequence = before.sequence + 1;
        let named: BTreeSet<ObjectDigest> = self.named().collect();
        self.superseded = before.named().filter(|digest| !named.contains(digest)).collect();
        self
    }

    /// The private objects that the record keeps from deletion: those that it and its previous copy name.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectDigest> + '_ {
        self.named().chain(self.superseded.iter().copied())
    }

    fn named(&self) -> impl Iterator<Item = ObjectDigest> + '_ {
        let pages = self.pages.iter().flat_map(|page| std::iter::once(&page.digest).chain(&page.previous));
        pages.copied().chain(self.history.iter().map(|segment| segment.digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(first: &str, digest: u8, previous: &[u8]) -> PageRef {
        PageRef {
            first: first.parse().unwrap(),
            digest: ObjectDigest::of(&[digest]),
            size: 1,
            previous: previous.iter().map(|one| ObjectDigest::of(&[*one])).collect(),
        }
    }

    #[test]
    fn a_record_keeps_what_its_previous_copy_names() {
        let repository: RepositoryName = "shop".parse().unwrap();
        let mut first = RepositoryRecord::new(repository.clone());
        first.pages = vec![page("a", 1, &[0]), page("m", 2, &[])];
        let mut second = first.clone();
        second.pages = vec![page("a", 3, &[1]), page("m", 2, &[])];
        let second = second.following(&first);
        assert_eq!(second.sequence, 1);
        let expected: BTreeSet<_> = (0..=3).map(|one| ObjectDigest::of(&[one])).collect();
        assert_eq!(second.objects().collect::<BTreeSet<_>>(), expected);
        assert_eq!(RepositoryRecord::parse(&repository, &second.to_bytes()).unwrap(), second);
        let third = second.clone().following(&second);
        assert!(!third.objects().any(|digest| digest == ObjectDigest::of(&[0])), "two writes ago");
    }

    #[test]
    fn a_record_of_the_future_or_of_another_repository_is_refused_in_plain_words() {
        let repository: RepositoryName = "shop".parse().unwrap();
        let record = RepositoryRecord::new(repository.clone());
        let error = RepositoryRecord::parse(&"blog".parse().unwrap(), &record.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("`shop`"), "{error}");
        let future = String::from_utf8(record.to_bytes().to_vec()).unwrap().replace("\"format\":1", "\"format\":7");
        let error = RepositoryRecord::parse(&repository, future.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("upgrade"), "{error}");
        assert!(RepositoryRecord::parse(&repository, b"{}").is_err());
    }
}
