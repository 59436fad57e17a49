//! Fetches the frames that the release on disk lacks of a new tarball, instead of the whole tarball.

use std::io::{BufReader, Seek};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Method, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::task::spawn_blocking;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::encoding::Encoding;
use weir_protocol::manifest::{MAX_OBJECT_BYTES, Manifest};
use weir_protocol::report::{Transfer, TransferKind};
use weir_protocol::route::Route;

use super::poller::Poller;
use super::request::EdgePoll;
use crate::edge_client::{BodyRange, Protocol, TarballRequest};
use crate::fetch::{FetchError, Missing, Plan, Tarball, compose, is_delta, is_too_slow, max_encoded_bytes};
use crate::release::ReleaseName;

/// The smallest encoded body of which frames are requested: a smaller one is only a few frames.
const MIN_BODY_BYTES: u64 = 2 << 20;

/// Ranges that are requested at a time. Each is in memory until those before it have arrived.
const RANGES_AT_ONCE: usize = 4;

/// The frames of a tarball, as an edge names them.
struct Listed {
    manifest: Manifest,
    /// The entity tag of the body that they make up.
    etag: HeaderValue,
    /// The bytes of the manifest.
    bytes: u64,
    protocol: Protocol,
}

impl Poller {
    /// Composes a tarball of the release on disk and of the frames that it lacks. `body_bytes`: of the whole encoded body.
    /// `None`: it is to be downloaded whole, because that costs less, or because anything went wrong.
    pub(super) async fn by_frames(
        &self,
        poll: EdgePoll<'_>,
        digest: TarballDigest,
        body_bytes: u64,
    ) -> Option<(Tarball, Protocol)> {
        let directory = &self.dictionaries.directory;
        let base = directory.state().release?.directory;
        let is_small = body_bytes < MIN_BODY_BYTES;
        if is_small || self.interrupted.rest(Some(digest)).is_some() || self.has_delta(poll).await {
            return None;
        }
        let _turn = self.downloads.turn().await;
        let new = self.manifest(poll, digest).await?;
        let stored = directory.clone();
        let stored = spawn_blocking(move || stored.stored_frames(base.digest())).await.ok()?;
        let old = match stored {
            Some(manifest) => Some(manifest),
            None => self.manifest(poll, base.digest()).await.map(|listed| listed.manifest),
        };
        let old = old?;
        let plan = Plan::new(&old, &new.manifest)?;
        match self.compose(poll, digest, &new, (base, old.tar_size()), plan).await {
            Ok(tarball) => {
                self.metrics.frame_update("applied");
                // The digest has proved it.
                let (protocol, storing) = (new.protocol, directory.clone());
                let stored = spawn_blocking(move || storing.store_frames(digest, &new.manifest)).await;
                if let Ok(Err(error)) = stored {
                    tracing::warn!(service = %self.service, %error, "the frames of a tarball cannot be stored");
                }
                Some((tarball, protocol))
            }
            Err(error) => {
                self.metrics.frame_update("abandoned");
                tracing::info!(service = %self.service, edge = %poll.edge.url(), %error, request_id = %poll.request_id, "a tarball cannot be composed of frames: downloading it whole");
                None
            }
        }
    }

    /// Whether the edge has a delta against the release on disk.
    async fn has_delta(&self, poll: EdgePoll<'_>) -> bool {
        let Some(offered) = self.dictionaries.offer() else { return false };
        let mut request = self.tarball_request(poll, Method::HEAD, None, false);
        request.dictionary = Some(offered.sha256);
        poll.edge.send(&request).await.is_ok_and(|response| is_delta(&response.headers))
    }

    /// The frames of a tarball. `None`: the edge has no such tarball, or none of several frames, or does not know the request, or
    /// the tarball is larger than this agent accepts.
    async fn manifest(&self, poll: EdgePoll<'_>, digest: TarballDigest) -> Option<Listed> {
        let route = Route::TarballFrames(self.service.clone(), digest);
        let sent = poll.edge.document(&route, None, self.fetch_timeout, Some(poll.request_id)).await;
        let mut response = sent.ok().filter(|response| response.status == StatusCode::OK)?;
        let bytes = response.body.read(MAX_OBJECT_BYTES).await.ok()??;
        let length = bytes.len() as u64;
        self.metrics.fetched(TransferKind::Frames, length);
        let manifest = Manifest::parse(&bytes).ok()?;
        let max = self.max_tarball_bytes;
        if manifest.tar_size() > max || manifest.size() > max_encoded_bytes(max) {
            return None;
        }
        let etag = tarball_etag(&digest, Some((Encoding::Zstd, &ObjectDigest::of(&bytes))));
        let etag = HeaderValue::try_from(etag).expect("digests are visible ASCII");
        Some(Listed { manifest, etag, bytes: length, protocol: response.protocol })
    }

