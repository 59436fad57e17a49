//! The event stream: one request that stays open, and says at once what changed. The batch poll is its net.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::{mpsc, watch};
use weir_protocol::agent_event::{AgentEvent, AgentEventKind, HEARTBEAT_SECONDS, MAX_LINE_BYTES};
use weir_protocol::event::{Cursor, EventError, Lines};
use weir_protocol::name::NodeName;
use weir_protocol::route::Route;
use weir_runtime::shutdown::Drain;

use super::error::PollError;
use super::response_status::succeeded;
use super::schedule::back_off;
use crate::config::DEFAULT_SPREAD;
use crate::edge_client::{Asked, Edge, Edges, RequestError, Response};
use crate::metrics::Metrics;
use crate::phase::phase;
use crate::selection::Selection;
use crate::services::{ReceivedRow, Services};
use crate::supervise::Task;

/// A stream that says nothing for this long is dead.
const SILENT_AFTER: Duration = Duration::from_secs(3 * HEARTBEAT_SECONDS);

/// The time between two looks whether the stream is where it should be.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The longest pause between two streams.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The task that keeps the stream open.
pub(crate) struct EventStream {
    pub(crate) services: Arc<Services>,
    pub(crate) asked: watch::Receiver<Asked>,
    pub(crate) timeout: Duration,
    /// Within this, a batch poll follows a change of what is followed, and the next stream one that ended.
    pub(crate) spread: Duration,
    /// The same of the last stream, which the edge may have shortened.
    pub(crate) last_spread: Duration,
    pub(crate) agent: NodeName,
    /// Asks for a batch poll.
    pub(crate) wanted: mpsc::Sender<Duration>,
    /// Where the stream begins.
    pub(crate) cursor: watch::Receiver<Option<Cursor>>,
    pub(crate) errors: u32,
    pub(crate) metrics: Metrics,
    pub(crate) drain: Drain,
}

/// What an edge makes of an agent's own `spread`: it shortens the default.
fn shortened(own: Duration, of_edge: Option<Duration>) -> Option<Duration> {
    of_edge.filter(|of_edge| own == DEFAULT_SPREAD && *of_edge < own)
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("no edge sends events: {0}")]
    NoEdge(String),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Event(#[from] EventError),
    #[error("the edge closed the stream")]
    Ended,
    #[error("the agent was reconfigured")]
    Reloaded,
    #[error("another edge is in use")]
    OtherEdge,
    #[error("its connection has reached its maximum age")]
    Old,
    #[error("other requests already use a new connection")]
    OtherConnection,
}

