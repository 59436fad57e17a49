//! What the listing of an upstream chooses for the services that follow it.

use std::sync::Arc;
use std::time::SystemTime;

use weir_protocol::digest::Sha256;
use weir_protocol::revision_id::RevisionId;
use weir_upstream::http::Client;
use weir_upstream::{Address, FetchProgress, OciAddress, RepositoryConfig, Scheme, SourceKind, UpstreamError};

use super::super::Followed;
use super::super::archive::{ArchiveError, Layout};
use super::super::failure::ServiceFailure;
use super::super::helm::{Chart, ChartRegistry, ChartVersion, HelmIndex, Place, Release};
use super::super::metrics::SourceMetrics;
use super::super::oci::{Artifact, ArtifactRef, Artifacts, OciName, Registry, Selector, Tokens};
use super::{Blob, Chosen, Location, chart_revision};
use crate::{LeftOutRef, Service};

/// How the versions of an upstream are listed.
pub(super) enum Listing {
    /// Charts, by the index of a Helm repository.
    Index(Box<HelmIndex>),
    /// Charts, by the tags of their repositories in a registry.
    Charts(ChartRegistry),
    /// Artifacts, by the tags of a repository in a registry.
    Artifacts(Artifacts),
}

/// What is followed, each with what it stands for, or why that is nothing.
pub(super) type Choices = Vec<(Followed, Result<Chosen, ServiceFailure>)>;

/// With the versions that are passed over.
type Listed = (Choices, Vec<LeftOutRef>);

impl Listing {
    pub(super) fn new(config: &RepositoryConfig, metrics: &SourceMetrics) -> Self {
        match config.kind {
            SourceKind::Oci => Self::Artifacts(Artifacts::default()),
            SourceKind::Helm if config.url.scheme() == Some(Scheme::Oci) => Self::Charts(ChartRegistry::default()),
            SourceKind::Helm | SourceKind::Git => {
                Self::Index(Box::new(HelmIndex::new(metrics.index_entries_skipped.clone())))
            }
        }
    }

    /// When the upstream made the last list, as far as it says.
    pub(super) fn made_at(&self) -> Option<SystemTime> {
        match self {
            Self::Index(index) => index.made_at(),
            Self::Charts(_) | Self::Artifacts(_) => None,
        }
    }

    /// Lists what services follow.
    ///
    /// # Errors
    /// Nothing can be listed, which concerns all services.
    pub(super) fn list(
        &self,
        client: &Client<'_>,
        tokens: &Tokens,
        services: &[Arc<Service>],
        progress: &FetchProgress,
    ) -> Result<Listed, UpstreamError> {
        let mut left_out = Vec::new();
        let mut followed: Vec<&Followed> = services.iter().map(|service| &service.followed).collect();
        followed.sort_by_cached_key(ToString::to_string);
        followed.dedup();
        let charts = || -> (Vec<Followed>, Vec<Chart>) {
            followed.iter().filter_map(|followed| Some(((*followed).clone(), followed.chart()?.clone()))).unzip()
        };
        let choices = match self {
            Self::Index(index) => {
                let (followed, charts) = charts();
                let chosen = list_charts(index, client, &charts, progress, &mut left_out)?;
                followed.into_iter().zip(chosen).collect()
            }
            Self::Charts(of_registry) => {
                let (followed, charts) = charts();
                let chosen = list_charts_of_registry(of_registry, client, tokens, &charts, &mut left_out)?;
                followed.into_iter().zip(chosen).collect()
            }
            Self::Artifacts(artifacts) => {
                followed.retain(|followed| followed.artifact().is_some());
                let refs: Vec<&ArtifactRef> = followed.iter().filter_map(|followed| followed.artifact()).collect();
                let chosen = list_artifacts(artifacts, client, tokens, &refs, &mut left_out)?;
                followed.into_iter().cloned().zip(chosen).collect()
            }
        };
        // Several ranges may pass over the same version.
        left_out.sort_by(|one, other| one.name.cmp(&other.name));
        left_out.dedup();
        Ok((choices, left_out))
    }
}

fn list_charts(
    index: &HelmIndex,
    client: &Client<'_>,
    charts: &[Chart],
    progress: &FetchProgress,
    left_out: &mut Vec<LeftOutRef>,
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let max_bytes = client.session().upstream.limits.max_chart.as_u64();
    let found = charts.iter().zip(index.list(client, charts, progress)?);
    let chosen = |(chart, release): (&Chart, Result<Release, String>)| match release {
        Ok(mut release) => {
            left_out.append(&mut release.passed_over);
            Ok(choose_chart(chart, release, max_bytes))
        }
        Err(reason) => Err(ServiceFailure::transient("resolve", reason)),
    };
    Ok(found.map(chosen).collect())
}

