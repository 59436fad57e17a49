//! The descriptor: the only mutable resource of the protocol.
//!
//! A descriptor is a *publication* (the byte-exact, signable statement "service S, generation n, is digest D of revision
//! R") with its *representations*. Nodes forward the origin's bytes unchanged, so [`Descriptor`] keeps them alongside
//! the parsed fields.

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::commit_id::CommitId;
use crate::cosign;
use crate::digest::{ObjectDigest, Sha256, TarballDigest};
use crate::encoding::Encoding;
use crate::envelope::{Envelope, PUBLICATION_TYPE};
use crate::name::{RepositoryName, ServiceName};
use crate::oci::{Attachment, OciForm};
use crate::part::Part;
use crate::revision_id::RevisionId;
use crate::source_version::SourceVersion;
use crate::staged::Staged;
use crate::token::{PublicKey, SigningKey};

/// The largest descriptor, in bytes. Its size depends on `omitted`: about 100,000 omitted paths fit, or 40,000 in a
/// signed publication, because the envelope repeats it.
pub const MAX_DESCRIPTOR_BYTES: usize = 16 << 20;

/// The tarball format of this version.
pub const FORMAT: u32 = 1;

/// A number that only grows, per service, across restarts, loss of data and changes of owner.
pub type Generation = u64;

/// The statement "service S, generation n, is digest D of revision R".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    /// The service.
    pub service: ServiceName,
    /// The repository it is built from.
    pub repository: RepositoryName,
    /// max(last + 1, Unix milliseconds at publication).
    pub generation: Generation,
    /// BLAKE3 of the uncompressed tarball.
    pub digest: TarballDigest,
    /// SHA-256 of the uncompressed tarball.
    pub sha256: Sha256,
    /// Bytes of the uncompressed tarball.
    pub size: u64,
    /// The commit of `revision_id`, if the source is a Git repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitId>,
    /// The revision at which the content was first seen under this generation.
    pub revision_id: RevisionId,
    /// The version of that revision, if its source names it by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<SourceVersion>,
    /// What it is composed of, in the order of the tarball. Empty: of the repository alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// The clients it is for: all of them.
    #[serde(default)]
    pub selector: Selector,
    /// When the origin published it. Whole seconds, UTC.
    #[serde(with = "rfc3339")]
    pub published_at: SystemTime,
    /// The tarball format: [`FORMAT`].
    pub format: u32,
    /// The entries of the folder that the tarball omits, with reasons.
    #[serde(default)]
    pub omitted: Vec<Omission>,
}

/// The clients a publication is for: all of them, written `null`. Other values are reserved for later versions and
/// refused, because a client must not take a publication that is for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Selector;

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<serde::de::IgnoredAny>::deserialize(deserializer)? {
            None => Ok(Self),
            Some(_) => {
                Err(serde::de::Error::custom("a `selector` is not supported by this version: upgrade this node"))
            }
        }
    }
}

/// An entry that a tarball omits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Omission {
    /// The path below the folder; `%` and bytes that are not UTF-8 are percent-encoded.
    pub path: String,
    /// Why it is omitted.
    pub reason: OmissionReason,
}

/// Why an entry is omitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OmissionReason {
    /// A symlink that leaves the folder, or with an invalid target (empty, with a NUL, over 4,095 bytes).
    Symlink,
    /// A submodule.
    Submodule,
    /// A Git LFS pointer (by attribute) that was not resolved.
    LfsPointer,
    /// `.`, `..`, any case of `.git`, a NUL, or a component over 255 bytes.
    UnsafeName,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// One stored encoding of a tarball.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Representation {
    /// The content coding of the body.
    pub encoding: Encoding,
    /// For [`Encoding::Dcz`]: the SHA-256 of the dictionary, which is an older tarball of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dictionary: Option<Sha256>,
    /// The digest of the only frame, which is the body; or of the [manifest](crate::manifest).
    pub digest: ObjectDigest,
    /// The size of the body in bytes.
    pub size: u64,
    /// The number of frames, at least one.
    pub frames: u32,
}

