//! Polls the edges for one service: HEAD, and GET when something changed. Writes to `incoming` only.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, Method, StatusCode};
use weir_protocol::access_list::AccessList;
use weir_protocol::descriptor::MAX_DESCRIPTOR_BYTES;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::Transfer;
use weir_protocol::request_id::RequestId;
use weir_protocol::route::Route;
use weir_release::{ReleaseRecord, ServiceDirectory, highest_credible};

use super::error::{AllEdgesFailed, PollError};
use super::failed_update::FailedUpdate;
use super::interrupted::{DownloadLimits, Interrupted};
use super::request::{EdgePoll, LocalState, PollResult, Version, Wanted};
use super::response_status::{needs_problem_body, succeeded};
use crate::config::Config;
use crate::edge_client::{EdgeClient, Edges, Protocol, RequestError, Response, ResponseBody, TarballRequest};
use crate::fetch::{Coding, Download, FetchError, InvalidHeader, TarballHeaders, coding, content_length, is_delta};
use crate::metrics::{Metrics, ProofMetrics, ServiceMetrics};
use crate::verify::{ProofError, SignedPublication, Trust};

/// How often a publication may change between its descriptor and its tarball.
const MAX_RACES: usize = 3;

/// The most bytes of the field `seen` that an edge adds to a descriptor.
const MAX_SEEN_BYTES: usize = 1 << 10;

/// Polls the edges for one service.
pub(crate) struct Poller {
    pub(crate) service: ServiceName,
    pub(crate) edges: Arc<EdgeClient>,
    pub(crate) incoming: PathBuf,
    pub(crate) max_tarball_bytes: u64,
    pub(crate) request_timeout: Duration,
    pub(crate) fetch_timeout: Duration,
    pub(crate) downloads: DownloadLimits,
    pub(super) interrupted: Interrupted,
    pub(super) failed_update: FailedUpdate,
    pub(crate) directory: Arc<ServiceDirectory>,
    pub(crate) metrics: Metrics,
    pub(crate) service_metrics: ServiceMetrics,
    /// Only with `trust`.
    proofs: Option<Proofs>,
}

/// The pinned keys, and what they verified.
struct Proofs {
    trust: Arc<Trust>,
    /// The last verified publication, with the keys: another set of keys verifies again.
    last: Mutex<Option<(SignedPublication, Arc<AccessList>)>>,
    metrics: ProofMetrics,
}

impl Proofs {
    fn keys(&self, service: &ServiceName) -> Result<Arc<AccessList>, PollError> {
        Ok(self.trust.keys_of(service).ok_or(ProofError::NoKeys)?)
    }
}

impl Poller {
    pub(crate) fn new(
        service: ServiceName,
        config: &Config,
        edges: Arc<EdgeClient>,
        downloads: DownloadLimits,
        directory: Arc<ServiceDirectory>,
        metrics: Metrics,
        trust: Option<Arc<Trust>>,
    ) -> Self {
        let proofs = |trust| Proofs { trust, last: Mutex::default(), metrics: metrics.proof(&service) };
        Self {
            proofs: trust.map(proofs),
            edges,
            incoming: directory.incoming(),
            directory,
            max_tarball_bytes: config.max_tarball_bytes.as_u64(),
            request_timeout: config.request_timeout,
            fetch_timeout: config.fetch_timeout,
            interrupted: Interrupted::new(&downloads),
            failed_update: FailedUpdate::default(),
            downloads,
            service_metrics: metrics.service(&service),
            metrics,
            service,
        }
    }

