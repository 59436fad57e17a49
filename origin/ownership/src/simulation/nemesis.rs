//! What goes wrong beside single messages: crashes, pauses, partitions, an engine that is down, nodes that come and go.

use std::time::Duration;

use super::super::messages::Event;
use super::clock::{Micros, micros};
use super::faults::Faults;
use super::world::{Message, World};

impl World {
    /// A time of up to so many times to live.
    fn some_ttls(&mut self, most: f64) -> Micros {
        let part = 0.05 + (most - 0.05) * self.rng.f64();
        micros(self.plan.timing.ttl.mul_f64(part))
    }

    pub(super) fn begin_chaos(&mut self, ends: Micros) {
        self.chaos_ends = ends;
        self.faults = Faults::random(&mut self.rng, self.plan.timing.ttl);
        self.send(0, Message::Nemesis);
    }

    /// Ends all faults, and starts most of the nodes that are down.
    pub(super) fn end_chaos(&mut self) {
        self.faults = Faults::default();
        self.engine_down_until = self.now;
        for node in 0..self.nodes.len() {
            let ends = &mut self.nodes[node];
            (ends.cut_to_engine_until, ends.cut_from_engine_until, ends.cut_from_nodes_until) = (0, 0, 0);
            ends.paused_until = ends.paused_until.min(self.now);
            if node < 2 || self.rng.bool() {
                self.send(0, Message::Start { node });
            }
        }
    }

    pub(super) fn drain(&mut self, node: usize) {
        self.handle(node, Event::Drain);
        // Whoever stops a node does not wait for ever.
        let life = self.nodes[node].life;
        self.send(micros(Duration::from_secs(20)), Message::Kill { node, life });
    }

    pub(super) fn strike(&mut self) {
        if self.now >= self.chaos_ends {
            return;
        }
        let node = self.rng.usize(..self.nodes.len());
        let lasts = self.some_ttls(2.5);
        let until = self.now + lasts;
        let is_up = self.nodes[node].core.is_some() && self.nodes[node].paused_until <= self.now;
        let kind = self.rng.u8(..10);
        self.trace(|| format!("nemesis {kind} strikes origin-{node} for {:.1} s", lasts as f64 / 1e6));
        match kind {
            0 if is_up => {
                self.kill(node);
                self.send(lasts, Message::Start { node });
            }
            1 if is_up => self.drain(node),
            2 | 3 if is_up => {
                self.nodes[node].paused_until = until;
                self.nodes[node].suspended_since = (kind == 3).then_some(self.now);
            }
            4 => self.nodes[node].cut_to_engine_until = until,
            5 => self.nodes[node].cut_from_engine_until = until,
            6 => {
                self.nodes[node].cut_to_engine_until = until;
                self.nodes[node].cut_from_engine_until = until;
            }
            7 => self.nodes[node].cut_from_nodes_until = until,
            8 => self.engine_down_until = self.now + self.some_ttls(1.5),
            _ => self.send(0, Message::Start { node }),
        }
        let pause = self.some_ttls(2.0);
        self.send(pause, Message::Nemesis);
    }
}
