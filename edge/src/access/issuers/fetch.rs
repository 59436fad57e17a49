//! Fetches the keys of an issuer from its URL.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::Empty;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use weir_protocol::token::{JwkSet, MAX_JWK_SET_BYTES};
use weir_runtime::http_client::{https_client, read_body, root_cause};
use weir_runtime::tls;

use super::super::Inner;

/// How often keys are fetched: a removed key is believed no longer than this.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// How soon a failed fetch is repeated.
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

/// Fetches the keys of one issuer.
pub(super) struct Fetcher {
    pub(super) url: Uri,
    pub(super) ca: PathBuf,
    pub(super) unknown_key: Arc<KeyRequest>,
    /// The fetches of all issuers.
    pub(super) permits: Arc<Semaphore>,
}

impl Fetcher {
    pub(super) async fn run(&self, inner: &Arc<Inner>, position: usize) {
        let mut for_unknown_key: Option<Instant> = None;
        loop {
            let fetched = {
                let _permit = self.permits.acquire().await;
                let fetched = tokio::time::timeout(FETCH_TIMEOUT, fetch(&self.url, &self.ca)).await;
                let fetched = fetched.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {FETCH_TIMEOUT:?}")));
                fetched.with_context(|| format!("cannot fetch the key set {}", self.url))
            };
            let applied = inner.keys_read(position, fetched);
            inner.metrics.key_set_fetches.with_label_values(&[if applied { "applied" } else { "failed" }]).inc();
            let rests_until = for_unknown_key.map_or_else(Instant::now, |last| last + UNKNOWN_KEY_INTERVAL);
            self.unknown_key.rests_until.send_replace(rests_until);
            let pause = if applied { REFRESH_INTERVAL } else { RETRY_INTERVAL };
            // All edges of a fleet would ask at once.
            let pause = pause.mul_f64(fastrand::f64().mul_add(0.2, 0.9));
            let unknown_key = async {
                self.unknown_key.wanted.notified().await;
                if let Some(last) = for_unknown_key {
                    tokio::time::sleep_until(last + UNKNOWN_KEY_INTERVAL).await;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = unknown_key => for_unknown_key = Some(Instant::now()),
            }
        }
    }
}

/// The set at a URL. The authority is read for each fetch: it may have been replaced.
pub(super) async fn fetch(url: &Uri, ca: &Path) -> anyhow::Result<JwkSet> {
    let ca = ca.to_owned();
    let tls = tokio::task::spawn_blocking(move || tls::client_config(&ca, None)).await??;
    let request = Request::get(url.clone())
        .header(header::ACCEPT, "application/jwk-set+json, application/json")
        .header(header::USER_AGENT, concat!("weir-edge/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())?;
    let response = https_client(tls).request(request).await.map_err(|error| anyhow::anyhow!(root_cause(&error)))?;
    let status = response.status();
    ensure!(!status.is_redirection(), "it answers {status}, and redirects are not followed: name the target itself");
    ensure!(status == StatusCode::OK, "it answers {status}");
    Ok(JwkSet::parse(&read_body(response.into_body(), MAX_JWK_SET_BYTES, FETCH_TIMEOUT).await?)?)
}
