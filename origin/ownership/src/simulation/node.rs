//! A node: it runs the core, does what the core wants, and has a worker for each repository that it runs.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_protocol::name::NodeName;

use super::super::core::Core;
use super::super::messages::Event;
use super::super::name_writer::NameWriter;
use super::super::{Digests, Settings};
use super::Mutant;
use super::clock::{Clock, Micros, micros};
use super::engine::{BUCKETS, Body, Version};
use super::world::{Input, Sender, World};
use super::writer::{NameCaller, Writer};

pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) clock: Clock,
    /// Counts starts and ends of the process. What was meant for another life is lost.
    pub(super) life: u64,
    pub(super) core: Option<Core<Version>>,
    pub(super) paused_until: Micros,
    /// The machine is suspended since then, and its clock stands still.
    pub(super) suspended_since: Option<Micros>,
    /// Until then the node may not know that it was suspended for too long.
    unsure_until: Micros,
    pub(super) cut_to_engine_until: Micros,
    pub(super) cut_from_engine_until: Micros,
    pub(super) cut_from_nodes_until: Micros,
    /// The records that were read last.
    pub(super) bodies: BTreeMap<usize, Option<(Body, Version)>>,
    pub(super) writers: BTreeMap<usize, Writer>,
    /// The writer of each names record, and the number of its last request.
    pub(super) names: [(NameWriter<Version, NameCaller>, u64); BUCKETS],
    /// The last time until which the core allowed work.
    valid_until: Option<Instant>,
    wake: (u64, Option<Instant>),
    run: u64,
    /// The last run, if the data directory was not lost.
    last_run: Option<u64>,
    /// The node keeps its session and answers nothing about repositories.
    pub(super) is_stuck: bool,
    /// The core wanted the repository of the last question prepared.
    pub(super) is_preparing: bool,
}

impl Node {
    pub(super) fn new(name: NodeName, clock: Clock) -> Self {
        Self {
            name,
            clock,
            life: 0,
            core: None,
            paused_until: 0,
            suspended_since: None,
            unsure_until: 0,
            cut_to_engine_until: 0,
            cut_from_engine_until: 0,
            cut_from_nodes_until: 0,
            bodies: BTreeMap::new(),
            writers: BTreeMap::new(),
            names: Default::default(),
            valid_until: None,
            wake: (0, None),
            run: 0,
            last_run: None,
            is_stuck: false,
            is_preparing: false,
        }
    }

    pub(super) fn is_sure(&self, now: Micros) -> bool {
        self.suspended_since.is_none() && self.unsure_until <= now
    }

    /// Workers check the validity of the session themselves; a twentieth of the time to live may pass until they stop.
    fn may_work(&self, now: Micros, ttl: Micros) -> bool {
        let stops_at = self.valid_until.map(|until| until + std::time::Duration::from_micros(ttl / 20));
        self.core.is_some() && self.paused_until <= now && stops_at.is_some_and(|at| self.clock.local(now) < at)
    }
}

impl World {
    /// Starts a node that is down.
    pub(super) fn start(&mut self, index: usize) {
        if self.nodes[index].core.is_some() {
            return;
        }
        self.trace(|| format!("origin-{index} starts"));
        let run = self.rng.u64(..);
        let node = &mut self.nodes[index];
        let settings = Settings {
            node: node.name.clone(),
            url: String::new(),
            zone: None,
            weight: 1,
            digests: Digests::default(),
            timing: self.plan.timing.clone(),
            run,
            clock: 1_795_000_000_000_u64.saturating_add_signed(node.clock.wall(self.now) / 1000),
            ended: node.last_run,
        };
        node.run = run;
        node.core = Some(Core::new(&settings, node.clock.local(self.now)));
        node.life += 1;
        node.valid_until = None;
        let names = self.names.clone();
        self.handle(index, Event::Defined(names));
    }

    /// Ends a node: its process dies.
    pub(super) fn kill(&mut self, index: usize) {
        self.trace(|| format!("origin-{index} ends"));
        let keeps_data = self.rng.u8(..10) < 7;
        let node = &mut self.nodes[index];
        node.core = None;
        node.last_run = keeps_data.then_some(node.run);
        node.life += 1;
        node.writers.clear();
        node.bodies.clear();
        node.names = Default::default();
        (node.paused_until, node.suspended_since, node.unsure_until) = (0, None, 0);
    }

