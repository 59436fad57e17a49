//! The event stream of an agent: `GET /v1/agents/self/events`.
//!
//! There is no log. A cursor is the tag of the rows that the agent has seen: if they are other rows by now, the stream
//! begins with `resync`, and the agent polls.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio::time::MissedTickBehavior;
use weir_protocol::access_list::Fleet;
use weir_protocol::agent_event::{AgentEvent, AgentEventKind, HEARTBEAT_SECONDS, MAX_SERVICES};
use weir_protocol::event::{self, RevisionSeen, Upstream};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::serve::{Body, NotTaken, PartWriter, RequestBody};

use super::followers::Counted;
use super::following::Wanted;
use super::rows::{Following, Row, Rows};
use super::{Inner, Parameters, SelfApi};
use crate::access::{Agent, Session};
use crate::api_error::ApiError;
use crate::catalog::CatalogChange;

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum End {
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error("the credential has expired or was denied")]
    Credential,
    #[error("the rows cannot be computed")]
    Rows,
}

impl SelfApi {
    /// Starts a stream.
    pub(super) fn events(&self, request: &Request<RequestBody>, session: Session) -> Result<Response<Body>, ApiError> {
        let inner = &self.inner;
        let Parameters { wanted, since } = Parameters::parse(request.uri().query().unwrap_or_default(), true)?;
        let permit = inner.streams.clone().try_acquire_owned().map_err(|_| ApiError::TooManyStreams)?;
        // Subscribed before the rows are made: what changes meanwhile is compared with them.
        let (changes, fleet) = (inner.catalog.changes(), inner.access.fleet());
        let (following, rows) = inner.state(&session.agent, &wanted)?;
        let (parts, body) = PartWriter::new(&inner.drain);
        let writer = Writer {
            inner: inner.clone(),
            session: Arc::new(session),
            wanted,
            following: Counted::new(following, inner.followers.clone()),
            rows,
            upstreams: HashMap::new(),
            parts,
        };
        inner.drain.spawn(writer.run(since, changes, fleet, permit));
        let mut response = Response::new(body);
        event::set_headers(response.headers_mut());
        Ok(response)
    }
}

impl Inner {
    /// What an agent follows, and the rows as the catalog has them.
    fn state(&self, agent: &Agent, wanted: &Wanted) -> Result<(Arc<Following>, Arc<Rows>), ApiError> {
        let following = self.following(agent, wanted)?;
        let rows = following.rows(self.stored(&following));
        rows.map(|rows| (following, rows)).map_err(|error| ApiError::TooManyServices(error.to_string()))
    }
}

/// Writes the events of one stream in order.
struct Writer {
    inner: Arc<Inner>,
    session: Arc<Session>,
    wanted: Wanted,
    following: Counted,
    /// What the agent has been told, or polls after `resync`.
    rows: Arc<Rows>,
    /// What the agent has been told of the upstreams.
    upstreams: HashMap<RepositoryName, Upstream>,
    parts: PartWriter,
}

impl Writer {
    /// Writes until the stream ends. Only a drain is a clean end.
    async fn run(
        mut self,
        since: Option<String>,
        changes: broadcast::Receiver<CatalogChange>,
        fleet: watch::Receiver<Arc<Fleet>>,
        permit: OwnedSemaphorePermit,
    ) {
        let (inner, session) = (self.inner.clone(), self.session.clone());
        let end = tokio::select! {
            biased;
            // Before all events: a denial must not wait for a reader that is slow.
            _ = session.ended() => End::Credential,
            Err(end) = self.write(since, changes, fleet) => end,
        };
        match end {
            End::NotTaken(NotTaken::Disconnected) => {}
            End::NotTaken(NotTaken::Drained) => self.parts.finish(),
            error => self.parts.fail(error),
        }
        inner.metrics.stream_ended(end.label());
        tracing::debug!(agent = %session.agent.name, why = %end, "the event stream of an agent ended");
        drop(permit);
    }

    async fn write(
        &mut self,
        since: Option<String>,
        mut changes: broadcast::Receiver<CatalogChange>,
        mut fleet: watch::Receiver<Arc<Fleet>>,
    ) -> Result<Infallible, End> {
        let kind =
            if since.as_deref() == Some(&self.rows.tag) { AgentEventKind::Heartbeat } else { AgentEventKind::Resync };
        self.send(kind).await?;
        self.all_upstreams().await?;
        let mut heartbeats = tokio::time::interval(Duration::from_secs(HEARTBEAT_SECONDS));
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeats.reset();
        loop {
            tokio::select! {
                biased;
                () = self.inner.drain.begun() => return Err(NotTaken::Drained.into()),
                () = self.parts.closed() => return Err(NotTaken::Disconnected.into()),
                Ok(()) = fleet.changed() => self.compare().await?,
                change = changes.recv() => match change {
                    Ok(CatalogChange::Service(service)) => {
                        let is_followed = self.following.services.binary_search(&service).is_ok();
                        if is_followed || self.follows_others() {
                            self.compare().await?;
                        }
                    }
                    Ok(CatalogChange::Revision(seen)) => self.upstream(&seen).await?,
                    Ok(CatalogChange::Suspect(None)) | Err(RecvError::Lagged(_)) => self.resync().await?,
                    // Its row changes when an answer of the origin says so.
                    Ok(CatalogChange::Suspect(Some(_)) | CatalogChange::Released(_) | CatalogChange::Heartbeat(_)) => {}
                    Err(RecvError::Closed) => return Err(NotTaken::Drained.into()),
                },
                // No sign of life of the agent: the system of an agent that was stopped takes it, too.
                _ = heartbeats.tick() => self.send(AgentEventKind::Heartbeat).await?,
            }
        }
    }

