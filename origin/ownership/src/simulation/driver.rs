//! What a node does for its core: it sends requests, hands the answers back, and starts and stops workers.

use weir_protocol::name::NodeName;

use super::super::messages::{Action, Answer, Event, Request};
use super::super::records::{Claim, NodeState};
use super::Mutant;
use super::clock::micros;
use super::engine::{Body, Operation, Reply, Version};
use super::faults::Faults;
use super::world::{Input, Message, Sender, World};

impl World {
    /// An answer as the node's client gives it to the core.
    pub(super) fn answer(&mut self, index: usize, reply: Reply) -> Answer<Version> {
        let wall = self.nodes[index].clock.wall(self.now);
        let ttl = micros(self.plan.timing.ttl) as i64;
        match reply {
            Reply::Node(stored) => Answer::Node(stored),
            Reply::Nodes(mut records) => {
                if self.plan.mutant == Some(Mutant::WallClocks) {
                    let old = records.iter_mut().filter(|(_, written)| wall - *written > ttl);
                    old.for_each(|(record, _)| record.state = NodeState::Left);
                }
                // A listing may lack a record.
                if !records.is_empty() && Faults::hits(&mut self.rng, self.faults.lost) {
                    records.swap_remove(self.rng.usize(..records.len()));
                }
                Answer::Nodes(records.into_iter().map(|(record, _)| record).collect())
            }
            Reply::Repositories(listed) => {
                let named = listed.into_iter().map(|(index, version)| (self.names[index].clone(), Some(version)));
                Answer::Repositories(named.collect())
            }
            Reply::Repository(repository, stored) => {
                let claim = stored.as_ref().map(|(body, version)| (body.claim.clone(), *version));
                self.nodes[index].bodies.insert(repository, stored);
                Answer::Repository(claim)
            }
            Reply::Written(version) => Answer::Written(version),
            Reply::Unknown if self.plan.mutant == Some(Mutant::UnknownClaimIsFailure) => Answer::Conflict,
            Reply::Conflict => Answer::Conflict,
            Reply::Unknown | Reply::Names(_) | Reply::Deleted => Answer::Unknown,
        }
    }

    pub(super) fn act(&mut self, index: usize, action: Action<Version>) {
        let by = |request: Request| Sender::Core { request: request.id };
        match action {
            Action::ReadNode(request) => {
                let name = self.nodes[index].name.clone();
                self.request(index, by(request), Operation::ReadNode(name));
            }
            Action::WriteNode { request, expect, record } => {
                let wall = self.nodes[index].clock.wall(self.now);
                self.request(index, by(request), Operation::WriteNode { expect, record, wall });
            }
            Action::ReadNodes(request) => self.request(index, by(request), Operation::ReadNodes),
            Action::DeleteNode(record) => self.request(index, Sender::Done, Operation::DeleteNode(record)),
            Action::ListRepositories(request) => self.request(index, by(request), Operation::ListRepositories),
            Action::ReadRepository { .. } if self.nodes[index].is_stuck => {}
            Action::ReadRepository { request, repository } => {
                self.request(index, by(request), Operation::ReadRepository(Self::index(&repository)));
            }
            Action::WriteRepository { request, repository, expect, claim } => {
                let repository = Self::index(&repository);
                let body = self.claimed(index, repository, expect, claim);
                self.request(index, by(request), Operation::WriteRepository { repository, expect, body });
            }
            Action::Start { repository, fence, version } => {
                self.trace(|| format!("origin-{index} runs {repository} with fence {fence}"));
                self.start_writer(index, Self::index(&repository), fence, version);
            }
            Action::Stop { repository } => {
                self.trace(|| format!("origin-{index} stops {repository}"));
                let (repository, delay) = (Self::index(&repository), self.rng.u64(1..500_000));
                let writer = self.nodes[index].writers.get_mut(&repository).map(|writer| {
                    writer.is_stopping = true;
                    writer.id
                });
                match writer {
                    Some(writer) => self.deliver(index, delay, Input::WorkerStopped { repository, writer }),
                    None => self.checker.violated(|| format!("origin-{index} stops {repository}, which does not run")),
                }
            }
            Action::StopAll => {
                self.trace(|| format!("origin-{index} stops everything"));
                self.nodes[index].writers.values_mut().for_each(|writer| writer.is_stopping = true);
                let delay = self.rng.u64(1..micros(self.plan.timing.ttl) / 30);
                self.deliver(index, delay, Input::AllStopped);
            }
            Action::AskReady { node, repository } => {
                let repository = Self::index(&repository);
                self.tell(index, node_index(&node), Input::AskReady { from: index, repository });
            }
            Action::Tell { node, repository } => {
                self.tell(index, node_index(&node), Input::Event(Event::Told { repository }));
            }
            Action::Prepare { .. } => self.nodes[index].is_preparing = true,
            Action::Left => {
                let life = self.nodes[index].life;
                self.send(0, Message::Kill { node: index, life });
            }
        }
    }

    /// The record with another claim.
    fn claimed(&self, index: usize, repository: usize, expect: Option<Version>, claim: Claim) -> Body {
        let read = self.nodes[index].bodies.get(&repository).cloned().flatten();
        assert_eq!(read.as_ref().map(|(_, version)| *version), expect, "the version that was just read");
        let author = claim.session;
        let first =
            Body { claim: claim.clone(), sequence: 0, generation: 0, author, content: 0, rows: Default::default() };
        let before = read.map_or(first, |(body, _)| body);
        Body { claim, sequence: before.sequence + 1, ..before }
    }
}

fn node_index(name: &NodeName) -> usize {
    name.as_str().rsplit('-').next().and_then(|index| index.parse().ok()).expect("the names count")
}
