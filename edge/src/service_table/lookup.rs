//! Finds the version of a service that a request gets, asking its origin when the rule of freshness says so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_shared::cache_status::{CacheStatus, Forward};
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;
use weir_shared::name::ServiceName;
use weir_shared::process::bounds::Bound;
use weir_shared::process::shutdown::Drain;

use super::changes::{Change, Outcome, Said, Told};
use super::entry::{Entry, PurgeMode, Usage};
use super::error::{LookupError, internal};
use super::freshness::Verdict;
use super::negative::Negative;
use super::past::{PastVersion, PastVersions};
use super::rules::{Rule, Rules};
use super::store::StoreError;
use super::table::Table;
use crate::clock::{Clock, Moment};
use crate::metrics::{StaleWhy, TableMetrics};
use crate::origin_client::{OriginId, Origins, Word};
use crate::single_flight::{Full, Seat, SingleFlight};
use crate::version::Version;

/// How long a request waits for the first word ever about a service, or a version of it.
pub(super) const FIRST_WORD_WAIT: Duration = Duration::from_secs(15);

/// How often clients can force a question about one service.
const FORCED_INTERVAL: Duration = Duration::from_secs(1);

/// Questions under way at a time.
pub(super) const MAX_ASKS: usize = 1024;

/// What the request demands of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// As fresh as the rule says.
    Normal,
    /// The client wants the origin asked; at most once a second.
    Forced,
    /// What the table says has proved wrong: the origin must be asked.
    Again,
}

/// A version of a service, and how it was found.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// The version.
    pub(crate) version: Arc<Version>,
    /// Whose it is.
    pub(crate) origin: Option<OriginId>,
    /// The time since the origin's last word.
    pub(crate) age: Duration,
    /// How old it may be.
    pub(crate) rule: Arc<Rule>,
    /// How the service is asked for; `None` for a past version, which says nothing of what will be asked for.
    usage: Option<Arc<Usage>>,
    /// What the table did.
    pub(crate) status: CacheStatus,
}

impl Found {
    /// A client is given a blob in this coding: a new version's is worth having.
    pub(crate) fn was_read(&self, encoding: Encoding) {
        if let Some(usage) = &self.usage {
            usage.read(encoding);
        }
    }
}

/// An answer of the single flight: what is held now, with the status of the origin's answer.
#[derive(Debug, Clone)]
struct Answer {
    entry: Arc<Entry>,
    status: u16,
}

type Asked = Result<Answer, LookupError>;

/// Finds versions.
#[derive(Clone)]
pub(crate) struct Lookup {
    table: Arc<Table>,
    origins: Arc<Origins>,
    asks: SingleFlight<ServiceName, Asked>,
    negative: Negative<ServiceName>,
    past: PastVersions,
    rules: Arc<Rules>,
    clock: Clock,
    metrics: TableMetrics,
}

impl Lookup {
    pub(crate) fn new(
        table: Arc<Table>,
        origins: Arc<Origins>,
        rules: Arc<Rules>,
        clock: Clock,
        metrics: TableMetrics,
        drain: &Drain,
    ) -> Self {
        let past = PastVersions::new(table.clone(), origins.clone(), clock, drain);
        Self {
            table,
            origins,
            asks: SingleFlight::new(MAX_ASKS, drain),
            negative: Negative::new(),
            past,
            rules,
            clock,
            metrics,
        }
    }

    /// The past versions that are held of the services and digests that are `wanted`, without using them.
    pub(crate) fn past_versions(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        self.past.held(wanted)
    }

    /// What went wrong with the last questions, while that is taken as given; and for how long it is, from the question on.
    pub(crate) fn failures(&self) -> HashMap<ServiceName, (LookupError, Duration)> {
        self.negative.all()
    }

    /// Whether an origin is being asked about a service.
    pub(crate) fn is_being_asked(&self, service: &ServiceName) -> bool {
        self.asks.is_under_way(service)
    }

