//! Requests of an LFS server and its storage: what is no part of Git's protocol.
//!
//! A storage may be any host with a public address: of large services it is another than their own, and changes without
//! notice. It is given what the LFS server gives for it, and nothing that the upstream is shown.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};

use super::super::{MirrorError, Redirects};
use super::client::Client;
use super::redirects::{self, LONGEST_CHAIN, too_many};

/// An answer comes within so many stall timeouts, however little comes at a time: others wait for the place.
const LATE_AFTER_STALLS: u32 = 4;

/// Headers that are no business of a server which says what to send elsewhere: they frame a request, or are for proxies.
const OWN_HEADERS: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
];

impl Client<'_> {
    /// Asks the upstream something, and takes an answer of at most so many bytes. Where the answer came from, and the answer.
    /// Redirects are followed like those of a poll. What is asked goes along whatever their status says of methods: a server
    /// that sends a question elsewhere wants it asked there, and Git LFS does.
    pub(in super::super) fn ask(
        &self,
        url: &Url,
        kind: &'static str,
        question: Vec<u8>,
        max_bytes: usize,
    ) -> Result<(Url, Vec<u8>), MirrorError> {
        let headers = HeaderMap::from_iter([ACCEPT, CONTENT_TYPE].map(|name| (name, HeaderValue::from_static(kind))));
        let (mut url, question) = (url.clone(), Bytes::from(question));
        for _ in 0..=LONGEST_CHAIN {
            let answer = self.send_with(&Method::POST, &url, headers.clone(), Some(&question))?;
            if !answer.status().is_redirection() {
                return Ok((url, self.read(answer, max_bytes)?));
            }
            url = self.redirected(&url, &answer)?;
        }
        Err(too_many(&url))
    }

    fn read(&self, answer: Response, max_bytes: usize) -> Result<Vec<u8>, MirrorError> {
        let mut answer = self.expect_success(answer)?;
        let (mut bytes, begun) = (Vec::new(), Instant::now());
        let longest = self.attempt().upstream.stall_timeout * LATE_AFTER_STALLS;
        loop {
            let more = self.more(&mut answer)?;
            if more.is_empty() {
                return Ok(bytes);
            }
            if begun.elapsed() >= longest {
                let cause = format!("its answer did not come within {} s", longest.as_secs());
                return Err(MirrorError::Upstream { step: self.attempt().step(), cause });
            }
            bytes.extend_from_slice(&more);
            if bytes.len() > max_bytes {
                let cause = format!("it answers with more than {max_bytes} bytes");
                return Err(MirrorError::Upstream { step: self.attempt().step(), cause });
            }
        }
    }

    /// Asks for what the answer from `from` points at, with the headers that go with it, which stay with the place that
    /// they are for. Redirects are followed like what is pointed at, unless none are to be followed at all. The answer may
    /// say no.
    pub(in super::super) fn download(
        &self,
        from: &Url,
        href: &str,
        headers: &HashMap<String, String>,
    ) -> Result<Response, MirrorError> {
        let (rules, egress) = (&self.attempt().upstream.redirects, &self.attempt().upstream.egress);
        let first = redirects::storage(&self.home, &self.beyond, from, href)?;
        let mut url = first.clone();
        for _ in 0..=LONGEST_CHAIN {
            let given = if redirects::same_origin(&url, &first) { given(headers)? } else { HeaderMap::new() };
            let answer = self.send_with(&Method::GET, &url, given, None)?;
            if !answer.status().is_redirection() {
                return Ok(answer);
            }
            let location = self.location(&answer)?;
            url = match rules {
                Redirects::None => redirects::follow(rules, egress, &url, location)?,
                Redirects::SameHost | Redirects::To(_) => redirects::storage(&self.home, &self.beyond, &url, location)?,
            };
        }
        Err(too_many(&url))
    }
}

/// What goes with a download, by the word of an LFS server. It may be secret.
fn given(headers: &HashMap<String, String>) -> Result<HeaderMap, MirrorError> {
    let mut given = HeaderMap::new();
    for (name, value) in headers {
        let wrong = || MirrorError::Upstream { step: "lfs", cause: "it asks for a header that none can be".to_owned() };
        let name = HeaderName::try_from(name).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        if !OWN_HEADERS.contains(&name.as_str()) {
            given.insert(name, value);
        }
    }
    Ok(given)
}