    /// Tries the edges in turn until one gives a usable response.
    ///
    /// # Errors
    /// The errors of all edges.
    pub(crate) async fn run(
        &self,
        edges: &Edges,
        local: LocalState,
        wanted: &Wanted,
    ) -> Result<(PollResult, Protocol), AllEdgesFailed> {
        let (started, request_id) = (Instant::now(), RequestId::new(fastrand::u64(..)));
        let (mut errors, mut retry_after) = (Vec::new(), None);
        let mut attempt = edges.attempt();
        for edge in attempt.in_order() {
            let poll = EdgePoll { edge, local, request_id: &request_id };
            let result = match wanted {
                Wanted::Poll => self.poll(poll).await,
                Wanted::Refresh => self.get(poll, true, None).await,
                Wanted::Retained(known) => self.get_tarball(poll, true, Version::Retained(known)).await,
            };
            let result = match result {
                Err(PollError::Regressed { seen, offered }) => {
                    self.regressed(poll, *wanted == Wanted::Refresh, seen, offered).await
                }
                result => result,
            };
            match result {
                Ok(found) => {
                    attempt.succeeded();
                    if let (PollResult::Fetched(tarball, _), service, edge) = (&found.0, &self.service, edge.url()) {
                        let duration_seconds = started.elapsed().as_micros() as f64 / 1e6;
                        let Transfer { kind, received_bytes, tarball_bytes } = tarball.transfer;
                        tracing::info!(
                            %service,
                            %edge,
                            digest = %tarball.digest,
                            transfer = kind.as_str(),
                            received_bytes,
                            tarball_bytes,
                            duration_seconds,
                            %request_id,
                            "fetched a tarball"
                        );
                    }
                    return Ok(found);
                }
                Err(error) => {
                    self.metrics.attempt_failed(error.kind());
                    if let (PollError::Proof(error), Some(proofs)) = (&error, &self.proofs) {
                        tracing::warn!(service = %self.service, edge = %edge.url(), %error, %request_id, "a publication was rejected");
                        proofs.metrics.refused(error.reason());
                    }
                    tracing::debug!(service = %self.service, edge = %edge.url(), %error, %request_id, "a poll of an edge failed");
                    if error.is_edge_failure() {
                        attempt.failed(edge);
                    }
                    retry_after = retry_after.max(error.retry_after());
                    errors.push((edge.url().clone(), error));
                }
            }
        }
        Err(AllEdgesFailed { errors, retry_after, request_id })
    }

    async fn poll(&self, poll: EdgePoll<'_>) -> Result<(PollResult, Protocol), PollError> {
        let EdgePoll { edge, local, .. } = poll;
        let mut offer = None;
        // Without a release the tarball is needed in any case.
        if local.digest.is_some() || local.rejected.is_some() || local.unpacked.is_some() {
            let mut request = self.tarball_request(poll, Method::HEAD, local.digest, false);
            request.dictionary = self.dictionary().map(|offered| offered.sha256);
            let mut response = edge.send(&request).await?;
            if needs_problem_body(response.status) {
                // A response to HEAD has no body: a GET gets the problem document.
                response = edge.send(&self.tarball_request(poll, Method::GET, local.digest, false)).await?;
            }
            let (status, protocol) = (response.status, response.protocol);
            // Of a delta no frames are requested.
            let body_bytes = if is_delta(&response.headers) { 0 } else { content_length(&response.headers) };
            let (answer, _) = self.answer(poll, response, Version::Current).await?;
            let offered = match status {
                // A `304` without a digest confirms the digest of the request.
                StatusCode::NOT_MODIFIED if answer.digest.is_none() => local.digest,
                StatusCode::NOT_MODIFIED if answer.digest != local.digest => {
                    return Err(InvalidHeader("weir-digest").into());
                }
                _ => Some(answer.require_digest()?),
            };
            self.interrupted.rest(offered);
            if local.pinned {
                return Ok((PollResult::Held(answer), protocol));
            }
            if let Some(unpacked) = local.unpacked.filter(|unpacked| offered == Some(unpacked.digest())) {
                // What was signed when it was fetched may have been replaced since.
                let Some(proofs) = &self.proofs else { return Ok((PollResult::Unpacked(unpacked, answer), protocol)) };
                let signed = self.signed(poll, proofs).await?;
                if signed.digest == unpacked.digest() {
                    return Ok((PollResult::Unpacked(unpacked, headers(signed)), protocol));
                }
            }
            if offered.is_some() && offered == local.digest {
                match &self.proofs {
                    None => return Ok((PollResult::Unchanged(answer), protocol)),
                    Some(proofs) => {
                        if let Some(signed) = self.confirmed(poll, proofs, answer.generation).await? {
                            return Ok((PollResult::Unchanged(signed), protocol));
                        }
                    }
                }
            }
            if offered.is_some() && offered == local.rejected {
                return Err(PollError::RejectedBefore);
            }
            offer = Some((answer, body_bytes));
        }
        self.get(poll, false, offer).await
    }

