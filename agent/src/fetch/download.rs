//! A download: the body of one response, or of several that have parts of one representation.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use weir_protocol::digest::TarballDigest;
use weir_protocol::manifest::MAX_OBJECT_BYTES;
use weir_protocol::observed::{Transfer, TransferKind};

use super::decode::{self, Coding};
use super::{FetchError, Tarball, check_rate, max_encoded_bytes};
use crate::edge_client::{BodyRange, ResponseBody};
use crate::metrics::Metrics;

/// The most parts of a body between the network and the disk.
const MAX_QUEUED_PARTS: usize = 16;

/// A tarball on its way into an unnamed file. A thread decodes and hashes what has arrived.
pub(crate) struct Download {
    /// `None`: no more will arrive.
    parts: Option<mpsc::Sender<Bytes>>,
    writer: JoinHandle<Result<(File, TarballDigest, u64), FetchError>>,
    kind: TransferKind,
    digest: TarballDigest,
    incoming: PathBuf,
    max_bytes: u64,
    max_encoded: u64,
    /// Encoded bytes that have arrived.
    received: u64,
    /// The strong tag and the length of the encoded body; `None`: no part of it can be requested.
    representation: Option<(HeaderValue, u64)>,
}

impl Download {
    /// Begins one, to be verified by its digest. `headers`: those of a `200`.
    pub(crate) fn start(
        headers: &HeaderMap,
        coding: Coding,
        digest: TarballDigest,
        incoming: PathBuf,
        max_bytes: u64,
    ) -> Self {
        let is_delta = matches!(coding, Coding::Dcz(_));
        let max_encoded = if is_delta { MAX_OBJECT_BYTES as u64 } else { max_encoded_bytes(max_bytes) };
        let (parts, received) = mpsc::channel::<Bytes>(MAX_QUEUED_PARTS);
        // Decoding and hashing block.
        let into = incoming.clone();
        let writer = tokio::task::spawn_blocking(move || decode::write(received, &coding, &into, max_bytes));
        // A delta is small, and its dictionary takes memory: it starts over.
        let representation = representation(headers).filter(|_| !is_delta);
        let kind = if is_delta { TransferKind::Delta } else { TransferKind::Full };
        Self { parts: Some(parts), writer, kind, digest, incoming, max_bytes, max_encoded, received: 0, representation }
    }

    /// One byte of two has arrived.
    #[cfg(test)]
    pub(crate) fn interrupted(digest: TarballDigest, incoming: &std::path::Path) -> Self {
        let headers = [(header::ETAG, "\"one\""), (header::CONTENT_LENGTH, "2")];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value))).into_iter().collect();
        let download = Self::start(&headers, Coding::Identity, digest, incoming.to_owned(), 2);
        Self { received: 1, ..download }
    }

    /// What is missing. `None`: it cannot be continued.
    pub(crate) fn rest(&self) -> Option<BodyRange> {
        // A closed channel: the writer has failed.
        self.parts.as_ref().filter(|parts| !parts.is_closed())?;
        let (etag, length) = self.representation.clone()?;
        let rest = BodyRange { digest: self.digest, etag, start: self.received, end: length, length };
        (0 < rest.start && rest.start < rest.length).then_some(rest)
    }

    /// Receives a body to its end, and verifies the tarball. After a failure of the transport there may be a [`rest`].
    ///
    /// [`rest`]: Self::rest
    ///
    /// `may_yield`: whether it is to be interrupted now if it trickles.
    pub(crate) async fn receive(
        &mut self,
        body: ResponseBody,
        may_yield: impl Fn() -> bool,
        metrics: &Metrics,
    ) -> Result<Tarball, FetchError> {
        let received = self.append(body, may_yield, metrics).await;
        if received.as_ref().is_err_and(FetchError::is_interruption) && self.rest().is_some() {
            return Err(received.expect_err("it was just looked at"));
        }
        self.parts = None;
        let written = (&mut self.writer).await;
        let written = written.map_err(|error| FetchError::disk(&self.incoming)(std::io::Error::other(error)))?;
        received?;
        let (file, found, size) = written?;
        metrics.tarball_bytes.inc_by(size);
        if found != self.digest {
            return Err(FetchError::Mismatch { expected: self.digest, found });
        }
        let transfer = Transfer { kind: self.kind, received_bytes: self.received, tarball_bytes: size };
        Ok(Tarball { file, digest: self.digest, transfer, manifest: None })
    }

    async fn append(
        &mut self,
        mut body: ResponseBody,
        may_yield: impl Fn() -> bool,
        metrics: &Metrics,
    ) -> Result<(), FetchError> {
        let Some(parts) = &self.parts else { return Ok(()) };
        let (started, before) = (Instant::now(), self.received);
        while let Some(part) = body.chunk().await? {
            let length = part.len() as u64;
            metrics.fetched(self.kind, length);
            if self.received + length > self.max_encoded {
                return Err(FetchError::TooLarge(self.max_bytes));
            }
            if parts.send(part).await.is_err() {
                // The writer failed and returns the error.
                break;
            }
            self.received += length;
            let coded = self.received - before;
            check_rate(coded, started.elapsed(), || may_yield() && self.rest().is_some())?;
        }
        Ok(())
    }
}

/// The tag and the length of a body of which parts can be requested.
fn representation(headers: &HeaderMap) -> Option<(HeaderValue, u64)> {
    let etag = headers.get(header::ETAG).filter(|etag| etag.as_bytes().starts_with(b"\""))?;
    Some((etag.clone(), headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_the_same_representation_and_begins_where_the_last_one_ended() {
        let (digest, other) = (TarballDigest::of(b"one"), TarballDigest::of(b"two"));
        let etag = HeaderValue::from_static("\"one+zstd.0\"");
        let rest = BodyRange { digest, etag: etag.clone(), start: 10, end: 30, length: 30 };
        let headers = |digest: TarballDigest, range: &str, etag: &HeaderValue| {
            let mut headers = HeaderMap::new();
            headers.insert("weir-digest", digest.to_string().parse().unwrap());
            headers.insert(header::CONTENT_RANGE, range.parse().unwrap());
            headers.insert(header::ETAG, etag.clone());
            headers
        };
        assert!(rest.is_in(&headers(digest, "bytes 10-29/30", &etag)));
        assert!(!rest.is_in(&headers(other, "bytes 10-29/30", &etag)));
        for range in ["bytes 9-29/30", "bytes 11-29/30", "bytes 10-28/30", "bytes 10-29/*", "bytes 10-29/31"] {
            assert!(!rest.is_in(&headers(digest, range, &etag)), "{range}");
        }
        for tag in ["\"one\"", "W/\"one+zstd.0\""] {
            assert!(!rest.is_in(&headers(digest, "bytes 10-29/30", &HeaderValue::from_static(tag))), "{tag}");
        }
        assert!(!rest.is_in(&HeaderMap::new()));
    }

    #[test]
    fn only_a_body_with_a_strong_tag_and_a_length_has_parts() {
        let of = |pairs: &[(header::HeaderName, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            representation(&pairs.collect()).map(|(_, length)| length)
        };
        assert_eq!(of(&[(header::ETAG, "\"a\""), (header::CONTENT_LENGTH, "7")]), Some(7));
        assert_eq!(of(&[(header::ETAG, "W/\"a\""), (header::CONTENT_LENGTH, "7")]), None);
        assert_eq!(of(&[(header::ETAG, "\"a\"")]), None);
        assert_eq!(of(&[(header::CONTENT_LENGTH, "7")]), None);
    }
}
