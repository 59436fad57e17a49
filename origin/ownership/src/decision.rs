//! What follows from a fresh read of a repository's record: nothing, a start, or a write.

use super::cluster::{Cluster, Rank};
use super::records::Claim;
use super::repository::{Known, Outstanding, Repository};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision<V> {
    Nothing,
    Start { fence: u64, version: V },
    Write { expect: Option<V>, claim: Claim },
}

impl<V: Clone + PartialEq> Repository<V> {
    pub(super) fn decide(&mut self, stored: Option<(Claim, V)>, cluster: &Cluster) -> Decision<V> {
        (self.must_read, self.failures) = (false, 0);
        let version = stored.as_ref().map(|(_, version)| version.clone());
        if matches!(&self.outstanding, Outstanding::Expecting(expected) if *expected != version) {
            self.outstanding = Outstanding::None;
        }
        let Some((claim, version)) = stored else {
            self.known = Known::Absent;
            self.hand_to = None;
            return self.take(None, None, cluster);
        };
        self.know(claim.clone(), version.clone(), cluster.now);
        if cluster.is_mine(&claim) {
            self.unowned_since = None;
            self.keep_or_release(claim, version, cluster)
        } else {
            self.hand_to = None;
            if self.outstanding == Outstanding::Any {
                // The writer expected versions with the own claim: none of its writes can be committed any more.
                self.outstanding = Outstanding::None;
            }
            let Known::Record { noticed, .. } = self.known else { return Decision::Nothing };
            if !cluster.is_free(&claim, noticed) {
                return Decision::Nothing;
            }
            self.take(Some(&claim), Some(version), cluster)
        }
    }

    fn keep_or_release(&mut self, claim: Claim, version: V, cluster: &Cluster) -> Decision<V> {
        if cluster.is_draining {
            self.hand_to = self.placement.winner.clone();
        }
        // The target died, or another one is better now: the move is given up.
        self.hand_to = self.hand_to.take().filter(|to| self.placement.winner.as_ref() == Some(to));
        if self.hand_to.is_some() {
            Decision::Write { expect: Some(version), claim: Claim { is_released: true, ..claim } }
        } else if cluster.is_draining {
            self.outstanding = Outstanding::None;
            Decision::Nothing
        } else if self.outstanding == Outstanding::None {
            Decision::Start { fence: claim.fence, version }
        } else {
            // An earlier write may still release the repository. A write of our own prevents that.
            self.claim(Some(&claim), Some(version), cluster)
        }
    }

    /// Takes a repository without an owner.
    fn take(&mut self, before: Option<&Claim>, expect: Option<V>, cluster: &Cluster) -> Decision<V> {
        let is_invited = std::mem::take(&mut self.is_invited);
        let pause_ends = self.unowned(cluster.now) + cluster.timing.runner_up_pause();
        let is_next = match cluster.rank(&self.placement) {
            Rank::Winner => true,
            Rank::RunnerUp => cluster.now >= pause_ends,
            Rank::Other => false,
        };
        // An own write that may still be committed would make this node the owner unnoticed.
        let must_settle = self.outstanding != Outstanding::None;
        if is_next || ((is_invited || must_settle) && !cluster.is_draining) {
            return self.claim(before, expect, cluster);
        }
        self.outstanding = Outstanding::None;
        Decision::Nothing
    }

    fn claim(&self, before: Option<&Claim>, expect: Option<V>, cluster: &Cluster) -> Decision<V> {
        let Some(session) = cluster.session else { return Decision::Nothing };
        let fence = before.map_or_else(|| cluster.clock(), |claim| claim.fence + 1);
        let claim = Claim { owner: cluster.me.clone(), session, fence, is_released: false };
        Decision::Write { expect, claim }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Digests, NodeRecord, NodeState, Placement, SessionId, Settings, Timing};

    const ME: SessionId = SessionId(1);
    const CLOCK: u64 = 1_795_000_000_000;

    fn name(index: u64) -> weir_protocol::name::NodeName {
        format!("origin-{index}").parse().unwrap()
    }

    fn claim(node: u64, fence: u64) -> Claim {
        Claim { owner: name(node), session: SessionId(node), fence, is_released: false }
    }