fn choose_chart(chart: &Chart, Release { version, sha256, at, .. }: Release, max_bytes: u64) -> Chosen {
    match at {
        Place::Url(url) => chart_at(chart, version, sha256, Location::Url(url), max_bytes),
        // The digest in the index may be that of the manifest.
        Place::Registry(tag) => chart_at(chart, version, None, Location::Tag(tag), max_bytes),
    }
}

fn chart_at(chart: &Chart, version: String, sha256: Option<Sha256>, at: Location, max_bytes: u64) -> Chosen {
    Chosen {
        label: format!("chart `{}` {version}", chart.name),
        chart: Some(chart.name.clone()),
        revision: sha256.map(|sha256| chart_revision(&version, &sha256)),
        version: Some(version),
        blob: Blob { sha256, size: None, max_bytes, max_bytes_key: "max_chart", at },
        layout: Layout::StripTop,
        signed: None,
    }
}

fn list_charts_of_registry(
    of_registry: &ChartRegistry,
    client: &Client<'_>,
    tokens: &Tokens,
    charts: &[Chart],
    left_out: &mut Vec<LeftOutRef>,
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let (max_bytes, url) = (client.session().upstream.limits.max_chart.as_u64(), &client.upstream_url);
    let registry = Registry::new(client, tokens, url.clone());
    let found = of_registry.list(&registry, &address(client)?, charts)?;
    let chosen = |(chart, found): (&Chart, Result<ChartVersion, _>)| match found {
        Ok(ChartVersion { version, name, manifest, layers, mut passed_over }) => {
            left_out.append(&mut passed_over);
            let at = Location::Chart { registry: url.clone(), name, layers };
            let mut chosen = chart_at(chart, version, Some(layers.archive), at, max_bytes);
            (chosen.signed, chosen.blob.size) = (Some(manifest), Some(layers.size));
            within_limit(chosen)
        }
        Err((step, reason)) => Err(ServiceFailure::transient(step, reason)),
    };
    Ok(charts.iter().zip(found).map(chosen).collect())
}

fn address(client: &Client<'_>) -> Result<OciAddress, UpstreamError> {
    let url = &client.session().upstream.config.url;
    let invalid = |reason| UpstreamError::UnsupportedUrl { url: url.to_string(), reason };
    match url.address().map_err(invalid)? {
        Address::Oci(address) => Ok(address.clone()),
        _ => Err(invalid("it is not an `oci://` URL")),
    }
}

fn list_artifacts(
    artifacts: &Artifacts,
    client: &Client<'_>,
    tokens: &Tokens,
    refs: &[&ArtifactRef],
    left_out: &mut Vec<LeftOutRef>,
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let upstream = client.session().upstream;
    let invalid = |reason| UpstreamError::UnsupportedUrl { url: upstream.config.url.to_string(), reason };
    let name = address(client)?.repository(None).map_err(invalid)?;
    let registry = Registry::new(client, tokens, client.upstream_url.clone());
    let RepositoryConfig { layer, platform, .. } = &upstream.config;
    let selector = Selector { layer: layer.clone().unwrap_or_default(), platform: platform.clone() };
    let found = artifacts.list(&registry, &name, refs, &selector)?;
    let chosen = |artifact: Result<Artifact, _>| match artifact {
        Ok(mut artifact) => {
            left_out.append(&mut artifact.passed_over);
            choose_artifact(artifact, &name, client)
        }
        Err((step, reason)) => Err(ServiceFailure::transient(step, reason)),
    };
    Ok(found.into_iter().map(chosen).collect())
}

fn choose_artifact(artifact: Artifact, name: &OciName, client: &Client<'_>) -> Result<Chosen, ServiceFailure> {
    let (max_bytes, max_bytes_key) = (client.session().upstream.limits.max_artifact.as_u64(), "max_artifact");
    let Artifact { label, tag, named, manifest, layer: sha256, size, layout, .. } = artifact;
    let at = Location::Blob { registry: client.upstream_url.clone(), name: name.clone(), sha256 };
    within_limit(Chosen {
        label,
        chart: None,
        revision: Some(artifact_revision(&manifest)),
        version: tag,
        blob: Blob { sha256: Some(sha256), size: Some(size), max_bytes, max_bytes_key, at },
        layout,
        signed: Some(named),
    })
}

/// Refuses what is too large by its own words.
fn within_limit(chosen: Chosen) -> Result<Chosen, ServiceFailure> {
    let Blob { max_bytes: limit, max_bytes_key: key, .. } = chosen.blob;
    if chosen.blob.size.is_none_or(|size| size <= limit) {
        return Ok(chosen);
    }
    let error = ArchiveError::TooLarge { key, limit };
    Err(ServiceFailure::transient("select", format!("{} {error}", chosen.label)))
}

fn artifact_revision(manifest: &Sha256) -> RevisionId {
    format!("oci:sha256:{manifest}").parse().expect("a digest fits into a revision id")
}
