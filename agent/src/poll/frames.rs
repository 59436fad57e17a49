//! Fetches the frames that the release on disk lacks of a new tarball, instead of the whole tarball.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Method, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{MAX_OBJECT_BYTES, Manifest};
use weir_protocol::observed::{Transfer, TransferKind};
use weir_protocol::route::Route;
use weir_release::{ReleaseName, digest_of};

use super::error::PollError;
use super::poller::Poller;
use super::request::EdgePoll;
use super::response_status::succeeded;
use super::spool::Spool;
use crate::edge_client::{BodyRange, Protocol, RequestError, TarballRequest};
use crate::fetch::{FetchError, Missing, Plan, Tarball, UntilDropped, check_rate, compose, max_encoded_bytes};

/// The smallest encoded body of which frames are requested: a smaller one is only a few frames.
const MIN_BODY_BYTES: u64 = 512 << 10;

/// Ranges that are requested at a time. Each is in memory until those before it have arrived.
const RANGES_AT_ONCE: usize = 4;

/// How often the rate of an update is looked at while nothing arrives.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// The frames of a tarball, as an edge names them.
struct Listed {
    digest: TarballDigest,
    manifest: Manifest,
    /// The entity tag of the body that they make up.
    etag: HeaderValue,
    /// The bytes of the manifest.
    bytes: u64,
    protocol: Protocol,
}

/// Neighbouring frames, and what has arrived of them.
struct Part {
    missing: Missing,
    bytes: BytesMut,
}

impl Poller {
    /// Composes a tarball of the release on disk and of the frames that it lacks. `body_bytes`: of the whole encoded body.
    /// `None`: it is to be downloaded whole.
    ///
    /// # Errors
    /// A request failed, for the first time since such an update succeeded.
    pub(super) async fn by_frames(
        &self,
        poll: EdgePoll<'_>,
        digest: TarballDigest,
        body_bytes: u64,
    ) -> Result<Option<(Tarball, Protocol)>, PollError> {
        let Some(release) = self.directory.state().release else { return Ok(None) };
        if body_bytes < MIN_BODY_BYTES || self.failed_update.is_final(digest) {
            return Ok(None);
        }
        let mut spool = None;
        let error = match self.update(poll, digest, release.directory, body_bytes, &mut spool).await {
            Ok(updated) => {
                if updated.is_some() {
                    self.failed_update.clear();
                }
                return Ok(updated);
            }
            Err(error) => error,
        };
        self.metrics.frame_update("abandoned");
        let (service, edge, request_id) = (&self.service, poll.edge.url(), poll.request_id);
        if matches!(&error, PollError::Fetch(error) if error.is_corrupt()) {
            self.service_metrics.verify_failures.inc();
            tracing::warn!(%service, %edge, %error, %request_id, "the frames of a tarball failed to verify");
        }
        if !self.failed_update.add(digest, error.is_retryable() || error.is_edge_failure(), spool) {
            return Err(error);
        }
        tracing::info!(%service, %edge, %error, %request_id, "a tarball cannot be composed of frames: downloading it whole");
        Ok(None)
    }

    async fn update(
        &self,
        poll: EdgePoll<'_>,
        digest: TarballDigest,
        base: ReleaseName,
        body_bytes: u64,
        kept: &mut Option<Spool>,
    ) -> Result<Option<(Tarball, Protocol)>, PollError> {
        let directory = self.directory.clone();
        let turn = self.downloads.turn().await;
        let Some(new) = self.manifest(poll, digest).await? else { return Ok(None) };
        let stored = spawn_blocking(move || directory.stored_frames(base.digest())).await.ok().flatten();
        let (old, mut received) = match stored {
            Some(manifest) => (manifest, new.bytes),
            None => match self.manifest(poll, base.digest()).await? {
                Some(old) => (old.manifest, new.bytes + old.bytes),
                None => return Ok(None),
            },
        };
        // A download that was interrupted may lack less.
        let rest = self.interrupted.rest(Some(digest)).map_or(body_bytes, |rest| rest.end - rest.start);
        let Some(plan) = Plan::new(&old, &new.manifest).filter(|plan| plan.missing_bytes < rest) else {
            return Ok(None);
        };
        // A program that writes into each release would have frames fetched in vain each time.
        if self.failed_update.was_modified() && !self.is_intact(base, old.tar_size()).await {
            self.modified();
            return Ok(None);
        }
        received += plan.missing_bytes;
        let spool = kept.insert(match self.failed_update.take(&plan.missing) {
            Some(spool) => spool,
            None => Spool::new(&plan, &self.incoming)?,
        });
        let _turn = self.fetch_missing(poll, &new, spool, turn).await?;
        let reused = plan.reused;
        let (file, size) = match self.compose(digest, plan, spool, base, old.tar_size()).await {
            // The frames have arrived as the edge names them: the release is at fault, or the manifest.
            Err(error) if error.is_corrupt() && !self.is_intact(base, old.tar_size()).await => {
                self.modified();
                return Ok(None);
            }
            composed => composed?,
        };
        self.interrupted.take();
        self.metrics.frame_update("applied");
        self.metrics.tarball_bytes.inc_by(size);
        self.metrics.reused_frames.inc_by(reused);
        let transfer = Transfer { kind: TransferKind::Frames, received_bytes: received, tarball_bytes: size };
        Ok(Some((Tarball { file, digest, transfer, manifest: Some(new.manifest) }, new.protocol)))
    }