    /// This node is `origin-1` with session 1, and sees `origin-2` with session 2, and so on.
    fn cluster(others: &[u64]) -> Cluster {
        let timing = Timing::new(Duration::from_secs(30));
        let (node, url, digests) = (name(1), String::new(), Digests::default());
        let settings =
            Settings { node, url, zone: None, weight: 1, digests, timing, run: ME.0, clock: CLOCK, ended: None };
        let mut cluster = Cluster::new(&settings, Instant::now());
        cluster.set_session(Some(ME));
        let record = |node: &u64| NodeRecord {
            format: NodeRecord::FORMAT,
            node: name(*node),
            session: SessionId(*node),
            renewals: 1,
            state: NodeState::Active,
            ttl_millis: 30_000,
            url: String::new(),
            zone: None,
            weight: 1,
            digests: Digests::default(),
            ended: Vec::new(),
            knows_shards: false,
            knows_blobs: false,
            knows_staged: false,
        };
        let sent = cluster.now;
        cluster.view(others.iter().map(record).collect(), sent);
        cluster
    }

    fn repository(cluster: &Cluster, winner: u64, runner_up: u64) -> Repository<u64> {
        let placement = Placement { winner: Some(name(winner)), runner_up: Some(name(runner_up)) };
        Repository::new(placement, cluster.now)
    }

    #[test]
    fn a_release_with_an_unknown_outcome_is_settled_before_the_repository_runs_again() {
        let cluster = cluster(&[2, 3]);
        let mut repository = repository(&cluster, 2, 1);
        repository.hand_to = Some(name(2));
        let release = Decision::Write { expect: Some(7), claim: Claim { is_released: true, ..claim(1, 4) } };
        assert_eq!(repository.decide(Some((claim(1, 4), 7)), &cluster), release);
        repository.failed(Some(Some(7)), &cluster);
        // Meanwhile another node is better. The write may still be committed.
        repository.placement.winner = Some(name(3));
        let own = Decision::Write { expect: Some(7), claim: claim(1, 5) };
        assert_eq!(repository.decide(Some((claim(1, 4), 7)), &cluster), own);
        repository.written(claim(1, 5), 8, cluster.now);
        assert_eq!(repository.decide(Some((claim(1, 5), 8)), &cluster), Decision::Start { fence: 5, version: 8 });
    }

    #[test]
    fn a_writer_that_stops_with_an_unknown_outcome_is_settled_by_a_write() {
        let cluster = cluster(&[2]);
        for is_settled in [true, false] {
            let mut repository = repository(&cluster, 1, 2);
            repository.activity = crate::repository::Activity::Stopping { to: None };
            repository.stopped(is_settled);
            let decision = repository.decide(Some((claim(1, 4), 7)), &cluster);
            assert_eq!(decision == Decision::Start { fence: 4, version: 7 }, is_settled, "{decision:?}");
        }
    }

    #[test]
    fn a_writer_that_was_superseded_has_nothing_to_settle() {
        let cluster = cluster(&[2]);
        let mut repository = repository(&cluster, 1, 2);
        repository.activity = crate::repository::Activity::Stopping { to: None };
        repository.stopped(false);
        assert_eq!(repository.decide(Some((claim(2, 5), 8)), &cluster), Decision::Nothing);
        assert_eq!(repository.next(&cluster), crate::repository::Next::Nothing, "it reads no more");
    }

    #[test]
    fn a_take_over_with_an_unknown_outcome_is_settled_whoever_should_take_the_repository_now() {
        let cluster = cluster(&[2]);
        let mut repository = repository(&cluster, 1, 2);
        let take = Decision::Write { expect: None, claim: claim(1, CLOCK) };
        assert_eq!(repository.decide(None, &cluster), take);
        repository.failed(Some(None), &cluster);
        repository.placement = Placement { winner: Some(name(2)), runner_up: None };
        assert_eq!(repository.decide(None, &cluster), take);
        // A record of somebody else settles it: the own write expected none.
        assert_eq!(repository.decide(Some((claim(2, 1), 3)), &cluster), Decision::Nothing);
        assert_eq!(repository.outstanding, Outstanding::None);
    }

    #[test]
    fn the_runner_up_waits_and_others_take_nothing() {
        let mut cluster = cluster(&[2, 3]);
        let (mut runner_up, mut other) = (repository(&cluster, 2, 1), repository(&cluster, 2, 3));
        assert_eq!(runner_up.decide(None, &cluster), Decision::Nothing);
        cluster.now += Duration::from_secs(10);
        // The names of a repository whose record was lost were taken with lower fences.
        let first = claim(1, CLOCK + 10_000);
        assert_eq!(runner_up.decide(None, &cluster), Decision::Write { expect: None, claim: first });
        assert_eq!(other.decide(None, &cluster), Decision::Nothing);
    }
}
