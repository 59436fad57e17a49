//! Which sessions are alive, judged by this node's monotonic clock alone: wall clocks are never compared.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_protocol::name::NodeName;

use super::records::{Claim, NodeRecord, NodeState, SessionId};

/// The records of all nodes as this node saw them.
#[derive(Debug, Default)]
pub(super) struct Members {
    seen: BTreeMap<NodeName, Seen>,
    /// When the read of the last view was sent: the view is at least as new.
    viewed: Option<Instant>,
    /// When the read of the first view was sent after which the views followed each other closely.
    close_since: Option<Instant>,
    /// When records were last to be deleted.
    deleted_at: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    record: NodeRecord,
    /// When a read that showed the record for the first time was answered, or the first that did not show it any more.
    changed_at: Instant,
    /// The last view lacks the record: somebody deleted it, or a listing is incomplete.
    is_missing: bool,
    /// Since when the session has ended for this node, for good: a later renewal does not revive it.
    ended_at: Option<Instant>,
}

impl Seen {
    /// A view that was requested from then on shows that the session has ended, if it shows no change.
    fn ends(&self, close_since: Option<Instant>) -> Instant {
        // Two views that lack the record tell nothing about the time between them, unlike two that show the same record.
        let close_since = close_since.filter(|_| self.is_missing);
        close_since.map_or(self.changed_at, |at| at.max(self.changed_at)) + self.record.ttl()
    }
}

impl Members {
    /// Takes a view that was read between two times. `ttl`: the time to live of sessions.
    pub(super) fn update(&mut self, records: Vec<NodeRecord>, sent: Instant, answered: Instant, ttl: Duration) {
        if self.viewed.is_none_or(|viewed| sent > viewed + ttl / 2) {
            self.close_since = Some(sent);
        }
        let mut before = std::mem::take(&mut self.seen);
        for record in records {
            let before = before.remove(&record.node).filter(|seen| seen.record.session == record.session);
            let ended_at = before.as_ref().and_then(|seen| seen.ended_at);
            let unchanged = before.filter(|seen| seen.record == record);
            let changed_at = unchanged.map_or(answered, |seen| seen.changed_at);
            self.seen.insert(record.node.clone(), Seen { record, changed_at, is_missing: false, ended_at });
        }
        for (node, seen) in before {
            let changed_at = if seen.is_missing { seen.changed_at } else { answered };
            self.seen.insert(node, Seen { changed_at, is_missing: true, ..seen });
        }
        // A view that was requested a whole time to live after the last change, and shows none, proves that the node could
        // not renew in time. The time since the change alone proves nothing: this node may not have looked.
        for seen in self.seen.values_mut() {
            let is_left = seen.record.state == NodeState::Left;
            if is_left || sent >= seen.ends(self.close_since) {
                seen.ended_at.get_or_insert(answered);
            }
        }
        self.viewed = Some(sent);
    }

    /// Until the next view nothing can be decided.
    pub(super) fn forget_view(&mut self) {
        self.viewed = None;
    }

    pub(super) fn has_view(&self) -> bool {
        self.viewed.is_some()
    }

    /// Forgets the sessions that ended so long ago. Returns their records that the last view has, at most 24 times in that
    /// time: a store may refuse to delete them.
    pub(super) fn forget(&mut self, now: Instant, after: Duration) -> Vec<NodeRecord> {
        let is_old = |seen: &Seen| seen.ended_at.is_some_and(|ended| ended + after <= now);
        self.seen.retain(|_, seen| !(seen.is_missing && is_old(seen)));
        if self.deleted_at.is_some_and(|at| now < at + after / 24) {
            return Vec::new();
        }
        let old: Vec<_> = self.seen.values().filter(|seen| is_old(seen)).map(|seen| seen.record.clone()).collect();
        if !old.is_empty() {
            self.deleted_at = Some(now);
        }
        old
    }

