//! The core of ownership: it takes one event at a time and says what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use weir_protocol::name::{NodeName, RepositoryName};

use super::Settings;
use super::cluster::{Cluster, Living};
use super::messages::{Action, Answer, Event};
use super::records::{Claim, NodeRecord, NodeState, SessionId};
use super::repository::{Activity, Known, Repository};
use super::requests::{Pending, Requests, Subject};
use super::session::{Progress, Session, SessionRequest};

/// The state machine of one node. Only [`Core::handle`] changes it.
#[derive(Debug)]
pub struct Core<V> {
    pub(super) cluster: Cluster,
    session: Session<V>,
    pub(super) requests: Requests,
    scan_at: Instant,
    list_at: Instant,
    pub(super) repositories: BTreeMap<RepositoryName, Repository<V>>,
    /// When repositories have to be looked at again.
    pub(super) timers: BTreeSet<(Instant, RepositoryName)>,
    /// The repositories whose record has to be read.
    pub(super) reads: BTreeSet<RepositoryName>,
    /// Requests about repositories in flight.
    pub(super) in_flight: usize,
    /// The repositories that run, stop or are being handed over.
    pub(super) held: BTreeSet<RepositoryName>,
    /// Those of them that move.
    pub(super) moving: BTreeSet<RepositoryName>,
    pub(super) actions: Vec<Action<V>>,
    has_reported_leaving: bool,
}

impl<V: Clone + PartialEq> Core<V> {
    /// A node that is about to join.
    pub fn new(settings: &Settings, now: Instant) -> Self {
        Self {
            cluster: Cluster::new(settings, now),
            session: Session::new(settings, now),
            requests: Requests::default(),
            scan_at: now,
            list_at: now,
            repositories: BTreeMap::new(),
            timers: BTreeSet::new(),
            reads: BTreeSet::new(),
            in_flight: 0,
            held: BTreeSet::new(),
            moving: BTreeSet::new(),
            actions: Vec::new(),
            has_reported_leaving: false,
        }
    }

    /// Takes an event at a time of the monotonic clock. The actions must be begun in their order.
    pub fn handle(&mut self, now: Instant, event: Event<V>) -> Vec<Action<V>> {
        self.cluster.now = self.cluster.now.max(now);
        let now = self.cluster.now;
        // First: a process that was paused must not act for a session that has expired.
        if self.session.valid_until().is_some_and(|until| until <= now) {
            self.suspend();
        }
        while let Some(late) = self.requests.end_late(now) {
            self.answered(late, Answer::Unknown);
        }
        match event {
            Event::Tick => {}
            Event::Answered { request, answer } => {
                if let Some(pending) = self.requests.end(request) {
                    self.answered(pending, answer);
                }
            }
            Event::Defined(repositories) => repositories.iter().for_each(|name| self.learn(name)),
            Event::Asked { repository } => self.asked(repository),
            Event::Ready { node, repository, is_ready } => self.ready(&node, &repository, is_ready),
            Event::Told { repository } => self.told(&repository),
            Event::Superseded { repository } => self.superseded(&repository),
            Event::Stopped { repository, is_settled } => self.stopped(&repository, is_settled),
            Event::AllStopped => self.session.resume(now),
            Event::Described(digests) => self.session.describe(digests, now),
            Event::Drain => {
                self.cluster.is_draining = true;
                self.session.announce(NodeState::Draining, now);
                self.reconsider_all();
            }
        }
        self.proceed();
        std::mem::take(&mut self.actions)
    }

    /// When [`Event::Tick`] is due. Until [`Core::valid_until`] it must not be late.
    pub fn wake_at(&self) -> Option<Instant> {
        let session = self.session.wake_at().into_iter().chain(self.requests.next_deadline());
        let is_idle = |subject| !self.requests.has(&subject);
        let valid = self.cluster.session.is_some();
        let scan = (valid && is_idle(Subject::Nodes)).then_some(self.scan_at);
        let list = (self.cluster.can_decide() && is_idle(Subject::Listing)).then_some(self.list_at);
        let timer = self.timers.first().map(|(at, _)| *at).filter(|_| valid);
        session.chain(scan).chain(list).chain(timer).min()
    }

    /// Until when this node may fetch, publish, delete objects and vouch for what it owns. `None`: not at all. Workers
    /// check this time themselves, because a process that was paused may run them before [`Event::Tick`].
    pub fn valid_until(&self) -> Option<Instant> {
        self.session.valid_until()
    }

    /// The session of this node, valid or not.
    pub fn session(&self) -> SessionId {
        self.session.id()
    }

    /// Whether this node cannot join because another process uses its name.
    pub fn is_name_taken(&self) -> bool {
        self.session.is_name_taken()
    }

    /// Whether [`Core::others`] are all members that the records show.
    pub fn sees_members(&self) -> bool {
        self.cluster.can_decide()
    }

    /// The other members with living sessions.
    pub fn others(&self) -> &BTreeMap<NodeName, Living> {
        self.cluster.others()
    }