    /// `base`: the release on disk, and the size of its tar.
    async fn compose(
        &self,
        poll: EdgePoll<'_>,
        digest: TarballDigest,
        new: &Listed,
        base: (ReleaseName, u64),
        plan: Plan,
    ) -> Result<Tarball, FetchError> {
        let cannot_write = FetchError::disk(&self.incoming);
        let spool = tempfile::tempfile_in(&self.incoming).map_err(&cannot_write)?;
        let mut spool = tokio::fs::File::from_std(spool);
        let length = new.manifest.size();
        let requests = plan.missing.iter().map(|missing| {
            let (start, end) = (missing.bytes.start, missing.bytes.end);
            self.missing(poll, BodyRange { digest, etag: new.etag.clone(), start, end, length }, missing).boxed()
        });
        let requests: Vec<_> = requests.collect();
        let mut received = new.bytes;
        let mut ranges = stream::iter(requests).buffered(RANGES_AT_ONCE);
        while let Some(range) = ranges.try_next().await? {
            received += range.len() as u64;
            spool.write_all(&range).await.map_err(&cannot_write)?;
        }
        spool.flush().await.map_err(&cannot_write)?;
        drop(ranges);
        let mut spool = spool.into_std().await;
        spool.rewind().map_err(&cannot_write)?;
        let (directory, incoming, max_bytes) =
            (self.dictionaries.directory.clone(), self.incoming.clone(), self.max_tarball_bytes);
        let reused = plan.reused;
        let composed = spawn_blocking(move || {
            let base = directory.open_tar(base.0, base.1).map_err(FetchError::Decode)?;
            compose(plan, base, BufReader::new(spool), &incoming, max_bytes)
        });
        let composed = composed.await.map_err(|error| cannot_write(std::io::Error::other(error)))?;
        let (file, found, size) = composed?;
        if found != digest {
            return Err(FetchError::Mismatch { expected: digest, found });
        }
        self.metrics.tarball_bytes.inc_by(size);
        self.metrics.reused_frames.inc_by(reused);
        Ok(Tarball {
            file,
            digest,
            transfer: Transfer { kind: TransferKind::Frames, received_bytes: received, tarball_bytes: size },
        })
    }

    /// Requests some frames, and verifies each.
    async fn missing(&self, poll: EdgePoll<'_>, range: BodyRange, missing: &Missing) -> Result<Bytes, FetchError> {
        let wrong = |what: &str| FetchError::Decode(std::io::Error::other(what.to_owned()));
        let size = usize::try_from(range.end - range.start).map_err(|_| wrong("a range is too large"))?;
        let request = TarballRequest {
            version: Some(range.digest),
            range: Some(range.clone()),
            ..self.tarball_request(poll, Method::GET, None, false)
        };
        let mut response = poll.edge.send(&request).await?;
        if response.status != StatusCode::PARTIAL_CONTENT || !range.is_in(&response.headers) {
            return Err(wrong("the edge did not send the requested frames"));
        }
        let (started, mut bytes) = (Instant::now(), BytesMut::with_capacity(size));
        while let Some(part) = response.body.chunk().await? {
            self.metrics.fetched(TransferKind::Frames, part.len() as u64);
            if bytes.len() + part.len() > size {
                return Err(wrong("the edge sent more than the requested frames"));
            }
            bytes.extend_from_slice(&part);
            if is_too_slow(bytes.len() as u64, started.elapsed()) {
                return Err(FetchError::Slow(bytes.len() as u64, started.elapsed()));
            }
        }
        let bytes = bytes.freeze();
        let mut rest = &bytes[..];
        for frame in &missing.frames {
            let size = usize::try_from(frame.size).ok();
            let one = size.and_then(|size| rest.split_off(..size)).ok_or_else(|| wrong("the frames end early"))?;
            if ObjectDigest::of(one) != frame.digest {
                return Err(wrong("a frame has another digest than the manifest says"));
            }
        }
        Ok(bytes)
    }
}
