//! Polls the edges for one service: HEAD, and GET when something changed. Writes to `incoming` only.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use tokio::sync::Semaphore;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use super::dictionary::Dictionaries;
use super::error::{AllEdgesFailed, PollError};
use crate::config::Config;
use crate::edge_client::{Edge, EdgeClient, Protocol, RequestError, Response, ResponseBody, TarballRequest};
use crate::fetch::{
    Coding, FetchError, InvalidHeader, Tarball, TarballHeaders, coding, fetch, is_delta, problem_detail, retry_after,
};
use crate::metrics::{Metrics, ServiceMetrics};

/// The state of a service on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LocalState {
    pub(crate) digest: Option<TarballDigest>,
    pub(crate) highest_generation: u64,
    /// A verified tarball that could not be unpacked: polls do not fetch it again.
    pub(crate) rejected: Option<TarballDigest>,
}

/// The result of a poll.
pub(crate) enum PollResult {
    Unchanged(TarballHeaders),
    /// A verified tarball: a new one after a poll, any after a refresh.
    Fetched(Tarball, TarballHeaders),
}

/// Polls the edges for one service.
pub(crate) struct Poller {
    pub(crate) service: ServiceName,
    pub(crate) edges: Arc<EdgeClient>,
    pub(crate) incoming: PathBuf,
    pub(crate) max_tarball_bytes: u64,
    pub(crate) request_timeout: Duration,
    pub(crate) fetch_timeout: Duration,
    /// Limits the concurrent downloads of all services.
    pub(crate) downloads: Arc<Semaphore>,
    pub(crate) dictionaries: Dictionaries,
    pub(crate) metrics: Metrics,
    pub(crate) service_metrics: ServiceMetrics,
}

impl Poller {
    pub(crate) fn new(
        service: ServiceName,
        config: &Config,
        edges: Arc<EdgeClient>,
        downloads: Arc<Semaphore>,
        dictionaries: Dictionaries,
        metrics: Metrics,
    ) -> Self {
        Self {
            edges,
            incoming: dictionaries.directory.incoming(),
            dictionaries,
            max_tarball_bytes: config.max_tarball_bytes.as_u64(),
            request_timeout: config.request_timeout,
            fetch_timeout: config.fetch_timeout,
            downloads,
            service_metrics: metrics.service(&service),
            metrics,
            service,
        }
    }

    /// Tries the edges in turn until one gives a usable response. `refresh`: fetch in any case.
    ///
    /// # Errors
    /// The errors of all edges.
    pub(crate) async fn run(&self, local: LocalState, refresh: bool) -> Result<(PollResult, Protocol), AllEdgesFailed> {
        let (mut errors, mut retry_after, mut edge_failed) = (Vec::new(), None, false);
        let edges = self.edges.current();
        for edge in edges.in_order() {
            let result = if refresh { self.get(edge, local, true).await } else { self.poll(edge, local).await };
            match result {
                Ok(found) => {
                    // The preference is shared by all services, so an error about this service alone does not change
                    // it.
                    if edge_failed {
                        edges.prefer(edge);
                    }
                    return Ok(found);
                }
                Err(error) => {
                    self.metrics.attempt_failed(error.kind());
                    tracing::debug!(service = %self.service, edge = %edge.url(), %error, "a poll of an edge failed");
                    edge_failed |= error.is_edge_failure();
                    retry_after = retry_after.max(error.retry_after());
                    errors.push((edge.url().clone(), error));
                }
            }
        }
        Err(AllEdgesFailed { errors, retry_after })
    }

    async fn poll(&self, edge: &Edge, local: LocalState) -> Result<(PollResult, Protocol), PollError> {
        // Without a release the tarball is needed in any case.
        if local.digest.is_some() || local.rejected.is_some() {
            let mut response = edge.send(&self.tarball_request(Method::HEAD, local.digest, false)).await?;
            if needs_problem_body(response.status) {
                // A response to HEAD has no body: a GET gets the problem document.
                response = edge.send(&self.tarball_request(Method::GET, local.digest, false)).await?;
            }
            let (status, protocol) = (response.status, response.protocol);
            let (answer, _) = self.answer(edge, response, local).await?;
            let offered = match status {
                // A `304` without a digest confirms the digest of the request.
                StatusCode::NOT_MODIFIED if answer.digest.is_none() => local.digest,
                StatusCode::NOT_MODIFIED if answer.digest != local.digest => {
                    return Err(InvalidHeader("weir-digest").into());
                }
                _ => Some(answer.require_digest()?),
            };
            if offered.is_some() && offered == local.digest {
                return Ok((PollResult::Unchanged(answer), protocol));
            }
            if offered.is_some() && offered == local.rejected {
                return Err(PollError::RejectedBefore);
            }
        }
        self.get(edge, local, false).await
    }

