//! The provenance of a chart (`helm package --sign`): a signed text with `Chart.yaml`, and below it the digest of the
//! archive. Pure.

use std::collections::BTreeMap;

use reqwest::Url;
use weir_protocol::digest::Sha256;
use weir_upstream::loose_version;

use super::yaml::{Node, Yaml};

/// The most bytes of a provenance: most of it is `Chart.yaml`.
pub(crate) const MAX_PROVENANCE_BYTES: u64 = 256 << 10;

/// Where the provenance of an archive is.
pub(crate) fn provenance_url(archive: &Url) -> Url {
    let mut url = archive.clone();
    url.set_path(&format!("{}.prov", archive.path()));
    url
}

/// The SHA-256 of the archive of a version, as its signer wrote it.
///
/// # Errors
/// The text is of another chart or version, such as an old one under the name of a new one, or it is no provenance.
pub(crate) fn signed_digest(text: &str, name: &str, version: &str) -> Result<Sha256, String> {
    let parsed = Provenance::parse(text).map_err(|reason| format!("the signed text cannot be read: {reason}"))?;
    let Provenance { name: signed_name, version: signed_version, files } = parsed;
    if signed_name != name || loose_version(&signed_version).is_none_or(|it| Some(it) != loose_version(version)) {
        return Err(format!("the signed text is of chart `{signed_name}` {signed_version}"));
    }
    // As `helm package` names it.
    let file = format!("{name}-{signed_version}.tgz");
    let digest = files.get(&file).ok_or_else(|| format!("the signed text does not name the file `{file}`"))?;
    let digest = digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok());
    digest.ok_or_else(|| format!("the signed text has no SHA-256 digest of the file `{file}`"))
}

struct Provenance {
    name: String,
    version: String,
    /// Names and digests.
    files: BTreeMap<String, String>,
}

impl Provenance {
    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let metadata: Vec<&str> = lines.by_ref().take_while(|line| *line != "...").collect();
        let below: Vec<&str> = lines.collect();
        let (mut name, mut version, mut files) = Default::default();
        read(&metadata.join("\n"), |yaml, key| match key {
            "name" => set(&mut name, text_of(yaml)?, yaml, key),
            "version" => set(&mut version, text_of(yaml)?, yaml, key),
            _ => skip(yaml),
        })?;
        read(&below.join("\n"), |yaml, key| match key {
            "files" => set(&mut files, map_of(yaml)?, yaml, key),
            _ => skip(yaml),
        })?;
        let (name, version) = (name.unwrap_or_default(), version.unwrap_or_default());
        Ok(Self { name, version, files: files.unwrap_or_default() })
    }
}

/// Takes the value of a key. Readers disagree on one that is there twice.
fn set<T>(slot: &mut Option<T>, value: T, yaml: &Yaml<&[u8]>, key: &str) -> Result<(), String> {
    if slot.replace(value).is_some() { Err(twice(yaml, key)) } else { Ok(()) }
}

fn twice(yaml: &Yaml<&[u8]>, key: &str) -> String {
    yaml.wrong(&format!("it has `{key}` twice"))
}

/// Reads a document that is a map. `take` reads the value of each key.
fn read(text: &str, mut take: impl FnMut(&mut Yaml<&[u8]>, &str) -> Result<(), String>) -> Result<(), String> {
    let mut yaml = Yaml::open(text.as_bytes())?;
    if yaml.node()? != Node::Map {
        return Err(yaml.wrong("it is not a map"));
    }
    loop {
        match yaml.node()? {
            Node::End => return yaml.finish(),
            Node::Text(key) => take(&mut yaml, &key)?,
            other => {
                yaml.skip(&other)?;
                skip(&mut yaml)?;
            }
        }
    }
}

fn skip(yaml: &mut Yaml<&[u8]>) -> Result<(), String> {
    let value = yaml.node()?;
    yaml.skip(&value)
}

fn text_of(yaml: &mut Yaml<&[u8]>) -> Result<String, String> {
    match yaml.node()? {
        Node::Text(text) => Ok(text),
        _ => Err(yaml.wrong("it is not a text")),
    }
}

