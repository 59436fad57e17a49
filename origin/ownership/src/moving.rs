//! How a repository leaves its owner: planned moves, the drain, and writers that were superseded.

use std::time::Duration;

use weir_protocol::name::{NodeName, RepositoryName};

use super::core::Core;
use super::messages::Action;
use super::repository::{Activity, Move, Repository};

/// At most one repository in this many moves at a time, or one.
const OWNED_PER_MOVE: usize = 20;

impl<V: Clone + PartialEq> Core<V> {
    /// Decides whether a repository that runs here should be elsewhere.
    pub(super) fn consider_move(&mut self, name: &RepositoryName) {
        let Some(repository) = self.repositories.get_mut(name) else { return };
        let held_back_until = repository.move_not_before;
        let Activity::Running { moving, .. } = &mut repository.activity else { return };
        let target = repository.placement.winner.as_ref().filter(|winner| **winner != self.cluster.me).cloned();
        // The target died, or another one is better now.
        if moving.as_ref().is_some_and(|moving| Some(&moving.to) != target.as_ref()) {
            *moving = None;
        }
        let (before, is_draining) = (moving.clone(), self.cluster.is_draining);
        self.settle_held(name);
        let (now, timing) = (self.cluster.now, &self.cluster.timing);
        let patience = if is_draining { timing.drain_patience } else { timing.move_patience };
        match (target, before) {
            (None, _) if is_draining => self.stop(name, None),
            (None, _) => {}
            (Some(to), Some(before)) if before.since + patience <= now => {
                if is_draining {
                    self.stop(name, Some(to));
                } else {
                    self.give_up_move(name);
                }
            }
            (Some(_), Some(before)) => self.ask(name, before, patience),
            (Some(to), None) => {
                let due = (self.cluster.changed_at + timing.settle).max(held_back_until);
                let is_full = self.moving.len() >= (self.held.len() / OWNED_PER_MOVE).max(1);
                if is_draining || (due <= now && !is_full) {
                    self.ask(name, Move { to, since: now, next_ask: now }, patience);
                } else {
                    let later = now + timing.ask_every();
                    self.set_timer(name, due.max(later));
                }
            }
        }
    }

    /// Asks the target of a move again, if that is due.
    fn ask(&mut self, name: &RepositoryName, mut moving: Move, patience: Duration) {
        let now = self.cluster.now;
        if moving.next_ask <= now {
            moving.next_ask = now + self.cluster.timing.ask_every();
            self.actions.push(Action::AskReady { node: moving.to.clone(), repository: name.clone() });
        }
        self.set_timer(name, moving.next_ask.min(moving.since + patience));
        self.set_moving(name, Some(moving));
    }

    fn give_up_move(&mut self, name: &RepositoryName) {
        let later = self.cluster.now + self.cluster.timing.settle;
        self.set_moving(name, None);
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.move_not_before = later;
        }
        self.set_timer(name, later);
    }

    fn set_moving(&mut self, name: &RepositoryName, next: Option<Move>) {
        if let Some(Repository { activity: Activity::Running { moving, .. }, .. }) = self.repositories.get_mut(name) {
            *moving = next;
        }
        self.settle_held(name);
    }

    /// The target of a move answered.
    pub(super) fn ready(&mut self, node: &NodeName, name: &RepositoryName, is_ready: bool) {
        let Some(repository) = self.repositories.get(name) else { return };
        if let Activity::Running { moving: Some(Move { to, .. }), .. } = &repository.activity
            && to == node
            && is_ready
        {
            let to = to.clone();
            self.stop(name, Some(to));
        }
    }

    /// An owner may hand a repository to this node soon.
    pub(super) fn asked(&mut self, name: RepositoryName) {
        if self.cluster.session.is_none() || self.cluster.is_draining {
            return;
        }
        self.learn(&name);
        if let Some(repository) = self.repositories.get_mut(&name) {
            repository.expect(&self.cluster);
        }
        self.consider(&name);
        // A late question must not touch the mirror of a worker here.
        if self.repositories.get(&name).is_some_and(|repository| repository.activity == Activity::Idle) {
            self.actions.push(Action::Prepare { repository: name });
        }
    }

    /// The writer of a repository found a record of somebody else: reads what it says once everything is stopped.
    pub(super) fn superseded(&mut self, name: &RepositoryName) {
        if matches!(self.repositories.get(name), Some(repository) if matches!(repository.activity, Activity::Running { .. }))
        {
            self.stop(name, None);
        }
    }

    fn stop(&mut self, name: &RepositoryName, to: Option<NodeName>) {
        let Some(repository) = self.repositories.get_mut(name) else { return };
        repository.activity = Activity::Stopping { to };
        self.settle_held(name);
        self.consider(name);
        self.actions.push(Action::Stop { repository: name.clone() });
    }

    pub(super) fn stopped(&mut self, name: &RepositoryName, is_settled: bool) {
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.stopped(is_settled);
            self.settle_held(name);
            self.consider(name);
        }
    }
}
