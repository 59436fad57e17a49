//! The edges of an agent, and the way of a poll through them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;
use weir_runtime::http_client::NameLookup;
use weir_runtime::tls;

use super::edge::Edge;
use super::preference::{Preference, ordered};
use crate::config::Config;
use crate::config::EdgeUrl;
use crate::metrics::Metrics;

/// The edges that a configuration names. All that asks them shares the preference.
pub(crate) struct Edges {
    /// At least one, best first.
    edges: Vec<Edge>,
    preference: Mutex<Preference>,
}

/// An edge in `/status`.
#[derive(Debug, Serialize)]
pub(crate) struct EdgeStatus<'e> {
    pub(crate) url: &'e EdgeUrl,
    /// Whether it is in use.
    pub(crate) preferred: bool,
    /// Whether HTTP/3 to it works; `None` before the first try, and where it is not used.
    pub(crate) http3_usable: Option<bool>,
    /// Why HTTP/3 is not used.
    pub(crate) no_http3: Option<&'static str>,
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
        let edges = ordered(config.edge_order, config.name.as_str(), &config.edges).into_iter();
        let edges = edges.map(|url| Edge::new(url, &tls, config, NameLookup::default(), metrics.clone()));
        let preference = Mutex::new(Preference::new(config.edge_retry_interval));
        Ok(Self { edges: edges.collect::<Result<_, _>>()?, preference })
    }

    /// The best edge.
    pub(crate) fn first(&self) -> &Edge {
        &self.edges[0]
    }

    /// The edge in use.
    pub(crate) fn preferred(&self) -> &Edge {
        &self.edges[self.preference().current()]
    }

    /// All edges, for requests that do not decide which one is in use: that one, then the others, best first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Edge> {
        self.order(false).into_iter().map(|index| &self.edges[index])
    }

    /// Begins a poll, whose result decides which edge is in use.
    pub(crate) fn attempt(&self) -> Attempt<'_> {
        self.begin(false)
    }

    /// The same for a poll that looks at the age of what an edge answers.
    pub(crate) fn attempt_with_age(&self) -> Attempt<'_> {
        self.begin(true)
    }

    fn begin(&self, sees_age: bool) -> Attempt<'_> {
        let (is_probe, begun_at) = {
            let mut preference = self.preference();
            (preference.begin(sees_age, Instant::now()), preference.decisions())
        };
        Attempt { edges: self, is_probe, begun_at, order: self.order(is_probe), failed: Vec::new(), is_for_age: false }
    }

    /// The edges, best first.
    pub(crate) fn overview(&self) -> impl Iterator<Item = EdgeStatus<'_>> {
        let preferred = self.preference().current();
        self.edges.iter().enumerate().map(move |(index, edge)| EdgeStatus {
            url: edge.url(),
            preferred: index == preferred,
            http3_usable: edge.http3_usable(),
            no_http3: edge.no_http3(),
        })
    }

    fn order(&self, is_probe: bool) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.edges.len()).collect();
        if !is_probe {
            let current = self.preference().current();
            order[..=current].rotate_right(1);
        }
        order
    }

    fn preference(&self) -> MutexGuard<'_, Preference> {
        self.preference.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A poll that asks one edge after the other.
pub(crate) struct Attempt<'e> {
    edges: &'e Edges,
    is_probe: bool,
    /// The decisions on the edge in use when it began.
    begun_at: u64,
    order: Vec<usize>,
    /// The edges that failed for all services.
    failed: Vec<usize>,
    /// Others answer, and are cut off from their origins.
    is_for_age: bool,
}

impl<'e> Attempt<'e> {
    /// The edges in the order in which to ask them.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &'e Edge> + use<'e> {
        let edges = self.edges;
        self.order.clone().into_iter().map(|index| &edges.edges[index])
    }

    /// An edge failed for all services. Errors about one service change no preference.
    pub(crate) fn failed(&mut self, edge: &Edge) {
        self.failed.extend(self.edges.edges.iter().position(|other| std::ptr::eq(other, edge)));
    }

    /// The only edge of those that answer which is not cut off from its origins.
    pub(crate) fn prefer(&mut self, edge: &Edge) {
        self.failed =
            (0..self.edges.edges.len()).filter(|other| !std::ptr::eq(&self.edges.edges[*other], edge)).collect();
        self.is_for_age = true;
    }

    /// An edge gave a usable response: the first of the order that works is in use from now on.
    pub(crate) fn succeeded(mut self) {
        let Some(works) = self.order.iter().copied().find(|index| !self.failed.contains(index)) else { return };
        let is_probe = std::mem::take(&mut self.is_probe);
        if !is_probe && self.failed.is_empty() {
            return;
        }
        let mut preference = self.edges.preference();
        // A long download may end when others have decided anew.
        if !is_probe && preference.decisions() != self.begun_at {
            return;
        }
        let before = preference.answered(works, is_probe, self.is_for_age, Instant::now(), fastrand::f64());
        if let Some(before) = before {
            let url = |index: usize| self.edges.edges[index].url();
            tracing::info!(edge = %url(works), before = %url(before), "switched to another edge");
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_probe {
            self.edges.preference().probe_ended();
        }
    }
}
