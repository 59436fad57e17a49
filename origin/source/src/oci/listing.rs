//! What services follow in the repository of an artifact.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use weir_protocol::digest::Sha256;
use weir_upstream::{LayerSelector, PlatformName, UpstreamError, VersionRange, parse_version};

use super::super::archive::Layout;
use super::artifact_ref::ArtifactRef;
use super::manifest::{Document, Manifest};
use super::registry::{Named, Registry, Resolved};
use super::selection::{Layer, choose_layer, choose_manifest};
use super::{Failures, OciName, RegistryError};
use crate::LeftOutRef;
use crate::passed_over::PassedOver;

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
    /// Tags that seem to be higher versions.
    pub(crate) passed_over: Vec<LeftOutRef>,
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
        let is_range = |each: &&ArtifactRef| matches!(each, ArtifactRef::Range(_));
        let tags = match refs.iter().any(is_range) {
            true => registry.tags(name),
            false => Ok(Vec::new()),
        };
        let tags = match tags {
            Ok(tags) => Ok(tags),
            // Tags and digests are followed without it.
            Err(error) if is_of_list(&error) && !refs.iter().all(is_range) => {
                let error = error.of_all(name);
                Err((error.step(), error.to_string()))
            }
            Err(error) => return Err(error.of_all(name)),
        };
        let failures = Failures::default();
        let mut listing = Listing { registry, name, selector, tags, resolved: HashMap::new(), failures };
        let mut selected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut current = HashMap::new();
        let mut found = Vec::new();
        for each in refs {
            found.push(listing.find(each, &selected, &mut current)?);
        }
        if found.iter().all(Result::is_err)
            && let Some(error) = listing.failures.first()
        {
            return Err(error);
        }
        *selected = current;
        if let Some(Err((_, reason))) = found.first()
            && found.iter().all(|each| matches!(each, Err(("authenticate", _))))
        {
            return Err(UpstreamError::Authenticate(reason.clone()));
        }
        Ok(found)
    }
}

/// Whether a list of tags failed for a reason that says nothing of other requests.
fn is_of_list(error: &RegistryError) -> bool {
    match error {
        RegistryError::Denied { .. } | RegistryError::NotFound(_) | RegistryError::Unusable(_) => true,
        RegistryError::Upstream(error) => match error {
            UpstreamError::TooManyTags(_) | UpstreamError::InvalidList { .. } => true,
            UpstreamError::HttpStatus { status, retry_after: None, .. } => ![407, 408, 429].contains(status),
            _ => false,
        },
    }
}

/// Why a service has not what `label` names, or the error of all services.
fn no_artifact(error: RegistryError, label: &str) -> Result<NoArtifact, UpstreamError> {
    let step = if matches!(error, RegistryError::Denied { .. }) { "authenticate" } else { "resolve" };
    Ok((step, error.of_one(label)?))
}

/// One listing.
struct Listing<'a> {
    registry: &'a Registry<'a>,
    name: &'a OciName,
    selector: &'a Selector,
    tags: Result<Vec<String>, NoArtifact>,
    /// What tags name.
    resolved: HashMap<String, Result<Named, NoArtifact>>,
    failures: Failures,
}

impl Listing<'_> {
    fn find(
        &mut self,
        wanted: &ArtifactRef,
        before: &HashMap<(Sha256, Selector), Selected>,
        current: &mut HashMap<(Sha256, Selector), Selected>,
    ) -> Result<Result<Artifact, NoArtifact>, UpstreamError> {
        let mut passed_over = Vec::new();
        let (tag, named) = match wanted {
            ArtifactRef::Digest(digest) => (None, Ok((*digest, None))),
            ArtifactRef::Tag(tag) => (Some(tag.to_string()), self.resolve(tag)?),
            ArtifactRef::Range(range) => match self.highest(range) {
                Ok((tag, higher)) => {
                    passed_over = higher;
                    let named = self.resolve(&tag)?;
                    (Some(tag), named)
                }
                Err(no_artifact) => return Ok(Err(no_artifact)),
            },
        };
        let label = tag.as_ref().map_or_else(|| format!("artifact `{wanted}`"), |tag| format!("artifact `{tag}`"));
        let named = match named {
            Ok(named) => named,
            Err(no_artifact) => return Ok(Err(no_artifact)),
        };
        let key = (named.0, self.selector.clone());
        let (named, selected) = match before.get(&key).or_else(|| current.get(&key)) {
            Some(selected) => (named.0, selected.clone()),
            None => match self.select(tag.as_deref(), named) {
                Ok(found) => found,
                Err(error) => return Ok(Err(self.no_artifact(error, &label)?)),
            },
        };
        current.insert((named, self.selector.clone()), selected.clone());
        Ok(match selected {
            Ok((manifest, Layer { sha256, size, layout })) => {
                Ok(Artifact { label, tag, named, manifest, layer: sha256, size, layout, passed_over })
            }
            Err(reason) => Err(("select", format!("{label} {reason}"))),
        })
    }

    /// What a tag names now, requested once.
    fn resolve(&mut self, tag: &str) -> Result<Result<Named, NoArtifact>, UpstreamError> {
        if let Some(resolved) = self.resolved.get(tag) {
            return Ok(resolved.clone());
        }
        let resolved = match self.registry.resolve(self.name, tag) {
            Ok(named) => Ok(named),
            Err(RegistryError::NotFound(report)) => Err((
                "resolve",
                format!(
                    "the registry has no tag `{tag}` in `{}`, or hides it without the right credentials{report}",
                    self.name
                ),
            )),
            Err(error) => Err(self.no_artifact(error, &format!("artifact `{tag}`"))?),
        };
        self.resolved.insert(tag.to_owned(), resolved.clone());
        Ok(resolved)
    }

    fn no_artifact(&mut self, error: RegistryError, label: &str) -> Result<NoArtifact, UpstreamError> {
        self.failures.of_one(error, label).or_else(|error| no_artifact(error, label))
    }

    fn highest(&self, range: &VersionRange) -> Result<(String, Vec<LeftOutRef>), NoArtifact> {
        let tags = self.tags.as_ref().map_err(Clone::clone)?;
        highest(range, tags, self.name).map(|(tag, higher)| (tag.to_owned(), higher))
    }

    /// The manifest and the layer of what is named, and its digest.
    fn select(&self, tag: Option<&str>, named: Named) -> Result<(Sha256, Selected), RegistryError> {
        let Resolved { digest: named, document } = self.registry.manifest_of(self.name, tag, named)?;
        let selected = match document {
            Err(reason) => Err(reason),
            Ok(Document::Manifest(manifest)) => Ok((named, manifest)),
            Ok(Document::Index(index)) => match choose_manifest(&index, self.selector.platform.as_ref()) {
                Err(reason) => Err(reason),
                Ok(digest) => match self.registry.manifest(self.name, &digest)? {
                    Err(reason) => Err(reason),
                    Ok(Document::Manifest(manifest)) => Ok((digest, manifest)),
                    Ok(Document::Index(_)) => {
                        Err("is an index that contains another index, which is not supported".to_owned())
                    }
                },
            },
        };
        let with_layer = |(digest, manifest): (_, Box<Manifest>)| {
            choose_layer(&manifest, &self.selector.layer).map(|layer| (digest, layer))
        };
        Ok((named, selected.and_then(with_layer)))
    }
}

