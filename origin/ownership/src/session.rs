//! The session of this node: joining, renewing, and stopping before the other members take over.

use std::time::Instant;

use super::Settings;
use super::records::{Digests, NodeRecord, NodeState, SessionId};
use super::timing::Timing;

/// The state machine of the own node record.
#[derive(Debug)]
pub(super) struct Session<V> {
    timing: Timing,
    /// The record of the last write.
    record: NodeRecord,
    run: u64,
    /// An earlier run that is known to have ended.
    ended: Option<u64>,
    phase: Phase,
    /// What the next write expects. `None`: the record has to be read first.
    expect: Option<Option<V>>,
    in_flight: Option<SessionRequest<V>>,
    /// Writes with an unknown outcome: their count of renewals and when they were sent.
    unknown: Vec<(u64, Instant)>,
    next: Instant,
    valid_until: Option<Instant>,
    /// The record of another process with this node's name, and when it was first seen.
    other: Option<(NodeRecord, Instant)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Joining, if the session is not valid yet, or renewing.
    Open,
    /// The session has ended, and the work of the node is not stopped yet.
    Halted,
    /// The record says that the session has ended, or nobody needs to know.
    Left,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionRequest<V> {
    Read,
    Write { expect: Option<V>, record: NodeRecord },
}

/// What an answer means for the rest of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Going,
    /// Somebody else wrote the record: the session must not be used any more.
    Lost,
}

impl<V: Clone> Session<V> {
    pub(super) fn new(settings: &Settings, now: Instant) -> Self {
        let record = NodeRecord {
            format: NodeRecord::FORMAT,
            node: settings.node.clone(),
            session: SessionId(settings.run),
            renewals: 0,
            state: NodeState::Active,
            ttl_millis: settings.timing.ttl.as_millis() as u64,
            url: settings.url.clone(),
            zone: settings.zone.clone(),
            weight: settings.weight,
            digests: settings.digests.clone(),
            ended: Vec::new(),
            knows_shards: true,
            knows_blobs: true,
            knows_staged: true,
        };
        Self {
            timing: settings.timing.clone(),
            record,
            run: settings.run,
            ended: settings.ended,
            phase: Phase::Open,
            expect: None,
            in_flight: None,
            unknown: Vec::new(),
            next: now,
            valid_until: None,
            other: None,
        }
    }

    pub(super) fn id(&self) -> SessionId {
        self.record.session
    }

    /// Until when this node may act for its session.
    pub(super) fn valid_until(&self) -> Option<Instant> {
        self.valid_until
    }

    pub(super) fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    /// Whether another process uses this node's name.
    pub(super) fn is_name_taken(&self) -> bool {
        self.other.is_some()
    }

