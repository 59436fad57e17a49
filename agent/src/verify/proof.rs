//! Until when a release is proved to be current: judges signed freshness statements. Pure: the time is an argument.
//!
//! Only a statement that is newer by its signed time takes the place of another. So an edge that replays old ones, or gives
//! none, proves nothing, and the age of the last one shows it.

use std::time::{Duration, SystemTime};

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::freshness::Freshness;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::ProblemKind;
use weir_protocol::token::CLOCK_LEEWAY;

/// The release in force, as its signed publication names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CurrentRelease {
    pub(crate) generation: Generation,
    pub(crate) digest: TarballDigest,
}

/// What is proved about the freshness of one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proof {
    /// When this agent began to request statements.
    since: SystemTime,
    /// The statement with the newest signed time.
    newest: Option<Newest>,
    /// The newest signed time at which a release was current that was in force here before `newest` arrived.
    current_at: Option<SystemTime>,
    /// The generation that is held here, and when it was first seen to be.
    held_since: Option<(Generation, SystemTime)>,
    /// Why the last statement was refused; `None` once one is accepted.
    refused: Option<String>,
    /// Why there was no statement at the last attempt.
    missing: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Newest {
    statement: Freshness,
    /// When the first statement with this generation arrived.
    known_since: SystemTime,
}

/// What a proof says about a release at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assessment {
    /// The release is the newest that its origin had published by then, as far as is proved. `None`: nothing is proved.
    pub current_at: Option<SystemTime>,
    /// The newest generation that an origin has signed.
    pub newest_generation: Option<Generation>,
    /// Since when the origin has not reached the upstream, as of the newest statement; `None` while it does.
    pub upstream_unreachable_since: Option<SystemTime>,
    /// Why the service is degraded; `None`: it is not.
    pub problem: Option<String>,
    /// The kind of this problem, and since when there is one.
    pub(crate) kind: Option<(ProblemKind, SystemTime)>,
}

/// Why a statement is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatementError {
    #[error("no key of `trust` signed the freshness statement")]
    NotTrusted,
    #[error("the freshness statement is for the service `{0}`")]
    OtherService(ServiceName),
    #[error("the freshness statement is from the future ({0}): check the clocks of this machine and of the origin")]
    Future(humantime::Rfc3339Timestamp),
    #[error("the freshness statement is a replay: it is from {offered}, and one from {newest} was seen before")]
    Replayed { offered: humantime::Rfc3339Timestamp, newest: humantime::Rfc3339Timestamp },
    #[error("the freshness statement goes back to generation {offered}, after {newest}")]
    Regressed { offered: Generation, newest: Generation },
    #[error("an origin signed two digests under generation {generation}: {one} and {other}")]
    Contradiction { generation: Generation, one: TarballDigest, other: TarballDigest },
}

impl StatementError {
    /// The value of a metric's label, one of [`PROOF_FAILURES`](crate::metrics::PROOF_FAILURES).
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NotTrusted => "signature",
            Self::OtherService(_) => "service",
            Self::Future(_) => "future",
            Self::Replayed { .. } => "replayed",
            Self::Regressed { .. } => "generation",
            Self::Contradiction { .. } => "digest",
        }
    }
}

impl Proof {
    /// Nothing is proved yet.
    pub(crate) fn new(since: SystemTime) -> Self {
        Self { since, newest: None, current_at: None, held_since: None, refused: None, missing: None }
    }