    /// The signed publication of the release in force. `None`: an origin has signed another one. `claimed`: the generation
    /// that the edge claims; it is only compared.
    async fn confirmed(
        &self,
        poll: EdgePoll<'_>,
        proofs: &Proofs,
        claimed: u64,
    ) -> Result<Option<TarballHeaders>, PollError> {
        let held = poll.local.digest;
        let keys = proofs.keys(&self.service)?;
        let is_known = |(signed, by): &&(SignedPublication, Arc<AccessList>)| {
            Arc::ptr_eq(by, &keys) && Some(signed.digest) == held && signed.generation == claimed
        };
        let known = {
            let last = proofs.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.as_ref().filter(is_known).map(|(signed, _)| signed.clone())
        };
        let signed = match known {
            Some(known) => known,
            None => self.signed(poll, proofs).await?,
        };
        Ok((Some(signed.digest) == held).then(|| headers(signed)))
    }

    /// Whether the present keys have verified the publication of a release; without `trust` nothing has to.
    pub(crate) fn is_proved(&self, release: &ReleaseRecord) -> bool {
        let Some(proofs) = &self.proofs else { return true };
        let Ok(keys) = proofs.keys(&self.service) else { return false };
        let last = proofs.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().is_some_and(|(signed, by)| {
            let is_same = signed.digest == release.directory.digest() && signed.generation == release.generation;
            is_same && Arc::ptr_eq(by, &keys)
        })
    }

    /// Requests the descriptor, and verifies its publication. Unsigned numbers beside it decide nothing.
    async fn signed(&self, poll: EdgePoll<'_>, proofs: &Proofs) -> Result<SignedPublication, PollError> {
        let EdgePoll { edge, local, request_id } = poll;
        let keys = proofs.keys(&self.service)?;
        let route = Route::Service(self.service.clone());
        let response = edge.document(&route, None, self.fetch_timeout, Some(request_id)).await?;
        let mut body = succeeded(edge, response).await?.body;
        let bytes = body.read(MAX_DESCRIPTOR_BYTES + MAX_SEEN_BYTES).await?;
        let bytes = bytes.ok_or_else(|| ProofError::Malformed("it is too long".to_owned()))?;
        let signed = SignedPublication::verify(&bytes, &self.service, keys.keys())?;
        check_ahead(signed.generation)?;
        check_generation(signed.generation, local)?;
        *proofs.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((signed.clone(), keys));
        Ok(signed)
    }

    /// Fetches the tarball; with `trust` the one that an origin signed. `offer`: what a `HEAD` said, with the bytes of the body.
    async fn get(
        &self,
        poll: EdgePoll<'_>,
        no_cache: bool,
        offer: Option<(TarballHeaders, u64)>,
    ) -> Result<(PollResult, Protocol), PollError> {
        let Some(proofs) = &self.proofs else {
            if let Some((answer, body_bytes)) = offer
                && let Some((tarball, protocol)) = self.by_frames(poll, answer.require_digest()?, body_bytes).await?
            {
                return Ok((PollResult::Fetched(tarball, answer), protocol));
            }
            return self.get_tarball(poll, no_cache, Version::Current).await;
        };
        let (mut races, mut body_bytes) = (0, offer.map(|(_, body_bytes)| body_bytes));
        loop {
            let signed = self.signed(poll, proofs).await?;
            if poll.local.rejected == Some(signed.digest) && !no_cache {
                return Err(PollError::RejectedBefore);
            }
            if let Some(body_bytes) = body_bytes.take()
                && let Some((tarball, protocol)) = self.by_frames(poll, signed.digest, body_bytes).await?
            {
                return Ok((PollResult::Fetched(tarball, headers(signed)), protocol));
            }
            match self.get_tarball(poll, no_cache, Version::Signed(&signed)).await {
                // There may be a newer publication by now.
                Err(PollError::Proof(ProofError::OtherDigest { .. })) if races < MAX_RACES => races += 1,
                Ok((PollResult::Fetched(tarball, _), protocol)) => {
                    return Ok((PollResult::Fetched(tarball, headers(signed)), protocol));
                }
                got => return got,
            }
        }
    }

