//! What one origin gets, and when. Pure: time is an argument.

use std::time::Duration;

use weir_cache::clock::Moment;
use weir_protocol::observed::EDGE_INTERVAL_SECONDS;

use super::sweep::{Sweep, SweepPart};
use super::table::Table;

/// The time after which a message without news is sent: a little less than the longest time between two.
const SILENCE: Duration = Duration::from_secs(EDGE_INTERVAL_SECONDS - 1);

/// The time between two messages at least, unless the first says that more follows.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// The first pause after a failure; doubled by each up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const MAX_PAUSE: Duration = Duration::from_secs(16);

/// The longest `Retry-After` that counts.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// The time after which an origin is tried again that has no such request.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(600);

/// What came of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum Outcome {
    Accepted,
    /// The origin lacks what came before.
    Resync,
    /// The origin is busy, or has no room.
    Deferred(Option<Duration>),
    /// Another living edge has the same name.
    NameTwice(Option<Duration>),
    /// The origin is older.
    Unavailable,
    /// Perhaps the origin has it.
    #[strum(serialize = "error")]
    Failed,
}

/// What an origin has, and when it gets more.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) sweep: Sweep,
    pub(super) seq: u64,
    acknowledged: Option<Moment>,
    not_before: Moment,
    /// Since the last sweep that the origin has whole.
    failures: u32,
    /// Whether the origin has a whole sweep, and all that followed it.
    is_whole: bool,
}

impl Delivery {
    pub(super) fn new(now: Moment) -> Self {
        Self { sweep: Sweep::default(), seq: 1, acknowledged: None, not_before: now, failures: 0, is_whole: false }
    }

    /// The next message, if it is due. `has_more`: there is something that is not of the table.
    pub(super) fn next(&self, table: &Table, has_more: bool, now: Moment) -> Option<SweepPart> {
        if now < self.not_before {
            return None;
        }
        let part = self.sweep.part(table, now);
        let is_silent = self.acknowledged.is_none_or(|acknowledged| now.since(acknowledged) >= SILENCE);
        (has_more || is_silent || !part.is_empty()).then_some(part)
    }

    /// The next part, whether it is due or not.
    pub(super) fn at_once(&self, table: &Table, now: Moment) -> SweepPart {
        self.sweep.part(table, now)
    }

    /// Takes in what came of a message.
    pub(super) fn ended(&mut self, part: SweepPart, outcome: Outcome, now: Moment, random: f64) {
        let more = part.more;
        let pause = match outcome {
            Outcome::Accepted => {
                self.sweep.acknowledged(part);
                self.acknowledged = Some(now);
                self.seq += 1;
                if !more {
                    (self.failures, self.is_whole) = (0, true);
                }
                if more { Duration::ZERO } else { MIN_INTERVAL }
            }
            Outcome::Resync => {
                self.sweep = Sweep::default();
                self.seq += 1;
                // A sweep that was cut off may be cut off again, as by another edge with this name.
                if std::mem::take(&mut self.is_whole) { Duration::ZERO } else { self.backed_off(random) }
            }
            Outcome::Deferred(after) | Outcome::NameTwice(after) => {
                let after = after.unwrap_or_default().min(MAX_RETRY_AFTER);
                self.backed_off(random).max(after.mul_f64(1.0 + random))
            }
            Outcome::Unavailable => UNAVAILABLE_PAUSE.mul_f64(0.9 + 0.2 * random),
            // The origin takes the same number again.
            Outcome::Failed => self.backed_off(random),
        };
        self.not_before = now.after(pause);
    }

    fn backed_off(&mut self, random: f64) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(5)).min(MAX_PAUSE);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(0.5 + random / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::fixture::{Site, message};

    /// Sends what is due: whether it was full, and the services. `None`: nothing is due.
    fn send(delivery: &mut Delivery, site: &Site, outcome: Outcome) -> Option<(bool, Vec<String>)> {
        let part = delivery.next(&site.table, false, site.now)?;
        let rows = part.agents.iter().flat_map(|agent| &agent.rows).map(|row| row.service.to_string());
        let sent = (part.full, rows.collect());
        delivery.ended(part, outcome, site.now, 1.0);
        Some(sent)
    }

    #[test]
    fn an_origin_gets_everything_then_changes_and_signs_of_life() {
        let mut site = Site::new(1 << 20);
        let mut delivery = Delivery::new(site.now);
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), Some((true, vec![])), "no agent is news, too");
        site.accept("one", message("a", 1, "f", &["shop"], &[])).unwrap();
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), None, "a second has not passed");
        site.pass(1);
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), Some((false, vec!["shop".to_owned()])));
        site.pass(8);
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), None);
        site.pass(1);
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), Some((false, vec![])), "it is alive");
        assert_eq!(delivery.seq, 4);
    }

    #[test]
    fn what_an_origin_did_not_take_in_is_sent_again() {
        let mut site = Site::new(1 << 20);
        let mut delivery = Delivery::new(site.now);
        site.accept("one", message("a", 1, "f", &["shop"], &[])).unwrap();
        let everything = Some((true, vec!["shop".to_owned()]));
        for (outcome, pause) in [
            (Outcome::Failed, 1),
            (Outcome::Failed, 2),
            (Outcome::Deferred(Some(Duration::from_secs(30))), 60),
            (Outcome::Deferred(None), 8),
            (Outcome::Unavailable, 660),
            (Outcome::Resync, 16),
        ] {
            assert_eq!(send(&mut delivery, &site, outcome), everything, "{outcome:?}");
            site.pass(pause - 1);
            assert_eq!(send(&mut delivery, &site, outcome), None, "{outcome:?}");
            site.pass(1);
        }
        assert_eq!(delivery.seq, 2, "only the origin that wants all gets another number");
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), everything);
        site.accept("one", message("a", 2, "", &["docs"], &[])).unwrap();
        site.pass(1);
        assert_eq!(send(&mut delivery, &site, Outcome::Resync), Some((false, vec!["docs".to_owned()])));
        let both = Some((true, vec!["docs".to_owned(), "shop".to_owned()]));
        assert_eq!(send(&mut delivery, &site, Outcome::Accepted), both, "at once");
    }

    #[test]
    fn a_sweep_that_is_cut_off_again_and_again_is_sent_ever_more_rarely() {
        let mut site = Site::new(1 << 20);
        let mut delivery = Delivery::new(site.now);
        site.accept("one", message("a", 1, "f", &["shop"], &[])).unwrap();
        for pause in [1, 2, 4] {
            let mut part = delivery.next(&site.table, false, site.now).unwrap();
            assert!(part.full);
            part.more = true;
            delivery.ended(part, Outcome::Accepted, site.now, 1.0);
            let second = delivery.next(&site.table, true, site.now).unwrap();
            delivery.ended(second, Outcome::Resync, site.now, 1.0);
            site.pass(pause - 1);
            assert!(delivery.next(&site.table, true, site.now).is_none(), "{pause}");
            site.pass(1);
        }
    }
}