fn map_of(yaml: &mut Yaml<&[u8]>) -> Result<BTreeMap<String, String>, String> {
    let mut map = BTreeMap::new();
    match yaml.node()? {
        Node::Map => {}
        _ => return Err(yaml.wrong("it is not a map")),
    }
    loop {
        match yaml.node()? {
            Node::End => return Ok(map),
            Node::Text(key) if map.contains_key(&key) => return Err(twice(yaml, &key)),
            Node::Text(key) => _ = map.insert(key, text_of(yaml)?),
            _ => return Err(yaml.wrong("it is not a text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "apiVersion: v2\r\nmaintainers:\r\n- name: other\r\nname: shop\r\nversion: 1.0.0+b1\r\n\r\n...\r\nfiles:\r\n  shop-1.0.0+b1.tgz: sha256:f04a4c76783f76428e3ae6e53a504b71501a76b0b4387ae3d2681511ac746d58\r\n";

    #[test]
    fn a_signed_text_counts_for_one_version_of_one_chart() {
        let digest =
            |text: &str, name: &str, version: &str| signed_digest(text, name, version).map(|it| it.to_string());
        let expected = "f04a4c76783f76428e3ae6e53a504b71501a76b0b4387ae3d2681511ac746d58";
        for version in ["1.0.0+b1", "v1.0.0+b1"] {
            assert_eq!(digest(TEXT, "shop", version).unwrap(), expected);
        }
        let twice = format!("{TEXT}  shop-1.0.0+b1.tgz: sha256:{}\r\n", "0".repeat(64));
        for (text, name, version, reason) in [
            (TEXT, "other", "1.0.0+b1", "is of chart `shop` 1.0.0+b1"),
            (TEXT, "shop", "1.0.0", "is of chart `shop` 1.0.0+b1"),
            (TEXT, "shop", "2.0.0", "is of chart `shop` 1.0.0+b1"),
            (&TEXT.replace("shop-1", "shop-2"), "shop", "1.0.0+b1", "does not name the file `shop-1.0.0+b1.tgz`"),
            (&TEXT.replace("files:", "images:"), "shop", "1.0.0+b1", "does not name the file `shop-1.0.0+b1.tgz`"),
            (&TEXT.replace("sha256", "sha1"), "shop", "1.0.0+b1", "no SHA-256 digest of the file `shop-1.0.0+b1.tgz`"),
            (&TEXT.replace("d58", "d5"), "shop", "1.0.0+b1", "no SHA-256 digest"),
            (&TEXT.replace("\r\n...", ""), "shop", "1.0.0+b1", "cannot be read: it is empty"),
            (&TEXT.replace("version: 1.0.0+b1", ""), "shop", "1.0.0+b1", "is of chart `shop` "),
            (&TEXT.replace("version: 1.0.0+b1", "version: x"), "shop", "x", "is of chart `shop` x"),
            (&TEXT.replace("version: 1", "version: [1"), "shop", "1.0.0+b1", "cannot be read: line 5: "),
            ("", "shop", "1.0.0", "cannot be read: it is empty"),
            (
                &TEXT.replace("name: shop", "name: shop\r\nname: shop"),
                "shop",
                "1.0.0+b1",
                "line 5: it has `name` twice",
            ),
            (&TEXT.replace("version: 1", "version: 2.0.0\r\nversion: 1"), "shop", "1.0.0+b1", "it has `version` twice"),
            (&TEXT.replace("files:", "files: {}\r\nfiles:"), "shop", "1.0.0+b1", "it has `files` twice"),
            (&twice, "shop", "1.0.0+b1", "it has `shop-1.0.0+b1.tgz` twice"),
            ("- x\n", "shop", "1.0.0", "cannot be read: line 1: it is not a map"),
        ] {
            let error = digest(text, name, version).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn it_is_alongside_the_archive() {
        let url = |url: &str| provenance_url(&Url::parse(url).unwrap()).to_string();
        assert_eq!(
            url("https://c.example/a/shop-1.0.0%2Bb.tgz?token=x"),
            "https://c.example/a/shop-1.0.0%2Bb.tgz.prov?token=x"
        );
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(\\.\\.\\.|name: shop|files:|[ -~]{0,9}|\\PC{0,9}|\n){0,20}") {
            let _ = signed_digest(&text, "shop", "1.0.0");
        }
    }
}