impl Task for EventStream {
    async fn run(&mut self) {
        loop {
            let drain = self.drain.clone();
            let end = tokio::select! {
                () = drain.begun() => return,
                end = self.follow() => end,
            };
            self.metrics.event_stream_connected.set(0);
            if let StreamEnd::Request(RequestError::Silent(after)) = &end {
                self.metrics.event_streams_silent.inc();
                tracing::warn!(
                    ?after,
                    "the event stream was silent and is opened again: if this goes on, something on the way to the edge, such as a \
                     proxy, holds back what it sends, and changes arrive with the polls alone"
                );
            }
            let pause = match end {
                // The agent ended it, at a moment of its own. What happens in between would be lost.
                StreamEnd::OtherEdge | StreamEnd::Old | StreamEnd::OtherConnection => Duration::ZERO,
                // An edge that ends drops all agents at once, and they come back in the order of their phases.
                _ => {
                    let turn = self.last_spread.mul_f64(phase(&[self.agent.as_str(), "events"]));
                    back_off(&mut self.errors, LONGEST_PAUSE, fastrand::f64()).max(turn)
                }
            };
            tracing::debug!(%end, ?pause, "the event stream has ended");
            tokio::select! {
                () = self.drain.begun() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn panicked(&mut self, message: &str) {
        self.metrics.event_stream_connected.set(0);
        tracing::error!(error = message, "the event stream panicked, which is a bug");
    }
}

impl EventStream {
    /// Reads one stream to its end.
    async fn follow(&mut self) -> StreamEnd {
        // While there is no batch poll, there are no events either.
        let known = self.cursor.wait_for(Option::is_some).await.map(|cursor| cursor.clone());
        let Ok(since) = known else { return StreamEnd::Ended };
        let asked = self.asked.wait_for(|asked| asked.selection.is_some()).await.map(|asked| asked.clone());
        let Ok(Asked { edges, selection: Some(selection) }) = asked else { return StreamEnd::Ended };
        let preferred = edges.preferred();
        match self.open(&edges, &selection, since.as_ref()).await {
            Ok((edge, response)) => {
                self.read(edge, response, &edges, preferred).await.err().unwrap_or(StreamEnd::Ended)
            }
            Err(end) => end,
        }
    }

    async fn open<'e>(
        &self,
        edges: &'e Edges,
        selection: &Selection,
        since: Option<&Cursor>,
    ) -> Result<(&'e Edge, Response), StreamEnd> {
        let target = selection.target(&Route::AgentEvents, since);
        let mut errors = Vec::new();
        for edge in edges.in_order() {
            let opened = match edge.get(&target, None, self.timeout, None).await {
                Ok(response) => succeeded(edge, response).await,
                Err(error) => Err(PollError::from(error)),
            };
            match opened {
                Ok(response) if response.status == StatusCode::OK => return Ok((edge, response)),
                Ok(response) => errors.push(format!("{}: {}", edge.url(), response.status)),
                Err(error) => errors.push(format!("{}: {error}", edge.url())),
            }
        }
        Err(StreamEnd::NoEdge(errors.join("; ")))
    }

    /// `preferred`: the edge in use when the stream was opened.
    async fn read(
        &mut self,
        edge: &Edge,
        response: Response,
        edges: &Edges,
        preferred: &Edge,
    ) -> Result<(), StreamEnd> {
        let Response { protocol, connection_id, renew_at, body, .. } = response;
        let mut body = body.with_idle(SILENT_AFTER);
        let mut lines = Lines::with_limit(MAX_LINE_BYTES);
        self.metrics.event_stream_connected.set(1);
        // The edge tells of those that are not reachable.
        self.services.forget_upstreams();
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            let part = tokio::select! {
                part = body.chunk() => part?,
                Ok(()) = self.asked.changed() => return Err(StreamEnd::Reloaded),
                _ = looks.tick() => {
                    if !std::ptr::eq(preferred, edges.preferred()) {
                        return Err(StreamEnd::OtherEdge);
                    }
                    if Instant::now() >= renew_at {
                        return Err(StreamEnd::Old);
                    }
                    // One connection carries everything. A poll may have found that this one is dead.
                    let is_other = edge.http3_connection() != connection_id;
                    if is_other && (connection_id.is_some() || edge.http3_usable() == Some(true)) {
                        return Err(StreamEnd::OtherConnection);
                    }
                    continue;
                }
            };
            let Some(part) = part else { return Ok(()) };
            lines.push(&part);
            while let Some(line) = lines.next_line()? {
                // An event of a later version says nothing to this one.
                let Some(event) = AgentEvent::parse(&line)? else { continue };
                self.errors = 0;
                self.metrics.event(event.kind.as_str());
                let shortened = shortened(self.spread, event.spread);
                let spread = shortened.unwrap_or(self.spread);
                if !matches!(event.kind, AgentEventKind::Changed(_) | AgentEventKind::Upstream { .. }) {
                    self.last_spread = spread;
                }
                match event.kind {
                    AgentEventKind::Changed(row) => {
                        self.services.tell(ReceivedRow { row, protocol, spread: shortened });
                    }
                    AgentEventKind::Unassigned(_) | AgentEventKind::Assigned(_) | AgentEventKind::Resync => {
                        self.want(spread);
                    }
                    AgentEventKind::Upstream { services, upstream } => {
                        let since = (!upstream.reachable).then_some(upstream.since);
                        self.services.tell_upstream(&services, since);
                    }
                    AgentEventKind::Heartbeat => {}
                }
            }
        }
    }

    /// Asks for a batch poll; a full queue already has such requests. The same event reaches all agents of an edge at once.
    fn want(&self, spread: Duration) {
        let _ = self.wanted.try_send(spread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_shortens_the_default_and_prolongs_nothing() {
        let [zero, second, hour] = [0, 1, 3600].map(Duration::from_secs);
        for (own, of_edge, expected) in [
            (DEFAULT_SPREAD, Some(second), Some(second)),
            (DEFAULT_SPREAD, Some(hour), None),
            (DEFAULT_SPREAD, None, None),
            (hour, Some(second), None),
            (zero, Some(second), None),
        ] {
            assert_eq!(shortened(own, of_edge), expected, "{own:?}, {of_edge:?}");
        }
    }
}