    /// Takes a statement whose signature was verified. One that is a little older than the newest changes nothing: edges
    /// keep them for some seconds, and another edge may have an older one.
    ///
    /// # Errors
    /// It proves nothing, and the service is degraded until another one is accepted.
    pub(crate) fn accept(
        &mut self,
        statement: Freshness,
        service: &ServiceName,
        held: Option<CurrentRelease>,
        now: SystemTime,
    ) -> Result<(), StatementError> {
        if statement.service != *service {
            return Err(StatementError::OtherService(statement.service));
        }
        if statement.time > now + CLOCK_LEEWAY {
            return Err(StatementError::Future(humantime::format_rfc3339_seconds(statement.time)));
        }
        let seen = self.newest.as_ref().map(|newest| CurrentRelease::of(&newest.statement));
        let contradicts =
            |seen: &CurrentRelease| seen.generation == statement.generation && seen.digest != statement.digest;
        if let Some(CurrentRelease { generation, digest: one }) = [seen, held].into_iter().flatten().find(contradicts) {
            return Err(StatementError::Contradiction { generation, one, other: statement.digest });
        }
        if let Some(CurrentRelease { generation, .. }) = held
            && self.held_since.is_none_or(|(before, _)| before != generation)
        {
            self.held_since = Some((generation, now));
        }
        // An older statement may have been on its way. One that is signed after the release was held is of an origin that
        // went back, also when this agent has just started and knows no other statement.
        if let Some((newest, since)) = self.held_since
            && statement.generation < newest
            && statement.time > since + CLOCK_LEEWAY
        {
            return Err(StatementError::Regressed { offered: statement.generation, newest });
        }
        let mut known_since = now;
        if let Some(Newest { statement: newest, known_since: since }) = &self.newest {
            if statement.time + CLOCK_LEEWAY < newest.time {
                let [offered, newest] = [statement.time, newest.time].map(humantime::format_rfc3339_seconds);
                return Err(StatementError::Replayed { offered, newest });
            }
            if statement.time < newest.time {
                self.accepted();
                return Ok(());
            }
            if statement.generation < newest.generation {
                return Err(StatementError::Regressed { offered: statement.generation, newest: newest.generation });
            }
            // An update that is withheld stays so, however many follow it.
            if statement.generation == newest.generation || held.is_some_and(|held| held.generation < newest.generation)
            {
                known_since = *since;
            }
        }
        self.current_at = self.current_at(held);
        self.newest = Some(Newest { statement, known_since });
        self.accepted();
        Ok(())
    }

    /// A release that is newer than the newest statement was current at its time, too.
    fn current_at(&self, held: Option<CurrentRelease>) -> Option<SystemTime> {
        let newest = self.newest.as_ref().map(|newest| &newest.statement);
        let confirms = |statement: &&Freshness| held.is_some_and(|held| statement.generation <= held.generation);
        newest.filter(confirms).map_or(self.current_at, |statement| Some(statement.time))
    }

    fn accepted(&mut self) {
        (self.refused, self.missing) = (None, None);
    }

    /// Records why a statement was refused.
    pub(crate) fn refuse(&mut self, error: &StatementError) {
        self.refused = Some(error.to_string());
    }

    /// Records why there is no statement.
    pub(crate) fn miss(&mut self, reason: String) {
        self.missing = Some(reason);
    }

    /// What is proved about a release. `max_age`: how long it may be without proof.
    ///
    /// `pinned`: the agent was told to stay at its release, so that it has no later one withholds nothing.
    pub(crate) fn assess(
        &self,
        held: Option<CurrentRelease>,
        pinned: bool,
        max_age: Duration,
        now: SystemTime,
    ) -> Assessment {
        let newest = self.newest.as_ref().map(|newest| &newest.statement);
        let problem = self.problem(held.filter(|_| !pinned), max_age, now);
        Assessment {
            current_at: self.current_at(held),
            newest_generation: newest.map(|newest| newest.generation),
            upstream_unreachable_since: newest.and_then(|newest| newest.upstream_unreachable_since),
            kind: problem.as_ref().map(|(kind, since, _)| (*kind, *since)),
            problem: problem.map(|(.., text)| text),
        }
    }

    fn problem(
        &self,
        held: Option<CurrentRelease>,
        max_age: Duration,
        now: SystemTime,
    ) -> Option<(ProblemKind, SystemTime, String)> {
        // A clock that goes back makes nothing old.
        let is_old = |time: SystemTime| now.duration_since(time).is_ok_and(|age| age > max_age);
        if let Some(refused) = &self.refused {
            return Some((ProblemKind::Signature, self.since, refused.clone()));
        }
        if let (Some(Newest { statement, known_since }), Some(held)) = (&self.newest, held)
            && held.generation < statement.generation
            && is_old(*known_since)
        {
            let text = format!(
                "an update is withheld or cannot be applied: the origin has signed generation {}, and this agent still \
                 has {}",
                statement.generation, held.generation
            );
            return Some((ProblemKind::Withheld, *known_since, text));
        }
        let missing = self.missing.as_deref();
        match &self.newest {
            Some(Newest { statement, .. }) if is_old(statement.time) => {
                let time = humantime::format_rfc3339_seconds(statement.time);
                let why = missing.unwrap_or("edges repeat it, or send older ones");
                let text = format!("the newest freshness statement is from {time}: {why}");
                Some((ProblemKind::TooStale, statement.time, text))
            }
            None if is_old(self.since) => {
                let why = missing.unwrap_or("edges give none");
                let text = format!("no freshness statement has arrived since the start: {why}");
                Some((ProblemKind::TooStale, self.since, text))
            }
            _ => None,
        }
    }
}