    /// Something arrives at a node that runs.
    pub(super) fn take(&mut self, index: usize, input: Input) {
        let node = &mut self.nodes[index];
        if let Some(since) = node.suspended_since.take() {
            node.clock.stood_still(self.now - since);
            // Its session may seem valid for one time to live, and the news of its end may be lost.
            node.unsure_until = self.now + 2 * micros(self.plan.timing.ttl);
        }
        match input {
            Input::Event(event) => self.handle(index, event),
            Input::Wake(number) => {
                if self.nodes[index].wake.0 == number {
                    self.nodes[index].wake.1 = None;
                    self.handle(index, Event::Tick);
                }
            }
            Input::Reply(Sender::Core { request }, reply) => {
                let answer = self.answer(index, reply);
                self.handle(index, Event::Answered { request, answer });
            }
            Input::Reply(Sender::Done, _) => {}
            Input::Reply(Sender::Names { bucket, attempt }, reply) => {
                self.names_replied(index, bucket, attempt, reply);
            }
            Input::Names { bucket, attempt } => {
                if self.nodes[index].names[bucket].1 == attempt {
                    self.drive_names(index, bucket);
                }
            }
            Input::Service { repository, writer } => self.drive_service(index, repository, writer),
            Input::Reply(Sender::Writer { repository, writer, attempt }, reply) => {
                self.writer_answered(index, repository, writer, attempt, reply);
            }
            Input::AskReady { from, repository } => {
                let name = self.names[repository].clone();
                self.nodes[index].is_preparing = false;
                self.handle(index, Event::Asked { repository: name.clone() });
                let node = &self.nodes[index];
                let is_ready = node.is_preparing && !node.is_stuck && self.rng.u8(..10) < 7;
                let event = Event::Ready { node: self.nodes[index].name.clone(), repository: name, is_ready };
                self.tell(index, from, Input::Event(event));
            }
            Input::Writer { repository, writer, input } => self.drive_writer(index, repository, writer, input),
            Input::WorkerStopped { repository, writer } => {
                let writers = &mut self.nodes[index].writers;
                if writers.get(&repository).is_some_and(|stopped| stopped.id == writer)
                    && let Some(stopped) = writers.remove(&repository)
                {
                    let is_settled = stopped.is_settled() || self.plan.mutant == Some(Mutant::UnknownClaimIsFailure);
                    let repository = self.names[repository].clone();
                    self.handle(index, Event::Stopped { repository, is_settled });
                }
            }
            Input::AllStopped => {
                self.nodes[index].writers.clear();
                self.handle(index, Event::AllStopped);
            }
        }
        // After a pause a session may still be valid: nobody else may have taken its repositories.
        if self.nodes[index].paused_until != 0 && self.nodes[index].unsure_until <= self.now {
            self.nodes[index].paused_until = 0;
            let running: Vec<_> = self.nodes[index].writers.keys().copied().collect();
            running.into_iter().for_each(|repository| self.check_overlap(index, repository));
        }
    }

    pub(super) fn handle(&mut self, index: usize, event: Event<Version>) {
        let now = self.now;
        let node = &mut self.nodes[index];
        let Some(core) = &mut node.core else { return };
        let actions = core.handle(node.clock.local(now), event);
        node.valid_until = core.valid_until().or(node.valid_until);
        for action in actions {
            self.act(index, action);
        }
        let node = &mut self.nodes[index];
        let Some(core) = &node.core else { return };
        let wake = core.wake_at();
        if node.wake.1 != wake
            && let Some(at) = wake
        {
            node.wake = (node.wake.0 + 1, wake);
            let (number, at) = (node.wake.0, node.clock.when(at).max(now + 1));
            self.deliver(index, at - now, Input::Wake(number));
        }
    }

    /// Whether a node fetches for a repository right now.
    fn is_fetching(&self, index: usize, repository: usize) -> bool {
        let node = &self.nodes[index];
        node.is_sure(self.now)
            && node.writers.contains_key(&repository)
            && node.may_work(self.now, micros(self.plan.timing.ttl))
    }

    /// I4: no two sessions fetch for one repository.
    pub(super) fn check_overlap(&mut self, index: usize, repository: usize) {
        let other = (0..self.nodes.len()).find(|other| *other != index && self.is_fetching(*other, repository));
        if let Some(other) = other.filter(|_| self.is_fetching(index, repository)) {
            self.checker.violated(|| format!("I4: origin-{index} and origin-{other} both fetch r{repository}"));
        }
    }
}
