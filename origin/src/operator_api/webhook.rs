//! Webhook deliveries. They carry no token; their signature authenticates them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::Semaphore;
use weir_protocol::name::RepositoryName;
use weir_protocol::problem::Problem;
use weir_runtime::admin;
use weir_runtime::bounds::Bounds;
use weir_runtime::serve::{Body, Handler, Peer, RequestBody, RequestBodyError, SourceLimit, SourcePermit};

use super::OperatorApi;
use super::metrics::OperatorMetrics;
use super::problems::{self, SOON};
use super::route::Route;
use crate::catalog::Catalog;
use crate::webhook::{Delivery, DeliveryResult, Provider, Secret};

/// The longest body in bytes, equal to GitHub's limit.
const MAX_BODY_BYTES: usize = 25 << 20;

/// The time limit of a delivery: the wait for a slot, the body and the check of the signature. So a sender without the secret
/// cannot hold a slot for long.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait for a slot. Providers wait about ten seconds, and most do not retry.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);

/// The most concurrent deliveries for any repository, of at most 1 MiB of memory each.
const MAX_DELIVERIES: usize = 48;

/// The slots beyond [`MAX_DELIVERIES`] for repositories of which a delivery was authentic since the start: one at a time for
/// each. Deliveries for other names cannot take them.
const RESERVED_DELIVERIES: usize = 16;

/// The most concurrent deliveries from one source address.
const MAX_DELIVERIES_PER_SOURCE: usize = 8;

/// The shortest interval between two log lines on an unreadable secret.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The longest secret file in bytes.
const MAX_SECRET_BYTES: u64 = 4096;

/// Receives deliveries. Clones are cheap.
#[derive(Clone)]
pub(super) struct Webhooks {
    catalog: Arc<Catalog>,
    slots: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    sources: SourceLimit,
    /// The repositories of which a delivery was authentic, each with its permit for a reserved slot.
    verified: Arc<Mutex<HashMap<RepositoryName, Arc<Semaphore>>>>,
    metrics: OperatorMetrics,
    /// The last log line on an unreadable secret. Limited, because anyone can send a delivery.
    last_logged: Arc<Mutex<Option<Instant>>>,
}

/// An unreadable secret file, and the error.
type UnreadableFile = (PathBuf, io::Error);

impl Webhooks {
    pub(super) fn new(catalog: Arc<Catalog>, metrics: OperatorMetrics, bounds: &Bounds) -> Self {
        Self {
            catalog,
            slots: bounds.semaphore("deliveries", MAX_DELIVERIES),
            reserved: bounds.semaphore("reserved_deliveries", RESERVED_DELIVERIES),
            sources: SourceLimit::new(MAX_DELIVERIES_PER_SOURCE),
            verified: Arc::default(),
            metrics,
            last_logged: Arc::default(),
        }
    }

    /// Admits a delivery from an address, until the permit is dropped.
    ///
    /// # Errors
    /// The source has too many deliveries in progress.
    pub(super) fn admit(&self, provider: Provider, from: SocketAddr) -> Result<SourcePermit, Problem> {
        self.sources.admit(from).ok_or_else(|| {
            self.metrics.delivered(provider, "source_limited");
            too_many(format!(
                "Too many webhook deliveries from this address are in progress: at most {MAX_DELIVERIES_PER_SOURCE}."
            ))
        })
    }

    /// Waits for a slot, also for a reserved one if a delivery for the repository was authentic before.
    async fn slot(&self, name: &RepositoryName) -> Option<impl Sized> {
        let verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        let reserved = async {
            let own = verified?.acquire_owned().await.ok()?;
            Some((self.reserved.clone().acquire_owned().await.ok()?, Some(own)))
        };
        let any = async { Some((self.slots.clone().acquire_owned().await.ok()?, None)) };
        tokio::select! {
            biased;
            slot = any => slot,
            Some(slot) = reserved => Some(slot),
        }
    }

    /// Receives a delivery for a repository, and triggers a poll if it reports a followed ref.
    pub(super) async fn take(
        &self,
        provider: Provider,
        name: &RepositoryName,
        headers: &HeaderMap,
        body: RequestBody,
    ) -> Result<Response<Body>, Problem> {
        let taken = tokio::time::timeout(DELIVERY_TIMEOUT, self.verify(provider, name, headers, body)).await;
        let taken = taken.unwrap_or_else(|_| Err(Problem::body_too_slow()));
        let result = match &taken {
            Ok(result) => result.as_str(),
            // Only a delivery that finds no slot has this status.
            Err(problem) if problem.status() == StatusCode::TOO_MANY_REQUESTS => "overloaded",
            Err(_) => "unread",
        };
        self.metrics.delivered(provider, result);
        match taken? {
            // The same answer for a wrong signature, a missing secret and an unknown repository.
            DeliveryResult::Refused => {
                let detail = "The signature or the secret is wrong or missing, the repository does not exist, or it has no `webhook_secret_files`.";
                Err(Problem::new(StatusCode::UNAUTHORIZED, "webhook-refused", "The delivery is refused", detail))
            }
            result => {
                if let DeliveryResult::TriggerPoll { refs, revisions } = &result {
                    let first = refs.first().map(|name| name.chars().take(200).collect::<String>());
                    tracing::info!(repository = %name, %provider, refs = refs.len(), first, "a webhook triggers a poll");
                    if let Some(worker) = self.catalog.repository(name) {
                        worker.expect(refs, revisions);
                        worker.trigger_poll();
                    }
                }
                let mut response = admin::json(&json!({ "repository": name, "result": result.as_str() }));
                *response.status_mut() = StatusCode::ACCEPTED;
                Ok(response)
            }
        }
    }

