//! Pure: decides whether content is published already, needs a new revision of its descriptor, or is a new
//! publication. Begin at [`decide`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_protocol::descriptor::{
    Descriptor, DescriptorFields, FORMAT, Generation, Omission, Publication, Representation, Selector,
};
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::part::Part;
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;

use super::generation;
use super::oci_form::{self, Described, OciContent};

/// The fields of a descriptor that follow from its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) digest: TarballDigest,
    pub(crate) sha256: Sha256,
    /// Uncompressed bytes.
    pub(crate) size: u64,
    /// Paths that the tarball leaves out.
    pub(crate) omitted: Vec<Omission>,
    pub(crate) representations: Vec<Representation>,
    /// What its OCI form is made of, if its service has one.
    pub(crate) oci: Option<OciContent>,
}

impl Content {
    /// The content that a descriptor describes.
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        let publication = descriptor.publication();
        Self {
            digest: publication.digest,
            sha256: publication.sha256,
            size: publication.size,
            omitted: publication.omitted.clone(),
            representations: descriptor.representations().to_vec(),
            oci: OciContent::of(descriptor),
        }
    }
}

/// The service, and the revision that has the content.
#[derive(Debug, Clone)]
pub(crate) struct PublishRequest {
    pub(crate) service: ServiceName,
    pub(crate) repository: RepositoryName,
    pub(crate) revision: RevisionId,
    pub(crate) version: Option<SourceVersion>,
    pub(crate) parts: Vec<Part>,
    /// As in the service's definition.
    pub(crate) followed_ref: String,
    /// See [`Described`].
    pub(crate) source: Option<String>,
    pub(crate) created: Option<SystemTime>,
}

/// How a service's descriptor changes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The descriptor is correct as it is.
    Unchanged,
    /// The same publication with other representations, or under another ref, or with another OCI form.
    Revise(DescriptorFields),
    Publish(DescriptorFields),
}

/// Decides by content: another revision with the same digest is the same publication. `last` is the last generation of
/// the service, even if the service was deleted since.
pub(crate) fn decide(
    current: Option<&Descriptor>,
    request: &PublishRequest,
    content: &Content,
    last: Option<Generation>,
    now: SystemTime,
    floor: Generation,
) -> Decision {
    let same = current.filter(|current| {
        let publication = current.publication();
        publication.digest == content.digest
            && publication.repository == request.repository
            && publication.format == FORMAT
    });
    if let Some(current) = same {
        return revised(current, request, content).map_or(Decision::Unchanged, Decision::Revise);
    }
    Decision::Publish(published(request, content, last, now, floor))
}

/// A new publication, after the generation `last`.
pub(crate) fn published(
    request: &PublishRequest,
    content: &Content,
    last: Option<Generation>,
    now: SystemTime,
    floor: Generation,
) -> DescriptorFields {
    let publication = Publication {
        service: request.service.clone(),
        repository: request.repository.clone(),
        generation: generation::next(last, now, floor),
        digest: content.digest,
        sha256: content.sha256,
        size: content.size,
        commit: request.revision.commit(),
        revision_id: request.revision.clone(),
        version: request.version.clone(),
        parts: request.parts.clone(),
        selector: Selector,
        published_at: whole_seconds(now),
        format: FORMAT,
        omitted: content.omitted.clone(),
    };
    DescriptorFields {
        oci: content.oci.as_ref().map(|oci| oci.form(request.describe(&publication), None)),
        publication,
        followed_ref: request.followed_ref.clone(),
        revision: 1,
        representations: content.representations.clone(),
        staged: None,
    }
}

impl PublishRequest {
    fn describe<'a>(&'a self, publication: &'a Publication) -> Described<'a> {
        let (source, created) = (self.source.as_deref(), self.created);
        Described { publication, followed_ref: &self.followed_ref, source, created }
    }
}

/// The same publication under another ref, with other representations or another OCI form. `None`: nothing differs. Deltas
/// stay as they are: a build makes none.
fn revised(current: &Descriptor, request: &PublishRequest, content: &Content) -> Option<DescriptorFields> {
    let whole = |all: &[Representation]| -> Vec<_> { all.iter().filter(|one| !is_delta(one)).cloned().collect() };
    let (before, mut after) = (whole(current.representations()), whole(&content.representations));
    let described = request.describe(current.publication());
    let oci = content.oci.as_ref().map(|oci| oci.form(described, Some(current)));
    if current.followed_ref() == request.followed_ref && before == after && current.fields().oci == oci {
        return None;
    }
    after.extend(current.representations().iter().filter(|one| is_delta(one)).cloned());
    let followed_ref = request.followed_ref.clone();
    Some(DescriptorFields { followed_ref, representations: after, oci, ..rewritten(current) })
}

/// The same publication with the representations of a rebuild. `None`: nothing differs. Deltas are dropped, because the
/// object whose loss was the reason may be one. The ref is that of `current`: its service may follow another one by now.
pub(crate) fn rebuilt(current: &Descriptor, content: &Content, source: Option<&str>) -> Option<DescriptorFields> {
    let (publication, followed_ref, created) =
        (current.publication(), current.followed_ref(), oci_form::created(current));
    let described = Described { publication, followed_ref, source, created };
    let oci = content.oci.as_ref().map(|oci| oci.form(described, Some(current)));
    let is_same = current.representations() == content.representations && current.fields().oci == oci;
    let representations = content.representations.clone();
    (!is_same).then(|| DescriptorFields { representations, oci, ..rewritten(current) })
}