    /// The frames of a tarball. `None`: the edge has no such tarball, or none of several frames, or does not know the request, or
    /// the tarball is larger than this agent accepts.
    async fn manifest(&self, poll: EdgePoll<'_>, digest: TarballDigest) -> Result<Option<Listed>, PollError> {
        let unavailable = |reason: &str| {
            self.metrics.frame_update("unavailable");
            tracing::debug!(service = %self.service, edge = %poll.edge.url(), %digest, reason, request_id = %poll.request_id, "an edge sends no manifest that can be used");
            Ok(None)
        };
        let route = Route::TarballFrames(self.service.clone(), digest);
        let response = poll.edge.document(&route, None, self.fetch_timeout, Some(poll.request_id)).await?;
        if response.status == StatusCode::NOT_FOUND {
            return unavailable("not found");
        }
        let mut response = succeeded(poll.edge, response).await?;
        let Some(bytes) = response.body.read(MAX_OBJECT_BYTES).await? else { return unavailable("too long") };
        let (length, max) = (bytes.len() as u64, self.max_tarball_bytes);
        self.metrics.fetched(TransferKind::Frames, length);
        let Ok(manifest) = Manifest::parse(&bytes) else { return unavailable("malformed") };
        if manifest.tar_size() > max || manifest.size() > max_encoded_bytes(max) {
            return unavailable("the tarball is larger than `max_tarball_bytes`");
        }
        let etag = tarball_etag(&digest, Some((Encoding::Zstd, &ObjectDigest::of(&bytes))));
        let etag = HeaderValue::try_from(etag).expect("digests are visible ASCII");
        Ok(Some(Listed { digest, manifest, etag, bytes: length, protocol: response.protocol }))
    }

    fn modified(&self) {
        self.failed_update.found_modified();
        self.metrics.frame_update("modified");
        tracing::info!(service = %self.service, "the release on disk was modified: downloading the whole tarball instead of frames");
    }

    /// Whether nobody has changed the files of a release.
    async fn is_intact(&self, release: ReleaseName, tar_size: u64) -> bool {
        let (directory, waiting) = (self.directory.clone(), UntilDropped::default());
        let awaited = waiting.awaited();
        let hashed = spawn_blocking(move || digest_of(awaited.reader(directory.open_tar(release, tar_size)?)));
        match hashed.await {
            Ok(Ok(found)) => found == release.digest(),
            Ok(Err(error)) => {
                tracing::debug!(digest = %release.digest(), %error, "the tar of the release cannot be rebuilt");
                false
            }
            Err(_) => false,
        }
    }

    /// Requests the frames that a spool lacks. Returns the turn that it has at the end.
    async fn fetch_missing(
        &self,
        poll: EdgePoll<'_>,
        new: &Listed,
        spool: &mut Spool,
        mut turn: OwnedSemaphorePermit,
    ) -> Result<OwnedSemaphorePermit, PollError> {
        let cannot_write = FetchError::disk(&self.incoming);
        let parts = spool.missing.iter().map(|missing| Part { missing: missing.clone(), bytes: BytesMut::new() });
        let mut parts: Vec<_> = parts.collect();
        loop {
            let (started, received) = (Instant::now(), AtomicU64::new(0));
            let requests =
                parts[spool.written..].iter_mut().map(|part| self.receive(poll, new, part, &received).boxed());
            let requests: Vec<_> = requests.collect();
            let mut ranges = stream::iter(requests).buffered(RANGES_AT_ONCE);
            let interrupted = loop {
                // All ranges are one download, also while it waits for the head of a response.
                match timeout(RATE_INTERVAL, ranges.try_next()).await {
                    Ok(Ok(Some(part))) => {
                        spool.file.write_all(&std::mem::take(&mut part.bytes)).await.map_err(&cannot_write)?;
                        // Nothing is written when another edge continues.
                        spool.file.flush().await.map_err(&cannot_write)?;
                        spool.written += 1;
                    }
                    Ok(Ok(None)) => break None,
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {}
                }
                let bytes = received.load(Ordering::Relaxed);
                match check_rate(bytes, started.elapsed(), || self.downloads.are_wanted()) {
                    Err(error @ FetchError::Yielded) => break Some(error),
                    checked => checked?,
                }
            };
            drop(ranges);
            let Some(error) = interrupted else { break };
            tracing::info!(service = %self.service, edge = %poll.edge.url(), %error, "an update by frames was interrupted and continues later");
            turn = self.downloads.yielded(turn).await;
        }
        Ok(turn)
    }