/// The fields of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorFields {
    /// The publication.
    pub publication: Publication,
    /// The ref that the service follows, as configured: for a range of versions the range.
    #[serde(rename = "ref")]
    pub followed_ref: String,
    /// Grows when the ref changes, and when representations are added or removed under the same publication.
    pub revision: u64,
    /// The representations. When parsed: those in a known coding.
    #[serde(deserialize_with = "known_representations")]
    pub representations: Vec<Representation>,
    /// What clients of the OCI distribution API get, if the service has `oci`. When parsed: if this version understands it.
    #[serde(default, deserialize_with = "known_oci_form", skip_serializing_if = "Option::is_none")]
    pub oci: Option<Box<OciForm>>,
    /// A later version, for some agents. When parsed: if this version understands it.
    #[serde(default, deserialize_with = "known_staged", skip_serializing_if = "Option::is_none")]
    pub staged: Option<Box<Staged>>,
}

/// Skips codings of later versions: they are forwarded with the bytes.
fn known_representations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Representation>, D::Error> {
    #[derive(Deserialize)]
    struct Offered<'a> {
        #[serde(borrow)]
        encoding: Cow<'a, str>,
        dictionary: Option<Sha256>,
        digest: ObjectDigest,
        size: u64,
        frames: u32,
    }
    let offered = Vec::<Offered<'_>>::deserialize(deserializer)?;
    let known = offered.into_iter().filter_map(|Offered { encoding, dictionary, digest, size, frames }| {
        let encoding = Encoding::PREFERENCE.into_iter().find(|known| known.as_str() == encoding)?;
        (frames > 0).then_some(Representation { encoding, dictionary, digest, size, frames })
    });
    Ok(known.collect())
}

/// Skips a form of later versions: agents do not need it, and it is forwarded with the bytes.
fn known_oci_form<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<OciForm>>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    let form = raw.and_then(|raw| serde_json::from_str::<Box<OciForm>>(raw.get()).ok());
    Ok(form.filter(|form| form.is_sound()))
}

/// Skips what later versions stage: everybody gets the version in force, and it is forwarded with the bytes.
fn known_staged<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Staged>>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    Ok(raw.and_then(|raw| serde_json::from_str(raw.get()).ok()))
}

/// A parsed descriptor with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    fields: DescriptorFields,
    bytes: Bytes,
}

/// The bytes are not a descriptor that this version understands.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// More than [`MAX_DESCRIPTOR_BYTES`].
    #[error("the descriptor has {0} bytes, more than the limit of {MAX_DESCRIPTOR_BYTES}")]
    TooLarge(usize),
    /// Not JSON, or a field is missing or wrong.
    #[error("the descriptor cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// A tarball format of a later version.
    #[error("tarball format {0} is unknown (this version knows {FORMAT}): upgrade this node")]
    UnknownFormat(u32),
}

impl Descriptor {
    /// Encodes a new descriptor. Only origins do; other nodes forward bytes.
    pub fn new(fields: DescriptorFields) -> Self {
        Self::signed(fields, &[], false)
    }

