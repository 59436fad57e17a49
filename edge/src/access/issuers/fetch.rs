//! Fetches the keys of an issuer from its URL.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::Empty;
use rustls::ClientConfig;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use weir_protocol::issuer::KeysAt;
use weir_protocol::token::{JwkSet, MAX_JWK_SET_BYTES};
use weir_runtime::http_client::{https_client, read_body, root_cause};
use weir_runtime::tls::{self, TlsError};

/// How often keys are fetched: a removed key is believed no longer than this.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// How soon a failed fetch is repeated; twice as long after each further failure, up to [`REFRESH_INTERVAL`].
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The shortest time between two fetches for unknown keys.
const UNKNOWN_KEY_INTERVAL: Duration = Duration::from_secs(60);

/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests a fetch of the keys of one issuer, for a token whose key is not among them.
#[derive(Debug)]
pub(crate) struct KeyRequest {
    wanted: Notify,
    /// Until then no request causes a fetch. Sent at the end of each fetch.
    rests_until: watch::Sender<Instant>,
}

impl Default for KeyRequest {
    fn default() -> Self {
        Self { wanted: Notify::new(), rests_until: watch::Sender::new(Instant::now()) }
    }
}

impl KeyRequest {
    /// A token has an unknown key.
    pub(super) fn notify(&self) {
        self.wanted.notify_one();
    }

    /// Waits for the end of the next fetch; not at all while requests cause none.
    pub(in crate::access) async fn answered(&self) {
        let mut rests_until = self.rests_until.subscribe();
        if *rests_until.borrow_and_update() <= Instant::now() {
            // The sender is `self`.
            let _ = rests_until.changed().await;
        }
    }

    #[cfg(test)]
    pub(super) async fn notified(&self) {
        self.wanted.notified().await;
    }
}

/// Where the keys of an issuer are fetched.
#[derive(Debug, Clone)]
pub(super) enum Location {
    /// As the configuration says: a URL, and the file of its host's authority.
    OfFile(Uri, PathBuf),
    /// As an origin says.
    OfOrigin(Arc<KeysAt>),
}

impl Location {
    fn url(&self) -> &Uri {
        match self {
            Self::OfFile(url, _) => url,
            Self::OfOrigin(keys) => &keys.url,
        }
    }

    /// Blocks.
    fn tls(&self) -> Result<ClientConfig, TlsError> {
        match self {
            Self::OfFile(_, ca) => tls::client_config(ca, None),
            Self::OfOrigin(keys) => tls::client_config_of_text(&keys.ca, "`jwks.ca`"),
        }
    }
}

/// Fetches the keys of one issuer again and again.
pub(super) struct Fetcher {
    location: Location,
    unknown_key: Arc<KeyRequest>,
    /// The fetches of all issuers of the configuration, or of origins.
    permits: Arc<Semaphore>,
    /// Before the next fetch; the first is at once.
    pause: Option<Duration>,
    /// After the next failure.
    retry: Duration,
    for_unknown_key: Option<Instant>,
}

impl Fetcher {
    pub(super) fn new(location: Location, unknown_key: Arc<KeyRequest>, permits: Arc<Semaphore>) -> Self {
        Self { location, unknown_key, permits, pause: None, retry: RETRY_INTERVAL, for_unknown_key: None }
    }

    /// Waits until the keys are due, and fetches them. [`applied`](Self::applied) follows.
    pub(super) async fn next(&mut self) -> anyhow::Result<JwkSet> {
        if let Some(pause) = self.pause.take() {
            let unknown_key = async {
                self.unknown_key.wanted.notified().await;
                if let Some(last) = self.for_unknown_key {
                    tokio::time::sleep_until(last + UNKNOWN_KEY_INTERVAL).await;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = unknown_key => self.for_unknown_key = Some(Instant::now()),
            }
        }
        // Boxed, so that a task that waits is small.
        Box::pin(self.fetch_once()).await
    }

    /// What was fetched is in use, or not.
    pub(super) fn applied(&mut self, is_applied: bool) {
        let rests_until = self.for_unknown_key.map_or_else(Instant::now, |last| last + UNKNOWN_KEY_INTERVAL);
        self.unknown_key.rests_until.send_replace(rests_until);
        let pause = if is_applied { REFRESH_INTERVAL } else { self.retry };
        self.retry = if is_applied { RETRY_INTERVAL } else { (self.retry * 2).min(REFRESH_INTERVAL) };
        // All edges of a fleet would ask at once.
        self.pause = Some(pause.mul_f64(fastrand::f64().mul_add(0.2, 0.9)));
    }

    async fn fetch_once(&self) -> anyhow::Result<JwkSet> {
        let _permit = self.permits.acquire().await;
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(&self.location)).await;
        let fetched = fetched.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {FETCH_TIMEOUT:?}")));
        fetched.with_context(|| format!("cannot fetch the key set {}", self.location.url()))
    }
}

/// The set at a URL. The authority is read for each fetch: it may have been replaced.
pub(super) async fn fetch(location: &Location) -> anyhow::Result<JwkSet> {
    let trusting = location.clone();
    let tls = tokio::task::spawn_blocking(move || trusting.tls()).await??;
    let request = Request::get(location.url().clone())
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, concat!("weir-edge/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())?;
    let response = https_client(tls).request(request).await.map_err(|error| anyhow::anyhow!(root_cause(&error)))?;
    let status = response.status();
    ensure!(!status.is_redirection(), "it answers {status}, and redirects are not followed: name the target itself");
    ensure!(status == StatusCode::OK, "it answers {status}");
    Ok(JwkSet::parse(&read_body(response.into_body(), MAX_JWK_SET_BYTES, FETCH_TIMEOUT).await?)?)
}
