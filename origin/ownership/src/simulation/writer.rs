//! A worker with its writer: the publisher of one repository at its owner, as far as ownership sees it.

use std::collections::BTreeMap;

use super::super::records::SessionId;
use super::Mutant;
use super::clock::micros;
use super::engine::{Body, Operation, Reply, Version};
use super::world::{Input, Sender, World};
use crate::Event;

pub(super) struct Writer {
    pub(super) id: u64,
    session: SessionId,
    fence: u64,
    version: Version,
    /// The record at this version, once it is read.
    body: Option<Body>,
    /// Counts requests. Answers to other attempts than the last one are ignored.
    attempt: u64,
    in_flight: Option<Body>,
    /// Publications with an unknown outcome.
    unknown: Vec<Body>,
    /// Names that are being taken for services, with the last generation once they are.
    pub(super) taken: BTreeMap<usize, Option<u64>>,
    pub(super) is_stopping: bool,
}

/// Who waits for a names record: the writer of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameCaller {
    pub(super) repository: usize,
    pub(super) writer: u64,
    /// The name that it takes. It needs no answer to other requests.
    pub(super) takes: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum WriterInput {
    /// A publication is ready.
    Publish,
    /// An attempt was not answered in time.
    Late { attempt: u64 },
    /// Read the record to settle an unknown outcome.
    Settle,
}

impl Writer {
    pub(super) fn is_settled(&self) -> bool {
        self.unknown.is_empty() && self.in_flight.is_none()
    }

    /// Whether the record has been read by this writer.
    pub(super) fn is_loaded(&self) -> bool {
        self.body.is_some()
    }

    pub(super) fn body(&self) -> Option<&Body> {
        self.body.as_ref()
    }

    pub(super) fn fence(&self) -> u64 {
        self.fence
    }
}

impl World {
    pub(super) fn start_writer(&mut self, index: usize, repository: usize, fence: u64, version: Version) {
        let node = &mut self.nodes[index];
        let Some(core) = &node.core else { return };
        let session = core.session();
        self.last_content += 1;
        let id = self.last_content;
        let writer = Writer {
            id,
            session,
            fence,
            version,
            body: None,
            attempt: 0,
            in_flight: None,
            unknown: Vec::new(),
            taken: BTreeMap::new(),
            is_stopping: false,
        };
        if node.writers.insert(repository, writer).is_some() {
            self.checker.violated(|| format!("origin-{index} runs r{repository} twice"));
        }
        self.check_overlap(index, repository);
        self.drive_writer(index, repository, id, WriterInput::Settle);
        self.schedule_service(index, repository, id);
        if !self.plan.publish_every.is_zero() {
            self.schedule_publication(index, repository, id);
        }
    }

    fn schedule_publication(&mut self, index: usize, repository: usize, writer: u64) {
        let pause = self.rng.u64(1..2 * micros(self.plan.publish_every));
        self.deliver(index, pause, Input::Writer { repository, writer, input: WriterInput::Publish });
    }

    /// The writer with this number, unless its node has to stop.
    pub(super) fn working(&mut self, index: usize, repository: usize, writer: u64) -> Option<&mut Writer> {
        let node = &mut self.nodes[index];
        let valid_until = node.core.as_ref().and_then(|core| core.valid_until());
        let is_valid = valid_until.is_some_and(|until| node.clock.local(self.now) < until);
        let found = node.writers.get_mut(&repository).filter(|found| found.id == writer && !found.is_stopping);
        found.filter(|_| is_valid)
    }

    pub(super) fn drive_writer(&mut self, index: usize, repository: usize, id: u64, input: WriterInput) {
        let content = self.last_content + 1;
        let Some(writer) = self.working(index, repository, id) else { return };
        match input {
            WriterInput::Settle => {
                writer.attempt += 1;
                let attempt = writer.attempt;
                self.writer_request(index, repository, id, attempt, Operation::ReadRepository(repository));
            }
            WriterInput::Late { attempt } => {
                if writer.attempt == attempt {
                    self.writer_answered(index, repository, id, attempt, Reply::Unknown);
                }
            }
            WriterInput::Publish => {
                if let (Some(body), true) = (&writer.body, writer.is_settled()) {
                    let next = Body {
                        claim: body.claim.clone(),
                        sequence: body.sequence + 1,
                        generation: body.generation + 1,
                        author: writer.session,
                        content,
                        rows: body.rows.clone(),
                    };
                    self.last_content = content;
                    self.put(index, repository, id, next);
                }
                self.schedule_publication(index, repository, id);
            }
        }
    }