    /// When this node last saw another one renew its session.
    pub fn last_seen(&self, node: &NodeName) -> Option<Instant> {
        self.cluster.last_seen(node)
    }

    /// The claim of a repository that was read or written last.
    pub fn claim(&self, repository: &RepositoryName) -> Option<&Claim> {
        match &self.repositories.get(repository)?.known {
            Known::Record { claim, .. } => Some(claim),
            Known::Nothing | Known::Absent => None,
        }
    }

    /// The repositories that this node runs, with their fences.
    pub fn owned(&self) -> impl Iterator<Item = (&RepositoryName, u64)> {
        self.held.iter().filter_map(|name| match self.repositories.get(name)?.activity {
            Activity::Running { fence, .. } => Some((name, fence)),
            _ => None,
        })
    }

    fn answered(&mut self, Pending { subject, sent, .. }: Pending, answer: Answer<V>) {
        let now = self.cluster.now;
        match (subject, answer) {
            (Subject::OwnNode, Answer::Node(stored)) => {
                if self.session.read(stored, sent, now) == Progress::Lost {
                    self.suspend();
                }
                self.session_changed();
            }
            (Subject::OwnNode, Answer::Written(version)) => {
                self.session.written(version, sent, now);
                self.session_changed();
            }
            (Subject::OwnNode, answer) => self.session.failed(answer != Answer::Conflict, sent, now),
            (Subject::Nodes, Answer::Nodes(records)) if records.iter().any(|record| self.was_ended_by(record)) => {
                self.suspend();
            }
            (Subject::Nodes, Answer::Nodes(records)) => {
                let is_first = !self.cluster.can_decide();
                if self.cluster.view(records, sent) || is_first {
                    self.list_at = now;
                    self.reconsider_all();
                }
                self.actions.extend(self.cluster.forget_nodes().into_iter().map(Action::DeleteNode));
                self.session.announce_ended(self.cluster.ended(), now);
                self.scan_at = self.cluster.next_end().map_or(self.scan_at, |end| self.scan_at.min(end));
            }
            (Subject::Nodes, _) => self.scan_at = now + self.cluster.timing.retry_after(),
            (Subject::Listing, Answer::Repositories(listed)) => self.listed(&listed),
            (Subject::Listing, _) => self.list_at = now + self.cluster.timing.retry_after(),
            (Subject::Repository(name), answer) => {
                self.in_flight -= 1;
                self.repository_answered(&name, answer);
            }
        }
    }

    /// Sends the requests that are due.
    fn proceed(&mut self) {
        let now = self.cluster.now;
        if self.cluster.is_draining && self.held.is_empty() {
            self.session.announce(NodeState::Left, now);
        }
        let attempt_ends = now + self.cluster.timing.attempt();
        while let Some(request) = self.session.poll(now) {
            let deadline = self.session.valid_until().map_or(attempt_ends, |until| attempt_ends.min(until));
            let begun = self.requests.begin(Subject::OwnNode, now, deadline);
            self.actions.push(match request {
                SessionRequest::Read => Action::ReadNode(begun),
                SessionRequest::Write { expect, record } => Action::WriteNode { request: begun, expect, record },
            });
        }
        if self.session.has_left() && !std::mem::replace(&mut self.has_reported_leaving, true) {
            self.actions.push(Action::Left);
        }
        if self.cluster.session.is_none() {
            return;
        }
        if self.scan_at <= now && !self.requests.has(&Subject::Nodes) {
            self.scan_at = now + self.cluster.timing.scan_every();
            let request = self.requests.begin(Subject::Nodes, now, attempt_ends);
            self.actions.push(Action::ReadNodes(request));
        }
        if self.cluster.can_decide() && self.list_at <= now && !self.requests.has(&Subject::Listing) {
            self.list_at = now + self.cluster.timing.list_every;
            let request = self.requests.begin(Subject::Listing, now, attempt_ends);
            self.actions.push(Action::ListRepositories(request));
        }
        while let Some((at, name)) = self.timers.pop_first() {
            if at > now {
                self.timers.insert((at, name));
                break;
            }
            self.consider(&name);
        }
        self.read_repositories();
    }

    /// Whether the own session has ended for another node, which may have taken what this one runs.
    fn was_ended_by(&self, record: &NodeRecord) -> bool {
        record.node != self.cluster.me && record.ended.contains(&self.session.id())
    }

    /// The own session may have begun or ended.
    fn session_changed(&mut self) {
        let session = self.session.valid_until().map(|_| self.session.id());
        if session != self.cluster.session {
            self.cluster.set_session(session);
            // Nodes that start together see each other before they take anything.
            self.scan_at = self.cluster.now + self.cluster.timing.retry_after();
        }
    }

    /// Stops everything, because the session has ended or is about to end for the others.
    fn suspend(&mut self) {
        self.session.halt();
        self.session_changed();
        self.requests.clear();
        self.repositories.values_mut().for_each(Repository::suspend);
        self.timers.clear();
        self.reads.clear();
        self.held.clear();
        self.moving.clear();
        self.in_flight = 0;
        self.actions.push(Action::StopAll);
    }
}