    /// Encodes a new descriptor whose publication is signed by each of `keys`; without keys it has no envelope. `cosign`: they
    /// sign the manifest of its OCI form, too.
    pub fn signed(fields: DescriptorFields, keys: &[SigningKey], cosign: bool) -> Self {
        #[derive(Serialize)]
        struct Written<'a> {
            publication: &'a RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            envelope: Option<Envelope>,
            #[serde(rename = "ref")]
            followed_ref: &'a str,
            revision: u64,
            representations: &'a [Representation],
            #[serde(skip_serializing_if = "Option::is_none")]
            oci: Option<WrittenForm<'a>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            staged: Option<&'a Staged>,
        }
        #[derive(Serialize)]
        struct WrittenForm<'a> {
            #[serde(flatten)]
            form: &'a OciForm,
            #[serde(skip_serializing_if = "Vec::is_empty")]
            signatures: Vec<Attachment>,
        }
        let manifest_keys = if cosign { keys } else { &[] };
        let service = &fields.publication.service;
        let written = |form| WrittenForm { form, signatures: cosign::sign(service, form, manifest_keys) };
        let publication = serde_json::value::to_raw_value(&fields.publication).expect("a publication is plain data");
        let written = Written {
            publication: &publication,
            envelope: (!keys.is_empty()).then(|| Envelope::sign(PUBLICATION_TYPE, publication.get().as_bytes(), keys)),
            followed_ref: &fields.followed_ref,
            revision: fields.revision,
            representations: &fields.representations,
            oci: fields.oci.as_deref().map(written),
            staged: fields.staged.as_deref(),
        };
        let bytes = serde_json::to_vec(&written).expect("descriptor fields are plain data").into();
        Self { fields, bytes }
    }

    /// Parses a descriptor and keeps its bytes.
    pub fn parse(bytes: Bytes) -> Result<Self, DescriptorError> {
        if bytes.len() > MAX_DESCRIPTOR_BYTES {
            return Err(DescriptorError::TooLarge(bytes.len()));
        }
        let fields: DescriptorFields = crate::json::from_slice(&bytes)?;
        if fields.publication.format != FORMAT {
            return Err(DescriptorError::UnknownFormat(fields.publication.format));
        }
        Ok(Self { fields, bytes })
    }

    /// The bytes as the origin wrote them.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The publication.
    pub fn publication(&self) -> &Publication {
        &self.fields.publication
    }

    /// The envelope of the publication; `None` when the origin has no key. Parsed on each call, because forwarding does
    /// not need it.
    pub fn envelope(&self) -> Option<Envelope> {
        #[derive(Deserialize)]
        struct Signed {
            envelope: Option<Envelope>,
        }
        serde_json::from_slice::<Signed>(&self.bytes).ok()?.envelope
    }

    /// The publication that a key signed, from the envelope, not from the unsigned copy.
    pub fn publication_signed_by(&self, key: &PublicKey) -> Option<Publication> {
        serde_json::from_slice(&self.envelope()?.signed_by(key, PUBLICATION_TYPE)?).ok()
    }

    /// The ref that the service follows, as configured.
    pub fn followed_ref(&self) -> &str {
        &self.fields.followed_ref
    }

    /// All parsed fields.
    pub fn fields(&self) -> &DescriptorFields {
        &self.fields
    }

    /// The revision of the representations under this publication.
    pub fn revision(&self) -> u64 {
        self.fields.revision
    }

    /// The representations in known codings.
    pub fn representations(&self) -> &[Representation] {
        &self.fields.representations
    }

    /// The representation in one coding, without a dictionary.
    pub fn representation(&self, encoding: Encoding) -> Option<&Representation> {
        self.fields.representations.iter().find(|r| r.encoding == encoding && r.dictionary.is_none())
    }

    /// What clients of the OCI distribution API get of it.
    pub fn oci(&self) -> Option<&OciForm> {
        self.fields.oci.as_deref()
    }

    /// The version that orders descriptors of one service: `(generation, revision)`.
    pub fn version(&self) -> (Generation, u64) {
        (self.fields.publication.generation, self.fields.revision)
    }

    /// The descriptor's entity tag: `"<generation>.<revision>"`.
    pub fn etag(&self) -> String {
        format!("\"{}.{}\"", self.fields.publication.generation, self.fields.revision)
    }
}

