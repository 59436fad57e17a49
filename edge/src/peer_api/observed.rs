//! `POST /v1/observed`: what the agents of an edge behind this shield run. It is passed on to all origins, unchanged, and none of
//! it stays here: an origin that lacks something says so, and the edge sends everything again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response, StatusCode};
use tokio::sync::Semaphore;
use weir_cache::OriginError;
use weir_protocol::name::NodeName;
use weir_protocol::observed::{EdgeObserved, MAX_MESSAGE_BYTES, NAME_TWICE};
use weir_protocol::route::Route;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::{Body, Peer, RequestBody};

use super::{Answer, error};
use crate::api_error::ApiError;
use crate::origin_client::Origins;

/// How long an origin may take. An edge waits for the shield a little longer.
const ORIGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages of edges that are passed on at a time.
const CONCURRENT_MESSAGES: usize = 32;

/// Passes on what edges say that agents run.
pub(crate) struct Reports {
    origins: Arc<Origins>,
    /// The name of this edge among those with its identity.
    name: Option<NodeName>,
    permits: Semaphore,
}

impl Reports {
    pub(crate) fn new(origins: Arc<Origins>, name: Option<NodeName>) -> Self {
        Self { origins, name, permits: Semaphore::new(CONCURRENT_MESSAGES) }
    }

    pub(super) fn bound(&self) -> Bound {
        let in_use = CONCURRENT_MESSAGES - self.permits.available_permits();
        ("peer_messages", in_use as u64, CONCURRENT_MESSAGES as u64)
    }

    pub(super) async fn pass_on(&self, request: &mut Request<RequestBody>, peer: &Peer) -> Answer {
        let _permit = self.permits.try_acquire().map_err(|_| error::too_many_messages())?;
        let body = std::mem::replace(request.body_mut(), RequestBody::Empty).read(MAX_MESSAGE_BYTES).await;
        let body = body.map_err(ApiError::from)?;
        let named = EdgeObserved::identity_in(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
        if peer.identity.as_ref().is_none_or(|identity| identity.name != named) {
            return Err(error::not_this_edge(&named));
        }
        let in_use = self.origins.all().filter(|(id, _)| self.origins.is_in_use(*id));
        let answers = join_all(in_use.map(|(_, origin)| {
            let body = body.clone();
            async move {
                // Without a certificate of an edge no origin listens.
                let shield = self.name.clone().or_else(|| origin.edge_name()).ok_or(OriginError::NotFound)?;
                let path = Route::ObservedVia(shield).to_string();
                let answer = tokio::time::timeout(ORIGIN_TIMEOUT, origin.observed(&path, body)).await;
                let timed_out = || OriginError::TimedOut { origin: origin.name().to_owned(), after: ORIGIN_TIMEOUT };
                answer.unwrap_or_else(|_| Err(timed_out()))
            }
        }));
        told(&answers.await)
    }
}

/// What the edge is told. Pure.
fn told(answers: &[Result<bool, OriginError>]) -> Answer {
    let is_named_twice = |answer: &Result<bool, OriginError>| matches!(answer, Err(OriginError::Refused { kind, .. }) if kind == NAME_TWICE);
    if answers.contains(&Ok(false)) {
        return Err(ApiError::ObservedResync.into());
    }
    if answers.contains(&Ok(true)) {
        let mut response = Response::new(Body::Empty);
        *response.status_mut() = StatusCode::NO_CONTENT;
        return Ok(response);
    }
    // No origin of the release before understands it: an edge tries again after ten minutes, as with such an origin itself.
    if !answers.is_empty() && answers.iter().all(|answer| matches!(answer, Err(OriginError::NotFound))) {
        return Err(ApiError::NoSuchPath.into());
    }
    Err(if answers.iter().any(is_named_twice) { error::name_twice() } else { error::not_passed_on() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_origin_that_lacks_something_gets_it_and_one_that_has_it_is_enough() {
        let refused = |kind: &str| {
            Err(OriginError::Refused { status: 429, kind: kind.to_owned(), detail: String::new(), retry_after: None })
        };
        let (gone, twice, full) = (Err(OriginError::NotFound), refused(NAME_TWICE), refused("limit-reached"));
        for (answers, expected) in [
            (vec![Ok(true), Ok(false), gone.clone()], 409),
            (vec![Ok(true), gone.clone(), twice.clone()], 204),
            (vec![full.clone(), twice], 429),
            (vec![gone.clone(), full], 503),
            (vec![gone.clone(), gone], 404),
            (vec![], 503),
        ] {
            let status = told(&answers).map_or_else(|problem| problem.status(), |response| response.status());
            assert_eq!(status, expected, "{answers:?}");
        }
    }
}
