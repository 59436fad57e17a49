//! A response as a bounded `Read`, with the SHA-256 of its bytes.

use std::io::{self, Read, Write};
use std::time::Instant;

use bytes::{Buf, Bytes};
use reqwest::Response;
use ring::digest::{Context, SHA256};
use weir_protocol::digest::Sha256;

use super::super::error::UpstreamError;
use super::super::upstream::Upstream;
use super::client::Client;
use super::min_rate::MinRate;

/// The body of a response, of a limited size and at the minimum rate. The error of a read has no details: [`Body::finish`]
/// returns them.
pub struct Body<'c, 's> {
    client: &'c Client<'s>,
    response: Response,
    chunk: Bytes,
    /// The bytes that may still come.
    left: u64,
    rate: MinRate,
    digest: Context,
    failure: Option<BodyError>,
}

/// Why a body could not be read, or stored.
#[derive(Debug)]
pub enum BodyError {
    /// The upstream failed.
    Upstream(UpstreamError),
    /// It is larger than allowed.
    TooLarge,
    /// The local disk failed.
    Write(io::Error),
}

impl<'c, 's> Body<'c, 's> {
    /// At most `max_bytes` of a response are read.
    pub fn new(client: &'c Client<'s>, response: Response, max_bytes: u64) -> Self {
        let Upstream { config, limits, .. } = client.session().upstream;
        let rate = MinRate::new(limits.min_rate.as_u64(), config.stall_timeout, Instant::now());
        let (chunk, digest) = (Bytes::new(), Context::new(&SHA256));
        Self { client, response, chunk, left: max_bytes, rate, digest, failure: None }
    }

    /// The SHA-256 of the bytes that were read.
    ///
    /// # Errors
    /// Why reading failed.
    pub fn finish(self) -> Result<Sha256, BodyError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let digest = self.digest.finish();
        Ok(Sha256::from_bytes(digest.as_ref().try_into().expect("a SHA-256 has 32 bytes")))
    }

    /// Writes all of it, and returns its SHA-256.
    ///
    /// # Errors
    /// Reading or writing failed.
    pub fn write_to(mut self, file: &mut impl Write) -> Result<Sha256, BodyError> {
        while self.fill() {
            file.write_all(&self.chunk).map_err(BodyError::Write)?;
            self.chunk.clear();
        }
        self.finish()
    }

    /// Waits for a chunk. Returns false at the end, and after a failure.
    fn fill(&mut self) -> bool {
        if self.failure.is_none() && self.chunk.is_empty() {
            match self.next_chunk() {
                Ok(chunk) => self.chunk = chunk,
                Err(error) => self.failure = Some(error),
            }
        }
        !self.chunk.is_empty()
    }

    fn next_chunk(&mut self) -> Result<Bytes, BodyError> {
        let chunk = self.client.next_chunk(&mut self.response).map_err(BodyError::Upstream)?;
        self.left = self.left.checked_sub(chunk.len() as u64).ok_or(BodyError::TooLarge)?;
        self.digest.update(&chunk);
        self.rate.received(chunk.len(), Instant::now()).map_err(|slow| {
            let (step, min_rate) =
                (self.client.session().step(), self.client.session().upstream.limits.min_rate.as_u64());
            BodyError::Upstream(UpstreamError::TooSlow { step, bytes: slow.bytes, within: slow.within, min_rate })
        })?;
        Ok(chunk)
    }
}

impl Read for Body<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.fill() && self.failure.is_some() {
            return Err(io::Error::other("the response could not be read"));
        }
        let bytes = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use reqwest::header::HeaderMap;

    use super::super::test_server::{NOT_MODIFIED, response, server, with_client};
    use super::super::{USER_AGENT, Validators};
    use super::*;

    #[test]
    fn a_body_is_read_up_to_its_limit_and_hashed() {
        let text = "x".repeat(100_000);
        let (url, _requests) = server(vec![response("200 OK", "", &text); 4]);
        with_client(&Upstream::new(url.as_str()), |client| {
            let body = |max_bytes| Body::new(client, client.get(url.clone(), &HeaderMap::new()).unwrap().1, max_bytes);
            let mut whole = body(100_000);
            let mut read = String::new();
            whole.read_to_string(&mut read).unwrap();
            assert_eq!((whole.finish().unwrap(), read == text), (Sha256::of(text.as_bytes()), true));
            let mut file = Vec::new();
            assert_eq!(body(100_000).write_to(&mut file).unwrap(), Sha256::of(&file));
            assert_eq!(file.len(), 100_000);
            let mut long = body(99_999);
            io::copy(&mut long, &mut io::sink()).unwrap_err();
            assert!(matches!(long.finish(), Err(BodyError::TooLarge)));
            file.clear();
            assert!(matches!(body(99_999).write_to(&mut file), Err(BodyError::TooLarge)));
            assert!(file.len() < 100_000, "no byte beyond the limit is stored");
        });
    }

    #[test]
    fn a_body_that_is_cut_off_or_slow_is_no_body() {
        let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc";
        let (url, _requests) = server(vec![cut.to_owned(), response("200 OK", "", "abc")]);
        with_client(&Upstream::new(url.as_str()), |client| {
            let get = || Body::new(client, client.get(url.clone(), &HeaderMap::new()).unwrap().1, 100);
            let error = get().write_to(&mut Vec::new()).unwrap_err();
            assert!(matches!(&error, BodyError::Upstream(UpstreamError::Protocol { step: "list", .. })), "{error:?}");
            let mut slow = get();
            let start = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
            slow.rate = MinRate::new(1000, Duration::from_secs(1), start);
            let error = slow.write_to(&mut Vec::new()).unwrap_err();
            let BodyError::Upstream(error) = error else { panic!("{error:?}") };
            assert_eq!((error.kind(), error.step()), ("timeout", "list"));
            assert!(error.to_string().contains("too slow: 3 bytes in 3600 s; `[upstreams] min_rate` = "), "{error}");
        });
    }

    #[test]
    fn an_unchanged_document_costs_one_request_without_a_body() {
        let validators = "etag: \"1\"\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let (url, requests) = server(vec![
            response("200 OK", validators, "one"),
            NOT_MODIFIED.to_owned(),
            response("200 OK", "", "two"),
            NOT_MODIFIED.to_owned(),
        ]);
        with_client(&Upstream::new(url.as_str()), |client| {
            let get = |before: Option<&Validators>| client.get_if_changed(url.clone(), before);
            let (of, first) = get(None).unwrap().unwrap();
            let before = Validators::of(&of, &first);
            let request = requests.recv().unwrap();
            assert!(!request.contains("\r\nif-"), "{request}");
            let agent = format!("\r\nuser-agent: {USER_AGENT}\r\n");
            assert!(request.contains(&agent) && request.contains("\r\naccept-encoding: identity\r\n"), "{request}");
            assert!(get(Some(&before)).unwrap().is_none());
            let request = requests.recv().unwrap();
            let modified = "\r\nif-modified-since: thu, 01 jan 2026 00:00:00 gmt\r\n";
            assert!(request.contains("\r\nif-none-match: \"1\"\r\n") && request.contains(modified), "{request}");
            assert!(get(Some(&before)).unwrap().is_some(), "it changed");
            let error = get(None).unwrap_err();
            assert!(matches!(error, UpstreamError::HttpStatus { status: 304, .. }), "it was not asked for: {error}");
        });
    }
}
