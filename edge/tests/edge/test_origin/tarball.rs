//! Content, and what an origin says of it.

use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use weir_protocol::dcz;
use weir_protocol::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Representation, Selector};
use weir_protocol::digest::{ObjectDigest, Sha256, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{Frame, Manifest};
use weir_protocol::oci::{
    EMPTY_CONFIG, EMPTY_CONFIG_TYPE, MANIFEST_TYPE, OciBlob, OciForm, TARBALL_ARTIFACT_TYPE, TARBALL_LAYER_TYPE,
};

use super::REPOSITORY;

/// The bytes of tar in one frame, unless a test says otherwise.
pub(crate) const FRAME: usize = 1 << 20;

/// Content with its stored representations.
#[derive(Clone)]
pub(crate) struct Tarball {
    pub(crate) tar: Bytes,
    pub(crate) zstd: Bytes,
    stored: Vec<Stored>,
    /// The layer of the OCI form.
    layer: Option<Stored>,
}

/// The frames of one representation, and their manifest when there are several.
#[derive(Clone)]
struct Stored {
    encoding: Encoding,
    dictionary: Option<Sha256>,
    frames: Vec<(Frame, Bytes)>,
}

impl Stored {
    fn new(tar: &[u8], frame: usize, encoding: Encoding, encode: impl Fn(&[u8]) -> Vec<u8>) -> Self {
        let frames = tar.chunks(frame.max(1)).map(|part| {
            let bytes: Bytes = encode(part).into();
            let (size, tar_size) = (bytes.len() as u64, part.len() as u64);
            (Frame { digest: ObjectDigest::of(&bytes), size, tar_size }, bytes)
        });
        Self { encoding, dictionary: None, frames: frames.collect() }
    }

    fn manifest(&self) -> Option<Bytes> {
        let frames = self.frames.iter().map(|(frame, _)| *frame).collect();
        Manifest::new(frames).ok().map(|manifest| manifest.to_bytes().unwrap())
    }

    fn named(&self) -> ObjectDigest {
        self.manifest().map_or_else(|| self.frames[0].0.digest, |manifest| ObjectDigest::of(&manifest))
    }

    fn body(&self) -> Vec<u8> {
        self.frames.iter().map(|(_, bytes)| &bytes[..]).collect::<Vec<_>>().concat()
    }

    fn representation(&self) -> Representation {
        Representation {
            encoding: self.encoding,
            dictionary: self.dictionary,
            digest: self.named(),
            size: self.frames.iter().map(|(frame, _)| frame.size).sum(),
            frames: u32::try_from(self.frames.len()).unwrap(),
        }
    }
}

impl Tarball {
    /// Bytes that do not compress, different for each seed.
    pub(crate) fn random(seed: u64, length: usize) -> Self {
        let mut reader = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
        let mut tar = vec![0; length];
        reader.fill(&mut tar);
        Self::in_frames(tar, FRAME)
    }

    /// Content in zstd frames, of `frame` bytes of tar each.
    pub(crate) fn in_frames(tar: Vec<u8>, frame: usize) -> Self {
        let stored = Stored::new(&tar, frame, Encoding::Zstd, |part| zstd::encode_all(part, 1).unwrap());
        Self { tar: tar.into(), zstd: stored.body().into(), stored: vec![stored], layer: None }
    }

    /// The same with a stored gzip representation.
    pub(crate) fn and_gzip(mut self) -> Self {
        let encode = |part: &[u8]| {
            let mut gzip = Vec::new();
            flate2::read::GzEncoder::new(part, flate2::Compression::fast()).read_to_end(&mut gzip).unwrap();
            gzip
        };
        self.stored.push(Stored::new(&self.tar, FRAME, Encoding::Gzip, encode));
        self
    }

    /// The same with stored gzip and an OCI form, whose layer it is.
    pub(crate) fn and_oci(self) -> Self {
        let tarball = self.and_gzip();
        Self { layer: tarball.stored.get(1).cloned(), ..tarball }
    }

    /// The same with an OCI form whose layer is an archive of the upstream.
    pub(crate) fn and_archive(self, archive: &[u8]) -> Self {
        Self { layer: Some(Stored::new(archive, FRAME, Encoding::Identity, <[u8]>::to_vec)), ..self }
    }

    /// The layer of the OCI form.
    pub(crate) fn layer(&self) -> Bytes {
        self.layer.as_ref().unwrap().body().into()
    }

    pub(crate) fn form(&self) -> Option<OciForm> {
        let layer = self.layer.as_ref()?;
        let Representation { digest, size, frames, .. } = layer.representation();
        let (sha256, media_type) = (Sha256::of(&layer.body()), TARBALL_LAYER_TYPE.to_owned());
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": TARBALL_ARTIFACT_TYPE,
            "config": { "mediaType": EMPTY_CONFIG_TYPE, "digest": format!("sha256:{}", Sha256::of(EMPTY_CONFIG)), "size": 2 },
            "layers": [{ "mediaType": TARBALL_LAYER_TYPE, "digest": format!("sha256:{sha256}"), "size": size }],
        });
        let layer = OciBlob { sha256, media_type, digest, size, frames };
        Some(OciForm::new(MANIFEST_TYPE, manifest.to_string(), vec![layer]))
    }

    /// The same with a delta against an older tarball.
    pub(crate) fn and_delta(mut self, old: &Self) -> Self {
        let encode = |tar: &[u8]| {
            let header = dcz::header(&old.sha256()).to_vec();
            let mut encoder = zstd::stream::write::Encoder::with_ref_prefix(header, 1, &old.tar).unwrap();
            // The dictionary is within the window.
            encoder.window_log(24).unwrap();
            encoder.long_distance_matching(true).unwrap();
            encoder.write_all(tar).unwrap();
            encoder.finish().unwrap()
        };
        let stored = Stored::new(&self.tar, self.tar.len(), Encoding::Dcz, encode);
        self.stored.push(Stored { dictionary: Some(old.sha256()), ..stored });
        self
    }

    /// The body of the delta.
    pub(crate) fn delta(&self) -> Bytes {
        self.stored[1].body().into()
    }

    /// The same, of which the descriptor says that it is another tar.
    pub(crate) fn with_tar(self, tar: Bytes) -> Self {
        Self { tar, ..self }
    }

    /// Its body as gzip.
    pub(crate) fn gzip(&self) -> Bytes {
        self.stored[1].body().into()
    }

    pub(crate) fn digest(&self) -> TarballDigest {
        TarballDigest::of(&self.tar)
    }

    /// What names the zstd representation: its one frame, or its manifest.
    pub(crate) fn named(&self) -> ObjectDigest {
        self.stored[0].named()
    }

    /// The frames of the zstd representation.
    pub(crate) fn frames(&self) -> Vec<ObjectDigest> {
        self.stored[0].frames.iter().map(|(frame, _)| frame.digest).collect()
    }

    /// All objects of all representations.
    pub(super) fn objects(&self) -> impl Iterator<Item = (ObjectDigest, Bytes)> {
        self.stored.iter().chain(&self.layer).flat_map(|stored| {
            let manifest = stored.manifest().map(|manifest| (ObjectDigest::of(&manifest), manifest));
            let frames = stored.frames.iter().map(|(frame, bytes)| (frame.digest, bytes.clone()));
            frames.chain(manifest).collect::<Vec<_>>()
        })
    }

    pub(crate) fn sha256(&self) -> Sha256 {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.tar);
        Sha256::from_bytes(digest.as_ref().try_into().unwrap())
    }

    pub(crate) fn descriptor(&self, service: &str, generation: u64, revision: u64) -> Descriptor {
        let commit = format!("c{generation:039x}");
        Descriptor::new(DescriptorFields {
            publication: Publication {
                service: service.parse().unwrap(),
                repository: REPOSITORY.parse().unwrap(),
                generation,
                digest: self.digest(),
                sha256: self.sha256(),
                size: self.tar.len() as u64,
                commit: Some(commit.parse().unwrap()),
                revision_id: format!("sha1:{commit}").parse().unwrap(),
                version: None,
                parts: Vec::new(),
                selector: Selector,
                published_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_164_249),
                format: FORMAT,
                omitted: Vec::new(),
            },
            followed_ref: "main".to_owned(),
            revision,
            representations: self.stored.iter().map(Stored::representation).collect(),
            oci: self.form().map(Box::new),
            staged: None,
        })
    }
}
