//! Without faults: where repositories end up, and what moves when members come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Plan;
use super::clock::micros;
use super::world::{Message, World};
use crate::place;

impl World {
    /// The nodes that run.
    fn up(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].core.is_some())
    }

    /// Where placement wants each repository.
    pub(super) fn wanted(&self) -> BTreeMap<usize, usize> {
        let names: Vec<_> = self.up().map(|node| (node, &self.nodes[node].name)).collect();
        let winner = |repository: usize| {
            let winner = place(&self.names[repository], names.iter().map(|(_, name)| (*name, 1))).winner;
            names.iter().find(|(_, name)| Some(*name) == winner.as_ref()).map(|(node, _)| (repository, *node))
        };
        (0..self.names.len()).filter_map(winner).collect()
    }

    /// I6: each repository is run by the node that its record names, and that is where it belongs.
    pub(super) fn check_owners(&mut self) {
        for (repository, node) in self.wanted() {
            let core = self.nodes[node].core.as_ref();
            let session = core.filter(|core| core.valid_until().is_some()).map(|core| core.session());
            let claimed = self.engine.repository(repository).map(|body| body.claim.session);
            let is_owned = core.is_some_and(|core| core.owned().any(|(name, _)| *name == self.names[repository]));
            let is_loaded = self.nodes[node].writers.get(&repository).is_some_and(|writer| writer.is_loaded());
            let is_run = is_owned && is_loaded;
            if session.is_none() || claimed != session || !is_run {
                let claim = self.engine.repository(repository).map(|body| body.claim.clone());
                let name = self.nodes[node].name.clone();
                self.checker.violated(|| {
                    format!("I6: r{repository} belongs to {name} ({session:?}, runs it: {is_run}), its record says {claim:?}")
                });
                return;
            }
        }
    }

    pub(super) fn run_for(&mut self, duration: Duration) {
        let ends = self.now + micros(duration);
        while self.step(ends) {}
        assert_eq!(self.checker.violation, None);
    }
}

pub(super) fn started(plan: Plan) -> World {
    let nodes = plan.nodes;
    let mut world = World::new(plan, 1);
    (0..nodes).for_each(|node| world.send(0, Message::Start { node }));
    world
}

#[test]
fn members_that_come_and_go_move_what_placement_says() {
    let publish_every = Duration::from_secs(60);
    let mut world = started(Plan { repositories: 300, publish_every, ..Plan::small() });
    world.run_for(Duration::from_secs(120));
    // The first members see each other at slightly different times.
    world.run_for(Duration::from_secs(2400));
    world.check_owners();
    let before = world.wanted();
    world.send(0, Message::Start { node: 3 });
    let changes = world.checker.changes;
    world.run_for(Duration::from_secs(1200));
    world.check_owners();
    let after = world.wanted();
    let difference = before.iter().filter(|(repository, node)| after.get(repository) != Some(node)).count() as u64;
    assert_eq!(world.checker.changes - changes, difference, "each repository moves once");
    assert!((60..=90).contains(&difference), "{difference}");

    let (changes, leaves_at) = (world.checker.changes, world.now);
    world.drain(3);
    while world.nodes[3].core.is_some() && world.step(leaves_at + micros(Duration::from_secs(20))) {}
    let took = Duration::from_micros(world.now - leaves_at);
    println!("{difference} of 300 repositories move; the drain takes {took:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    world.run_for(Duration::from_secs(5));
    world.check_owners();
    assert_eq!(world.wanted(), before);
    assert_eq!(world.checker.changes - changes, difference);

    let changes = world.checker.changes;
    world.kill(1);
    world.run_for(world.plan.timing.ttl + Duration::from_secs(10));
    world.check_owners();
    let lost = before.values().filter(|node| **node == 1).count() as u64;
    assert_eq!(world.checker.changes - changes, lost, "nothing else moves");
}

#[test]
fn a_machine_that_was_suspended_with_its_clock_gives_up_what_others_took() {
    let mut world = started(Plan { repositories: 30, publish_every: Duration::ZERO, ..Plan::small() });
    world.run_for(Duration::from_secs(300));
    world.check_owners();
    let ttl = world.plan.timing.ttl;
    let running = |world: &World, repository: usize| {
        world.nodes.iter().filter(|node| node.writers.contains_key(&repository)).count()
    };
    let owned: Vec<_> = world.nodes[0].writers.keys().copied().collect();
    (world.nodes[0].paused_until, world.nodes[0].suspended_since) = (world.now + micros(ttl * 3), Some(world.now));
    world.run_for(ttl * 3 - Duration::from_secs(1));
    assert!(!owned.is_empty() && owned.iter().all(|repository| running(&world, *repository) == 2), "others took them");
    world.run_for(Duration::from_secs(1) + ttl / 3);
    // Its clock says that its session is valid.
    assert!(owned.iter().all(|repository| running(&world, *repository) == 1), "{owned:?}");
    world.run_for(Duration::from_secs(400));
    world.check_owners();
}

#[test]
fn the_runner_up_takes_what_the_winner_leaves() {
    let mut world = started(Plan { repositories: 30, ..Plan::small() });
    world.run_for(Duration::from_secs(300));
    world.check_owners();
    world.nodes[0].is_stuck = true;
    let ttl = world.plan.timing.ttl;
    world.kill(1);
    world.run_for(ttl + ttl / 3 + Duration::from_secs(10));
    let wanted = world.wanted();
    assert!(wanted.values().any(|node| *node == 0), "the stuck node should have taken some");
    for repository in wanted.into_keys() {
        let running = world.nodes.iter().filter(|node| node.writers.contains_key(&repository)).count();
        assert_eq!(running, 1, "r{repository}");
    }
}