    /// Fetches the tarball. When it fails to verify, it is requested once more, bypassing all caches.
    pub(super) async fn get_tarball(
        &self,
        poll: EdgePoll<'_>,
        no_cache: bool,
        version: Version<'_>,
    ) -> Result<(PollResult, Protocol), PollError> {
        let EdgePoll { edge, request_id, .. } = poll;
        let (_turn, downloaded) = loop {
            let turn = self.downloads.turn().await;
            match self.download(poll, no_cache, version).await {
                Err(PollError::Fetch(error @ FetchError::Yielded)) => {
                    tracing::info!(service = %self.service, edge = %edge.url(), %error, "a download was interrupted and continues later");
                }
                downloaded => break (turn, downloaded),
            }
        };
        match downloaded {
            Err(PollError::Fetch(error)) if error.is_corrupt() => {
                self.service_metrics.verify_failures.inc();
                tracing::warn!(service = %self.service, edge = %edge.url(), %error, %request_id, "a tarball failed to verify; fetching it again past all caches");
                let second = self.download(poll, true, version).await;
                if matches!(&second, Err(PollError::Fetch(error)) if error.is_corrupt()) {
                    self.service_metrics.verify_failures.inc();
                }
                second
            }
            done => done,
        }
    }

    /// Downloads a tarball, or a delta if an edge has one, or the rest of an interrupted download. A body that stalls over
    /// HTTP/3 is requested over HTTP/2, and a delta that is of no use as a whole tarball.
    #[expect(clippy::too_many_lines, reason = "one loop: each attempt decides what the next one requests")]
    async fn download(
        &self,
        poll: EdgePoll<'_>,
        no_cache: bool,
        version: Version<'_>,
    ) -> Result<(PollResult, Protocol), PollError> {
        let edge = poll.edge;
        let mut tarball_request = self.tarball_request(poll, Method::GET, None, no_cache);
        if let Version::Retained(known) = version {
            tarball_request.version = known.digest;
        }
        let mut accepts_delta = !no_cache;
        loop {
            tarball_request.range = self.interrupted.rest(version.digest());
            let may_be_delta = accepts_delta && tarball_request.range.is_none();
            let offered = if may_be_delta { self.dictionary() } else { None };
            tarball_request.dictionary = offered.as_ref().map(|offered| offered.sha256);
            let response = edge.send(&tarball_request).await?;
            let (protocol, headers) = (response.protocol, response.headers.clone());
            let is_part = matches!(response.status, StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE);
            let (answer, body, resumed) = match tarball_request.range.as_ref().filter(|_| is_part) {
                None => {
                    let (answer, body) = self.answer(poll, response, version).await?;
                    // It was of another representation.
                    self.interrupted.take();
                    (answer, body, None)
                }
                Some(rest) => {
                    let Some(download) = self.interrupted.take().filter(|_| rest.is_in(&headers)) else { continue };
                    tracing::info!(service = %self.service, edge = %edge.url(), offset = rest.start, "a download is resumed");
                    self.metrics.resumed_downloads.inc();
                    self.metrics.resumed_bytes.inc_by(rest.start);
                    (self.checked(poll, &headers, version)?, response.body, Some(download))
                }
            };
            let digest = answer.require_digest()?;
            if let Version::Signed(signed) = version {
                signed.check_digest(digest)?;
            }
            let is_delta = offered.is_some() && is_delta(&headers);
            let mut download = match resumed {
                Some(download) => download,
                None => {
                    let coding = match offered.filter(|_| is_delta) {
                        Some(offered) => match self.rebuild(offered).await {
                            Some(dictionary) => Coding::Dcz(dictionary),
                            None => {
                                tracing::info!(service = %self.service, "the release on disk was modified: downloading the whole tarball instead of a delta");
                                self.metrics.delta("modified");
                                accepts_delta = false;
                                continue;
                            }
                        },
                        None => coding(&headers)?,
                    };
                    Download::start(&headers, coding, digest, self.incoming.clone(), self.max_tarball_bytes)
                }
            };
            let error = match download.receive(body, || self.downloads.are_wanted(), &self.metrics).await {
                Ok(tarball) => {
                    if is_delta {
                        self.metrics.delta("applied");
                    }
                    return Ok((PollResult::Fetched(tarball, answer), protocol));
                }
                Err(error) => error,
            };
            self.interrupted.keep(download, matches!(error, FetchError::Yielded));
            match error {
                // Other errors say nothing about UDP.
                FetchError::Request(error @ RequestError::Silent(_))
                    if protocol == Protocol::H3 && !tarball_request.avoid_http3 =>
                {
                    let (service, edge) = (&self.service, edge.url());
                    tracing::debug!(%service, %edge, %error, "a download over HTTP/3 stalled");
                    tarball_request.avoid_http3 = true;
                }
                error if is_delta => {
                    let error = error.of_delta();
                    if error.is_corrupt() {
                        self.metrics.delta("refused");
                    }
                    return Err(error.into());
                }
                error => return Err(error.into()),
            }
        }
    }