    pub(super) fn put(&mut self, index: usize, repository: usize, id: u64, body: Body) {
        let Some(writer) = self.working(index, repository, id) else { return };
        writer.in_flight = Some(body.clone());
        writer.attempt += 1;
        let (attempt, expect) = (writer.attempt, Some(writer.version));
        self.writer_request(index, repository, id, attempt, Operation::WriteRepository { repository, expect, body });
    }

    fn writer_request(&mut self, index: usize, repository: usize, writer: u64, attempt: u64, operation: Operation) {
        self.request(index, Sender::Writer { repository, writer, attempt }, operation);
        let late = Input::Writer { repository, writer, input: WriterInput::Late { attempt } };
        self.deliver(index, self.attempt_micros(), late);
    }

    pub(super) fn writer_answered(&mut self, index: usize, repository: usize, id: u64, attempt: u64, reply: Reply) {
        let is_mutant = self.plan.mutant == Some(Mutant::UnknownPublicationIsFailure);
        let Some(writer) = self.working(index, repository, id).filter(|writer| writer.attempt == attempt) else {
            return;
        };
        writer.attempt += 1;
        match (writer.in_flight.take(), reply) {
            (Some(body), Reply::Written(version)) => {
                self.adopt(index, repository, id, version, &body);
            }
            (Some(body), Reply::Unknown) if is_mutant => self.checker.failed(repository, &body),
            (Some(body), Reply::Unknown) => {
                writer.unknown.push(body);
                self.settle_soon(index, repository, id);
            }
            (Some(_), _) if writer.unknown.is_empty() => self.supersede(index, repository),
            (Some(_), _) => self.settle_soon(index, repository, id),
            (None, Reply::Repository(_, Some((body, version)))) => {
                let is_own = body.claim.session == writer.session && body.claim.fence == writer.fence;
                let is_at_start = writer.body.is_none() && version == writer.version;
                if writer.unknown.contains(&body) {
                    self.adopt(index, repository, id, version, &body);
                } else if is_own && is_at_start {
                    writer.body = Some(body);
                    self.free_unused(index, repository, id);
                } else if let (Some(last), true) = (writer.unknown.last().cloned(), version == writer.version) {
                    // The same bytes again, so that either write may be the one that is committed.
                    self.put(index, repository, id, last);
                } else {
                    self.supersede(index, repository);
                }
            }
            (None, Reply::Unknown) => self.settle_soon(index, repository, id),
            (None, _) => self.supersede(index, repository),
        }
    }

    /// The record is what this writer wrote.
    fn adopt(&mut self, index: usize, repository: usize, id: u64, version: Version, body: &Body) {
        let Some(writer) = self.working(index, repository, id) else { return };
        writer.unknown.clear();
        writer.version = version;
        let Some(before) = writer.body.replace(body.clone()) else { return };
        if body.generation != before.generation {
            self.show(index, repository, body);
        }
        self.services_adopted(index, repository, id, &before, body);
    }

    fn show(&mut self, index: usize, repository: usize, body: &Body) {
        // Readers order by generation: they ignore what a node shows late because it was suspended.
        if self.nodes[index].is_sure(self.now) {
            self.checker.shown(repository, body);
        }
    }

    fn settle_soon(&mut self, index: usize, repository: usize, writer: u64) {
        let pause = micros(self.plan.timing.retry_after());
        self.deliver(index, pause, Input::Writer { repository, writer, input: WriterInput::Settle });
    }

    fn supersede(&mut self, index: usize, repository: usize) {
        let repository = self.names[repository].clone();
        self.trace(|| format!("origin-{index}: {repository} was superseded"));
        self.handle(index, Event::Superseded { repository });
    }
}
