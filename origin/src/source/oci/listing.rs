//! What services follow in the repository of an artifact.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use weir_protocol::digest::Sha256;

use super::super::archive::Layout;
use super::super::error::UpstreamError;
use super::super::range::{VersionRange, parse_version};
use super::artifact_ref::ArtifactRef;
use super::manifest::Document;
use super::platform::PlatformName;
use super::registry::Registry;
use super::selection::{Layer, choose_layer, choose_manifest};
use super::selector::LayerSelector;
use super::{OciName, RegistryError};

/// Which manifest and which layer a repository follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Selector {
    pub(crate) layer: LayerSelector,
    pub(crate) platform: Option<PlatformName>,
}

/// The artifact that a service follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Artifact {
    /// Its name in messages: "artifact `v1`".
    pub(crate) label: String,
    /// The tag. `None`: it is followed by its digest.
    pub(crate) tag: Option<String>,
    /// The digest of what the tag names: with a platform, of an index.
    pub(crate) named: Sha256,
    /// The digest of its manifest: with a platform, of the one for it.
    pub(crate) manifest: Sha256,
    pub(crate) layer: Sha256,
    /// Of the layer, in bytes.
    pub(crate) size: u64,
    pub(crate) layout: Layout,
}

/// Why a service follows no artifact: the step and the reason.
pub(crate) type NoArtifact = (&'static str, String);

/// A manifest and its layer, or why there is none.
type Selected = Result<(Sha256, Layer), String>;

/// What the manifests that are followed contain. A digest is never requested twice while it is followed.
#[derive(Default)]
pub(crate) struct Artifacts(Mutex<HashMap<(Sha256, Selector), Selected>>);

impl Artifacts {
    /// The artifact that each of the refs stands for. One request for each tag, and the pages of tags for all ranges.
    ///
    /// # Errors
    /// The repository cannot be listed: nothing is known of any ref.
    pub(crate) fn list(
        &self,
        registry: &Registry<'_>,
        name: &OciName,
        refs: &[&ArtifactRef],
        selector: &Selector,
    ) -> Result<Vec<Result<Artifact, NoArtifact>>, UpstreamError> {
        let tags = match refs.iter().any(|each| matches!(each, ArtifactRef::Range(_))) {
            true => registry.tags(name).map_err(|error| error.of_all(name))?,
            false => Vec::new(),
        };
        let mut listing = Listing { registry, name, selector, tags, resolved: HashMap::new() };
        let mut selected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut current = HashMap::new();
        let mut found = Vec::new();
        for each in refs {
            found.push(listing.find(each, &selected, &mut current)?);
        }
        *selected = current;
        Ok(found)
    }
}

/// One listing.
struct Listing<'a> {
    registry: &'a Registry<'a>,
    name: &'a OciName,
    selector: &'a Selector,
    tags: Vec<String>,
    /// The digests of tags.
    resolved: HashMap<String, Result<Sha256, String>>,
}

impl Listing<'_> {
    fn find(
        &mut self,
        wanted: &ArtifactRef,
        before: &HashMap<(Sha256, Selector), Selected>,
        current: &mut HashMap<(Sha256, Selector), Selected>,
    ) -> Result<Result<Artifact, NoArtifact>, UpstreamError> {
        let (tag, named) = match wanted {
            ArtifactRef::Digest(digest) => (None, Ok(*digest)),
            ArtifactRef::Tag(tag) => (Some(tag.to_string()), self.resolve(tag)?),
            ArtifactRef::Range(range) => match range.highest(self.tags.iter().map(String::as_str)) {
                Some(tag) => {
                    let tag = tag.to_owned();
                    let named = self.resolve(&tag)?;
                    (Some(tag), named)
                }
                None => return Ok(Err(("resolve", self.no_version(range)))),
            },
        };
        let label = tag.as_ref().map_or_else(|| format!("artifact `{wanted}`"), |tag| format!("artifact `{tag}`"));
        let named = match named {
            Ok(digest) => digest,
            Err(reason) => return Ok(Err(("resolve", reason))),
        };
        let key = (named, self.selector.clone());
        let selected = match before.get(&key).or_else(|| current.get(&key)) {
            Some(selected) => selected.clone(),
            None => match self.select(&named) {
                Ok(selected) => selected,
                Err(error) => return Ok(Err(("resolve", error.of_one(&label)?))),
            },
        };
        current.insert(key, selected.clone());
        Ok(match selected {
            Ok((manifest, Layer { sha256, size, layout })) => {
                Ok(Artifact { label, tag, named, manifest, layer: sha256, size, layout })
            }
            Err(reason) => Err(("select", format!("{label} {reason}"))),
        })
    }

    /// The digest that a tag has now, requested once.
    fn resolve(&mut self, tag: &str) -> Result<Result<Sha256, String>, UpstreamError> {
        if let Some(resolved) = self.resolved.get(tag) {
            return Ok(resolved.clone());
        }
        let resolved = match self.registry.resolve(self.name, tag) {
            Ok(digest) => Ok(digest),
            Err(RegistryError::NotFound) => Err(format!(
                "the registry has no tag `{tag}` in `{}`, or hides it without the right credentials",
                self.name
            )),
            Err(error) => Err(error.of_one(&format!("artifact `{tag}`"))?),
        };
        self.resolved.insert(tag.to_owned(), resolved.clone());
        Ok(resolved)
    }

    /// The manifest and the layer of what has this digest.
    fn select(&self, named: &Sha256) -> Result<Selected, RegistryError> {
        let (digest, manifest) = match self.registry.manifest(self.name, named)? {
            Document::Manifest(manifest) => (*named, manifest),
            Document::Index(index) => {
                let digest = match choose_manifest(&index, self.selector.platform.as_ref()) {
                    Ok(digest) => digest,
                    Err(reason) => return Ok(Err(reason)),
                };
                match self.registry.manifest(self.name, &digest)? {
                    Document::Manifest(manifest) => (digest, manifest),
                    Document::Index(_) => {
                        return Ok(Err("has an index in its index, which is not followed".to_owned()));
                    }
                }
            }
        };
        Ok(choose_layer(&manifest, &self.selector.layer).map(|layer| (digest, layer)))
    }

    fn no_version(&self, range: &VersionRange) -> String {
        let Self { name, tags, .. } = self;
        let count = if tags.len() == 1 { "1 tag".to_owned() } else { format!("{} tags", tags.len()) };
        let highest = tags.iter().filter_map(|tag| parse_version(tag)).max();
        let highest = highest.map(|version| format!("; highest version `{version}`")).unwrap_or_default();
        format!("no tag of `{name}` is a version in `semver:{range}`: {count}{highest}")
    }
}
