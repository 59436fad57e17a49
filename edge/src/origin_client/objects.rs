//! Objects of the cache: which shield or origin is asked for one, and who is next when that fails or is too slow.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, header};
use weir_cache::cdn_loop::CDN_LOOP;
use weir_cache::{Attempt, Fetch, FillError, Filled, OriginId, Slots};
use weir_protocol::route::Route;
use weir_runtime::bounds::Bound;

use super::{MAX_ORIGINS, Origin, Origins, ShieldId, Shields};

/// Fetches objects for the cache.
#[derive(Debug)]
pub(crate) struct ObjectFetcher {
    origins: Arc<Origins>,
    shields: Shields,
    /// The concurrent fills per origin: a slow origin does not block fills from others.
    slots: Vec<Slots>,
    /// The same per shield.
    shield_slots: Vec<Slots>,
}

impl Fetch for ObjectFetcher {
    fn has_shields(&self) -> bool {
        !self.shields.all().is_empty()
    }

    /// The running fills, over all origins and shields.
    fn fills(&self) -> Bound {
        let origins = self.slots.iter().take(self.origins.count());
        let bounds = origins.chain(&self.shield_slots).map(|slots| slots.bound("fills"));
        bounds.fold(("fills", 0, 0), |all, of| ("fills", all.1 + of.1, all.2 + of.2))
    }

    fn fetch<'a>(&'a self, attempt: Attempt<'a>) -> BoxFuture<'a, Result<Filled, FillError>> {
        Box::pin(self.fill_from_any(attempt))
    }
}

impl ObjectFetcher {
    /// `fills`: the most at a time from each origin and shield.
    pub(crate) fn new(origins: Arc<Origins>, shields: Shields, fills: usize) -> Self {
        let slots = (0..MAX_ORIGINS).map(|_| Slots::new(fills)).collect();
        let shield_slots = shields.all().iter().map(|_| Slots::new(fills)).collect();
        Self { origins, shields, slots, shield_slots }
    }

    /// Tries the shields of the object first, then the origins.
    async fn fill_from_any(&self, attempt: Attempt<'_>) -> Result<Filled, FillError> {
        for id in self.shields.of(&attempt.request.digest, &attempt.request.passed) {
            match self.fill_from_shield(id, attempt).await {
                Ok(filled) => return Ok(filled),
                // It has asked the origins, which decide.
                Err(FillError::NotFound) => break,
                Err(error) => tracing::debug!(object = %attempt.request.digest, %error, "a fill from a shield failed"),
            }
        }
        self.fill_from_origins(attempt).await
    }

    /// Tries the owner first, then the others. Only a `404` of the owner's cluster is final.
    async fn fill_from_origins(&self, attempt: Attempt<'_>) -> Result<Filled, FillError> {
        let mut failure = None;
        let order = self.origins.order(attempt.request.origin);
        for (place, &id) in order.iter().enumerate() {
            // A hung owner is not waited for while another member may answer.
            let may_answer =
                |other: &OriginId| self.origins.share_a_cluster(id, *other) && !self.origins.get(*other).is_down();
            let is_last = !order[place + 1..].iter().any(may_answer);
            match self.fill_from_one(id, attempt, is_last).await {
                Ok(filled) => return Ok(filled),
                Err(FillError::NotFound)
                    if attempt.request.origin.is_some_and(|owner| self.origins.share_a_cluster(owner, id)) =>
                {
                    return Err(FillError::NotFound);
                }
                Err(FillError::NotFound) => {}
                Err(error) => {
                    tracing::debug!(object = %attempt.request.digest, %error, "a fill from one origin failed");
                    failure = failure.or(Some(error));
                }
            }
        }
        Err(failure.unwrap_or(FillError::NotFound))
    }

    async fn fill_from_one(&self, id: OriginId, attempt: Attempt<'_>, is_last: bool) -> Result<Filled, FillError> {
        let _slot = self.slots[id].take().await;
        self.request(&self.origins.get(id), attempt, false, is_last).await
    }

    async fn fill_from_shield(&self, id: ShieldId, attempt: Attempt<'_>) -> Result<Filled, FillError> {
        let slots = &self.shield_slots[id];
        // Edges that are shields of each other would wait for each other's slots.
        let _slot = match attempt.request.passed.hops() {
            0 => slots.take().await,
            _ => slots.try_take().ok_or(FillError::TimedOut)?,
        };
        self.request(&self.shields.all()[id], attempt, true, false).await
    }

    /// Requests an object from an origin or a shield. `is_last`: nobody else is asked when it takes long.
    async fn request(
        &self,
        node: &Origin,
        attempt: Attempt<'_>,
        is_shield: bool,
        is_last: bool,
    ) -> Result<Filled, FillError> {
        let request = attempt.request;
        let route = Route::Object(request.repository.clone(), request.digest);
        let mut headers = HeaderMap::from_iter([(CDN_LOOP, self.shields.cdn_loop(&request.passed))]);
        if attempt.no_cache {
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        request.request_id.iter().for_each(|id| id.insert_into(&mut headers));
        attempt.receive(node.object(&route, headers, is_shield, is_last), |bytes| node.received(bytes)).await
    }
}
