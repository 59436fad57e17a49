//! Signed heartbeats, passed on: what an origin signed last, with one service's place in it.
//!
//! An edge has no say in them and no key for them. It asks once for all its readers, and not again for a few seconds; a
//! reader sees by the time in it that it is not held back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use weir_shared::cache_status::{CacheStatus, Forward};
use weir_shared::name::ServiceName;
use weir_shared::process::bounds::Bound;
use weir_shared::process::shutdown::Drain;

use super::error::LookupError;
use super::lookup::{Demand, FIRST_WORD_WAIT, Lookup, MAX_ASKS, within};
use crate::clock::{Clock, Moment};
use crate::origin_client::{OriginError, OriginId, Origins};
use crate::single_flight::SingleFlight;

/// How long one is passed on. Origins sign each minute, and readers believe what is some minutes old.
const KEPT: Duration = Duration::from_secs(10);

/// The memory that they may take, in bytes. One has a kilobyte or two.
const MAX_KEPT_BYTES: u64 = 32 << 20;

/// What one takes besides its bytes, about.
const OVERHEAD: usize = 256;

/// What an origin said last, `None` where it signed nothing with the service in it, and since when it is known.
type Said = (Option<Bytes>, Moment);

/// A signed heartbeat with a service's place in it.
pub(crate) struct Standing {
    /// As its origin wrote it; `None`: there is none.
    pub(crate) bytes: Option<Bytes>,
    /// Since its origin was asked.
    pub(crate) age: Duration,
    pub(crate) status: CacheStatus,
}

/// Asks for them.
#[derive(Clone)]
pub(crate) struct Standings {
    lookup: Lookup,
    origins: Arc<Origins>,
    kept: Cache<ServiceName, Said>,
    asks: SingleFlight<ServiceName, Result<Said, LookupError>>,
    clock: Clock,
}

impl Standings {
    pub(crate) fn new(lookup: Lookup, origins: Arc<Origins>, clock: Clock, drain: &Drain) -> Self {
        let weigh = |_: &ServiceName, (bytes, _): &Said| {
            u32::try_from(OVERHEAD + bytes.as_ref().map_or(0, Bytes::len)).unwrap_or(u32::MAX)
        };
        let kept = Cache::builder().max_capacity(MAX_KEPT_BYTES).weigher(weigh).time_to_live(KEPT).build();
        Self { lookup, origins, kept, asks: SingleFlight::new(MAX_ASKS, drain), clock }
    }

    /// That of a service.
    ///
    /// # Errors
    /// There is no such service, or its origin cannot be asked.
    pub(crate) async fn find(&self, service: &ServiceName) -> Result<Standing, LookupError> {
        let found = self.lookup.find(service, Demand::Normal).await?;
        if let Some((bytes, since)) = self.kept.get(service) {
            let age = self.clock.now().since(since);
            return Ok(Standing { bytes, age, status: CacheStatus::Hit { stale_for: 0 } });
        }
        // Its origin is none of this edge's any more, until another one speaks for it.
        let owner = found.origin.ok_or(LookupError::Absent)?;
        let seat = self.asks.join(service, || self.clone().ask(service.clone(), owner))?;
        let collapsed = seat.collapsed;
        let (bytes, since) = within(FIRST_WORD_WAIT, seat).await?;
        let status = if bytes.is_some() { 200 } else { 404 };
        let status = CacheStatus::Forwarded { why: Forward::Miss, status: Some(status), stored: true, collapsed };
        Ok(Standing { bytes, age: self.clock.now().since(since), status })
    }

    /// What is used of each bound, and the bound.
    pub(crate) fn bounds(&self) -> [Bound; 2] {
        [
            ("heartbeat_questions", self.asks.len() as u64, MAX_ASKS as u64),
            ("heartbeat_bytes", self.kept.weighted_size(), MAX_KEPT_BYTES),
        ]
    }

    async fn ask(self, service: ServiceName, owner: OriginId) -> Result<Said, LookupError> {
        let since = self.clock.now();
        let bytes = match self.origins.standing(&service, owner).await {
            Ok(bytes) => Some(bytes),
            Err(OriginError::NotFound) => None,
            Err(error) => return Err(LookupError::Origin(error)),
        };
        self.kept.insert(service, (bytes.clone(), since));
        Ok((bytes, since))
    }
}
