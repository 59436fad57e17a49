//! The record of a repository: the one mutable thing that a publication replaces. It names all pages and segments.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_ownership::{Claim, SessionId};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::{NodeName, RepositoryName};
use weir_protocol::revision_id::RevisionId;

use super::page::PageRef;

const FORMAT: u32 = 1;

/// The owner of a record that a single origin writes. It is not a claim.
const LOCAL_OWNER: &str = "local";

/// A repository's record: about 150 bytes for each page and segment, so below 200 kB for 10,000 services with a full
/// history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RepositoryRecord {
    format: u32,
    pub(crate) repository: RepositoryName,
    /// The origin that publishes the repository: its name in a cluster, or `local`.
    owner: String,
    /// Identifies one run of that origin.
    session: u64,
    /// Grows with each change of the owner.
    fence: u64,
    /// The owner has stopped all work, for the next owner to take the repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_released: bool,
    /// Grows with each write.
    pub(crate) sequence: u64,
    /// The public keys that its descriptors are signed with, a line each.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) signed_with: String,
    /// The document that operators wrote for the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<Value>,
    /// Operators have defined something here, perhaps deleted since. A store that remembers this was not emptied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) operators_have_defined: bool,
    /// Sorted by service.
    pub(crate) pages: Vec<PageRef>,
    /// The oldest first; only the last one grows.
    pub(crate) history: Vec<SegmentRef>,
    /// The last tip of each followed ref that has a line in the history.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tips: BTreeMap<String, RevisionId>,
    /// Lists the bundles of the mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mirror: Option<ObjectDigest>,
    /// Objects that only the previous record names. They stay, because its copy is the fallback for damage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    superseded: Vec<ObjectDigest>,
}

/// A reference to a history segment, in a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentRef {
    pub(crate) digest: ObjectDigest,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) entries: u64,
    /// When the first and the last entry were written, in Unix milliseconds.
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryRecordError {
    /// It is no record.
    #[error("the record cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A later version wrote it.
    #[error("the record has format {0}, and this version knows {FORMAT}: upgrade this origin")]
    UnknownFormat(u32),
    /// It is in the wrong place.
    #[error("the record belongs to repository `{0}`")]
    OtherRepository(RepositoryName),
    /// Its owner cannot be one.
    #[error("the record names the owner `{0}`, which is not the name of a node")]
    MalformedOwner(String),
}

/// The claim in the bytes of a record. A record that a single origin wrote reads as released: that origin has stopped,
/// or it would use other records.
///
/// # Errors
/// The record cannot be read, or belongs to another repository.
pub fn claim_of(repository: &RepositoryName, bytes: &[u8]) -> Result<Claim, RepositoryRecordError> {
    RepositoryRecord::parse(repository, bytes)?.claim()
}

/// The bytes of a record with this claim and one more write, all else as in `before`. `None`: there is no record yet.
///
/// # Errors
/// The record cannot be read, or belongs to another repository.
pub fn reclaimed(
    repository: &RepositoryName,
    before: Option<&[u8]>,
    claim: &Claim,
) -> Result<Bytes, RepositoryRecordError> {
    let before = before.map_or_else(
        || Ok(RepositoryRecord::new(repository.clone())),
        |bytes| RepositoryRecord::parse(repository, bytes),
    );
    Ok(before?.with_claim(claim).to_bytes())
}

impl RepositoryRecord {
    /// The state before the first write.
    pub(crate) fn new(repository: RepositoryName) -> Self {
        Self {
            format: FORMAT,
            repository,
            owner: LOCAL_OWNER.to_owned(),
            session: 0,
            fence: 0,
            is_released: false,
            sequence: 0,
            signed_with: String::new(),
            definition: None,
            operators_have_defined: false,
            pages: Vec::new(),
            history: Vec::new(),
            tips: BTreeMap::new(),
            mirror: None,
            superseded: Vec::new(),
        }
    }

    pub(crate) fn parse(repository: &RepositoryName, bytes: &[u8]) -> Result<Self, RepositoryRecordError> {
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

    pub(crate) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record is plain data").into()
    }

    pub(crate) fn claim(&self) -> Result<Claim, RepositoryRecordError> {
        let owner: Result<NodeName, _> = self.owner.parse();
        Ok(Claim {
            owner: owner.map_err(|_| RepositoryRecordError::MalformedOwner(self.owner.clone()))?,
            session: SessionId(self.session),
            fence: self.fence,
            is_released: self.is_released || self.session == 0,
        })
    }

    /// This record as a successor of itself that belongs to somebody else.
    fn with_claim(self, claim: &Claim) -> Self {
        let Claim { owner, session, fence, is_released } = claim;
        Self {
            owner: owner.to_string(),
            session: session.0,
            fence: *fence,
            is_released: *is_released,
            sequence: self.sequence + 1,
            ..self
        }
    }

    /// This record as the successor of `before`.
    pub(crate) fn following(mut self, before: &Self) -> Self {
        self.sequence = before.sequence + 1;
        let named: BTreeSet<ObjectDigest> = self.named().collect();
        self.superseded = before.named().filter(|digest| !named.contains(digest)).collect();
        self
    }

    /// The private objects that this record and its previous copy reference.
    pub(crate) fn objects(&self) -> impl Iterator<Item = ObjectDigest> + '_ {
        self.named().chain(self.superseded.iter().copied())
    }

    fn named(&self) -> impl Iterator<Item = ObjectDigest> + '_ {
        let pages = self.pages.iter().flat_map(|page| std::iter::once(&page.digest).chain(&page.previous));
        pages.copied().chain(self.history.iter().map(|segment| segment.digest)).chain(self.mirror)
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
    fn a_record_references_the_objects_of_its_previous_copy() {
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
    fn a_claim_changes_nothing_else_and_counts_as_a_write() {
        let repository: RepositoryName = "shop".parse().unwrap();
        let mut record = RepositoryRecord::new(repository.clone());
        record.pages = vec![page("a", 1, &[0])];
        record.sequence = 6;
        let local = claim_of(&repository, &record.to_bytes()).unwrap();
        assert!(local.fence == 0 && local.is_released, "any node may take what a single origin has left");
        let mine = Claim { owner: "one".parse().unwrap(), session: SessionId(9), fence: 1, is_released: false };
        let claimed = reclaimed(&repository, Some(&record.to_bytes()), &mine).unwrap();
        assert_eq!(claim_of(&repository, &claimed).unwrap(), mine);
        let claimed = RepositoryRecord::parse(&repository, &claimed).unwrap();
        assert_eq!((claimed.sequence, &claimed.pages), (7, &record.pages));
        let next = claimed.clone().following(&claimed);
        assert_eq!(next.claim().unwrap(), mine, "a publication leaves the claim as it is");
        let released = Claim { is_released: true, ..mine };
        let bytes = reclaimed(&repository, None, &released).unwrap();
        assert_eq!(claim_of(&repository, &bytes).unwrap(), released);
        assert!(reclaimed(&repository, Some(b"{}"), &released).is_err());
        assert!(claim_of(&"blog".parse().unwrap(), &bytes).is_err());
    }

    #[test]
    fn a_record_of_a_later_version_or_another_repository_is_refused() {
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