impl CurrentRelease {
    fn of(statement: &Freshness) -> Self {
        Self { generation: statement.generation, digest: statement.digest }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use weir_protocol::descriptor::Selector;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    fn shop() -> ServiceName {
        "shop".parse().unwrap()
    }

    fn held(generation: Generation) -> Option<CurrentRelease> {
        Some(CurrentRelease { generation, digest: TarballDigest::of(&generation.to_le_bytes()) })
    }

    fn statement(generation: Generation, seconds: u64) -> Freshness {
        Freshness {
            service: shop(),
            selector: Selector,
            generation,
            digest: held(generation).unwrap().digest,
            time: at(seconds),
            upstream_unreachable_since: None,
        }
    }

    #[test]
    fn a_release_is_current_as_of_the_newest_statement() {
        let mut proof = Proof::new(at(0));
        assert_eq!(proof.assess(held(7), false, LIMIT, at(600)).problem, None);
        let reason = proof.assess(held(7), false, LIMIT, at(601)).problem.unwrap();
        assert!(reason.contains("no freshness statement has arrived since the start"), "{reason}");
        proof.accept(statement(7, 100), &shop(), held(7), at(101)).unwrap();
        let assessed = proof.assess(held(7), false, LIMIT, at(700));
        assert_eq!((assessed.current_at, assessed.newest_generation, assessed.problem), (Some(at(100)), Some(7), None));
        // The same again, which an edge repeats.
        proof.accept(statement(7, 100), &shop(), held(7), at(701)).unwrap();
        let reason = proof.assess(held(7), false, LIMIT, at(701)).problem.unwrap();
        assert!(reason.contains("2027-01-15T08:01:40Z: edges repeat it"), "{reason}");
        proof.miss("503".to_owned());
        let reason = proof.assess(held(7), false, LIMIT, at(701)).problem.unwrap();
        assert!(reason.contains("2027-01-15T08:01:40Z: 503"), "{reason}");
        // A newer release was as current then.
        assert_eq!(proof.assess(held(8), false, LIMIT, at(700)).current_at, Some(at(100)));
        let unreachable = Freshness { upstream_unreachable_since: Some(at(50)), ..statement(7, 160) };
        proof.accept(unreachable, &shop(), held(7), at(161)).unwrap();
        assert_eq!(proof.assess(held(7), false, LIMIT, at(161)).upstream_unreachable_since, Some(at(50)));
    }

    #[test]
    fn an_update_is_withheld_once_it_is_known_for_longer_than_the_limit() {
        let mut proof = Proof::new(at(0));
        proof.accept(statement(7, 100), &shop(), held(7), at(100)).unwrap();
        for seconds in (160..=760).step_by(60) {
            proof.accept(statement(9, seconds), &shop(), held(7), at(seconds)).unwrap();
            let assessed = proof.assess(held(7), false, LIMIT, at(seconds));
            assert_eq!((assessed.current_at, assessed.problem), (Some(at(100)), None));
        }
        let reason = proof.assess(held(7), false, LIMIT, at(761)).problem.unwrap();
        assert!(reason.contains("withheld") && reason.contains("generation 9") && reason.contains("has 7"), "{reason}");
        assert_eq!(proof.assess(held(9), false, LIMIT, at(761)).problem, None, "it has arrived");
        assert_eq!(proof.assess(held(9), false, LIMIT, at(761)).current_at, Some(at(760)));
        // Another newer one starts the wait again.
        proof.accept(statement(10, 770), &shop(), held(9), at(770)).unwrap();
        assert_eq!(proof.assess(held(9), false, LIMIT, at(1300)).problem, None);
    }

    #[test]
    fn what_is_not_newer_proves_nothing() {
        let mut proof = Proof::new(at(0));
        proof.accept(statement(7, 1000), &shop(), held(7), at(1000)).unwrap();
        let before = proof.clone();
        let mut refused = |statement, reason| {
            let error = proof.accept(statement, &shop(), held(7), at(1010)).unwrap_err();
            assert_eq!(error.reason(), reason, "{error}");
            assert_eq!(proof, before);
        };
        refused(Freshness { service: "bank".parse().unwrap(), ..statement(7, 1005) }, "service");
        refused(statement(7, 1071), "future");
        refused(statement(7, 939), "replayed");
        refused(statement(6, 1005), "generation");
        refused(Freshness { digest: TarballDigest::of(b"other"), ..statement(7, 1005) }, "digest");
        // Of another edge, which keeps statements for some seconds.
        proof.accept(statement(7, 995), &shop(), held(7), at(1010)).unwrap();
        assert_eq!(proof, before);
        // The first statement contradicts what is held.
        let other = Freshness { digest: TarballDigest::of(b"other"), ..statement(7, 1005) };
        assert_eq!(Proof::new(at(0)).accept(other, &shop(), held(7), at(1010)).unwrap_err().reason(), "digest");
        // After a start: an origin that went back says so in the next minutes.
        let mut restarted = Proof::new(at(0));
        restarted.accept(statement(6, 1000), &shop(), held(7), at(1000)).unwrap();
        let error = restarted.accept(statement(6, 1061), &shop(), held(7), at(1061)).unwrap_err();
        assert_eq!(error.reason(), "generation", "{error}");
        restarted.accept(statement(7, 1100), &shop(), held(7), at(1100)).unwrap();
        // A refusal degrades until one is accepted.
        proof.refuse(&StatementError::NotTrusted);
        assert!(proof.assess(held(7), false, LIMIT, at(1010)).problem.unwrap().contains("no key of `trust`"));
        proof.accept(statement(7, 1070), &shop(), held(7), at(1070)).unwrap();
        assert_eq!(proof.assess(held(7), false, LIMIT, at(1070)).problem, None);
    }

    proptest! {
        /// Whatever an edge passes on, repeats, reorders or leaves out of what an origin signed: nothing is ever proved
        /// that the origin did not sign, the proof never goes back, and who gets nothing new learns of it in time.
        #[test]
        fn an_edge_can_delay_and_be_seen(
            publications in prop::collection::vec(1u64..300, 1..8),
            deliveries in prop::collection::vec((0u64..2400, 0u64..2400, 0usize..8), 0..40),
        ) {
            // The origin publishes generation n at `published[n]`.
            let published: Vec<u64> = publications.iter().scan(0, |sum, gap| { *sum += gap; Some(*sum) }).collect();
            let generation_at = |seconds: u64| published.iter().filter(|at| **at <= seconds).count() as Generation;
            let mut deliveries = deliveries;
            deliveries.sort_unstable();
            let (mut proof, mut held_generation, mut last) = (Proof::new(at(0)), 0, None);
            for (now, back, switch) in deliveries {
                // A statement of some time before now.
                let signed = now.saturating_sub(back);
                held_generation = held_generation.max(generation_at(now).min(switch as Generation));
                let held = held(held_generation);
                let accepted = proof.accept(statement(generation_at(signed), signed), &shop(), held, at(now));
                let assessed = proof.assess(held, false, LIMIT, at(now));
                let contradicts =
                    matches!(accepted, Err(StatementError::Contradiction { .. } | StatementError::Regressed { .. }));
                prop_assert!(!contradicts);
                if let Some(current_at) = assessed.current_at {
                    prop_assert!(current_at <= at(now));
                    let seconds = current_at.duration_since(at(0)).unwrap().as_secs();
                    prop_assert!(generation_at(seconds) <= held_generation, "it was current then");
                }
                prop_assert!(assessed.current_at >= last, "a proof never goes back");
                last = assessed.current_at;
                // Silence from here on.
                prop_assert!(proof.assess(held, false, LIMIT, at(now + 601)).problem.is_some());
            }
        }

        #[test]
        fn no_time_panics(
            signed in 0u64..8_000_000_000, now in 0u64..8_000_000_000, generation: u64, held_generation: u64,
        ) {
            let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let mut proof = Proof::new(time(now));
            let statement = Freshness { time: time(signed), ..statement(generation, 0) };
            let _ = proof.accept(statement.clone(), &shop(), held(held_generation), time(now));
            let _ = proof.accept(statement, &shop(), None, time(signed));
            let _ = proof.assess(held(held_generation), false, LIMIT, time(now));
        }
    }
}
