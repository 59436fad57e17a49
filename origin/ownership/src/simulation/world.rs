//! The world of a simulation: virtual time, messages on their way, the engine and the nodes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use weir_protocol::name::{NodeName, RepositoryName};

use super::super::messages::Event;
use super::check::Checker;
use super::clock::{Clock, Micros, micros};
use super::engine::{Engine, Operation, Reply, Version};
use super::faults::Faults;
use super::node::Node;
use super::writer::WriterInput;
use super::{Mutant, Plan};

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now: Micros,
    pub(super) rng: fastrand::Rng,
    queue: BinaryHeap<Reverse<Due>>,
    messages: u64,
    pub(super) engine: Engine,
    pub(super) engine_down_until: Micros,
    pub(super) nodes: Vec<Node>,
    pub(super) names: Vec<RepositoryName>,
    pub(super) faults: Faults,
    /// The nemesis rests from then on.
    pub(super) chaos_ends: Micros,
    pub(super) checker: Checker,
    pub(super) steps: u64,
    pub(super) last_content: u64,
    /// Since when a repository has a name without the service.
    pub(super) unused_since: BTreeMap<usize, Micros>,
    pub(super) is_traced: bool,
}

/// Who sent a request to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Core {
        request: u64,
    },
    Writer {
        repository: usize,
        writer: u64,
        attempt: u64,
    },
    Names {
        bucket: usize,
        attempt: u64,
    },
    /// Nobody waits for the answer.
    Done,
}

/// What arrives at a node.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Event(Event<Version>),
    /// The wake-up with this number.
    Wake(u64),
    Reply(Sender, Reply),
    /// A question of the owner, a node.
    AskReady {
        from: usize,
        repository: usize,
    },
    Writer {
        repository: usize,
        writer: u64,
        input: WriterInput,
    },
    /// An operator or the file changes some service of the repository.
    Service {
        repository: usize,
        writer: u64,
    },
    /// The next attempt at a names record.
    Names {
        bucket: usize,
        attempt: u64,
    },
    /// A worker has stopped, or all have.
    WorkerStopped {
        repository: usize,
        writer: u64,
    },
    AllStopped,
}

#[derive(Debug)]
pub(super) enum Message {
    ToEngine { node: usize, life: u64, sender: Sender, operation: Operation },
    ToNode { node: usize, life: u64, input: Input },
    Start { node: usize },
    Kill { node: usize, life: u64 },
    Nemesis,
}