    /// Whether the agent follows other services since names appeared or went. Each of these is looked at once, not with every
    /// publication.
    fn follows_others(&self) -> bool {
        let (catalog, following) = (&self.inner.catalog, &self.following);
        let known = following.names_version();
        known != catalog.names_version()
            && catalog.names_since(known).is_none_or(|changed| {
                following.after(&self.session.agent, changed, |service| catalog.has_name(service)).is_some()
            })
    }

    /// Sends what differs from the rows that the agent knows.
    async fn compare(&mut self) -> Result<(), End> {
        let (following, rows) = self.state()?;
        if Arc::ptr_eq(&rows, &self.rows) && following.services == self.following.services {
            self.following.replace(following);
            return Ok(());
        }
        let is_other_list = following.services != self.following.services;
        let events = differences((&self.following.services, &self.rows.states), (&following.services, &rows.states));
        self.following.replace(following);
        self.rows = rows;
        for event in events {
            self.send(event).await?;
        }
        if is_other_list {
            // Some of its services may be new to the agent.
            self.upstreams.clear();
            self.all_upstreams().await?;
        }
        Ok(())
    }

    /// Tells the agent to poll, after what is known to have changed.
    async fn resync(&mut self) -> Result<(), End> {
        self.compare().await?;
        self.all_upstreams().await?;
        self.send(AgentEventKind::Resync).await
    }

    /// Sends what the agent does not know of the upstreams. At the start of a stream all are taken for reachable.
    async fn all_upstreams(&mut self) -> Result<(), End> {
        for seen in self.inner.catalog.revisions().all() {
            self.upstream(&seen).await?;
        }
        Ok(())
    }

    fn state(&self) -> Result<(Arc<Following>, Arc<Rows>), End> {
        self.inner.state(&self.session.agent, &self.wanted).map_err(|_| End::Rows)
    }

    /// Sends the reachability of an upstream if the agent follows services of it and was told otherwise.
    async fn upstream(&mut self, seen: &RevisionSeen) -> Result<(), End> {
        let told = self.upstreams.get(&seen.repository);
        if told.map_or(seen.upstream.reachable, |told| *told == seen.upstream) {
            return Ok(());
        }
        let is_of = |row: &Row| match row {
            Row::Current(version) => version.descriptor().publication().repository == seen.repository,
            Row::NotPublished | Row::TooStale => false,
        };
        let services = self.following.services.iter().zip(&self.rows.states).filter(|(_, row)| is_of(row));
        let services: Vec<ServiceName> = services.map(|(service, _)| service.clone()).collect();
        for part in services.chunks(MAX_SERVICES) {
            self.send(AgentEventKind::Upstream { services: part.to_vec(), upstream: seen.upstream }).await?;
        }
        if !services.is_empty() {
            self.upstreams.insert(seen.repository.clone(), seen.upstream);
        }
        Ok(())
    }

    /// Sends an event once the agent has taken the previous one.
    async fn send(&self, kind: AgentEventKind) -> Result<(), End> {
        self.inner.metrics.sent(kind.as_str());
        let cursor = self.rows.tag.parse().expect("hex digits are a cursor");
        let spread = self.inner.spread_of(&kind);
        Ok(self.parts.send(AgentEvent { cursor, spread, kind }.line()).await?)
    }
}

/// The events between two states: sorted services with a row for each.
fn differences((before, old): (&[ServiceName], &[Row]), (after, new): (&[ServiceName], &[Row])) -> Vec<AgentEventKind> {
    let gone = before.iter().filter(|service| after.binary_search(service).is_err());
    let mut events: Vec<_> = gone.map(|service| AgentEventKind::Unassigned(service.clone())).collect();
    for (service, row) in after.iter().zip(new) {
        match before.binary_search(service) {
            Ok(index) if old[index] == *row => {}
            Ok(_) => events.push(AgentEventKind::Changed(row.to_batch_row(service))),
            Err(_) => events.push(AgentEventKind::Assigned(row.to_batch_row(service))),
        }
    }
    events
}

impl End {
    fn label(self) -> &'static str {
        match self {
            End::NotTaken(why) => why.as_str(),
            End::Credential => "credential",
            End::Rows => "too_many_services",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_what_came_what_went_and_what_changed() {
        let names = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<ServiceName>>();
        let events = differences(
            (&names(&["a", "b", "c"]), &[Row::NotPublished, Row::NotPublished, Row::TooStale]),
            (&names(&["b", "c", "d"]), &[Row::NotPublished, Row::NotPublished, Row::NotPublished]),
        );
        let said = |event: &AgentEventKind| match event {
            AgentEventKind::Changed(row) | AgentEventKind::Assigned(row) => (event.as_str(), row.service.to_string()),
            AgentEventKind::Unassigned(service) => (event.as_str(), service.to_string()),
            other => panic!("{other:?}"),
        };
        let expected = [("unassigned", "a"), ("changed", "c"), ("assigned", "d")];
        assert_eq!(events.iter().map(said).collect::<Vec<_>>(), expected.map(|(kind, name)| (kind, name.to_owned())));
    }
}