    /// Fetches the tarball. When it fails to verify, it is requested once more, bypassing all caches.
    async fn get(&self, edge: &Edge, local: LocalState, no_cache: bool) -> Result<(PollResult, Protocol), PollError> {
        let _permit = self.downloads.acquire().await.expect("the semaphore is never closed");
        match self.download(edge, local, no_cache).await {
            Err(PollError::Fetch(error)) if error.is_corrupt() => {
                self.service_metrics.verify_failures.inc();
                tracing::warn!(service = %self.service, edge = %edge.url(), %error, "a tarball failed to verify; fetching it again past all caches");
                let second = self.download(edge, local, true).await;
                if matches!(&second, Err(PollError::Fetch(error)) if error.is_corrupt()) {
                    self.service_metrics.verify_failures.inc();
                }
                second
            }
            done => done,
        }
    }

    /// Downloads a tarball, or a delta if an edge has one. A body that stalls over HTTP/3 is requested again over HTTP/2,
    /// and a delta that is of no use as a whole tarball.
    async fn download(
        &self,
        edge: &Edge,
        local: LocalState,
        no_cache: bool,
    ) -> Result<(PollResult, Protocol), PollError> {
        let mut tarball_request = self.tarball_request(Method::GET, None, no_cache);
        let mut accepts_delta = !no_cache;
        loop {
            let offered = if accepts_delta { self.dictionaries.offer().await } else { None };
            tarball_request.dictionary = offered.as_ref().map(|offered| offered.sha256);
            let response = edge.send(&tarball_request).await?;
            let (protocol, headers) = (response.protocol, response.headers.clone());
            let (answer, body) = self.answer(edge, response, local).await?;
            let digest = answer.require_digest()?;
            let coding = match offered.filter(|_| is_delta(&headers)) {
                Some(offered) => match self.dictionaries.rebuild(offered).await {
                    Some(dictionary) => Coding::Dcz(dictionary),
                    None => {
                        tracing::info!(service = %self.service, "the release on disk was changed: a delta is of no use");
                        self.metrics.delta("modified");
                        accepts_delta = false;
                        continue;
                    }
                },
                None => coding(&headers)?,
            };
            let is_delta = matches!(coding, Coding::Dcz(_));
            let fetched = fetch(body, coding, digest, self.incoming.clone(), self.max_tarball_bytes, &self.metrics);
            match fetched.await {
                Ok(tarball) => {
                    if is_delta {
                        self.metrics.delta("applied");
                    }
                    return Ok((PollResult::Fetched(tarball, answer), protocol));
                }
                // Other errors say nothing about UDP.
                Err(FetchError::Request(error @ RequestError::Silent(_)))
                    if protocol == Protocol::H3 && !tarball_request.avoid_http3 =>
                {
                    let (service, edge) = (&self.service, edge.url());
                    tracing::debug!(%service, %edge, %error, "a download over HTTP/3 stalled");
                    tarball_request.avoid_http3 = true;
                }
                Err(error) if is_delta => {
                    let error = error.of_delta();
                    if error.is_corrupt() {
                        self.metrics.delta("refused");
                    }
                    return Err(error.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn tarball_request(
        &self,
        method: Method,
        if_none_match: Option<TarballDigest>,
        no_cache: bool,
    ) -> TarballRequest<'_> {
        let timeout = if method == Method::HEAD { self.request_timeout } else { self.fetch_timeout };
        let (service, dictionary) = (&self.service, None);
        TarballRequest { service, method, if_none_match, no_cache, dictionary, timeout, avoid_http3: false }
    }

    /// Checks the status and the headers of a response, and that its generation is not lower than one seen before.
    async fn answer(
        &self,
        edge: &Edge,
        response: Response,
        local: LocalState,
    ) -> Result<(TarballHeaders, ResponseBody), PollError> {
        if response.status == StatusCode::UNAUTHORIZED {
            let detail = problem_detail(&response.headers, response.body).await;
            return Err(PollError::Unauthorized { detail, advice: advice(edge.token_file()) });
        }
        if !matches!(response.status, StatusCode::OK | StatusCode::NOT_MODIFIED) {
            return Err(PollError::Status {
                status: response.status,
                retry_after: retry_after(&response.headers),
                detail: problem_detail(&response.headers, response.body).await,
            });
        }
        let answer = TarballHeaders::of(&response.headers)?;
        if answer.generation < local.highest_generation {
            self.service_metrics.generation_regressions.inc();
            tracing::warn!(
                service = %self.service,
                edge = %edge.url(),
                offered = answer.generation,
                seen = local.highest_generation,
                "an edge offered an older generation than was seen; its response is rejected"
            );
            return Err(PollError::Regressed { seen: local.highest_generation, offered: answer.generation });
        }
        Ok((answer, response.body))
    }
}

/// What an operator can do about a `401`.
fn advice(token_file: Option<&Path>) -> String {
    match token_file {
        Some(path) => format!("Put a token that it accepts into {}: it is read for each request", path.display()),
        None => "Give this agent a token (`token_file`), or a client certificate that the edge accepts".to_owned(),
    }
}

/// Whether to request the problem document with a GET; not when the edge is overloaded.
fn needs_problem_body(status: StatusCode) -> bool {
    (status.is_client_error() || status.is_server_error())
        && !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}