/// The same publication with further deltas; those against other tars than `bases` are dropped. `None`: nothing differs.
pub(crate) fn with_deltas(
    current: &Descriptor,
    deltas: Vec<Representation>,
    bases: &[Sha256],
) -> Option<DescriptorFields> {
    let (before, mut after) = (current.representations(), current.representations().to_vec());
    after.extend(deltas);
    after.retain(|one| one.dictionary.is_none_or(|dictionary| bases.contains(&dictionary)));
    (before != after).then(|| DescriptorFields { representations: after, ..rewritten(current) })
}

fn is_delta(representation: &Representation) -> bool {
    representation.dictionary.is_some()
}

/// Publishes a version again, with its content and representations, under the ref of now.
pub(crate) fn republished(
    version: &DescriptorFields,
    followed_ref: &str,
    last: Option<Generation>,
    now: SystemTime,
    floor: Generation,
) -> DescriptorFields {
    DescriptorFields {
        publication: Publication {
            generation: generation::next(last, now, floor),
            published_at: whole_seconds(now),
            ..version.publication.clone()
        },
        followed_ref: followed_ref.to_owned(),
        revision: 1,
        representations: version.representations.clone(),
        oci: version.oci.clone(),
        staged: None,
    }
}

/// The same publication as a new revision, to be signed with other keys. Nothing is staged by it: the row says what is, and an
/// origin of 0.1 may have dropped it there.
pub(crate) fn rewritten(descriptor: &Descriptor) -> DescriptorFields {
    let revision = descriptor.revision().saturating_add(1);
    DescriptorFields { revision, staged: None, ..descriptor.fields().clone() }
}

/// The wire format carries whole seconds.
fn whole_seconds(time: SystemTime) -> SystemTime {
    time.duration_since(UNIX_EPOCH).map_or(UNIX_EPOCH, |since| UNIX_EPOCH + Duration::from_secs(since.as_secs()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use weir_protocol::digest::ObjectDigest;
    use weir_protocol::encoding::Encoding;

    pub(crate) fn content(tar: &str, object: &str) -> Content {
        Content {
            digest: TarballDigest::of(tar.as_bytes()),
            sha256: Sha256::from_bytes([7; 32]),
            size: 10_240,
            omitted: Vec::new(),
            representations: vec![Representation {
                encoding: Encoding::Zstd,
                dictionary: None,
                digest: ObjectDigest::of(object.as_bytes()),
                size: object.len() as u64,
                frames: 1,
            }],
            oci: None,
        }
    }

    fn request(commit: char) -> PublishRequest {
        PublishRequest {
            service: "shop-prod".parse().unwrap(),
            repository: "shop".parse().unwrap(),
            revision: RevisionId::from(&commit.to_string().repeat(40).parse().unwrap()),
            version: None,
            parts: Vec::new(),
            followed_ref: "main".to_owned(),
            source: None,
            created: None,
        }
    }

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_795_164_249_650)
    }

    fn published(current: Option<&Descriptor>, commit: char, content: &Content) -> Descriptor {
        let last = current.map(|current| current.publication().generation);
        match decide(current, &request(commit), content, last, now(), 0) {
            Decision::Publish(fields) => Descriptor::new(fields),
            other => panic!("expected a publication, got {other:?}"),
        }
    }

    fn revised(current: &Descriptor, request: &PublishRequest, content: &Content) -> Descriptor {
        match decide(Some(current), request, content, None, now(), 0) {
            Decision::Revise(fields) => Descriptor::new(fields),
            other => panic!("expected a revision, got {other:?}"),
        }
    }

    #[test]
    fn new_content_is_a_new_generation_and_a_commit_without_one_is_nothing() {
        let first = published(None, 'a', &content("one", "z1"));
        assert_eq!(first.version(), (1_795_164_249_650, 1));
        let second = published(Some(&first), 'b', &content("two", "z2"));
        assert_eq!(second.version(), (1_795_164_249_651, 1));
        let same = decide(Some(&second), &request('c'), &content("two", "z2"), None, now(), 0);
        assert_eq!(same, Decision::Unchanged);
        let moved = PublishRequest { repository: "blog".parse().unwrap(), ..request('c') };
        let moved = decide(Some(&second), &moved, &content("two", "z2"), Some(2), now(), 0);
        assert!(matches!(moved, Decision::Publish(_)), "objects belong to a repository");
    }

    #[test]
    fn other_representations_or_another_ref_of_the_same_content_are_a_revision() {
        let first = published(None, 'a', &content("one", "z1"));
        let recoded = revised(&first, &request('b'), &content("one", "z9"));
        assert_eq!(recoded.publication(), first.publication());
        assert_eq!((recoded.revision(), recoded.representations()[0].digest), (2, ObjectDigest::of(b"z9")));
        let renamed = PublishRequest { followed_ref: "v1".to_owned(), ..request('b') };
        let renamed = revised(&recoded, &renamed, &content("one", "z9"));
        assert_eq!((renamed.followed_ref(), renamed.version().1), ("v1", 3));
        assert_eq!(renamed.publication(), first.publication());
    }

    #[test]
    fn a_republished_content_keeps_its_publication() {
        let first = published(None, 'a', &content("one", "z1"));
        let again = Descriptor::new(republished(first.fields(), "v1", Some(first.publication().generation), now(), 0));
        assert_eq!(again.version(), (first.publication().generation + 1, 1));
        assert_eq!((Content::of(&again), again.followed_ref()), (Content::of(&first), "v1"));
        assert_eq!(again.publication().commit, first.publication().commit);
        let raised = Descriptor::new(republished(first.fields(), "main", None, now(), u64::MAX));
        assert_eq!(raised.publication().generation, u64::MAX);
    }
}
