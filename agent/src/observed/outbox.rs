//! What the edge in use lacks of the rows, and when to send it. Pure: time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use http::HeaderValue;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{MAX_MESSAGE_BYTES, Row};

use crate::config::EdgeUrl;

/// The most bytes of the rows of a message: instance, version and labels need less than the rest.
const MAX_ROWS_BYTES: usize = MAX_MESSAGE_BYTES - (128 << 10);

/// All rows for another run of an edge, or another edge, are spread over this: all its agents meet it at once.
const MEETING_SPREAD: Duration = Duration::from_secs(10);

/// The first pause after a failure; doubled by each up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);

const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The time after which an edge is tried again that has no such request, or does not know who sends; also the longest
/// `Retry-After` that counts.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(600);

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A message with `full`.
    Full,
    /// The rest of what a `full` began.
    Rest,
    /// What changes.
    Changes,
}

/// A part of what the edge lacks.
#[derive(Debug, Default)]
pub(super) struct MessagePart {
    pub(super) full: bool,
    pub(super) more: bool,
    pub(super) rows: Vec<Row>,
    pub(super) removed: Vec<ServiceName>,
}

/// What came of a message.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Outcome {
    /// This run of the edge has it, as far as it says which it is.
    Accepted(Option<HeaderValue>),
    /// The edge lacks what came before.
    Resync,
    /// The edge did not take it in.
    Deferred(Duration),
    /// The edge has no such request, or does not know who sends.
    Unavailable,
    /// Perhaps the edge has it.
    #[strum(serialize = "error")]
    Failed,
}

/// The rows, and what the edge in use lacks of them.
#[derive(Debug)]
pub(super) struct Outbox {
    rows: BTreeMap<ServiceName, Row>,
    /// Services whose rows the edge lacks.
    unsent: BTreeSet<ServiceName>,
    stage: Stage,
    seq: u64,
    /// The edge in use, and the run of it that was met last.
    met: Option<(EdgeUrl, Option<HeaderValue>)>,
    /// The last message that an edge has.
    accepted: Option<Instant>,
    not_before: Instant,
    failures: u32,
}

impl Outbox {
    pub(super) fn new(now: Instant) -> Self {
        let (rows, unsent) = (BTreeMap::new(), BTreeSet::new());
        let (stage, seq, met, accepted) = (Stage::Full, 0, None, None);
        Self { rows, unsent, stage, seq, met, accepted, not_before: now, failures: 0 }
    }

    pub(super) fn row(&self, service: &ServiceName) -> Option<&Row> {
        self.rows.get(service)
    }

    pub(super) fn unsent(&self) -> usize {
        if self.stage == Stage::Full { self.rows.len() } else { self.unsent.len() }
    }

    /// The present row of a service; `None`: there is none.
    pub(super) fn set(&mut self, service: ServiceName, row: Option<Row>) {
        if self.rows.get(&service) == row.as_ref() {
            return;
        }
        match row {
            Some(row) => drop(self.rows.insert(service.clone(), row)),
            None => drop(self.rows.remove(&service)),
        }
        self.unsent.insert(service);
    }

    /// The edge in use, and the run of it that answered last. Another one than before has no row of this agent. The first
    /// message of an agent does not wait.
    pub(super) fn meet(&mut self, url: &EdgeUrl, instance: Option<HeaderValue>, now: Instant, random: f64) {
        let before = self.met.take();
        let is_other = before
            .as_ref()
            .is_some_and(|(edge, known)| edge != url || known.is_some() && instance.is_some() && *known != instance);
        let known = before.and_then(|(_, known)| known.filter(|_| !is_other));
        self.met = Some((url.clone(), instance.or(known)));
        if !is_other {
            return;
        }
        self.stage = Stage::Full;
        self.failures = 0;
        self.not_before = now + MEETING_SPREAD.mul_f64(random);
    }

    /// Whether to send a message. `interval`: the longest time between two.
    pub(super) fn is_due(&self, interval: Duration, now: Instant) -> bool {
        let is_silent = self.accepted.is_none_or(|accepted| now.duration_since(accepted) >= interval);
        now >= self.not_before && (is_silent || self.stage != Stage::Changes || !self.unsent.is_empty())
    }

    /// Whether the next message does not wait for a change.
    pub(super) fn is_within_full(&self) -> bool {
        self.stage != Stage::Changes
    }