#[derive(Debug)]
struct Due {
    at: Micros,
    order: u64,
    message: Message,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64) -> Self {
        let (mut rng, origin) = (fastrand::Rng::with_seed(seed), Instant::now());
        let skew = plan.timing.ttl * 2;
        let mut node = |index: usize| {
            let name: NodeName = format!("origin-{index}").parse().expect("a name");
            Node::new(name, Clock::new(origin, &mut rng, skew))
        };
        let nodes = (0..plan.nodes + plan.spares).map(&mut node).collect();
        let names = (0..plan.repositories).map(|index| format!("r{index}").parse().expect("a name")).collect();
        let mut engine = Engine::default();
        engine.ignores_versions = plan.mutant == Some(Mutant::VersionIgnored);
        Self {
            plan,
            now: 0,
            rng,
            queue: BinaryHeap::new(),
            messages: 0,
            engine,
            engine_down_until: 0,
            nodes,
            names,
            faults: Faults::default(),
            chaos_ends: 0,
            checker: Checker::default(),
            steps: 0,
            last_content: 0,
            unused_since: BTreeMap::new(),
            is_traced: false,
        }
    }

    pub(super) fn index(name: &RepositoryName) -> usize {
        name.as_str()[1..].parse().expect("the names count")
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            println!("{:>12.3} s  {}", Duration::from_micros(self.now).as_secs_f64(), what());
        }
    }

    /// Puts a message on its way.
    pub(super) fn send(&mut self, delay: Micros, message: Message) {
        self.messages += 1;
        self.queue.push(Reverse(Due { at: self.now + delay, order: self.messages, message }));
    }

    pub(super) fn deliver(&mut self, node: usize, delay: Micros, input: Input) {
        let life = self.nodes[node].life;
        self.send(delay, Message::ToNode { node, life, input });
    }

    /// Handles the next message. Returns false after `until`, or once something was wrong.
    pub(super) fn step(&mut self, until: Micros) -> bool {
        if self.checker.violation.is_some() || self.queue.peek().is_none_or(|Reverse(due)| due.at > until) {
            self.now = self.now.max(until);
            return false;
        }
        let Some(Reverse(due)) = self.queue.pop() else { return false };
        self.now = due.at;
        self.steps += 1;
        match due.message {
            Message::ToEngine { node, life, sender, operation } => self.arrive(node, life, sender, operation),
            Message::ToNode { node, life, input } => {
                let paused_until = self.nodes[node].paused_until;
                if paused_until > self.now {
                    self.send(paused_until - self.now, Message::ToNode { node, life, input });
                } else if self.nodes[node].life == life {
                    self.take(node, input);
                }
            }
            Message::Start { node } => self.start(node),
            Message::Kill { node, life } => {
                if self.nodes[node].life == life {
                    self.kill(node);
                }
            }
            Message::Nemesis => self.strike(),
        }
        true
    }

    /// A node sends a request to the engine.
    pub(super) fn request(&mut self, node: usize, sender: Sender, operation: Operation) {
        let life = self.nodes[node].life;
        let is_cut = self.nodes[node].cut_to_engine_until > self.now || self.engine_down_until > self.now;
        let is_lost = is_cut || Faults::hits(&mut self.rng, self.faults.lost);
        let delay = self.faults.delay(&mut self.rng);
        // A client may know at once that something is wrong, and the request may arrive all the same.
        if (is_lost || delay > 20_000) && self.rng.bool() {
            let soon = self.rng.u64(1_000..100_000);
            self.deliver(node, soon, Input::Reply(sender, Reply::Unknown));
        }
        if is_lost {
            return;
        }
        if Faults::hits(&mut self.rng, self.faults.duplicated) {
            let later = self.faults.delay(&mut self.rng);
            self.send(later, Message::ToEngine { node, life, sender, operation: operation.clone() });
        }
        self.send(delay, Message::ToEngine { node, life, sender, operation });
    }

    fn arrive(&mut self, node: usize, life: u64, sender: Sender, operation: Operation) {
        if self.engine_down_until > self.now {
            return;
        }
        let is_write = matches!(
            operation,
            Operation::WriteRepository { .. } | Operation::WriteNode { .. } | Operation::WriteNames { .. }
        );
        let shown = (self.is_traced && is_write).then(|| format!("{operation:?}"));
        let reply = self.engine.apply(node, &self.nodes[node].name, operation, &mut self.checker);
        if let Some(shown) = shown {
            self.trace(|| format!("engine: origin-{node}: {shown} -> {reply:?}"));
        }
        let is_cut = self.nodes[node].cut_from_engine_until > self.now;
        if is_cut || Faults::hits(&mut self.rng, self.faults.lost) {
            return;
        }
        let mut input = Input::Reply(sender, reply);
        if Faults::hits(&mut self.rng, self.faults.duplicated) {
            let delay = self.faults.delay(&mut self.rng);
            self.send(delay, Message::ToNode { node, life, input: input.clone() });
            input = input.clone();
        }
        let delay = self.faults.delay(&mut self.rng);
        self.send(delay, Message::ToNode { node, life, input });
    }

    /// A node sends a message to another one.
    pub(super) fn tell(&mut self, from: usize, to: usize, input: Input) {
        let is_cut = [from, to].iter().any(|node| self.nodes[*node].cut_from_nodes_until > self.now);
        if !is_cut && !Faults::hits(&mut self.rng, self.faults.lost) {
            let delay = self.faults.delay(&mut self.rng);
            self.deliver(to, delay, input);
        }
    }

    pub(super) fn attempt_micros(&self) -> Micros {
        micros(self.plan.timing.attempt())
    }
}
