//! One version of a service: its descriptor and the header values that are the same in every response.
//!
//! The values are rendered once, when the version arrives, so that a poll only copies references.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use weir_cache::Transcoding;
use weir_protocol::attached::Attached;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::descriptor::{Descriptor, Generation, Representation};
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::encoding::{self, Encoding};
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::oci::{self, OciBlob};
use weir_protocol::route::Route;

#[derive(Debug)]
pub(crate) struct Version {
    descriptor: Descriptor,
    pub(crate) values: HeaderValues,
    /// `None`: the version has no OCI form.
    pub(crate) oci: Option<OciValues>,
    /// What is attached to its manifest, once a client asked for some of it.
    attached: OnceLock<Vec<Attached>>,
    staging: Staging,
    /// In the order of the descriptor's representations.
    tags: Vec<EntityTag>,
    identity_tag: EntityTag,
    /// The weak tag of gzip compressed on the fly: its bytes may differ each time.
    gzip_tag: EntityTag,
}

/// Whether agents get different versions.
#[derive(Debug)]
enum Staging {
    /// All get this one.
    None,
    /// Those that the descriptor names get the later one once it is offered, and all others this one.
    InForce { later: Arc<Version>, is_offered: Arc<AtomicBool> },
    /// It is the later one.
    Later,
}

/// Header values shared by all responses for a version.
#[derive(Debug)]
pub(crate) struct HeaderValues {
    pub(crate) digest: HeaderValue,
    pub(crate) generation: HeaderValue,
    /// `None`: the revision is no commit.
    pub(crate) commit: Option<HeaderValue>,
    pub(crate) revision: HeaderValue,
    pub(crate) source_version: Option<HeaderValue>,
    pub(crate) content_location: HeaderValue,
    pub(crate) unencoded_digest: HeaderValue,
    /// For what the tarball is a dictionary (RFC 9842): the service's later versions.
    pub(crate) use_as_dictionary: HeaderValue,
    /// The entity tag of the descriptor itself.
    pub(crate) descriptor_tag: EntityTag,
}

/// The same of responses with the manifest of a version.
#[derive(Debug)]
pub(crate) struct OciValues {
    pub(crate) digest: HeaderValue,
    pub(crate) media_type: HeaderValue,
    pub(crate) tag: EntityTag,
    /// Its tags besides `latest` and `staged`.
    pub(crate) tags: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct EntityTag {
    pub(crate) text: String,
    pub(crate) value: HeaderValue,
}

/// What a client accepts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Accepted<'a> {
    /// The value of `Accept-Encoding`.
    pub(crate) encoding: Option<&'a str>,
    /// The dictionary that it has.
    pub(crate) dictionary: Option<Sha256>,
}

/// The representation selected for a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant<'a> {
    /// The content coding of the response.
    pub(crate) encoding: Encoding,
    /// The stored representation it is made from.
    pub(crate) stored: &'a Representation,
    /// How the stored representation is transcoded.
    pub(crate) transcoding: Transcoding,
    /// Bytes of the body. Unknown for gzip compressed on the fly, which therefore supports no ranges.
    pub(crate) length: Option<u64>,
    pub(crate) tag: &'a EntityTag,
}

impl EntityTag {
    /// `text`: with its quotes.
    pub(crate) fn new(text: String) -> Self {
        Self { value: header_value(&text), text }
    }
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names, digests and numbers are visible ASCII")
}

impl OciValues {
    /// `None`: what is no media type is nothing that this edge can serve.
    pub(crate) fn new(sha256: &Sha256, media_type: &str, tags: Vec<String>) -> Option<Self> {
        let digest = format!("sha256:{sha256}");
        Some(Self {
            media_type: HeaderValue::from_str(media_type).ok()?,
            digest: header_value(&digest),
            tag: EntityTag::new(format!("\"{digest}\"")),
            tags,
        })
    }

