//! What the listing of an upstream chooses for the services that follow it.

use std::sync::Arc;

use weir_protocol::digest::Sha256;
use weir_protocol::revision_id::RevisionId;

use super::super::archive::{ArchiveError, Layout};
use super::super::error::UpstreamError;
use super::super::failure::ServiceFailure;
use super::super::helm::{Chart, HelmIndex, Release};
use super::super::http::Client;
use super::super::kind::{KindName, SourceKind};
use super::super::oci::{Artifact, ArtifactRef, Artifacts, OciName, Registry, Selector, Tokens};
use super::super::{Address, FetchProgress, Followed};
use super::{Blob, Chosen, Location, chart_revision};
use crate::metrics::Metrics;
use crate::service::Service;

/// How the versions of an upstream are listed.
pub(super) enum Listing {
    /// Charts, by the index of a Helm repository.
    Index(Box<HelmIndex>),
    /// Artifacts, by the tags of a repository in a registry.
    Artifacts(Artifacts),
}

/// What is followed, each with what it stands for, or why that is nothing.
pub(super) type Choices = Vec<(Followed, Result<Chosen, ServiceFailure>)>;

impl Listing {
    pub(super) fn new(kind: SourceKind, metrics: &Metrics) -> Self {
        match kind.0 {
            KindName::Oci => Self::Artifacts(Artifacts::default()),
            KindName::Helm | KindName::Git => {
                Self::Index(Box::new(HelmIndex::new(metrics.index_entries_skipped.clone())))
            }
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
    ) -> Result<Choices, UpstreamError> {
        let mut followed: Vec<&Followed> = services.iter().map(|service| &service.followed).collect();
        followed.sort_by_cached_key(ToString::to_string);
        followed.dedup();
        match self {
            Self::Index(index) => {
                followed.retain(|followed| followed.chart().is_some());
                let charts: Vec<Chart> = followed.iter().filter_map(|followed| followed.chart().cloned()).collect();
                let chosen = list_charts(index, client, &charts, progress)?;
                Ok(followed.into_iter().cloned().zip(chosen).collect())
            }
            Self::Artifacts(artifacts) => {
                followed.retain(|followed| followed.artifact().is_some());
                let refs: Vec<&ArtifactRef> = followed.iter().filter_map(|followed| followed.artifact()).collect();
                let chosen = list_artifacts(artifacts, client, tokens, &refs)?;
                Ok(followed.into_iter().cloned().zip(chosen).collect())
            }
        }
    }
}

fn list_charts(
    index: &HelmIndex,
    client: &Client<'_>,
    charts: &[Chart],
    progress: &FetchProgress,
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let max_bytes = client.session().upstream.max_chart;
    let found = charts.iter().zip(index.list(client, charts, progress)?);
    let chosen = |(chart, release): (&Chart, Result<Release, String>)| match release {
        Ok(release) => Ok(choose_chart(chart, release, max_bytes)),
        Err(reason) => Err(ServiceFailure::transient("resolve", reason)),
    };
    Ok(found.map(chosen).collect())
}

fn choose_chart(chart: &Chart, release: Release, max_bytes: u64) -> Chosen {
    let Release { version, sha256, url } = release;
    Chosen {
        label: format!("chart `{}` {version}", chart.name),
        chart: Some(chart.name.clone()),
        revision: sha256.map(|sha256| chart_revision(&version, &sha256)),
        version: Some(version),
        blob: Blob { sha256, max_bytes, max_bytes_key: "max_chart", at: vec![Location::Url(url)] },
        layout: Layout::StripTop,
    }
}

fn list_artifacts(
    artifacts: &Artifacts,
    client: &Client<'_>,
    tokens: &Tokens,
    refs: &[&ArtifactRef],
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let upstream = client.session().upstream;
    let invalid = |reason| UpstreamError::UnsupportedUrl { url: upstream.url.to_string(), reason };
    let Address::Oci(address) = upstream.url.address().map_err(invalid)? else {
        return Err(invalid("it is not an `oci://` URL"));
    };
    let name = address.repository(None).map_err(invalid)?;
    let registry = Registry::new(client, tokens, client.upstream_url.clone());
    let selector = Selector { layer: upstream.layer.clone(), platform: upstream.platform.clone() };
    let found = artifacts.list(&registry, &name, refs, &selector)?;
    let chosen = |artifact: Result<Artifact, _>| match artifact {
        Ok(artifact) => choose_artifact(artifact, &name, client),
        Err((step, reason)) => Err(ServiceFailure::transient(step, reason)),
    };
    Ok(found.into_iter().map(chosen).collect())
}

fn choose_artifact(artifact: Artifact, name: &OciName, client: &Client<'_>) -> Result<Chosen, ServiceFailure> {
    let (max_bytes, max_bytes_key) = (client.session().upstream.max_artifact, "max_artifact");
    let Artifact { label, tag, manifest, layer: sha256, size, layout } = artifact;
    if size > max_bytes {
        let error = ArchiveError::TooLarge { key: max_bytes_key, limit: max_bytes };
        return Err(ServiceFailure::transient("select", format!("{label} {error}")));
    }
    let at = vec![Location::Blob { registry: client.upstream_url.clone(), name: name.clone(), sha256 }];
    Ok(Chosen {
        label,
        chart: None,
        revision: Some(artifact_revision(&manifest)),
        version: tag,
        blob: Blob { sha256: Some(sha256), max_bytes, max_bytes_key, at },
        layout,
    })
}

fn artifact_revision(manifest: &Sha256) -> RevisionId {
    format!("oci:sha256:{manifest}").parse().expect("a digest fits into a revision id")
}
