//! What becomes of a service's descriptor when its content is known at a commit: nothing, a revision, a publication.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weir_shared::commit_id::CommitId;
use weir_shared::descriptor::{
    Descriptor, DescriptorFields, FORMAT, Generation, Omission, Publication, Representation,
};
use weir_shared::digest::{BlobDigest, Sha256, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::name::{RepositoryName, ServiceName};

use super::generation;
use crate::tarball::Built;

/// What a build found: everything of a publication that the content decides. Remembered under the content's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    /// BLAKE3 of the tarball.
    pub(crate) digest: TarballDigest,
    /// SHA-256 of the tarball.
    pub(crate) sha256: Sha256,
    /// Bytes of the tarball.
    pub(crate) size: u64,
    /// What the tarball leaves out.
    pub(crate) omitted: Vec<Omission>,
    /// The blob that holds the tarball as zstd.
    pub(crate) blob: BlobDigest,
    /// Bytes of the blob.
    pub(crate) blob_size: u64,
}

impl From<Built> for Content {
    fn from(built: Built) -> Self {
        Self {
            digest: built.digest,
            sha256: built.sha256,
            size: built.size,
            omitted: built.omitted,
            blob: built.blob,
            blob_size: built.blob_size,
        }
    }
}

impl Content {
    /// What a descriptor states.
    pub(super) fn of(descriptor: &Descriptor) -> Option<Self> {
        let (publication, zstd) = (descriptor.publication(), descriptor.representation(Encoding::Zstd)?);
        Some(Self {
            digest: publication.digest,
            sha256: publication.sha256,
            size: publication.size,
            omitted: publication.omitted.clone(),
            blob: zstd.digest,
            blob_size: zstd.size,
        })
    }

    /// The form that builds make.
    pub(crate) fn zstd(&self) -> Representation {
        Representation { encoding: Encoding::Zstd, dictionary: None, digest: self.blob, size: self.blob_size }
    }

    /// This content's own form, and the others in which a descriptor has the same tarball.
    fn representations(&self, others: Option<&Descriptor>) -> Vec<Representation> {
        let same = others.filter(|descriptor| descriptor.publication().digest == self.digest);
        let others = same.into_iter().flat_map(Descriptor::representations);
        std::iter::once(self.zstd()).chain(others.filter(|other| other.encoding != Encoding::Zstd).cloned()).collect()
    }
}

/// Which service has a content, and since which commit.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) service: ServiceName,
    pub(crate) repository: RepositoryName,
    pub(crate) commit: CommitId,
}

/// What becomes of a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It says it all already.
    Keep,
    /// The same publication, in other representations.
    Revise(DescriptorFields),
    /// A new publication.
    Publish(DescriptorFields),
}

/// Whether a descriptor says already that the service has this content at this commit.
pub(crate) fn is_current(current: &Descriptor, statement: &Statement, content: &Content) -> bool {
    states(current, statement, content) && current.representation(Encoding::Zstd) == Some(&content.zstd())
}

fn states(current: &Descriptor, statement: &Statement, content: &Content) -> bool {
    let publication = current.publication();
    publication.digest == content.digest
        && publication.commit == statement.commit
        && publication.repository == statement.repository
        && publication.format == FORMAT
}

/// Decides. `last` is the last generation of the service, whatever became of it.
pub(crate) fn decide(
    current: Option<&Descriptor>,
    statement: &Statement,
    content: &Content,
    last: Option<Generation>,
    now: SystemTime,
    floor: Generation,
) -> Decision {
    if let Some(current) = current.filter(|current| states(current, statement, content)) {
        if is_current(current, statement, content) {
            return Decision::Keep;
        }
        return Decision::Revise(revised(current, content));
    }
    Decision::Publish(DescriptorFields {
        publication: Publication {
            service: statement.service.clone(),
            repository: statement.repository.clone(),
            generation: generation::next(last, now, floor),
            digest: content.digest,
            sha256: content.sha256,
            size: content.size,
            commit: statement.commit.clone(),
            published_at: whole_seconds(now),
            format: FORMAT,
            omitted: content.omitted.clone(),
        },
        revision: 1,
        representations: content.representations(current),
    })
}

