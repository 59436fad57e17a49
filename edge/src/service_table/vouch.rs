//! What an origin's event stream says of all its services at once: that nothing else has changed.
//!
//! While a stream is followed without a gap, from the moment at which it began (with everything that was current), an
//! entry that had a word since then is as the origin has it: had it changed, the stream would have said so before its
//! next heartbeat. So each heartbeat is a word on all of them. When the stream breaks off, what it vouched for grows old
//! from its last heartbeat on; when it is resumed where it was, it vouches again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_shared::name::ServiceName;

use super::missed::{Missed, Order};
use crate::clock::{AtomicMoment, Moment};

/// What the stream of one origin vouches for.
#[derive(Debug)]
pub(crate) struct Vouch {
    /// Only an entry that had a word since then is vouched for.
    since: AtomicMoment,
    /// The last heartbeat.
    at: AtomicMoment,
    /// The stream is open, and all that it said was applied.
    in_step: AtomicBool,
    missed: Mutex<Missed>,
}

impl Default for Vouch {
    /// That of a stream which never began.
    fn default() -> Self {
        Self {
            since: AtomicMoment::new(Moment::LATEST),
            at: AtomicMoment::new(Moment::EARLIEST),
            in_step: AtomicBool::new(false),
            missed: Mutex::default(),
        }
    }
}

impl Vouch {
    /// The moment up to which an entry with this last word is known to be current.
    pub(crate) fn word(&self, last_word: Moment) -> Moment {
        if last_word >= self.since.get() { last_word.max(self.at.get()) } else { last_word }
    }

    /// The stream begins anew: nothing that was said before counts. What it vouched for must have been settled.
    pub(crate) fn begin(&self, now: Moment) {
        self.since.set(now);
        self.missed().forget();
    }

    /// Whether an entry has had no word since the stream began.
    pub(crate) fn is_silent_on(&self, last_word: Moment) -> bool {
        last_word < self.since.get()
    }

    /// Everything that was current when the stream began has been told.
    pub(crate) fn in_step(&self) {
        self.in_step.store(true, Ordering::Relaxed);
    }

    /// Everything up to now has been told. Returns the services of which a version was missed.
    pub(crate) fn heartbeat(&self, now: Moment) -> Vec<(ServiceName, Order)> {
        self.at.advance(now);
        self.in_step();
        self.missed().heartbeat()
    }

    /// The stream broke off, or ended.
    pub(crate) fn out_of_step(&self) {
        self.in_step.store(false, Ordering::Relaxed);
        self.missed().forget();
    }

    /// When everything was last said to have been told.
    pub(crate) fn last_heartbeat(&self) -> Option<Moment> {
        Some(self.at.get()).filter(|at| *at > Moment::EARLIEST)
    }

    pub(crate) fn is_in_step(&self) -> bool {
        self.in_step.load(Ordering::Relaxed)
    }

    /// A version was found by asking, which the stream should tell of.
    pub(super) fn found_by_asking(&self, service: &ServiceName, version: Order) {
        if self.is_in_step() {
            self.missed().found(service, version);
        }
    }

    /// The stream has told of a version, or it was known already.
    pub(crate) fn told(&self, service: &ServiceName, version: Order) {
        self.missed().told(service, version);
    }

    fn missed(&self) -> MutexGuard<'_, Missed> {
        // Nothing that can panic runs while it is held.
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The moment up to which a service that was gone everywhere at its last word is known to be nowhere still: another
/// origin may publish it, so that takes the word of all.
pub(super) fn word_of_all(vouches: &[Vouch], last_word: Moment) -> Moment {
    vouches.iter().map(|vouch| vouch.word(last_word)).min().unwrap_or(last_word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn a_stream_that_never_began_vouches_for_nothing() {
        let (vouch, now) = (Vouch::default(), Clock::begin().now());
        vouch.heartbeat(now.after(Duration::from_secs(9)));
        assert_eq!(vouch.word(now), now);
    }

    #[test]
    fn that_something_is_nowhere_is_all_origins_word() {
        let begun = Clock::begin().now();
        let later = |seconds| begun.after(Duration::from_secs(seconds));
        let vouches = [Vouch::default(), Vouch::default()];
        vouches[0].begin(later(1));
        vouches[0].heartbeat(later(9));
        assert_eq!(word_of_all(&vouches, later(2)), later(2), "one of them tells nothing");
        vouches[1].begin(later(3));
        vouches[1].heartbeat(later(8));
        assert_eq!(word_of_all(&vouches, later(2)), later(2), "it may have appeared before that stream began");
        assert_eq!(word_of_all(&vouches, later(4)), later(8));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Heartbeat,
        Break,
    }

    proptest! {
        #[test]
        fn it_vouches_for_what_had_a_word_since_it_began_and_never_beyond_its_last_heartbeat(
            steps in proptest::collection::vec(
                (prop_oneof![Just(Step::Begin), Just(Step::Heartbeat), Just(Step::Break)], 1u64..5_000), 1..40,
            ),
            word_after in 0usize..40,
        ) {
            let vouch = Vouch::default();
            let mut now = Clock::begin().now();
            let (mut began, mut heartbeat, mut word) = (None, None, now);
            for (number, (step, wait)) in steps.into_iter().enumerate() {
                now = now.after(Duration::from_millis(wait));
                match step {
                    Step::Begin => { vouch.begin(now); began = Some(now); }
                    Step::Heartbeat => { vouch.heartbeat(now); heartbeat = Some(now); }
                    Step::Break => vouch.out_of_step(),
                }
                if number == word_after {
                    word = now;
                }
                let expected = match (began, heartbeat) {
                    (Some(began), Some(heartbeat)) if word >= began => word.max(heartbeat),
                    _ => word,
                };
                prop_assert_eq!(vouch.word(word), expected);
                prop_assert!(vouch.word(word) <= now);
            }
        }
    }
}
