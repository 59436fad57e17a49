//! What the listing of an upstream chooses for the services that follow it.

use super::super::FetchProgress;
use super::super::archive::Layout;
use super::super::error::UpstreamError;
use super::super::failure::ServiceFailure;
use super::super::helm::{Chart, HelmIndex, Release};
use super::super::http::Client;
use super::{Blob, Chosen, Location, chart_revision};

/// What is followed of each of the charts, or why nothing is.
///
/// # Errors
/// The index cannot be read, which concerns all charts.
pub(crate) fn list_charts(
    index: &HelmIndex,
    client: &Client<'_>,
    charts: &[Chart],
    progress: &FetchProgress,
) -> Result<Vec<Result<Chosen, ServiceFailure>>, UpstreamError> {
    let max_bytes = client.session().upstream.max_chart;
    let found = charts.iter().zip(index.list(client, charts, progress)?);
    let chosen = |(chart, release): (&Chart, Result<Release, String>)| match release {
        Ok(release) => Ok(choose(chart, release, max_bytes)),
        Err(reason) => Err(ServiceFailure::transient("resolve", reason)),
    };
    Ok(found.map(chosen).collect())
}

fn choose(chart: &Chart, release: Release, max_bytes: u64) -> Chosen {
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
