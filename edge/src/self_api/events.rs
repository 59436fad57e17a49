//! The event stream of an agent: `GET /v1/agents/self/events`.
//!
//! There is no log. A cursor is the tag of the rows that the agent has seen: if they are other rows by now, the stream
//! begins with `resync`, and the agent polls. What changes in a group is compared and written as lines once, for all its
//! streams.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};
use tokio::time::MissedTickBehavior;
use weir_protocol::agent_event::{AgentEvent, AgentEventKind, HEARTBEAT_SECONDS, MAX_SERVICES};
use weir_protocol::event::{self, Upstream};
use weir_protocol::labels::Labels;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_runtime::serve::{Body, NotTaken, PartWriter, RequestBody};

use super::followers::Counted;
use super::following::Wanted;
use super::groups::{Group, Membership};
use super::rows::{EventLine, Following, Row, Rows};
use super::{Inner, Parameters, SelfApi};
use crate::access::{Agent, KnownFleet, Session};
use crate::api_error::ApiError;
use crate::catalog::RowChange;

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
        let (changes, fleet) = (inner.catalog.row_changes(), inner.access.fleet());
        let (group, member) = inner.join(&session.agent, &wanted)?;
        let (following, rows) = inner.state(&group, &wanted, &session.agent)?;
        let (parts, body) = PartWriter::new(&inner.drain);
        let writer = Writer {
            inner: inner.clone(),
            labels: inner.labels_of(&session.agent),
            session: Arc::new(session),
            wanted,
            member,
            group,
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
    /// What a group follows, and the rows of one of its agents as the catalog has them.
    fn state(
        &self,
        group: &Arc<Group>,
        wanted: &Wanted,
        agent: &Agent,
    ) -> Result<(Arc<Following>, Arc<Rows>), ApiError> {
        let following = self.following_of(group, wanted)?;
        let (version, now) = (self.catalog.rows_version(), self.catalog.clock().now());
        let rows = following.stored(version, now, || self.stored(&following));
        let rows = rows.and_then(|rows| self.variants.of(&following, rows, &agent.name, || self.labels_of(agent)));
        rows.map(|rows| (following, rows)).map_err(|error| ApiError::TooManyServices(error.to_string()))
    }

    /// The line of an event, after which an agent has seen these rows.
    fn line(&self, rows: &Rows, kind: AgentEventKind) -> EventLine {
        let cursor = rows.tag.parse().expect("hex digits are a cursor");
        let (name, spread) = (kind.as_str(), self.spread_of(&kind));
        EventLine { kind: name, line: AgentEvent { cursor, spread, kind }.line() }
    }
}

/// Writes the events of one stream in order.
struct Writer {
    inner: Arc<Inner>,
    session: Arc<Session>,
    wanted: Wanted,
    member: Membership,
    group: Arc<Group>,
    /// Those that the agent polls after `resync`.
    labels: Labels,
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
        changes: broadcast::Receiver<RowChange>,
        fleet: watch::Receiver<Arc<KnownFleet>>,
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
        mut changes: broadcast::Receiver<RowChange>,
        mut fleet: watch::Receiver<Arc<KnownFleet>>,
    ) -> Result<Infallible, End> {
        let is_known = since.is_some_and(|since| since == self.rows.tag_with(&self.labels));
        let kind = if is_known { AgentEventKind::Heartbeat } else { AgentEventKind::Resync };
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
                Ok(()) = fleet.changed() => self.edited().await?,
                change = changes.recv() => match change {
                    Ok(RowChange::Service(service)) => {
                        let is_followed = self.following.services.binary_search(&service).is_ok();
                        if is_followed || self.following.names_version() != self.inner.catalog.names_version() {
                            self.compare().await?;
                        }
                    }
                    Ok(RowChange::Upstream(repository, upstream)) => self.upstream(&repository, upstream).await?,
                    Err(RecvError::Lagged(_)) => self.resync().await?,
                    Err(RecvError::Closed) => return Err(NotTaken::Drained.into()),
                },
                // No sign of life of the agent: the system of an agent that was stopped takes it, too.
                _ = heartbeats.tick() => self.send(AgentEventKind::Heartbeat).await?,
            }
        }
    }

    /// Sends what follows from other rules. Labels come with the batch poll alone.
    async fn edited(&mut self) -> Result<(), End> {
        self.compare().await?;
        let labels = self.inner.labels_of(&self.session.agent);
        if labels == self.labels {
            return Ok(());
        }
        self.labels = labels;
        self.send(AgentEventKind::Resync).await
    }

    /// Sends what differs from the rows that the agent knows.
    async fn compare(&mut self) -> Result<(), End> {
        let (following, rows) = self.state()?;
        // The tag is that of the services with their states.
        if rows.tag == self.rows.tag {
            self.following.replace(following);
            return Ok(());
        }
        let is_other_list = following.services != self.following.services;
        let lines = rows.step_from(&self.rows.tag, || {
            let before = (&self.following.services[..], &self.rows.states[..]);
            let events = differences(before, (&following.services, &rows.states));
            // Who resumes before the last line has not seen all of it.
            let last = events.len().saturating_sub(1);
            let at = |index| if index == last { &rows } else { &self.rows };
            events.into_iter().enumerate().map(|(index, kind)| self.inner.line(at(index), kind)).collect()
        });
        let is_current = |row: &Row| matches!(row, Row::Current(_));
        let became_current = |(before, after): (&Row, &Row)| !is_current(before) && is_current(after);
        // Some of its services may be new to the agent, or are of another upstream now.
        let has_other_upstreams = is_other_list || self.rows.states.iter().zip(&rows.states).any(became_current);
        self.following.replace(following);
        self.rows = rows;
        for line in lines.iter() {
            self.send_line(line.clone()).await?;
        }
        if has_other_upstreams {
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
        for (repository, upstream) in self.inner.catalog.revisions().upstreams() {
            self.upstream(&repository, upstream).await?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<(Arc<Following>, Arc<Rows>), End> {
        let agent = &self.session.agent;
        if self.inner.groups.still(&mut self.member, agent, &self.wanted).is_none() {
            (self.group, self.member) = self.inner.join(agent, &self.wanted).map_err(|_| End::Rows)?;
        }
        self.inner.state(&self.group, &self.wanted, agent).map_err(|_| End::Rows)
    }

    /// Sends the reachability of an upstream if the agent follows services of it and was told otherwise.
    async fn upstream(&mut self, repository: &RepositoryName, upstream: Upstream) -> Result<(), End> {
        let told = self.upstreams.get(repository);
        if told.map_or(upstream.reachable, |told| *told == upstream) {
            return Ok(());
        }
        let is_of = |row: &Row| match row {
            Row::Current(version) => version.descriptor().publication().repository == *repository,
            Row::NotPublished | Row::TooStale => false,
        };
        let services = self.following.services.iter().zip(&self.rows.states).filter(|(_, row)| is_of(row));
        let services: Vec<ServiceName> = services.map(|(service, _)| service.clone()).collect();
        for part in services.chunks(MAX_SERVICES) {
            self.send(AgentEventKind::Upstream { services: part.to_vec(), upstream }).await?;
        }
        if !services.is_empty() {
            self.upstreams.insert(repository.clone(), upstream);
        }
        Ok(())
    }

    /// Sends an event once the agent has taken the previous one.
    async fn send(&self, kind: AgentEventKind) -> Result<(), End> {
        self.send_line(self.inner.line(&self.rows, kind)).await
    }

    async fn send_line(&self, EventLine { kind, line }: EventLine) -> Result<(), End> {
        self.inner.metrics.sent(kind);
        Ok(self.parts.send(line).await?)
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