    /// When [`Session::poll`] has something to do.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let next = (self.phase == Phase::Open && self.in_flight.is_none()).then_some(self.next);
        next.into_iter().chain(self.valid_until).min()
    }

    /// The next request, if one is due.
    pub(super) fn poll(&mut self, now: Instant) -> Option<SessionRequest<V>> {
        if self.phase != Phase::Open || self.in_flight.is_some() || now < self.next {
            return None;
        }
        let request = match self.expect.clone() {
            None => SessionRequest::Read,
            Some(expect) => {
                if self.valid_until.is_none() {
                    // An earlier attempt to join may have been committed so long ago that its session has ended.
                    self.renounce();
                }
                self.record.renewals += 1;
                SessionRequest::Write { expect, record: self.record.clone() }
            }
        };
        self.in_flight = Some(request.clone());
        Some(request)
    }

    /// Announces another state with the next write, which is due at once.
    pub(super) fn announce(&mut self, state: NodeState, now: Instant) {
        if self.record.state != state {
            self.record.state = state;
            self.next = now;
        }
    }

    /// Announces what this node has in common with others, likewise.
    pub(super) fn describe(&mut self, digests: Digests, now: Instant) {
        if self.record.digests != digests {
            self.record.digests = digests;
            self.next = now;
        }
    }

    /// Announces which sessions of others have ended, likewise.
    pub(super) fn announce_ended(&mut self, sessions: Vec<SessionId>, now: Instant) {
        if self.record.ended != sessions {
            self.record.ended = sessions;
            self.next = now;
        }
    }

    pub(super) fn written(&mut self, version: V, sent: Instant, now: Instant) {
        if let Some(SessionRequest::Write { record, .. }) = self.in_flight.take() {
            self.adopt(&record, version, sent, now);
        }
    }

    /// The write was refused (`is_unknown` is false), or it or a read has an unknown outcome.
    pub(super) fn failed(&mut self, is_unknown: bool, sent: Instant, now: Instant) {
        if let (Some(SessionRequest::Write { record, .. }), true) = (self.in_flight.take(), is_unknown) {
            self.unknown.push((record.renewals, sent));
        }
        self.expect = None;
        self.next = now + self.timing.retry_after();
    }

    pub(super) fn read(&mut self, stored: Option<(NodeRecord, V)>, sent: Instant, now: Instant) -> Progress {
        self.in_flight = None;
        self.next = now;
        match stored {
            Some((record, version)) if record.session == self.id() => {
                // The bytes are those of the own write with this count.
                let written = self.unknown.iter().find(|(renewals, _)| *renewals == record.renewals).map(|(_, at)| *at);
                match written {
                    Some(written) => self.adopt(&record, version, written, now),
                    None => self.expect = Some(Some(version)),
                }
            }
            _ if self.valid_until.is_some() => return Progress::Lost,
            None => self.expect = Some(None),
            Some((record, version)) => {
                if self.may_replace(&record, sent, now) {
                    self.expect = Some(Some(version));
                } else {
                    self.next = now + self.timing.renew_every();
                }
            }
        }
        Progress::Going
    }

    /// Ends the session. It is followed by another one after [`Session::resume`].
    pub(super) fn halt(&mut self) {
        (self.phase, self.valid_until, self.in_flight) = (Phase::Halted, None, None);
    }

    /// The work of the node is stopped: begins a new session, or leaves.
    pub(super) fn resume(&mut self, now: Instant) {
        if self.phase != Phase::Halted {
            return;
        }
        if self.record.state != NodeState::Active {
            self.phase = Phase::Left;
            return;
        }
        // A renewal of the ended session may still be committed: it must not revive the session.
        self.renounce();
        (self.phase, self.expect, self.next) = (Phase::Open, None, now);
    }

    /// Never uses the session again.
    fn renounce(&mut self) {
        self.record.session = SessionId(self.id().0.wrapping_add(1));
        self.unknown.clear();
    }

    fn adopt(&mut self, record: &NodeRecord, version: V, sent: Instant, now: Instant) {
        // A later write cannot have been committed: it expected the version that this one replaced.
        self.unknown.clear();
        self.expect = Some(Some(version));
        self.other = None;
        if record.state == NodeState::Left {
            (self.phase, self.valid_until) = (Phase::Left, None);
            return;
        }
        let valid_until = sent + self.timing.validity();
        if valid_until > now {
            self.valid_until = self.valid_until.max(Some(valid_until));
        }
        let told = |record: &NodeRecord| (record.state, record.ended.clone(), record.digests.clone());
        let is_told = told(record) == told(&self.record);
        self.next = if is_told { sent + self.timing.renew_every() } else { now };
    }

    /// Whether the session in the record has ended, for a node that joins.
    fn may_replace(&mut self, record: &NodeRecord, sent: Instant, now: Instant) -> bool {
        let is_own = record.session.is_of(self.run);
        if is_own || self.ended.is_some_and(|run| record.session.is_of(run)) || record.state == NodeState::Left {
            return true;
        }
        match &self.other {
            Some((seen, since)) if seen == record => sent >= *since + record.ttl(),
            _ => {
                self.other = Some((record.clone(), now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests;
