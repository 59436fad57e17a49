//! Requests to edges: HTTP/3 first, HTTP/2 when UDP is blocked, the next edge when one fails.

mod edge;
mod edge_url;
mod error;
mod h2;
mod h3;
mod protocol_selector;
mod response;
mod token_file;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use weir_runtime::tls;

pub(crate) use edge::{Edge, TarballRequest};
pub use edge_url::{EdgeUrl, EdgeUrlError};
pub(crate) use error::RequestError;
pub use response::Protocol;
pub(crate) use response::{Response, ResponseBody};

use crate::config::Config;
use crate::metrics::Metrics;

/// The configured edges; a reload replaces them.
pub(crate) struct EdgeClient(RwLock<Arc<Edges>>);

pub(crate) struct Edges {
    edges: Vec<Edge>,
    /// The index of the edge that worked last.
    preferred: AtomicUsize,
}

impl EdgeClient {
    pub(crate) fn new(edges: Edges) -> Self {
        Self(RwLock::new(edges.into()))
    }

    /// The current edges. Requests in flight keep the old ones after a reload.
    pub(crate) fn current(&self) -> Arc<Edges> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, edges: Edges) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = edges.into();
    }
}

impl Edges {
    /// Reads the certificates. Connects lazily.
    ///
    /// # Errors
    /// A certificate or key cannot be used.
    pub(crate) fn new(config: &Config, metrics: &Metrics) -> anyhow::Result<Self> {
        let identity = config.client_certificate.as_deref().zip(config.client_key.as_deref());
        let tls = tls::client_config(&config.ca, identity)?;
        metrics.credential_ends("authority", tls::authority_ends(&config.ca)?);
        if let Some((certificate, _)) = identity {
            metrics.credential_ends("certificate", tls::not_after(certificate)?);
        }
        let edges = config.edges.iter().map(|url| Edge::new(url.clone(), &tls, config, metrics.clone()));
        Ok(Self { edges: edges.collect::<Result<_, _>>()?, preferred: AtomicUsize::new(0) })
    }

    /// The first edge of the configuration, which has one at least.
    pub(crate) fn first(&self) -> &Edge {
        &self.edges[0]
    }

    /// All edges, starting with the preferred one.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Edge> {
        let first = self.preferred.load(Ordering::Relaxed);
        (0..self.edges.len()).map(move |offset| &self.edges[(first + offset) % self.edges.len()])
    }

    /// Prefers this edge until it fails.
    pub(crate) fn prefer(&self, edge: &Edge) {
        let Some(index) = self.edges.iter().position(|other| std::ptr::eq(other, edge)) else { return };
        let before = self.preferred.swap(index, Ordering::Relaxed);
        if before != index {
            tracing::info!(edge = %edge.url(), before = %self.edges[before].url(), "switched to another edge");
        }
    }

    /// Each edge in the order of the configuration, whether it is preferred, and whether HTTP/3 to it works.
    pub(crate) fn overview(&self) -> impl Iterator<Item = (&EdgeUrl, bool, Option<bool>)> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        self.edges.iter().enumerate().map(move |(i, edge)| (edge.url(), i == preferred, edge.http3_usable()))
    }
}
