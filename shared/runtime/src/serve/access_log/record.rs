//! One line: what is known of a request when its response has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{StatusCode, Uri};
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::route::{Route, RouteError};

use super::super::Peer;
use super::super::exchange::Exchange;
use super::Lines;

/// What a handler knows of a request: an extension of its response.
#[derive(Clone, Default)]
pub struct RequestFacts {
    /// The kind of path, as in metrics.
    pub route: Option<&'static str>,
    /// The service in the path.
    pub service: Option<ServiceName>,
    /// The agent, as its credential names it.
    pub agent: Option<NodeName>,
    /// What the cache did, as in metrics.
    pub cache: Option<&'static str>,
    /// Read when the response has ended: the farthest tier that bytes of the body came from.
    pub tier: Option<Arc<dyn Fn() -> &'static str + Send + Sync>>,
}

impl RequestFacts {
    /// What a path of the data plane says.
    pub fn of(route: &Result<Route, RouteError>) -> Self {
        let service = route.as_ref().ok().and_then(Route::service).cloned();
        Self { route: Some(route.as_ref().map_or("unknown", Route::label)), service, ..Self::default() }
    }
}

/// A request whose line is written when this is dropped.
pub(in super::super) struct Record {
    pub(super) lines: Arc<Lines>,
    pub(super) listener: &'static str,
    pub(super) exchange: Exchange,
    pub(super) peer: Arc<Peer>,
    pub(super) end: End,
}

/// How far a request came.
pub(super) enum End {
    /// There is no response: the client left, or the handler panicked.
    Abandoned(Uri, super::FactsOf),
    Responded {
        status: StatusCode,
        facts: RequestFacts,
        bytes: u64,
        is_complete: bool,
    },
    /// No line is written.
    NotLogged,
}

impl Record {
    /// The client accepted bytes of the body.
    pub(in super::super) fn sent(&mut self, more: usize) {
        if let End::Responded { bytes, .. } = &mut self.end {
            *bytes += more as u64;
        }
    }

    /// The whole body was sent.
    pub(in super::super) fn complete(&mut self) {
        if let End::Responded { is_complete, .. } = &mut self.end {
            *is_complete = true;
        }
    }

    fn write(&self, took: Duration, end: End) {
        let (status, facts, bytes, is_complete) = match end {
            End::Responded { status, facts, bytes, is_complete } => (Some(status.as_u16()), facts, bytes, is_complete),
            End::Abandoned(uri, facts_of) => (None, facts_of(uri.path()), 0, false),
            End::NotLogged => return,
        };
        let RequestFacts { route, service, agent, cache, tier } = facts;
        let client = self.peer.identity.as_ref().map(|by| format!("{}/{}", by.role.as_str(), by.name));
        tracing::info!(
            target: super::TARGET,
            listener = self.listener,
            protocol = self.exchange.protocol(),
            method = self.exchange.method.as_str(),
            route,
            service = service.as_ref().map(tracing::field::display),
            status,
            bytes,
            // Microseconds are enough, and short.
            duration_seconds = took.as_micros() as f64 / 1e6,
            complete = is_complete,
            cache,
            tier = tier.map(|tier| tier()),
            agent = agent.as_ref().map(tracing::field::display),
            client,
            address = %self.peer.address,
            request_id = %self.exchange.id,
            "request"
        );
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let end = std::mem::replace(&mut self.end, End::NotLogged);
        if matches!(end, End::NotLogged) {
            return;
        }
        let now = Instant::now();
        if self.lines.admit(now) {
            self.write(now.saturating_duration_since(self.exchange.begun), end);
        }
    }
}