    /// Forgets failures and past versions of a service, and has its origin asked as the mode says. Blocks.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn purge(&self, service: &ServiceName, mode: PurgeMode) -> Result<(), StoreError> {
        if let Some(entry) = self.table.read(service)? {
            entry.purge(mode, self.clock.now());
        }
        self.negative.forget(service);
        self.past.purge(service, mode);
        Ok(())
    }

    /// What is used of each bound, and the bound.
    pub(crate) fn bounds(&self) -> impl Iterator<Item = Bound> + use<> {
        let (remembered, most) = self.negative.fill_level();
        let (undurable, most_undurable) = self.table.undurable_level();
        let own = [
            ("undurable_services", undurable, most_undurable),
            ("questions", self.asks.len() as u64, MAX_ASKS as u64),
            ("remembered_failures", remembered, most),
        ];
        own.into_iter().chain(self.past.bounds())
    }

    /// The current version of a service, when it can be said at once: without I/O, without a task, without waiting.
    pub(crate) fn at_once(&self, service: &ServiceName) -> Option<Found> {
        let entry = self.table.hot(service)?;
        let now = self.clock.now();
        let age = self.table.age(&entry, now);
        if entry.judge(age) != Verdict::Fresh {
            return None;
        }
        entry.usage.asked(now);
        found(&entry, age, CacheStatus::Hit { stale_for: 0 }).ok()
    }

    /// The current version of a service.
    ///
    /// # Errors
    /// There is nothing to serve.
    pub(crate) async fn find(&self, service: &ServiceName, demand: Demand) -> Result<Found, LookupError> {
        let Some(entry) = self.held(service).await? else { return self.first_word(service).await };
        let now = self.clock.now();
        entry.usage.asked(now);
        let age = self.table.age(&entry, now);
        let verdict = entry.judge(age);
        // A question that is under way already costs the origin nothing, and its answer is the newest there is.
        let forced =
            demand == Demand::Forced && (entry.since_asked(now) >= FORCED_INTERVAL || self.asks.is_under_way(service));
        let why = match verdict {
            _ if demand == Demand::Again => Forward::Stale,
            _ if forced => Forward::Request,
            Verdict::Fresh => return found(&entry, age, CacheStatus::Hit { stale_for: 0 }),
            Verdict::StaleWhileRevalidate => {
                self.ask_behind(service);
                return self.stale(&entry, StaleWhy::Revalidating);
            }
            // Its origin is known to be down: nobody is made to wait for what will not come.
            Verdict::Ask if self.is_down(&entry) => {
                self.ask_behind(service);
                return self.stale(&entry, StaleWhy::OriginFailed);
            }
            Verdict::Ask | Verdict::Expired => Forward::Stale,
        };
        match self.ask(service, entry.rule.parameters.wait).await {
            Ok((answer, collapsed)) => self.answered(&answer, why, collapsed),
            Err(LookupError::Absent) => Err(LookupError::Absent),
            Err(error) if verdict == Verdict::Expired => Err(LookupError::Expired(error.reason())),
            Err(error) => self.stale(&entry, error.stale_why()),
        }
    }

    /// One version of a service: the current one, or one that its origin retains.
    ///
    /// # Errors
    /// There is nothing to serve.
    pub(crate) async fn find_version(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        demand: Demand,
    ) -> Result<Found, LookupError> {
        let mut entry = self.held(service).await?;
        if entry.as_ref().is_some_and(|entry| entry.version.is_none()) {
            // Whether the service is still gone is found out as for any other request.
            self.find(service, Demand::Normal).await?;
            entry = self.held(service).await?;
        }
        let now = self.clock.now();
        let hit = CacheStatus::Hit { stale_for: 0 };
        if let Some(entry) = &entry
            && let Some(current) = &entry.version
            && current.descriptor().publication().digest == *digest
            && demand != Demand::Again
        {
            entry.usage.asked(now);
            return found(entry, self.table.age(entry, now), hit);
        }
        if demand != Demand::Again
            && let Some(past) = self.past.get(service, digest)
        {
            return Ok(self.found_past(&past, now.since(past.since), hit));
        }
        let (past, collapsed) = self.past.ask(service, digest, entry.as_deref(), demand == Demand::Again).await?;
        let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(200), stored: true, collapsed };
        Ok(self.found_past(&past, Duration::ZERO, status))
    }

    /// There is a word on a service: what was remembered of failures is void.
    pub(crate) fn heard_of(&self, service: &ServiceName) {
        self.negative.forget(service);
    }

    /// Has the origin asked about a service that no client waits for, and waits until it was.
    pub(crate) async fn check(&self, service: &ServiceName) {
        if self.negative.get(service).is_none()
            && let Ok(seat) = self.join(service)
        {
            // What came of it is in the table.
            let _ = seat.result().await;
        }
    }

    /// Takes up a descriptor that an origin gave of one version: with the forms that it has now. The last word stays:
    /// nobody said that the version is current.
    pub(super) async fn take_forms(&self, origin: OriginId, descriptor: Descriptor) -> Result<(), LookupError> {
        let publication = descriptor.publication();
        let held = self.held(&publication.service).await?;
        let current = held.as_ref().and_then(|held| held.version.as_ref());
        if let (Some(held), Some(current)) = (&held, current)
            && current.descriptor().publication() == publication
        {
            let (told, at) = (Told::AskedForForms(held.highest), held.last_word());
            let word = Said::Current(Box::new(descriptor));
            self.table.apply(Change { origin: Some(origin), told, at, word }).await?;
            return Ok(());
        }
        self.past.keep(origin, descriptor, self.clock.now());
        Ok(())
    }

    /// What is known of a service, from memory or from disk.
    async fn held(&self, service: &ServiceName) -> Result<Option<Arc<Entry>>, LookupError> {
        if let Some(entry) = self.table.hot(service) {
            return Ok(Some(entry));
        }
        if let Some(LookupError::Absent) = self.negative.get(service) {
            return Ok(None);
        }
        let (table, service) = (self.table.clone(), service.clone());
        let read = tokio::task::spawn_blocking(move || table.read(&service)).await;
        Ok(read.map_err(|error| internal(&error))??)
    }

    async fn first_word(&self, service: &ServiceName) -> Result<Found, LookupError> {
        let (answer, collapsed) = self.ask(service, FIRST_WORD_WAIT).await?;
        self.answered(&answer, Forward::Miss, collapsed)
    }

    fn answered(&self, answer: &Answer, why: Forward, collapsed: bool) -> Result<Found, LookupError> {
        let stored = answer.status == 200;
        let status = CacheStatus::Forwarded { why, status: Some(answer.status), stored, collapsed };
        let now = self.clock.now();
        answer.entry.usage.asked(now);
        found(&answer.entry, self.table.age(&answer.entry, now), status)
    }

    fn stale(&self, entry: &Entry, why: StaleWhy) -> Result<Found, LookupError> {
        let age = self.table.age(entry, self.clock.now());
        // It may be fresh by its age and yet not what was asked for, when a forced question failed.
        let stale_for = entry.rule.parameters.stale_for(age).max(1);
        let found = found(entry, age, CacheStatus::Hit { stale_for })?;
        self.metrics.stale_served(why);
        Ok(found)
    }

    /// Asks the origin, or joins those who do, and waits: at most `wait` from the question's beginning.
    async fn ask(&self, service: &ServiceName, wait: Duration) -> Result<(Answer, bool), LookupError> {
        if let Some(failure) = self.negative.get(service) {
            return Err(failure);
        }
        let seat = self.join(service)?;
        let collapsed = seat.collapsed;
        if collapsed {
            self.metrics.collapsed_asks.inc();
        }
        Ok((within(wait, seat).await?, collapsed))
    }

    /// Has the origin asked while nobody waits for it.
    pub(crate) fn ask_behind(&self, service: &ServiceName) {
        if self.negative.get(service).is_none() {
            // When too many questions are under way, a later request begins it.
            let _ = self.join(service);
        }
    }

    fn is_down(&self, entry: &Entry) -> bool {
        entry.origin.is_some_and(|id| self.origins.all()[id].is_down())
    }

    fn join(&self, service: &ServiceName) -> Result<Seat<Asked>, Full> {
        self.asks.join(service, || self.clone().ask_origin(service.clone()))
    }

    async fn ask_origin(self, service: ServiceName) -> Asked {
        let asked = self.put_the_question(&service).await;
        match &asked {
            Ok(_) => self.negative.forget(&service),
            Err(error) => {
                tracing::debug!(%service, error = %error.reason(), "the origin could not be asked");
                let told = self.table.is_told_of_everything();
                self.negative.remember(service, error.clone(), told);
            }
        }
        asked
    }

    async fn put_the_question(&self, service: &ServiceName) -> Asked {
        let held = self.held(service).await?;
        let at = self.clock.now();
        if let Some(held) = &held {
            held.asked(at);
        }
        let owner = held.as_ref().and_then(|held| held.origin);
        let version = held.as_ref().and_then(|held| held.version.as_ref());
        let tag = version.map(|version| version.values.descriptor_tag.text.as_str());
        let told = Told::Asked(held.as_ref().map_or((0, 0), |held| held.highest));
        let word = self.origins.descriptor(service, owner, tag).await.map_err(LookupError::Origin)?;
        let change = match (word, held) {
            (Word::Unchanged, Some(held)) => {
                held.confirmed(at);
                // A newer one may have come meanwhile.
                return Ok(Answer { entry: self.table.hot(service).unwrap_or(held), status: 304 });
            }
            (Word::Descriptor(origin, descriptor), _) => {
                return self.take(service, origin, descriptor, told, at).await;
            }
            (Word::Absent | Word::Unchanged, _) => {
                Change { origin: owner, told, at, word: Said::Gone(service.clone(), None) }
            }
        };
        match self.table.apply(change).await? {
            // It has appeared while it was asked for.
            Outcome::Held(entry) if entry.version.is_some() => Ok(Answer { entry, status: 200 }),
            _ => Err(LookupError::Absent),
        }
    }

    async fn take(
        &self,
        service: &ServiceName,
        origin: OriginId,
        descriptor: Box<Descriptor>,
        told: Told,
        at: Moment,
    ) -> Asked {
        let (vouch, version) = (self.table.vouch(origin), descriptor.version());
        // Before it is applied, so that the stream, which may tell of it at this moment, finds it noted.
        vouch.found_by_asking(service, version);
        let change = Change { origin: Some(origin), told, at, word: Said::Current(descriptor) };
        let outcome = self.table.apply(change).await;
        if !matches!(outcome, Ok(Outcome::Taken(_) | Outcome::Revised(_))) {
            vouch.told(service, version);
        }
        match outcome? {
            Outcome::Taken(entry) | Outcome::Revised(entry) | Outcome::Held(entry) => Ok(Answer { entry, status: 200 }),
            Outcome::Regressed => Err(LookupError::Regressed),
            Outcome::AnotherOrigins | Outcome::GoneThere | Outcome::NeverHeld => Err(LookupError::Absent),
        }
    }

    fn found_past(&self, past: &PastVersion, age: Duration, status: CacheStatus) -> Found {
        let rule = self.rules.of(&past.version.descriptor().publication().service).clone();
        Found { version: past.version.clone(), origin: Some(past.origin), age, rule, usage: None, status }
    }
}

fn found(entry: &Entry, age: Duration, status: CacheStatus) -> Result<Found, LookupError> {
    let nothing = || if entry.is_unreadable { LookupError::Internal } else { LookupError::Absent };
    let version = entry.version.clone().ok_or_else(nothing)?;
    let (rule, usage) = (entry.rule.clone(), Some(entry.usage.clone()));
    Ok(Found { version, origin: entry.origin, age, rule, usage, status })
}

/// The result of a task, waited for at most `wait` from its beginning.
pub(super) async fn within<T: Clone>(wait: Duration, seat: Seat<Result<T, LookupError>>) -> Result<T, LookupError> {
    let left = wait.saturating_sub(seat.under_way());
    tokio::time::timeout(left, seat.result()).await.map_err(|_| LookupError::TooSlow)??
}
