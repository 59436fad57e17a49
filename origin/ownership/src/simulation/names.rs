//! Services that repositories define, publish, move and delete, and the names records.

use std::collections::BTreeMap;

use weir_protocol::name::{RepositoryName, ServiceName};

use super::super::name_writer::NameStep;
use super::super::names::{Entry, NameAnswer, NameChange, NameRequest};
use super::Mutant;
use super::clock::{Micros, micros};
use super::engine::{BUCKETS, Body, Operation, Reply, Row, RowState, service};
use super::world::{Input, Sender, World};
use super::writer::NameCaller;

/// A name without a service belongs to nobody after this time without faults.
const FREED_AFTER: Micros = 250_000_000;

fn of_service(name: &ServiceName) -> usize {
    name.as_str()[1..].parse().expect("the names count")
}

impl World {
    /// A clock whose day passes several times in a run, in Unix milliseconds. Its nodes differ by less than a day.
    fn milliseconds(&self, index: usize) -> u64 {
        1_795_000_000_000_u64.saturating_add_signed(self.nodes[index].clock.wall(self.now) * 6 / 10)
    }

    pub(super) fn schedule_service(&mut self, index: usize, repository: usize, writer: u64) {
        if self.plan.services > 0 {
            let pause = self.rng.u64(1..12_000_000);
            self.deliver(index, pause, Input::Service { repository, writer });
        }
    }

    /// The writer defines, publishes, moves or deletes some service.
    pub(super) fn drive_service(&mut self, index: usize, repository: usize, id: u64) {
        self.schedule_service(index, repository, id);
        let (dice, mut name) = (self.rng.u8(..100), self.rng.usize(..self.plan.services));
        let (repositories, clock) = (self.names.len(), self.milliseconds(index));
        let other = self.rng.usize(..repositories);
        let frees_first = self.plan.mutant == Some(Mutant::FreedBeforeRemoved);
        let Some(writer) = self.working(index, repository, id).filter(|writer| writer.is_settled()) else { return };
        let Some(mut body) = writer.body().cloned() else { return };
        let granted = writer.taken.iter().find_map(|(name, granted)| Some((*name, (*granted)?)));
        if let Some((granted, last)) = granted {
            if dice < 10 {
                // The edit is refused for another reason.
                writer.taken.remove(&granted);
                return;
            }
            name = granted;
            let generation = body.rows.get(&name).map_or(0, |row| row.generation).max(last);
            body.rows.insert(name, Row { generation, state: RowState::Live });
            return self.put_services(index, repository, id, body);
        }
        if writer.taken.contains_key(&name) {
            return;
        }
        let row = body.rows.get_mut(&name);
        match row.as_ref().map_or(RowState::Gone, |row| row.state) {
            RowState::Gone => return self.take_name(index, repository, id, name),
            RowState::Withdrawn { .. } if dice < 50 => return self.take_name(index, repository, id, name),
            RowState::Withdrawn { to } if dice < 75 => return self.pass_on(index, repository, id, name, to),
            _ => {}
        }
        let Some(row) = row else { return };
        match row.state {
            RowState::Live if dice < 50 => row.generation = clock.max(row.generation + 1),
            RowState::Live if dice < 75 && other != repository => row.state = RowState::Withdrawn { to: other },
            _ => row.state = RowState::Gone,
        }
        if frees_first && row.state == RowState::Gone {
            let last = row.generation;
            self.request_names(index, repository, id, vec![(name, NameChange::Free { last })]);
        }
        self.put_services(index, repository, id, body);
    }

    fn put_services(&mut self, index: usize, repository: usize, id: u64, mut body: Body) {
        body.sequence += 1;
        self.put(index, repository, id, body);
    }

    fn take_name(&mut self, index: usize, repository: usize, id: u64, name: usize) {
        if let Some(writer) = self.working(index, repository, id) {
            writer.taken.insert(name, None);
            self.request_names(index, repository, id, vec![(name, NameChange::Take)]);
        }
    }

    fn pass_on(&mut self, index: usize, repository: usize, id: u64, name: usize, to: usize) {
        let to = self.names[to].clone();
        let Some(body) = self.working(index, repository, id).and_then(|writer| writer.body()) else { return };
        let last = body.rows.get(&name).map_or(0, |row| row.generation);
        self.request_names(index, repository, id, vec![(name, NameChange::PassOn { to, last })]);
    }

    /// The record was written: what follows for the names.
    pub(super) fn services_adopted(&mut self, index: usize, repository: usize, id: u64, before: &Body, after: &Body) {
        for (name, row) in &after.rows {
            let was = before.rows.get(name).map_or(RowState::Gone, |row| row.state);
            match row.state {
                state if state == was => {}
                RowState::Live => {
                    if let Some(writer) = self.nodes[index].writers.get_mut(&repository) {
                        writer.taken.remove(name);
                    }
                }
                RowState::Withdrawn { to } => self.pass_on(index, repository, id, *name, to),
                RowState::Gone => {
                    let change = NameChange::Free { last: row.generation };
                    self.request_names(index, repository, id, vec![(*name, change)]);
                }
            }
        }
        if self.rng.u8(..8) == 0 {
            self.free_unused(index, repository, id);
        }
    }

