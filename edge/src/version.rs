//! One version of a service as it is served: its descriptor, and the header values that are the same in every answer.
//!
//! They are rendered once, when the version arrives: a poll then copies references.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use weir_shared::conditional::tarball_etag;
use weir_shared::descriptor::{Descriptor, Representation};
use weir_shared::encoding::{self, Encoding};
use weir_shared::route::Route;

/// A descriptor with its header values.
#[derive(Debug)]
pub(crate) struct Version {
    descriptor: Descriptor,
    pub(crate) values: Values,
    /// In the order of the descriptor's representations.
    tags: Vec<Tag>,
    identity_tag: Tag,
}

/// Header values that every answer of a version shares.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) digest: HeaderValue,
    pub(crate) generation: HeaderValue,
    pub(crate) commit: HeaderValue,
    pub(crate) content_location: HeaderValue,
    pub(crate) unencoded_digest: HeaderValue,
    /// The tag of the descriptor itself.
    pub(crate) descriptor_tag: Tag,
}

/// An entity tag, as text and as a header value.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) text: String,
    pub(crate) value: HeaderValue,
}

/// The form that a request gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form<'a> {
    /// The content coding of what is sent.
    pub(crate) encoding: Encoding,
    /// The blob that it is sent from.
    pub(crate) stored: &'a Representation,
    /// Bytes of what is sent.
    pub(crate) length: u64,
    /// Its entity tag.
    pub(crate) tag: &'a Tag,
}

impl Form<'_> {
    /// Whether the blob is decoded on the way: then there are no ranges of it.
    pub(crate) fn is_decoded(&self) -> bool {
        self.encoding != self.stored.encoding
    }
}

impl Tag {
    fn new(text: String) -> Self {
        Self { value: value(&text), text }
    }
}

/// Everything that is rendered here is made of names, digests and numbers.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("names, digests and numbers are visible ASCII")
}

impl Version {
    pub(crate) fn new(descriptor: Descriptor) -> Self {
        let publication = descriptor.publication();
        let tags = descriptor
            .representations()
            .iter()
            .map(|r| Tag::new(tarball_etag(&publication.digest, Some((r.encoding, &r.digest)))))
            .collect();
        let location = Route::TarballVersion(publication.service.clone(), publication.digest);
        Self {
            values: Values {
                digest: value(&publication.digest.to_string()),
                generation: HeaderValue::from(publication.generation),
                commit: value(publication.commit.as_str()),
                content_location: value(&location.to_string()),
                unencoded_digest: value(&format!("sha-256=:{}:", STANDARD.encode(publication.sha256.as_bytes()))),
                descriptor_tag: Tag::new(descriptor.etag()),
            },
            tags,
            identity_tag: Tag::new(tarball_etag(&publication.digest, None)),
            descriptor,
        }
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The form that a request with this `Accept-Encoding` gets. `None`: nothing acceptable is left.
    ///
    /// What is stored without a dictionary is offered as it is; identity is decoded from zstd.
    pub(crate) fn form(&self, accept_encoding: Option<&str>) -> Option<Form<'_>> {
        let from = |wanted: Encoding| match wanted {
            Encoding::Identity => self.stored(Encoding::Zstd),
            Encoding::Dcz => None,
            coded => self.stored(coded),
        };
        let encoding = encoding::negotiate(accept_encoding, |wanted| from(wanted).is_some())?;
        let (position, stored) = from(encoding)?;
        Some(match encoding {
            Encoding::Identity => {
                Form { encoding, stored, length: self.descriptor.publication().size, tag: &self.identity_tag }
            }
            _ => Form { encoding, stored, length: stored.size, tag: &self.tags[position] },
        })
    }

    /// Whether a request with this `Accept-Encoding` would get gzip if only it had been made.
    pub(crate) fn awaits_gzip(&self, accept_encoding: Option<&str>) -> bool {
        let available = |wanted| wanted == Encoding::Gzip || self.stored(wanted).is_some();
        self.stored(Encoding::Gzip).is_none() && encoding::negotiate(accept_encoding, available) == Some(Encoding::Gzip)
    }

    /// The entity tag of the identity coding.
    pub(crate) fn identity_tag(&self) -> &Tag {
        &self.identity_tag
    }

    fn stored(&self, encoding: Encoding) -> Option<(usize, &Representation)> {
        let mut stored = self.descriptor.representations().iter().enumerate();
        stored.find(|(_, r)| r.encoding == encoding && r.dictionary.is_none())
    }
}
