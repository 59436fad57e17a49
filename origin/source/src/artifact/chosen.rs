//! What a service follows, as the listing of its repository says.

use reqwest::Url;
use weir_protocol::digest::Sha256;
use weir_protocol::revision_id::RevisionId;

use super::super::archive::Layout;
use super::super::helm::{ChartLayers, ChartName, ChartTag};
use super::super::oci::OciName;

/// The version that a service follows now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Chosen {
    /// Its name in messages: "chart `shop` 1.0.0".
    pub(crate) label: String,
    /// The chart, if it is one.
    pub(crate) chart: Option<ChartName>,
    /// `None`: the listing has no digest, so the archive names it ([`chart_revision`]).
    pub(crate) revision: Option<RevisionId>,
    /// As the listing writes it.
    pub(crate) version: Option<String>,
    pub(crate) blob: Blob,
    pub(crate) layout: Layout,
    /// What cosign signs in a registry: the digest of the manifest or the index that a tag names.
    pub(crate) signed: Option<Sha256>,
}

/// Bytes at an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Blob {
    /// `None`: the listing has no digest.
    pub(crate) sha256: Option<Sha256>,
    /// As its manifest says. `None`: it has none, or was not read yet.
    pub(crate) size: Option<u64>,
    pub(crate) max_bytes: u64,
    /// The configuration key of `max_bytes`: `max_chart`.
    pub(crate) max_bytes_key: &'static str,
    pub(crate) at: Location,
}

/// Where a blob is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    Url(Url),
    /// In a registry.
    Blob {
        registry: Url,
        name: OciName,
        sha256: Sha256,
    },
    /// A chart in a registry.
    Chart {
        registry: Url,
        name: OciName,
        layers: ChartLayers,
    },
    /// A chart in a registry, named by an index.
    Tag(ChartTag),
}

impl Chosen {
    /// The digest of its manifest in a registry. `None`: it is in an index, or is an entry of one.
    pub(super) fn manifest(&self) -> Option<Sha256> {
        let of_artifact = self.revision.as_ref()?.as_str().strip_prefix("oci:sha256:");
        of_artifact.map_or(self.signed, |hex| hex.parse().ok())
    }
}

impl Blob {
    /// The most bytes to download.
    pub(super) fn bound(&self) -> u64 {
        self.size.unwrap_or(self.max_bytes)
    }

    /// Whether it is in a registry. Otherwise it is in an index.
    pub(super) fn is_in_registry(&self) -> bool {
        self.in_registry().is_some()
    }

    /// The registry and the repository in which it is.
    pub(super) fn in_registry(&self) -> Option<(&Url, &OciName)> {
        match &self.at {
            Location::Blob { registry, name, .. } | Location::Chart { registry, name, .. } => Some((registry, name)),
            Location::Url(_) | Location::Tag(_) => None,
        }
    }
}

/// The revision of a chart.
///
/// # Panics
/// The version is not one of SemVer, or has more than 120 bytes: the listing leaves those out.
pub(crate) fn chart_revision(version: &str, sha256: &Sha256) -> RevisionId {
    format!("helm:{version}+sha256:{sha256}").parse().expect("a version of SemVer fits into a revision id")
}