    fn log_unreadable(&self, repository: &RepositoryName, unread: Option<UnreadableFile>) {
        let Some((file, error)) = unread else { return };
        if is_due(&mut self.last_logged.lock().unwrap_or_else(PoisonError::into_inner), Instant::now()) {
            tracing::warn!(%repository, file = %file.display(), %error, "a webhook's secret file cannot be read");
        }
    }

    async fn verify(
        &self,
        provider: Provider,
        name: &RepositoryName,
        headers: &HeaderMap,
        mut body: RequestBody,
    ) -> Result<DeliveryResult, Problem> {
        if !Delivery::has_proof(provider, headers) {
            return Ok(DeliveryResult::Refused);
        }
        let slot = tokio::time::timeout(SLOT_TIMEOUT, self.slot(name)).await;
        let _slot =
            slot.ok().flatten().ok_or_else(|| too_many("Too many webhook deliveries are in progress.".to_owned()))?;
        // An unknown repository has no secrets, and is answered like a wrong signature.
        let config = self.catalog.repository(name).map(|worker| worker.config());
        let read = move || config.map(|config| read(&config.webhook_secret_files)).unwrap_or_default();
        let (secrets, unread) = tokio::task::spawn_blocking(read).await.map_err(problems::failed)?;
        self.log_unreadable(name, unread);
        let mut delivery = Delivery::begin(provider, headers, &secrets);
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| RequestBodyError::BrokeOff)?;
            if let Ok(data) = frame.into_data() {
                length += data.len();
                if length > MAX_BODY_BYTES {
                    return Err(RequestBodyError::TooLong(MAX_BODY_BYTES).into());
                }
                delivery.push(&data);
            }
        }
        let snapshot = self.catalog.snapshot();
        let followers = || snapshot.services.values().flat_map(|each| each.followers());
        let followers = || followers().filter(|each| each.repository == *name);
        let result = delivery.finish(|moved| followers().any(|each| each.followed.may_follow(moved)));
        if result != DeliveryResult::Refused {
            let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
            verified.entry(name.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        }
        Ok(result)
    }
}

fn too_many(detail: String) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", "Too many deliveries at once", detail).retry_after(SOON)
}

/// Whether a line may be logged again.
fn is_due(last_logged: &mut Option<Instant>, now: Instant) -> bool {
    let is_due = last_logged.is_none_or(|last_logged| now.duration_since(last_logged) >= LOG_EVERY);
    if is_due {
        *last_logged = Some(now);
    }
    is_due
}

/// Reads the secrets now. Unreadable files are skipped, because another one may match; the last of them is returned.
fn read(files: &[PathBuf]) -> (Vec<Secret>, Option<UnreadableFile>) {
    use std::io::Read;
    let mut unread = None;
    let mut read = |file: &PathBuf| {
        let mut bytes = Vec::new();
        let read = std::fs::File::open(file).and_then(|file| file.take(MAX_SECRET_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => Secret::from_file(&bytes),
            Err(error) => {
                unread = Some((file.clone(), error));
                None
            }
        }
    };
    let secrets = files.iter().filter_map(&mut read).collect();
    (secrets, unread)
}

/// The handler of a listener for webhooks alone. Clones are cheap.
#[derive(Clone)]
pub(crate) struct WebhookApi(pub(crate) OperatorApi);

impl Handler for WebhookApi {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if Route::is_of_webhooks(request.uri().path()) {
            return self.0.handle(request, peer).await;
        }
        Problem::no_such_path().into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_delivery_is_logged_once_per_interval() {
        let (mut last_logged, begun) = (None, Instant::now());
        let due: Vec<bool> =
            (0..=121).map(|second| is_due(&mut last_logged, begun + Duration::from_secs(second))).collect();
        let times: Vec<usize> = (0..due.len()).filter(|at| due[*at]).collect();
        assert_eq!(times, [0, 60, 120]);
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_passed_over_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let (absent, there) = (dir.path().join("absent"), dir.path().join("there"));
        std::fs::write(&there, "a secret").unwrap();
        let (secrets, unread) = read(&[absent.clone(), there]);
        assert_eq!((secrets.len(), unread.unwrap().0), (1, absent));
    }
}