    pub(super) fn tarball_request<'a>(
        &'a self,
        poll: EdgePoll<'a>,
        method: Method,
        if_none_match: Option<TarballDigest>,
        no_cache: bool,
    ) -> TarballRequest<'a> {
        let timeout = if method == Method::HEAD { self.request_timeout } else { self.fetch_timeout };
        let (service, version, dictionary, range) = (&self.service, None, None, None);
        TarballRequest {
            service,
            method,
            version,
            if_none_match,
            no_cache,
            dictionary,
            range,
            timeout,
            avoid_http3: false,
            request_id: Some(poll.request_id),
        }
    }

    /// Checks the status and the headers of a response, and that its generation is not lower than one seen before.
    async fn answer(
        &self,
        poll: EdgePoll<'_>,
        response: Response,
        version: Version<'_>,
    ) -> Result<(TarballHeaders, ResponseBody), PollError> {
        let response = succeeded(poll.edge, response).await?;
        Ok((self.checked(poll, &response.headers, version)?, response.body))
    }

    /// The headers, if the generation is not lower than one seen before.
    fn checked(
        &self,
        poll: EdgePoll<'_>,
        headers: &HeaderMap,
        version: Version<'_>,
    ) -> Result<TarballHeaders, PollError> {
        if let Version::Retained(known) = version {
            return Ok(known.clone());
        }
        let answer = TarballHeaders::of(headers)?;
        // With `trust` the number decides nothing: the signed one is checked.
        if self.proofs.is_none() {
            check_ahead(answer.generation)?;
        }
        check_generation(answer.generation, poll.local)?;
        Ok(answer)
    }

    /// The keys that have to sign publications. `None`: without `trust`.
    pub(super) fn keys(&self) -> Result<Option<Arc<AccessList>>, PollError> {
        self.proofs.as_ref().map(|proofs| proofs.keys(&self.service)).transpose()
    }
}

/// Refuses a generation that is lower than one seen before.
fn check_generation(offered: u64, LocalState { highest_generation: seen, .. }: LocalState) -> Result<(), PollError> {
    if offered >= seen { Ok(()) } else { Err(PollError::Regressed { seen, offered }) }
}

/// Refuses a generation of the far future.
fn check_ahead(offered: u64) -> Result<(), PollError> {
    if offered > highest_credible(SystemTime::now()) { Err(PollError::Ahead(offered)) } else { Ok(()) }
}

/// What was signed, in place of what the edge's headers say.
pub(super) fn headers(signed: SignedPublication) -> TarballHeaders {
    let SignedPublication { generation, digest, commit, revision_id, version, .. } = signed;
    TarballHeaders { digest: Some(digest), generation, commit, revision_id, version }
}