    fn of(descriptor: &Descriptor) -> Option<Self> {
        let (form, publication) = (descriptor.oci()?, descriptor.publication());
        Self::new(&form.sha256, &form.media_type, oci::tags(&publication.revision_id, publication.version.as_ref()))
    }
}

impl Version {
    pub(crate) fn new(descriptor: Descriptor) -> Self {
        let staged = descriptor.fields().staged.as_deref();
        let later = staged.and_then(|staged| staged.later_than(descriptor.publication()));
        let staging = later.map_or(Staging::None, |later| Staging::InForce {
            is_offered: Arc::new(later.envelope().is_none().into()),
            later: Arc::new(Self::with(later, Staging::Later)),
        });
        Self::with(descriptor, staging)
    }

    fn with(descriptor: Descriptor, staging: Staging) -> Self {
        let publication = descriptor.publication();
        let tags = descriptor
            .representations()
            .iter()
            .map(|r| EntityTag::new(tarball_etag(&publication.digest, Some((r.encoding, &r.digest)))))
            .collect();
        let location = Route::TarballVersion(publication.service.clone(), publication.digest);
        Self {
            values: HeaderValues {
                digest: header_value(&publication.digest.to_string()),
                generation: HeaderValue::from(publication.generation),
                commit: publication.commit.as_ref().map(|commit| header_value(commit.as_str())),
                revision: header_value(publication.revision_id.as_str()),
                source_version: publication.version.as_ref().map(|version| header_value(version.as_str())),
                content_location: header_value(&location.to_string()),
                unencoded_digest: header_value(&format!(
                    "sha-256=:{}:",
                    STANDARD.encode(publication.sha256.as_bytes())
                )),
                use_as_dictionary: header_value(&format!("match=\"{}\"", Route::Tarball(publication.service.clone()))),
                descriptor_tag: EntityTag::new(descriptor.etag()),
            },
            tags,
            identity_tag: EntityTag::new(tarball_etag(&publication.digest, None)),
            gzip_tag: EntityTag::new(format!("W/\"{}+gzip\"", publication.digest)),
            oci: OciValues::of(&descriptor),
            attached: OnceLock::new(),
            staging,
            descriptor,
        }
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The later version that some agents get.
    pub(crate) fn later(&self) -> Option<&Arc<Self>> {
        match &self.staging {
            Staging::InForce { later, .. } => Some(later),
            Staging::None | Staging::Later => None,
        }
    }

    /// Whether it is the later version of another one.
    pub(crate) fn is_later(&self) -> bool {
        matches!(self.staging, Staging::Later)
    }

    /// This version, and the later one that some agents get.
    pub(crate) fn all(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        iter::once(self).chain(self.later())
    }

    /// The later version if it is for this agent, which has these asserted labels.
    pub(crate) fn later_for(&self, agent: &NodeName, labels: &Labels) -> Option<&Arc<Self>> {
        match &self.staging {
            Staging::InForce { later, is_offered } if is_offered.load(Ordering::Acquire) => {
                let audience = &self.descriptor.fields().staged.as_ref()?.audience;
                audience.includes(agent, labels, &self.descriptor.publication().service).then_some(later)
            }
            _ => None,
        }
    }

    /// Whether it has a later one that nobody gets yet: it is signed, and no upstream has given a freshness statement of it.
    pub(crate) fn is_unoffered(&self) -> bool {
        matches!(&self.staging, Staging::InForce { is_offered, .. } if !is_offered.load(Ordering::Acquire))
    }

    /// Generation and digest of the later one if it is offered, and is signed: one that is not needs no statement.
    pub(crate) fn offered(&self) -> Option<(Generation, TarballDigest)> {
        match &self.staging {
            Staging::InForce { later, is_offered } if is_offered.load(Ordering::Acquire) => {
                later.descriptor.envelope()?;
                let publication = later.descriptor.publication();
                Some((publication.generation, publication.digest))
            }
            _ => None,
        }
    }

    /// Offers the later one if it has this generation and digest. Whether it was not before.
    pub(crate) fn offer(&self, generation: Generation, digest: TarballDigest) -> bool {
        let Staging::InForce { later, is_offered } = &self.staging else { return false };
        let publication = later.descriptor.publication();
        (publication.generation, publication.digest) == (generation, digest) && !is_offered.swap(true, Ordering::AcqRel)
    }

    /// The later one is offered if that of the version that this one replaces is, and is the same. One that was not signed was
    /// offered without a statement.
    pub(crate) fn offered_like(mut self, earlier: Option<&Self>) -> Self {
        if let Staging::InForce { later, is_offered } = &mut self.staging
            && let Some(Staging::InForce { later: before, is_offered: was_offered }) = earlier.map(|it| &it.staging)
            && later.descriptor.publication() == before.descriptor.publication()
            && later.descriptor.envelope().is_some() == before.descriptor.envelope().is_some()
        {
            is_offered.clone_from(was_offered);
        }
        self
    }

    /// Whether agents that request the current version get different ones.
    pub(crate) fn depends_on_agent(&self) -> bool {
        !matches!(self.staging, Staging::None)
    }

    /// What is attached to its manifest.
    pub(crate) fn attached(&self) -> &[Attached] {
        self.attached.get_or_init(|| self.descriptor.attached())
    }

    /// A blob of the OCI form as a stored body, and the size of its tar. The layer of a service of files is its gzip
    /// representation; of everything else no tar is known.
    pub(crate) fn blob(&self, blob: &OciBlob) -> (Representation, u64) {
        let OciBlob { digest, size, frames, .. } = *blob;
        let known = self.descriptor.representations().iter().find(|known| known.digest == digest);
        match known {
            Some(known) => (known.clone(), self.descriptor.publication().size),
            None => (Representation { encoding: Encoding::Identity, dictionary: None, digest, size, frames }, size),
        }
    }

    /// All stored bodies, each with the size of its tar.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = (Representation, u64)> {
        let (known, size) = (self.descriptor.representations(), self.descriptor.publication().size);
        let blobs = self.descriptor.oci().into_iter().flat_map(|form| &form.blobs);
        let others = blobs.filter(move |blob| known.iter().all(|known| known.digest != blob.digest));
        known.iter().map(move |known| (known.clone(), size)).chain(others.map(move |blob| self.blob(blob)))
    }