    /// Requests what has not arrived of some frames, and verifies each.
    async fn receive<'p>(
        &self,
        poll: EdgePoll<'_>,
        new: &Listed,
        part: &'p mut Part,
        received: &AtomicU64,
    ) -> Result<&'p mut Part, PollError> {
        let (start, end) = (part.missing.bytes.start, part.missing.bytes.end);
        let size = usize::try_from(end - start).map_err(|_| FetchError::NoFrames)?;
        let mut avoid_http3 = false;
        while part.bytes.len() < size {
            let (digest, etag, length) = (new.digest, new.etag.clone(), new.manifest.size());
            let range = BodyRange { digest, etag, start: start + part.bytes.len() as u64, end, length };
            let (version, range) = (Some(digest), Some(range));
            let request = self.tarball_request(poll, Method::GET, None, false);
            let request = TarballRequest { version, range, avoid_http3, ..request };
            let mut response = poll.edge.send(&request).await?;
            if response.status != StatusCode::PARTIAL_CONTENT {
                succeeded(poll.edge, response).await?;
                return Err(FetchError::NoFrames.into());
            }
            if !request.range.is_some_and(|range| range.is_in(&response.headers)) {
                return Err(FetchError::NoFrames.into());
            }
            part.bytes.reserve(size - part.bytes.len());
            let ended = loop {
                let chunk = match response.body.chunk().await {
                    Ok(Some(chunk)) => chunk,
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                };
                self.metrics.fetched(TransferKind::Frames, chunk.len() as u64);
                received.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                if part.bytes.len() + chunk.len() > size {
                    return Err(FetchError::NoFrames.into());
                }
                part.bytes.extend_from_slice(&chunk);
            };
            match ended {
                // Other errors say nothing about UDP.
                Some(RequestError::Silent(_)) if response.protocol == Protocol::H3 && !avoid_http3 => {
                    avoid_http3 = true;
                }
                Some(error) => return Err(error.into()),
                None if part.bytes.len() < size => return Err(FetchError::NoFrames.into()),
                None => {}
            }
        }
        let mut rest = &part.bytes[..];
        for frame in &part.missing.frames {
            let size = usize::try_from(frame.size).ok();
            let one = size.and_then(|size| rest.split_off(..size)).ok_or(FetchError::NoFrames)?;
            if ObjectDigest::of(one) != frame.digest {
                let error = io::Error::other("a frame has another digest than the manifest says");
                return Err(FetchError::Decode(error).into());
            }
        }
        Ok(part)
    }

    /// Composes the tar in a file; returns it with its size.
    async fn compose(
        &self,
        digest: TarballDigest,
        plan: Plan,
        spool: &Spool,
        base: ReleaseName,
        base_size: u64,
    ) -> Result<(File, u64), FetchError> {
        let directory = self.directory.clone();
        let (incoming, max_bytes) = (self.incoming.clone(), self.max_tarball_bytes);
        let spool = spool.reader().await.map_err(FetchError::disk(&incoming))?;
        let waiting = UntilDropped::default();
        let awaited = waiting.awaited();
        let composed = spawn_blocking(move || {
            let base = directory.open_tar(base, base_size).map_err(FetchError::Decode)?;
            let (base, spool) = (awaited.reader(base), awaited.reader(spool));
            compose(plan, base, spool, &incoming, max_bytes)
        });
        let composed = composed.await.map_err(|error| FetchError::disk(&self.incoming)(io::Error::other(error)))?;
        let (file, found, size) = composed?;
        if found != digest {
            return Err(FetchError::Mismatch { expected: digest, found });
        }
        Ok((file, size))
    }
}