    /// The next message, with its number.
    pub(super) fn next(&mut self) -> (u64, MessagePart) {
        let full = self.stage == Stage::Full;
        if full {
            self.unsent = self.rows.keys().cloned().collect();
        }
        let mut part = MessagePart { full, ..MessagePart::default() };
        let mut bytes = 0;
        while let Some(service) = self.unsent.pop_first() {
            let row = self.rows.get(&service);
            bytes += row.map_or(service.as_str().len(), |row| serde_json::to_vec(row).map_or(0, |json| json.len())) + 3;
            if bytes > MAX_ROWS_BYTES {
                self.unsent.insert(service);
                break;
            }
            match row {
                Some(row) => part.rows.push(row.clone()),
                None => part.removed.push(service),
            }
        }
        part.more = self.stage != Stage::Changes && !self.unsent.is_empty();
        (self.seq + 1, part)
    }

    /// Takes in what came of a message.
    pub(super) fn ended(&mut self, part: MessagePart, outcome: Outcome, now: Instant, random: f64) {
        if let Outcome::Accepted(instance) = outcome {
            self.seq += 1;
            self.stage = if part.more { Stage::Rest } else { Stage::Changes };
            (self.accepted, self.failures, self.not_before) = (Some(now), 0, now);
            self.met.iter_mut().for_each(|(_, known)| *known = instance.clone().or(known.take()));
            return;
        }
        self.unsent.extend(part.rows.into_iter().map(|row| row.service).chain(part.removed));
        let pause = match outcome {
            Outcome::Resync if self.stage == Stage::Changes => {
                self.stage = Stage::Full;
                Duration::ZERO
            }
            // Messages may be the only sign of life, and an edge calls an agent silent after 85 s.
            Outcome::Deferred(after) => {
                let after = after.min(UNAVAILABLE_PAUSE);
                after.mul_f64(1.0 + random).min(after.max(MAX_PAUSE))
            }
            Outcome::Unavailable => UNAVAILABLE_PAUSE.mul_f64(0.9 + 0.2 * random),
            Outcome::Accepted(_) | Outcome::Resync | Outcome::Failed => {
                if outcome == Outcome::Resync {
                    // Perhaps another run with this name sends everything, too: both wait.
                    self.stage = Stage::Full;
                }
                // The edge may have it: the next message must not look like this one.
                self.seq += 1;
                self.failures = self.failures.saturating_add(1);
                let pause = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(5)).min(MAX_PAUSE);
                pause.mul_f64(0.5 + random).min(MAX_PAUSE)
            }
        };
        self.not_before = now + pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::row::not_allowed;

    const INTERVAL: Duration = Duration::from_secs(600);

    fn meet(outbox: &mut Outbox, edge: &str, instance: Option<&'static str>, now: Instant, random: f64) {
        let url = format!("https://{edge}.example").parse().unwrap();
        outbox.meet(&url, instance.map(HeaderValue::from_static), now, random);
    }

    fn set(outbox: &mut Outbox, service: &str, since: u64) {
        let service: ServiceName = service.parse().unwrap();
        let since = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(since);
        outbox.set(service.clone(), Some(not_allowed(&service, since)));
    }

    /// Sends the next message: its number, whether it is full, and the services.
    fn send(outbox: &mut Outbox, outcome: Outcome, now: Instant) -> (u64, bool, Vec<String>) {
        let (seq, part) = outbox.next();
        let rows = part.rows.iter().map(|row| row.service.to_string());
        let services = rows.chain(part.removed.iter().map(|service| format!("-{service}"))).collect();
        let sent = (seq, part.full, services);
        outbox.ended(part, outcome, now, 0.5);
        sent
    }

    #[test]
    fn only_changes_are_sent_after_all_rows() {
        let now = Instant::now();
        let mut outbox = Outbox::new(now);
        let accepted = || Outcome::Accepted(None);
        assert!(outbox.is_due(INTERVAL, now), "the first message does not wait");
        set(&mut outbox, "a", 1);
        set(&mut outbox, "b", 1);
        assert_eq!(send(&mut outbox, accepted(), now), (1, true, vec!["a".to_owned(), "b".to_owned()]));
        set(&mut outbox, "a", 1);
        assert!(!outbox.is_due(INTERVAL, now) && outbox.is_due(INTERVAL, now + INTERVAL));
        set(&mut outbox, "b", 2);
        outbox.set("a".parse().unwrap(), None);
        assert!(outbox.is_due(INTERVAL, now));
        assert_eq!(send(&mut outbox, accepted(), now), (2, false, vec!["b".to_owned(), "-a".to_owned()]));
        assert_eq!(send(&mut outbox, accepted(), now + INTERVAL), (3, false, vec![]));
    }