    /// Frees what earlier owners and failed edits left. The record was written just now.
    pub(super) fn free_unused(&mut self, index: usize, repository: usize, id: u64) {
        let services = self.plan.services;
        let Some(writer) = self.working(index, repository, id) else { return };
        let Some(body) = writer.body() else { return };
        let unused = (0..services).filter(|name| !writer.taken.contains_key(name)).filter_map(|name| {
            let row = body.rows.get(&name);
            let last = row.map_or(0, |row| row.generation);
            row.is_none_or(|row| row.state == RowState::Gone).then_some((name, NameChange::Free { last }))
        });
        let unused = unused.collect();
        self.request_names(index, repository, id, unused);
    }

    fn request_names(&mut self, index: usize, repository: usize, id: u64, changes: Vec<(usize, NameChange)>) {
        let Some(fence) = self.nodes[index].writers.get(&repository).map(|writer| writer.fence()) else { return };
        let mut of: BTreeMap<usize, (Vec<NameRequest>, Option<usize>)> = BTreeMap::new();
        for (name, change) in changes {
            let repository: RepositoryName = self.names[repository].clone();
            let (requests, takes) = of.entry(name % BUCKETS).or_default();
            *takes = matches!(change, NameChange::Take).then_some(name);
            requests.push(NameRequest { name: service(name), repository, fence, change });
        }
        for (bucket, (requests, takes)) in of {
            let caller = NameCaller { repository, writer: id, takes };
            self.nodes[index].names[bucket].0.submit(requests, caller);
            self.drive_names(index, bucket);
        }
    }

    /// Sends the next request of a bucket.
    pub(super) fn drive_names(&mut self, index: usize, bucket: usize) {
        loop {
            let now = self.milliseconds(index);
            let (writer, attempt) = &mut self.nodes[index].names[bucket];
            let operation = match writer.next(now) {
                NameStep::Rest => return,
                NameStep::Answer(answered) => {
                    self.names_answered(index, answered);
                    continue;
                }
                NameStep::Read => Operation::ReadNames(bucket),
                NameStep::Write { expect, names } => Operation::WriteNames { bucket, expect, names },
            };
            *attempt += 1;
            let attempt = *attempt;
            self.request(index, Sender::Names { bucket, attempt }, operation);
            let late = self.attempt_micros();
            return self.deliver(index, late, Input::Reply(Sender::Names { bucket, attempt }, Reply::Unknown));
        }
    }

    pub(super) fn names_replied(&mut self, index: usize, bucket: usize, of: u64, reply: Reply) {
        let is_mutant = self.plan.mutant == Some(Mutant::UnknownNamesAreFailure);
        let gives_up = self.rng.u8(..4) == 0;
        let (writer, attempt) = &mut self.nodes[index].names[bucket];
        if *attempt != of {
            return;
        }
        *attempt += 1;
        match reply {
            Reply::Names(stored) => {
                let (names, version) = stored.map_or_else(Default::default, |(names, version)| (names, Some(version)));
                writer.read(names, version);
            }
            Reply::Written(version) => {
                let answered = writer.written(version);
                self.names_answered(index, answered);
            }
            Reply::Conflict => writer.failed(false),
            _ => {
                writer.failed(!is_mutant);
                let given_up = if gives_up { writer.give_up() } else { Vec::new() };
                let attempt = *attempt;
                let pause = micros(self.plan.timing.retry_after());
                self.deliver(index, pause, Input::Names { bucket, attempt });
                for NameCaller { repository, writer, takes } in given_up {
                    if let (Some(writer), Some(name)) = (self.working(index, repository, writer), takes) {
                        writer.taken.remove(&name);
                    }
                }
                return;
            }
        }
        self.drive_names(index, bucket);
    }

    fn names_answered(&mut self, index: usize, answered: Vec<(NameCaller, Vec<NameAnswer>)>) {
        for (NameCaller { repository, writer: id, takes }, answers) in answered {
            for (name, answer) in takes.into_iter().zip(answers) {
                let Some(writer) = self.working(index, repository, id) else { continue };
                if let NameAnswer::Done { last } = answer {
                    writer.taken.insert(name, Some(last));
                    continue;
                }
                writer.taken.remove(&name);
                let is_settled = writer.is_settled();
                let body = writer.body().filter(|_| is_settled).cloned();
                // Taken by the repository to which it was passed on.
                if let Some(mut body) = body
                    && let Some(row) = body.rows.get_mut(&name)
                    && matches!(row.state, RowState::Withdrawn { .. })
                {
                    row.state = RowState::Gone;
                    self.put_services(index, repository, id, body);
                }
            }
        }
    }

    /// I9: after a time without faults no repository has a name without the service.
    pub(super) fn note_unused_names(&mut self) {
        for (name, entry) in self.engine.names.values().flat_map(|(names, _)| names.iter()) {
            let index = of_service(name);
            let is_used = match entry {
                Entry::Held { repository, .. } => {
                    let body = self.engine.repository(Self::index(repository));
                    body.and_then(|body| body.rows.get(&index)).is_some_and(|row| row.state != RowState::Gone)
                }
                Entry::Freed { .. } => true,
            };
            if is_used {
                self.unused_since.remove(&index);
            } else {
                self.unused_since.entry(index).or_insert(self.now);
            }
        }
        if let Some((name, since)) = self.unused_since.iter().find(|(_, since)| **since + FREED_AFTER < self.now) {
            let (entry, since) = (self.engine.entry(*name).cloned(), *since);
            self.checker.violated(|| format!("I9: s{name} is unused since {since}: {entry:?}"));
        }
    }
}