/// The tag with the highest version in a range, and those that seem to be higher, or why there is none. Of equal versions the
/// tag that sorts last counts.
fn highest<'a>(
    range: &VersionRange,
    tags: &'a [String],
    name: &OciName,
) -> Result<(&'a str, Vec<LeftOutRef>), NoArtifact> {
    let (mut best, mut highest, mut passed_over) = (None, None, PassedOver::default());
    for tag in tags {
        let Some(text) = range.without_prefix(tag) else { continue };
        let Some(version) = parse_version(text) else {
            passed_over.add(text, "is not a version", |version| range.contains(version));
            continue;
        };
        if range.contains(&version) {
            best = best.max(Some((version.clone(), tag)));
        }
        highest = highest.max(Some(version));
    }
    if let Some((version, tag)) = best {
        return Ok((tag, passed_over.above(&version, &format!("tag of `{name}`"))));
    }
    let count = if tags.len() == 1 { "1 tag".to_owned() } else { format!("{} tags", tags.len()) };
    let highest = highest.map(|version| format!("; highest version `{version}`")).unwrap_or_default();
    Err(("resolve", format!("no tag of `{name}` is a version in `semver:{range}`: {count}{highest}")))
}

#[cfg(test)]
mod tests {
    use weir_upstream::{Address, Endpoint};

    use super::*;

    #[test]
    fn the_highest_tag_in_a_range_is_followed_and_odd_ones_are_named() {
        let endpoint = Endpoint::parse("oci://r.example/shop");
        let Ok(Address::Oci(address)) = endpoint.address() else { panic!("{endpoint}") };
        let name = address.repository(None).unwrap();
        let chosen = |range: &str, tags: &[&str]| {
            let tags: Vec<String> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            let (tag, higher) = highest(&range.parse().unwrap(), &tags, &name).map_err(|(_, reason)| reason)?;
            let higher = higher.into_iter().map(|each| each.name.replace("tag of `shop` ", ""));
            Ok::<_, String>([tag.to_owned()].into_iter().chain(higher).collect::<Vec<_>>().join(" "))
        };
        for (range, tags, expected) in [
            ("*", &["0.0.1", "0.1", "latest"][..], "0.0.1 `0.1`"),
            ("*", &["1.2", "v1.2", "1.2.0", "1.1.9"], "1.2.0"),
            ("*", &["1.2.0", "v1.2.0"], "v1.2.0"),
            ("*", &["2024.01.05", "4711815", "v20", "2024.1.4"], "2024.1.4 `2024.01.05`"),
            ("^1", &["1.2.0", "1.2.0.1", "2.0.0.1", "1.2.0_3", "1.2.1_3"], "1.2.0 `1.2.1_3` `1.2.0.1`"),
            ("api-*", &["1.0.0", "api-0.9.0", "api-1.0.0.1", "1.0.0.2"], "api-0.9.0 `1.0.0.1`"),
        ] {
            assert_eq!(chosen(range, tags).as_deref(), Ok(expected), "{tags:?}");
        }
        let none = chosen("^2", &["1", "1.5", "1.4.0"]).unwrap_err();
        assert_eq!(none, "no tag of `shop` is a version in `semver:^2`: 3 tags; highest version `1.4.0`");
    }
}