/// RFC 3339 in UTC, whole seconds.
pub mod rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes a time.
    ///
    /// # Errors
    /// The serializer fails.
    pub fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_seconds(*time))
    }

    /// Reads a time.
    ///
    /// # Errors
    /// It is not one.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{MANIFEST_TYPE, OciBlob};

    fn example() -> String {
        let digest = TarballDigest::of(b"tar");
        let object = ObjectDigest::of(b"zst");
        format!(
            r#"{{"publication": {{"service": "shop-prod", "repository": "shop", "generation": 1795164249650, "digest": "{digest}",
            "sha256": "{}", "size": 40960, "commit": "{commit}", "revision_id": "sha1:{commit}",
            "selector": null, "published_at": "2026-11-20T09:30:00Z", "format": 1,
            "omitted": [{{"path": "vendor/lib", "reason": "submodule"}}]}},
            "ref": "main", "revision": 2, "future_field": true,
            "representations": [{{"encoding": "zstd", "digest": "{object}", "size": 9120, "frames": 1}},
                                {{"encoding": "future", "digest": "{object}", "size": 1, "frames": 1}},
                                {{"encoding": "dcz", "dictionary": "{}", "digest": "{object}", "size": 312, "frames": 1}}]}}"#,
            "a".repeat(64),
            "c".repeat(64),
            commit = "b".repeat(40),
        )
    }

    #[test]
    fn the_documented_example_is_parsed_and_its_bytes_are_kept() {
        let text = example();
        let descriptor = Descriptor::parse(text.clone().into()).unwrap();
        assert_eq!(descriptor.bytes(), text.as_bytes());
        assert_eq!(descriptor.etag(), "\"1795164249650.2\"");
        assert_eq!(descriptor.publication().omitted[0].reason, OmissionReason::Submodule);
        assert_eq!(descriptor.representation(Encoding::Zstd).unwrap().size, 9120);
        assert_eq!(descriptor.representations().len(), 2, "a coding of the future is passed over");
        assert!(descriptor.representation(Encoding::Dcz).is_none(), "a delta is of use only with its dictionary");
    }

    /// The example as a chart: without a commit, and with a version.
    fn chart() -> String {
        let commit = "b".repeat(40);
        let revision_id = format!("helm:1.2.3+sha256:{}", "d".repeat(64));
        let text = example().replace(&format!(r#""commit": "{commit}", "#), "");
        text.replace(&format!(r#""sha1:{commit}""#), &format!(r#""{revision_id}", "version": "1.2.3""#))
    }

    /// The example as a chart and values.
    fn composed() -> String {
        let part = r#"{"to": "chart", "repository": "charts", "revision_id": "helm:1.2.3+sha256:dd", "later": 1}"#;
        chart().replace(r#""version": "1.2.3""#, &format!(r#""parts": [{part}]"#))
    }

    #[test]
    fn descriptors_round_trip() {
        let parts = Descriptor::parse(composed().into()).unwrap().publication().parts.clone();
        assert_eq!((parts.len(), parts[0].to.as_str(), parts[0].repository.as_str()), (1, "chart", "charts"));
        for text in [example(), chart(), composed()] {
            let parsed = Descriptor::parse(text.into()).unwrap();
            let written = Descriptor::new(parsed.fields.clone());
            assert_eq!(Descriptor::parse(written.bytes().clone()).unwrap().fields, parsed.fields);
        }
    }

    #[test]
    fn an_oci_form_round_trips_and_one_of_later_versions_is_passed_over() {
        let mut fields = Descriptor::parse(example().into()).unwrap().fields;
        let (sha256, digest) = (Sha256::of(b"layer"), ObjectDigest::of(b"layer"));
        let blob = OciBlob { sha256, media_type: "application/octet-stream".to_owned(), digest, size: 5, frames: 1 };
        fields.oci = Some(Box::new(OciForm::new(MANIFEST_TYPE, "{\"a\": \"\\u00e4\"}".to_owned(), vec![blob])));
        let written = Descriptor::new(fields.clone());
        let read = Descriptor::parse(written.bytes().clone()).unwrap();
        assert_eq!(read.fields, fields);
        let form = read.oci().unwrap();
        assert_eq!((form.sha256, form.blob(&sha256).unwrap().digest), (Sha256::of(form.manifest.as_bytes()), digest));
        assert_eq!(form.blob(&Sha256::of(b"other")), None);
        let later = String::from_utf8(written.bytes().to_vec()).unwrap().replace("\"blobs\":[", "\"blobs\":[1,");
        assert_eq!(Descriptor::parse(later.into()).unwrap().oci(), None);
        let wrong = String::from_utf8(written.bytes().to_vec()).unwrap().replace("{\\\"a", "{\\\"b");
        assert_ne!(wrong.as_bytes(), written.bytes());
        assert_eq!(Descriptor::parse(wrong.into()).unwrap().oci(), None, "the manifest has another digest");
    }

    #[test]
    fn a_revision_that_is_no_commit_has_none_on_the_wire() {
        let descriptor = Descriptor::parse(chart().into()).unwrap();
        let publication = descriptor.publication();
        assert_eq!((&publication.commit, publication.version.as_ref().unwrap().as_str()), (&None, "1.2.3"));
        let written = serde_json::to_value(publication).unwrap();
        assert_eq!((written.get("commit"), written["version"].as_str()), (None, Some("1.2.3")));
        let git = Descriptor::parse(example().into()).unwrap();
        assert_eq!(git.publication().commit, git.publication().revision_id.commit());
        assert_eq!(serde_json::to_value(git.publication()).unwrap().get("version"), None);
    }

    /// Signatures depend on these bytes: a change here is a change of the contract.
    #[test]
    fn a_publication_has_exactly_these_bytes() {
        let parsed = Descriptor::parse(example().into()).unwrap();
        let golden = include_str!("../golden/agent/descriptor.json").trim_end();
        assert_eq!(std::str::from_utf8(Descriptor::new(parsed.fields.clone()).bytes()).unwrap(), golden);
        let end = golden.find(r#","ref""#).unwrap();
        let expected = &golden[r#"{"publication":"#.len()..end];
        assert_eq!(serde_json::to_string(parsed.publication()).unwrap(), expected);
        let (key, _) = SigningKey::generate().unwrap();
        let public = key.public().clone();
        let signed = Descriptor::signed(parsed.fields, &[key], false);
        let payload = signed.envelope().unwrap().signed_by(&public, PUBLICATION_TYPE);
        assert_eq!(payload.unwrap(), expected.as_bytes());
        assert!(
            std::str::from_utf8(signed.bytes())
                .unwrap()
                .starts_with(&format!(r#"{{"publication":{expected},"envelope":{{"#))
        );
    }

    #[test]
    fn the_signed_publication_is_used_and_not_its_copy() {
        let ((key, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let public = key.public().clone();
        let fields = Descriptor::parse(example().into()).unwrap().fields;
        let signed = Descriptor::signed(fields.clone(), &[key], false);
        assert_eq!(Descriptor::parse(signed.bytes().clone()).unwrap(), signed);
        assert_eq!(signed.publication_signed_by(&public), Some(fields.publication.clone()));
        assert_eq!(signed.publication_signed_by(other.public()), None);

        let text = String::from_utf8(signed.bytes().to_vec()).unwrap();
        let lie = Descriptor::parse(text.replacen("1795164249650", "1795164249651", 1).into()).unwrap();
        assert_eq!(lie.publication().generation, 1795164249651);
        assert_eq!(lie.publication_signed_by(&public).unwrap().generation, 1795164249650);

        assert_eq!(Descriptor::new(fields).envelope(), None);
        assert!(Descriptor::parse(text.replace("payloadType", "type").into()).is_ok());
    }

    #[test]
    fn unsupported_and_malformed_descriptors_have_clear_errors() {
        let error = Descriptor::parse(example().replace(r#""format": 1"#, r#""format": 9"#).into()).unwrap_err();
        assert!(error.to_string().contains("upgrade this node"), "{error}");
        let text = example().replace(r#""selector": null"#, r#""selector": {"ring": "canary"}"#);
        let error = Descriptor::parse(text.into()).unwrap_err();
        assert!(error.to_string().contains("selector"), "{error}");
        let error = Descriptor::parse("{}".into()).unwrap_err();
        assert!(error.to_string().contains("publication"), "{error}");
    }
}