    /// The records of the living sessions.
    pub(super) fn living(&self) -> impl Iterator<Item = &NodeRecord> {
        self.seen.values().filter(|seen| seen.ended_at.is_none()).map(|seen| &seen.record)
    }

    /// The sessions that ended without being left.
    pub(super) fn ended(&self) -> impl Iterator<Item = SessionId> {
        let ended = self.seen.values().filter(|seen| seen.ended_at.is_some() && seen.record.state != NodeState::Left);
        ended.map(|seen| seen.record.session)
    }

    /// When the record of a node was last seen to change.
    pub(super) fn last_seen(&self, node: &NodeName) -> Option<Instant> {
        self.seen.get(node).map(|seen| seen.changed_at)
    }

    /// When the next view may prove the end of a session.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let quiet = self.seen.values().filter(|seen| seen.ended_at.is_none());
        quiet.map(|seen| seen.ends(self.close_since)).min()
    }

    /// Whether the session of a claim has ended for certain. The claim was read before `noticed`.
    pub(super) fn is_dead(&self, claim: &Claim, noticed: Instant, ttl: Duration) -> bool {
        match self.seen.get(&claim.owner) {
            Some(seen) if seen.record.session == claim.session => seen.ended_at.is_some(),
            // A node replaces its record only after its earlier session has ended. An older view tells nothing: the
            // claim's session may have begun later.
            Some(seen) if !seen.is_missing => self.viewed.is_some_and(|viewed| viewed > noticed),
            // No view shows a record of the session, and a single one may be incomplete.
            _ => {
                self.viewed.is_some_and(|viewed| viewed > self.close_since.map_or(noticed, |at| at.max(noticed)) + ttl)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digests;

    const TTL: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn record(session: u64, renewals: u64) -> NodeRecord {
        NodeRecord {
            format: NodeRecord::FORMAT,
            node: "origin-2".parse().unwrap(),
            session: SessionId(session),
            renewals,
            state: NodeState::Active,
            ttl_millis: 30_000,
            url: "https://origin-2.example:7400".to_owned(),
            zone: None,
            weight: 1,
            digests: Digests::default(),
            ended: Vec::new(),
            knows_shards: false,
            knows_blobs: false,
            knows_staged: false,
        }
    }

    fn claim(session: u64) -> Claim {
        Claim { owner: "origin-2".parse().unwrap(), session: SessionId(session), fence: 4, is_released: false }
    }

    #[test]
    fn a_session_ends_when_a_view_of_a_whole_time_to_live_later_shows_no_change() {
        let (mut members, start) = (Members::default(), Instant::now());
        let mut view = |renewals, sent: Duration| {
            members.update(vec![record(1, renewals)], start + sent, start + sent + SECOND, TTL);
            let is_dead = members.is_dead(&claim(1), start, TTL);
            assert_eq!(members.living().count() == 0, is_dead);
            is_dead
        };
        assert!(!view(7, Duration::ZERO));
        assert!(!view(7, TTL), "the first view was answered a second later");
        assert!(!view(8, TTL + SECOND * 2));
        assert!(!view(8, TTL * 2 + SECOND * 2));
        // A view that was requested too early proves nothing, however late it is answered.
        assert!(view(8, TTL * 2 + SECOND * 3));
        // It was suspended with its clock, or its last renewal was late.
        assert!(view(9, TTL * 2 + SECOND * 4));
        assert_eq!(members.ended().collect::<Vec<_>>(), [SessionId(1)]);
        members.update(vec![record(2, 1)], start + TTL * 4, start + TTL * 4, TTL);
        assert_eq!((members.living().count(), members.ended().count()), (1, 0));
    }

    #[test]
    fn this_node_not_looking_ends_no_session() {
        let (mut members, start) = (Members::default(), Instant::now());
        members.update(vec![record(1, 7)], start, start, TTL);
        assert!(!members.is_dead(&claim(1), start + TTL * 10, TTL));
        members.update(vec![record(1, 8)], start + TTL * 10, start + TTL * 10, TTL);
        assert!(!members.is_dead(&claim(1), start + TTL * 10, TTL));
    }

    #[test]
    fn a_record_that_is_missing_ends_its_session_after_a_whole_time_to_live() {
        let (mut members, start) = (Members::default(), Instant::now());
        let mut view = |records, sent: Duration, session| {
            members.update(records, start + sent, start + sent + SECOND, TTL);
            members.is_dead(&claim(session), start, TTL)
        };
        assert!(!view(vec![record(1, 7)], TTL, 1));
        // One listing lacks it, and the session goes on.
        assert!(!view(vec![], TTL * 2, 1));
        assert!(!view(vec![record(1, 8)], TTL * 2 + SECOND * 2, 1));
        // Two listings lack it, and this node did not look between them.
        assert!(!view(vec![], TTL * 3, 1));
        assert!(!view(vec![], TTL * 5, 1));
        assert!(!view(vec![], TTL * 5, 2), "a claim of a session that no listing shows");
        assert!(!view(vec![], TTL * 5 + TTL / 2, 1));
        assert!(!view(vec![], TTL * 6 - SECOND, 1));
        assert!(view(vec![], TTL * 6, 1));
        assert!(view(vec![], TTL * 6 + SECOND, 2));
    }

    #[test]
    fn a_session_that_left_or_was_replaced_has_ended() {
        let (mut members, start) = (Members::default(), Instant::now());
        let left = NodeRecord { state: NodeState::Left, ..record(1, 9) };
        members.update(vec![left], start, start, TTL);
        assert!(members.is_dead(&claim(1), start, TTL));
        // The claim was read after this view: its session may be newer than the view.
        assert!(!members.is_dead(&claim(2), start + SECOND, TTL));
        members.update(vec![record(3, 1)], start + SECOND * 2, start + SECOND * 2, TTL);
        assert!(members.is_dead(&claim(2), start + SECOND, TTL));
    }

    #[test]
    fn a_record_is_deleted_long_after_its_session_ended_and_is_forgotten_then() {
        let (mut members, start, day) = (Members::default(), Instant::now(), TTL * 100);
        let left = NodeRecord { state: NodeState::Left, ..record(1, 9) };
        members.update(vec![left.clone()], start, start, TTL);
        assert_eq!(members.forget(start + day - SECOND, day), []);
        // Until a view shows that it is deleted, but not with each view: a store may refuse.
        for hours in 0..2 {
            let hour = day / 24;
            assert_eq!(members.forget(start + day + hour * hours, day), std::slice::from_ref(&left));
            assert_eq!(members.forget(start + day + hour * (hours + 1) - SECOND, day), []);
        }
        members.update(vec![], start + day, start + day, TTL);
        assert_eq!((members.forget(start + day, day).len(), members.seen.len()), (0, 0));
        // A record that is only missing is remembered until then.
        let mut members = Members::default();
        members.update(vec![record(2, 1)], start, start, TTL);
        for halves in 0..=2 {
            let at = start + TTL / 2 * halves;
            members.update(vec![], at, at, TTL);
        }
        assert_eq!((members.forget(start + day, day).len(), members.ended().count()), (0, 1));
        assert_eq!((members.forget(start + TTL + day, day).len(), members.seen.len()), (0, 0));
    }

    #[test]
    fn a_node_record_is_json_that_later_versions_may_extend() {
        let json = serde_json::to_string(&record(1, 7)).unwrap();
        assert_eq!(
            json,
            r#"{"format":1,"node":"origin-2","session":1,"renewals":7,"state":"active","ttl_millis":30000,"url":"https://origin-2.example:7400","weight":1}"#
        );
        let extended = json.replace("{\"format\"", "{\"rack\":7,\"format\"");
        assert_eq!(serde_json::from_str::<NodeRecord>(&extended).unwrap(), record(1, 7));
    }
}
