//! One version of a service as it is served: its descriptor, and the header values that are the same in every answer.
//!
//! They are rendered once, when the version arrives: a poll then copies references.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::descriptor::{Descriptor, Representation};
use weir_protocol::encoding::{self, Encoding};
use weir_protocol::route::Route;

use crate::cache::Delivery;

/// A descriptor with its header values.
#[derive(Debug)]
pub(crate) struct Version {
    descriptor: Descriptor,
    pub(crate) values: Values,
    /// In the order of the descriptor's representations.
    tags: Vec<Tag>,
    identity_tag: Tag,
    /// Of gzip that is made on the way: its bytes are not the same each time, its content is.
    gzip_tag: Tag,
}

/// Header values that every answer of a version shares.
#[derive(Debug)]
pub(crate) struct Values {
    pub(crate) digest: HeaderValue,
    pub(crate) generation: HeaderValue,
    pub(crate) commit: HeaderValue,
    pub(crate) revision: HeaderValue,
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

/// The representation that a request gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant<'a> {
    /// The content coding of what is sent.
    pub(crate) encoding: Encoding,
    /// What it is made from.
    pub(crate) stored: &'a Representation,
    /// What is made of that on the way.
    pub(crate) delivery: Delivery,
    /// Bytes of what is sent. Not known of gzip that is made on the way, which has no ranges therefore.
    pub(crate) length: Option<u64>,
    /// Its entity tag.
    pub(crate) tag: &'a Tag,
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
                revision: value(&publication.revision_id.to_string()),
                content_location: value(&location.to_string()),
                unencoded_digest: value(&format!("sha-256=:{}:", STANDARD.encode(publication.sha256.as_bytes()))),
                descriptor_tag: Tag::new(descriptor.etag()),
            },
            tags,
            identity_tag: Tag::new(tarball_etag(&publication.digest, None)),
            gzip_tag: Tag::new(format!("W/\"{}+gzip\"", publication.digest)),
            descriptor,
        }
    }

    pub(crate) fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The variant that a request with this `Accept-Encoding` gets, when none of these codings may be used. `None`: nothing
    /// acceptable is left.
    ///
    /// What is stored without a dictionary is offered as it is; identity, and gzip that is not stored, are made from zstd.
    pub(crate) fn variant(&self, accept_encoding: Option<&str>, without: &[Encoding]) -> Option<Variant<'_>> {
        let from = |wanted: Encoding| match wanted {
            Encoding::Identity => self.stored(Encoding::Zstd),
            Encoding::Gzip => self.stored(Encoding::Gzip).or_else(|| self.stored(Encoding::Zstd)),
            Encoding::Dcz => None,
            Encoding::Zstd => self.stored(Encoding::Zstd),
        };
        let available = |wanted| !without.contains(&wanted) && from(wanted).is_some();
        let encoding = encoding::negotiate(accept_encoding, available)?;
        let (position, stored) = from(encoding)?;
        let (delivery, length, tag) = match encoding {
            coded if coded == stored.encoding => (Delivery::Stored, Some(stored.size), &self.tags[position]),
            Encoding::Gzip => (Delivery::Gzip, None, &self.gzip_tag),
            _ => (Delivery::Decoded, Some(self.descriptor.publication().size), &self.identity_tag),
        };
        Some(Variant { encoding, stored, delivery, length, tag })
    }

    fn stored(&self, encoding: Encoding) -> Option<(usize, &Representation)> {
        let mut stored = self.descriptor.representations().iter().enumerate();
        stored.find(|(_, r)| r.encoding == encoding && r.dictionary.is_none())
    }
}