    #[test]
    fn a_change_that_was_not_taken_in_is_sent_again() {
        let now = Instant::now();
        let mut outbox = Outbox::new(now);
        send(&mut outbox, Outcome::Accepted(None), now);
        set(&mut outbox, "a", 1);
        for (outcome, seq, pause) in [
            (Outcome::Deferred(Duration::from_secs(20)), 2, 30),
            (Outcome::Deferred(MAX_PAUSE), 2, 60),
            (Outcome::Deferred(Duration::MAX), 2, 600),
            (Outcome::Unavailable, 2, 600),
            (Outcome::Failed, 2, 2),
            (Outcome::Failed, 3, 4),
        ] {
            assert_eq!(send(&mut outbox, outcome.clone(), now), (seq, false, vec!["a".to_owned()]), "{outcome:?}");
            let pause = Duration::from_secs(pause);
            assert!(!outbox.is_due(INTERVAL, now + pause / 2) && outbox.is_due(INTERVAL, now + pause), "{outcome:?}");
        }
        set(&mut outbox, "b", 1);
        assert_eq!(send(&mut outbox, Outcome::Resync, now), (4, false, vec!["a".to_owned(), "b".to_owned()]));
        assert!(outbox.is_due(INTERVAL, now));
        assert_eq!(send(&mut outbox, Outcome::Resync, now), (4, true, vec!["a".to_owned(), "b".to_owned()]));
        assert!(!outbox.is_due(INTERVAL, now), "an edge that wants more than all is left alone for a while");
    }

    #[test]
    fn another_run_of_an_edge_and_another_edge_get_all_rows() {
        let now = Instant::now();
        let mut outbox = Outbox::new(now);
        set(&mut outbox, "a", 1);
        meet(&mut outbox, "one", None, now, 0.5);
        assert!(outbox.is_due(INTERVAL, now), "the first message does not wait");
        send(&mut outbox, Outcome::Accepted(Some(HeaderValue::from_static("a"))), now);
        for same in [Some("a"), None, Some("a")] {
            meet(&mut outbox, "one", same, now, 0.5);
            assert!(!outbox.is_due(INTERVAL, now));
        }
        let (half, mut seq) = (MEETING_SPREAD / 2, 1);
        for (edge, run) in [("one", Some("b")), ("two", Some("b")), ("three", None), ("one", Some("c"))] {
            meet(&mut outbox, edge, run, now, 0.5);
            meet(&mut outbox, edge, run, now + half, 1.0);
            assert!(!outbox.is_due(INTERVAL, now) && outbox.is_due(INTERVAL, now + half), "{edge} {run:?}");
            seq += 1;
            assert_eq!(send(&mut outbox, Outcome::Accepted(None), now), (seq, true, vec!["a".to_owned()]));
        }
        meet(&mut outbox, "one", Some("d"), now, 0.0);
        send(&mut outbox, Outcome::Unavailable, now);
        meet(&mut outbox, "two", None, now, 0.0);
        assert!(outbox.is_due(INTERVAL, now), "another edge may be newer");
    }

    #[test]
    fn many_rows_are_several_messages() {
        let now = Instant::now();
        let mut outbox = Outbox::new(now);
        for n in 0..10_000 {
            set(&mut outbox, &format!("{n:0>50}"), 1);
        }
        let (mut sent, mut parts) = (BTreeSet::new(), 0);
        while outbox.is_due(INTERVAL, now) {
            let (seq, part) = outbox.next();
            assert_eq!((part.full, seq), (parts == 0, parts + 1));
            assert!(serde_json::to_vec(&part.rows).unwrap().len() <= MAX_ROWS_BYTES);
            sent.extend(part.rows.iter().map(|row| row.service.clone()));
            assert_eq!(part.more, sent.len() < 10_000);
            parts += 1;
            outbox.ended(part, Outcome::Accepted(None), now, 0.5);
        }
        assert!(sent.len() == 10_000 && (2..10).contains(&parts), "{parts}");
        // The edge loses a part of them.
        outbox.stage = Stage::Full;
        send(&mut outbox, Outcome::Accepted(None), now);
        send(&mut outbox, Outcome::Resync, now);
        assert_eq!((outbox.unsent(), outbox.next().1.full), (10_000, true));
        assert!(!outbox.is_due(INTERVAL, now), "perhaps another run sends everything between its parts");
    }
}
