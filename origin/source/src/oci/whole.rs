//! Pure: whether an artifact can be published with the manifest that it has upstream, and what that needs.

use serde::Deserialize;
use weir_protocol::digest::Sha256;
use weir_protocol::oci::{EMPTY_CONFIG, MANIFEST_TYPE, MAX_MANIFEST_BYTES};

use super::manifest::{Descriptor, Document, Manifest, parse};
use super::selection::{EMPTY, IMAGE_CONFIGS};

/// The largest blob beside the archive, in bytes.
pub(crate) const MAX_OTHER_BYTES: u64 = 1 << 20;

/// The most blobs beside the archive: config and provenance, for example.
const MAX_OTHERS: usize = 4;

/// The longest media type, in bytes.
const MAX_TYPE_BYTES: usize = 255;

/// A manifest that is published as it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WholeManifest {
    pub(crate) media_type: String,
    pub(crate) manifest: String,
    /// The media type of the archive.
    pub(crate) archive_type: String,
    /// The blobs beside the archive, with their media types, without the empty one.
    pub(crate) others: Vec<(Sha256, String)>,
}

impl WholeManifest {
    /// Reads the manifest of an archive. `None`: it is an index or of an image, or it is too large, or it has other archives.
    pub(crate) fn of(bytes: Vec<u8>, archive: &Sha256, is_chart: bool) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Typed {
            media_type: Option<String>,
        }
        if bytes.len() > MAX_MANIFEST_BYTES {
            return None;
        }
        let manifest = String::from_utf8(bytes).ok()?;
        let media_type = serde_json::from_str::<Typed>(&manifest).ok()?.media_type;
        let Document::Manifest(read) = parse(manifest.as_bytes()).ok()? else { return None };
        let Manifest { config, layers, .. } = *read;
        let config = config.filter(|config| !IMAGE_CONFIGS.contains(&config.media_type.as_str()))?;
        let contents = layers.iter().filter(|layer| layer.media_type != EMPTY).count();
        if contents != 1 && !is_chart {
            return None;
        }
        let types = layers.iter().chain([&config]).map(|blob| &blob.media_type).chain(&media_type);
        if !types.into_iter().all(|text| is_media_type(text)) {
            return None;
        }
        let is_archive = |layer: &&Descriptor| layer.sha256().as_ref() == Ok(archive);
        let archive_type = layers.iter().find(is_archive)?.media_type.clone();
        let mut others: Vec<(Sha256, String)> = Vec::new();
        for blob in std::iter::once(&config).chain(&layers) {
            let sha256 = blob.sha256().ok()?;
            let is_known = sha256 == *archive || sha256 == Sha256::of(EMPTY_CONFIG);
            if is_known || others.iter().any(|(other, _)| *other == sha256) {
                continue;
            }
            if others.len() == MAX_OTHERS || !(1..=MAX_OTHER_BYTES).contains(&blob.size) {
                return None;
            }
            others.push((sha256, blob.media_type.clone()));
        }
        Some(Self {
            media_type: media_type.unwrap_or_else(|| MANIFEST_TYPE.to_owned()),
            manifest,
            archive_type,
            others,
        })
    }
}

/// Whether a text can be the value of `Content-Type`.
fn is_media_type(text: &str) -> bool {
    (1..=MAX_TYPE_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn blob(media_type: &str, bytes: &[u8]) -> Value {
        json!({ "mediaType": media_type, "digest": format!("sha256:{}", Sha256::of(bytes)), "size": bytes.len() })
    }

    fn read(config: &Value, layers: &[Value], is_chart: bool) -> Option<WholeManifest> {
        let manifest = json!({ "schemaVersion": 2, "mediaType": "m", "config": config, "layers": layers });
        WholeManifest::of(manifest.to_string().into_bytes(), &Sha256::of(b"archive"), is_chart)
    }

    #[test]
    fn one_archive_with_what_belongs_to_it_is_whole() {
        let (config, archive) = (blob("c", b"config"), blob("a", b"archive"));
        let empty = blob(EMPTY, EMPTY_CONFIG);
        let found = read(&config, &[empty.clone(), archive.clone()], false).unwrap();
        assert_eq!((found.media_type.as_str(), found.archive_type.as_str()), ("m", "a"));
        assert_eq!(found.others, [(Sha256::of(b"config"), "c".to_owned())]);
        assert_eq!(
            read(&empty, std::slice::from_ref(&archive), false).unwrap().others,
            [],
            "the empty blob is not stored"
        );
        let signed = [blob("p", b"signed"), archive];
        let others = read(&config, &signed, true).unwrap().others;
        assert_eq!(others, [(Sha256::of(b"config"), "c".to_owned()), (Sha256::of(b"signed"), "p".to_owned())]);
        assert_eq!(read(&config, &signed, false), None, "one layer of several is picked");
    }

    #[test]
    fn images_indexes_and_large_things_are_published_as_files() {
        let (config, archive) = (blob("c", b"config"), blob("a", b"archive"));
        let mut large = config.clone();
        large["size"] = (MAX_OTHER_BYTES + 1).into();
        for (config, layers) in [
            (&blob(IMAGE_CONFIGS[0], b"config"), std::slice::from_ref(&archive)),
            (&large, std::slice::from_ref(&archive)),
            (&blob("c", b""), std::slice::from_ref(&archive)),
            (&config, &[blob("a", b"other")][..]),
            (&Value::Null, std::slice::from_ref(&archive)),
            (&blob("a\r\nb: c", b"config"), std::slice::from_ref(&archive)),
        ] {
            assert_eq!(read(config, layers, false), None, "{config} {layers:?}");
        }
        let many: Vec<Value> = (0..6_u8).map(|number| blob("x", &[number])).chain([archive.clone()]).collect();
        assert_eq!(read(&config, &many, true), None);
        let index = json!({ "manifests": [blob("m", b"archive")] }).to_string();
        assert_eq!(WholeManifest::of(index.into_bytes(), &Sha256::of(b"archive"), true), None);
        let padded = format!("{}{}", json!({ "config": config, "layers": [archive] }), " ".repeat(MAX_MANIFEST_BYTES));
        assert_eq!(WholeManifest::of(padded.into_bytes(), &Sha256::of(b"archive"), false), None);
    }
}
