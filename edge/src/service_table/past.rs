//! Versions of services that are not the current ones: asked for by their digest, and remembered.

use std::sync::Arc;

use moka::sync::Cache;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;
use weir_shared::process::bounds::Bound;
use weir_shared::process::shutdown::Drain;

use super::entry::{Entry, PurgeMode};
use super::error::LookupError;
use super::lookup::{FIRST_WORD_WAIT, MAX_ASKS, within};
use super::missed::Order;
use super::negative::Negative;
use super::table::Table;
use crate::clock::{Clock, Moment};
use crate::origin_client::{OriginId, Origins, Word};
use crate::single_flight::SingleFlight;
use crate::version::Version;

/// The memory that their descriptors may take, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// A version that is not the current one, with its origin.
#[derive(Debug)]
pub(super) struct PastVersion {
    pub(super) version: Arc<Version>,
    pub(super) origin: OriginId,
    /// When its origin was asked for it.
    pub(super) since: Moment,
}

type Key = (ServiceName, TarballDigest);

/// A version that its origin does not have may be there again once the service has a newer word, so that is part of it.
type Question = (Key, Option<Order>);

/// The past versions. Cheap to clone.
#[derive(Clone)]
pub(super) struct PastVersions {
    held: Cache<Key, Arc<PastVersion>>,
    asks: SingleFlight<Key, Result<Arc<PastVersion>, LookupError>>,
    negative: Negative<Question>,
    table: Arc<Table>,
    origins: Arc<Origins>,
    clock: Clock,
}

impl PastVersions {
    pub(super) fn new(table: Arc<Table>, origins: Arc<Origins>, clock: Clock, drain: &Drain) -> Self {
        let weigh = |_: &_, past: &Arc<PastVersion>| {
            // What is read of a descriptor takes about as much again as its bytes.
            u32::try_from(1024 + 2 * past.version.descriptor().bytes().len()).unwrap_or(u32::MAX)
        };
        let held = Cache::builder().max_capacity(MAX_BYTES).weigher(weigh).build();
        let (asks, negative) = (SingleFlight::new(MAX_ASKS, drain), Negative::new());
        Self { held, asks, negative, table, origins, clock }
    }

    pub(super) fn get(&self, service: &ServiceName, digest: &TarballDigest) -> Option<Arc<PastVersion>> {
        self.held.get(&(service.clone(), *digest))
    }

    /// Those of the services and digests that are `wanted`, without using them.
    pub(super) fn held(&self, wanted: impl Fn(&ServiceName, &TarballDigest) -> bool) -> Vec<Arc<Version>> {
        // An iterator, unlike `get`, does not count as a use.
        let all = self.held.iter();
        all.filter(|(key, _)| wanted(&key.0, &key.1)).map(|(_, past)| past.version.clone()).collect()
    }

    /// Asks the origin, or joins those who do; and whether it was the latter. `entry`: what is known of the service.
    /// `again`: what went wrong before does not count.
    ///
    /// # Errors
    /// There is no such version, or its origin cannot be asked.
    pub(super) async fn ask(
        &self,
        service: &ServiceName,
        digest: &TarballDigest,
        entry: Option<&Entry>,
        again: bool,
    ) -> Result<(Arc<PastVersion>, bool), LookupError> {
        let key = (service.clone(), *digest);
        let question = (key.clone(), entry.map(|entry| entry.highest));
        if !again && let Some(failure) = self.negative.get(&question) {
            return Err(failure);
        }
        let owner = entry.and_then(|entry| entry.origin);
        let seat = self.asks.join(&key, || self.clone().ask_origin(question, owner))?;
        let collapsed = seat.collapsed;
        Ok((within(FIRST_WORD_WAIT, seat).await?, collapsed))
    }

    /// Keeps a version that its origin gave at this moment.
    pub(super) fn keep(&self, origin: OriginId, descriptor: Descriptor, since: Moment) -> Arc<PastVersion> {
        let publication = descriptor.publication();
        let key = (publication.service.clone(), publication.digest);
        let past = Arc::new(PastVersion { version: Arc::new(Version::new(descriptor)), origin, since });
        self.held.insert(key, past.clone());
        past
    }

    /// Forgets what failed of a service, and, as the mode says, its versions.
    pub(super) fn purge(&self, service: &ServiceName, mode: PurgeMode) {
        let failed = self.negative.all().into_keys().filter(|((name, _), _)| name == service);
        failed.for_each(|question| self.negative.forget(&question));
        if mode == PurgeMode::Hard {
            for version in self.held(|name, _| name == service) {
                self.held.invalidate(&(service.clone(), version.descriptor().publication().digest));
            }
        }
    }

    /// What is used of each bound, and the bound.
    pub(super) fn bounds(&self) -> [Bound; 3] {
        let (remembered, most) = self.negative.fill_level();
        [
            ("version_questions", self.asks.len() as u64, MAX_ASKS as u64),
            ("remembered_version_failures", remembered, most),
            ("past_version_bytes", self.held.weighted_size(), MAX_BYTES),
        ]
    }

    async fn ask_origin(self, question: Question, owner: Option<OriginId>) -> Result<Arc<PastVersion>, LookupError> {
        let since = self.clock.now();
        let (service, digest) = &question.0;
        let error = match self.origins.version(service, digest, owner).await {
            Ok(Word::Descriptor(origin, descriptor)) => return Ok(self.keep(origin, *descriptor, since)),
            Ok(Word::Absent | Word::Unchanged) => LookupError::Absent,
            Err(error) => LookupError::Origin(error),
        };
        self.negative.remember(question, error.clone(), self.table.is_told_of_everything());
        Err(error)
    }
}