/// A publication's time has no fraction on the wire, so it has none here.
fn whole_seconds(time: SystemTime) -> SystemTime {
    time.duration_since(UNIX_EPOCH).map_or(UNIX_EPOCH, |since| UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

/// The same publication with the representations of a content that was built again.
pub(crate) fn revised(current: &Descriptor, content: &Content) -> DescriptorFields {
    DescriptorFields {
        publication: current.publication().clone(),
        revision: current.revision().saturating_add(1),
        representations: content.representations(Some(current)),
    }
}

/// A version as a publication of now: what it states, and in which forms, is as it was.
pub(crate) fn again(
    version: &Descriptor,
    last: Option<Generation>,
    now: SystemTime,
    floor: Generation,
) -> DescriptorFields {
    let before = version.publication();
    DescriptorFields {
        publication: Publication {
            generation: generation::next(last, now, floor),
            published_at: whole_seconds(now),
            ..before.clone()
        },
        revision: 1,
        representations: version.representations().to_vec(),
    }
}

/// The same publication and representations, to be written anew: signed with other keys.
pub(crate) fn rewritten(descriptor: &Descriptor) -> DescriptorFields {
    DescriptorFields {
        publication: descriptor.publication().clone(),
        revision: descriptor.revision().saturating_add(1),
        representations: descriptor.representations().to_vec(),
    }
}

/// The same publication with one more representation, or another one of its coding; `None` when it has that already.
pub(crate) fn with(current: &Descriptor, representation: &Representation) -> Option<DescriptorFields> {
    if current.representations().contains(representation) {
        return None;
    }
    let mut representations = current.representations().to_vec();
    match representations.iter_mut().find(|other| other.encoding == representation.encoding) {
        Some(other) => *other = representation.clone(),
        None => representations.push(representation.clone()),
    }
    Some(DescriptorFields {
        publication: current.publication().clone(),
        revision: current.revision().saturating_add(1),
        representations,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn content(tar: &str, blob: &str) -> Content {
        Content {
            digest: TarballDigest::of(tar.as_bytes()),
            sha256: Sha256::from_bytes([7; 32]),
            size: 10_240,
            omitted: Vec::new(),
            blob: BlobDigest::of(blob.as_bytes()),
            blob_size: blob.len() as u64,
        }
    }

    pub(crate) fn statement(commit: char) -> Statement {
        Statement {
            service: "shop-prod".parse().unwrap(),
            repository: "shop".parse().unwrap(),
            commit: commit.to_string().repeat(40).parse().unwrap(),
        }
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_795_164_249_650)
    }

    pub(crate) fn published(current: Option<&Descriptor>, commit: char, content: &Content) -> Descriptor {
        let last = current.map(|current| current.publication().generation);
        match decide(current, &statement(commit), content, last, now(), 0) {
            Decision::Publish(fields) => Descriptor::new(fields),
            other => panic!("expected a publication, got {other:?}"),
        }
    }

    #[test]
    fn new_content_or_a_new_commit_is_a_new_generation() {
        let first = published(None, 'a', &content("one", "z1"));
        assert_eq!(first.version(), (1_795_164_249_650, 1));
        let second = published(Some(&first), 'b', &content("two", "z2"));
        assert_eq!(second.version(), (1_795_164_249_651, 1));
        let same_content = published(Some(&second), 'c', &content("two", "z2"));
        assert_eq!(same_content.publication().digest, second.publication().digest);
        assert_eq!(same_content.publication().generation, 1_795_164_249_652);
    }

    #[test]
    fn the_same_again_is_nothing_and_other_bytes_of_the_same_content_are_a_revision() {
        let first = published(None, 'a', &content("one", "z1"));
        let again = decide(Some(&first), &statement('a'), &content("one", "z1"), None, now(), 0);
        assert_eq!(again, Decision::Keep);
        let Decision::Revise(fields) = decide(Some(&first), &statement('a'), &content("one", "z9"), None, now(), 0)
        else {
            panic!("expected a revision")
        };
        let revised = Descriptor::new(fields);
        assert_eq!(revised.publication(), first.publication());
        assert_eq!(revised.revision(), 2);
        assert_eq!(revised.representations()[0].digest, BlobDigest::of(b"z9"));
    }

    #[test]
    fn another_form_of_a_tarball_stays_with_it_as_long_as_the_tarball_does() {
        let first = published(None, 'a', &content("one", "z1"));
        let gzip =
            Representation { encoding: Encoding::Gzip, dictionary: None, digest: BlobDigest::of(b"g1"), size: 2 };
        let both = Descriptor::new(with(&first, &gzip).unwrap());
        assert_eq!((both.revision(), both.representations().len()), (2, 2));
        assert_eq!(with(&both, &gzip), None);
        let again = decide(Some(&both), &statement('a'), &content("one", "z1"), None, now(), 0);
        assert_eq!(again, Decision::Keep);
        let Decision::Revise(fields) = decide(Some(&both), &statement('a'), &content("one", "z9"), None, now(), 0)
        else {
            panic!("expected a revision")
        };
        assert_eq!(fields.representations[1], gzip);
        assert_eq!(published(Some(&both), 'b', &content("one", "z1")).representations()[1], gzip);
        assert_eq!(published(Some(&both), 'b', &content("two", "z2")).representations().len(), 1);
    }
}
