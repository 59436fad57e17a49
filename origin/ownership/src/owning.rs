//! How a node takes, keeps and loses repositories: the effects of the decisions of [`repository`](super::repository).

use std::time::Instant;

use weir_protocol::name::RepositoryName;

use super::core::Core;
use super::decision::Decision;
use super::messages::{Action, Answer, Request};
use super::records::Claim;
use super::repository::{Activity, Next, Repository};
use super::requests::Subject;

/// The most requests about repositories in flight.
const MAX_IN_FLIGHT: usize = 32;

impl<V: Clone + PartialEq> Core<V> {
    /// A repository exists or is to exist.
    pub(super) fn learn(&mut self, name: &RepositoryName) {
        if !self.repositories.contains_key(name) {
            let repository = Repository::new(self.cluster.place(name), self.cluster.now);
            self.repositories.insert(name.clone(), repository);
            self.consider(name);
        }
    }

    pub(super) fn listed(&mut self, listed: &[(RepositoryName, Option<V>)]) {
        for (name, version) in listed {
            self.learn(name);
            if let Some(repository) = self.repositories.get_mut(name) {
                repository.listed(version.as_ref(), &self.cluster);
            }
            self.consider(name);
        }
    }

    pub(super) fn told(&mut self, name: &RepositoryName) {
        self.learn(name);
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.told(self.cluster.now);
        }
        self.consider(name);
    }

    /// The living members changed: every repository may belong somewhere else.
    pub(super) fn reconsider_all(&mut self) {
        let names: Vec<_> = self.repositories.keys().cloned().collect();
        for name in names {
            let placement = self.cluster.place(&name);
            if let Some(repository) = self.repositories.get_mut(&name) {
                repository.placement = placement;
            }
            self.consider(&name);
        }
    }

    /// Decides what a repository needs next.
    pub(super) fn consider(&mut self, name: &RepositoryName) {
        let Some(repository) = self.repositories.get_mut(name) else { return };
        if let Some(timer) = repository.timer.take() {
            self.timers.remove(&(timer, name.clone()));
        }
        let next = match repository.activity {
            Activity::Running { .. } => return self.consider_move(name),
            _ => repository.next(&self.cluster),
        };
        match next {
            Next::Nothing => {}
            Next::At(at) => self.set_timer(name, at),
            Next::Read => {
                self.reads.insert(name.clone());
            }
        }
    }

    pub(super) fn set_timer(&mut self, name: &RepositoryName, at: Instant) {
        if let Some(repository) = self.repositories.get_mut(name) {
            if let Some(before) = repository.timer.replace(at) {
                self.timers.remove(&(before, name.clone()));
            }
            self.timers.insert((at, name.clone()));
        }
    }

    pub(super) fn read_repositories(&mut self) {
        while self.in_flight < MAX_IN_FLIGHT {
            let Some(name) = self.reads.pop_first() else { return };
            let Some(repository) = self.repositories.get_mut(&name) else { continue };
            if repository.next(&self.cluster) != Next::Read {
                self.consider(&name);
                continue;
            }
            repository.is_in_flight = true;
            let request = self.begin(&name);
            self.actions.push(Action::ReadRepository { request, repository: name });
        }
    }

    pub(super) fn repository_answered(&mut self, name: &RepositoryName, answer: Answer<V>) {
        let Some(repository) = self.repositories.get_mut(name) else { return };
        repository.is_in_flight = false;
        match (repository.write.take(), answer) {
            (None, Answer::Repository(stored)) => match repository.read(stored, &self.cluster) {
                Decision::Nothing => self.tell_next_owner(name),
                Decision::Start { fence, version } => self.start(name, fence, version),
                Decision::Write { expect, claim } => self.write(name, expect, claim),
            },
            (Some((_, claim)), Answer::Written(version)) => {
                repository.written(claim.clone(), version.clone(), self.cluster.now);
                if claim.is_released {
                    repository.expect(&self.cluster);
                    self.tell_next_owner(name);
                } else if !self.cluster.is_draining {
                    self.start(name, claim.fence, version);
                }
            }
            (Some(_), Answer::Conflict) => repository.refused(&self.cluster),
            (write, _) => repository.failed(write.map(|(expect, _)| expect), &self.cluster),
        }
        self.settle_held(name);
        self.consider(name);
    }

    fn tell_next_owner(&mut self, name: &RepositoryName) {
        let next = self.repositories.get(name).and_then(|repository| repository.next_owner(&self.cluster)).cloned();
        self.actions.extend(next.map(|node| Action::Tell { node, repository: name.clone() }));
    }

    fn begin(&mut self, name: &RepositoryName) -> Request {
        let now = self.cluster.now;
        let deadline = now + self.cluster.timing.attempt();
        let deadline = self.valid_until().map_or(deadline, |until| deadline.min(until));
        self.in_flight += 1;
        self.requests.begin(Subject::Repository(name.clone()), now, deadline)
    }

    fn write(&mut self, name: &RepositoryName, expect: Option<V>, claim: Claim) {
        let request = self.begin(name);
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.is_in_flight = true;
            repository.write = Some((expect.clone(), claim.clone()));
        }
        self.actions.push(Action::WriteRepository { request, repository: name.clone(), expect, claim });
    }

    fn start(&mut self, name: &RepositoryName, fence: u64, version: V) {
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.activity = Activity::Running { fence, moving: None };
        }
        self.actions.push(Action::Start { repository: name.clone(), fence, version });
    }

    /// Keeps the sets of held and moving repositories in step with one of them.
    pub(super) fn settle_held(&mut self, name: &RepositoryName) {
        let Some(repository) = self.repositories.get(name) else { return };
        let is_moving = match &repository.activity {
            Activity::Running { moving, .. } => moving.is_some(),
            Activity::Stopping { to } => to.is_some(),
            Activity::Idle => repository.hand_to.is_some(),
        };
        let is_held = is_moving || repository.activity != Activity::Idle;
        for (set, is_in) in [(&mut self.held, is_held), (&mut self.moving, is_moving)] {
            if is_in {
                set.insert(name.clone());
            } else {
                set.remove(name);
            }
        }
    }
}