    /// Selects the variant for what a client accepts, codings in `without` excluded. `None`: no acceptable coding is
    /// left.
    ///
    /// Stored representations are served as they are; dcz only against the dictionary that the client has. Identity,
    /// and gzip that is not stored, are made from zstd.
    pub(crate) fn variant(&self, accepted: Accepted<'_>, without: &[Encoding]) -> Option<Variant<'_>> {
        let from = |wanted: Encoding| match wanted {
            Encoding::Identity => self.stored(Encoding::Zstd, None),
            Encoding::Gzip => self.stored(Encoding::Gzip, None).or_else(|| self.stored(Encoding::Zstd, None)),
            Encoding::Dcz => self.stored(Encoding::Dcz, Some(accepted.dictionary?)),
            Encoding::Zstd => self.stored(Encoding::Zstd, None),
        };
        let available = |wanted| !without.contains(&wanted) && from(wanted).is_some();
        let encoding = encoding::negotiate(accepted.encoding, available)?;
        let (position, stored) = from(encoding)?;
        let (transcoding, length, tag) = match encoding {
            coded if coded == stored.encoding => (Transcoding::Passthrough, Some(stored.size), &self.tags[position]),
            Encoding::Gzip => (Transcoding::Gzip, None, &self.gzip_tag),
            _ => (Transcoding::Decode, Some(self.descriptor.publication().size), &self.identity_tag),
        };
        Some(Variant { encoding, stored, transcoding, length, tag })
    }

    fn stored(&self, encoding: Encoding, dictionary: Option<Sha256>) -> Option<(usize, &Representation)> {
        let mut stored = self.descriptor.representations().iter().enumerate();
        stored.find(|(_, r)| r.encoding == encoding && r.dictionary == dictionary)
    }
}
