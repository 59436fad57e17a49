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
use super::redirects::{self, MAX_REDIRECTS, too_many};

/// An response comes within so many stall timeouts, however little comes at a time: others wait for the place.
const RESPONSE_STALL_TIMEOUTS: u32 = 4;

/// Headers that are no business of a server which says what to send elsewhere: they frame a request, or are for proxies.
const FORBIDDEN_HEADERS: [&str; 9] = [
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
    /// Asks the upstream something, and takes an response of at most so many bytes. Where the response came from, and the response.
    /// Redirects are followed like those of a poll. What is asked goes along whatever their status says of methods: a server
    /// that sends a body elsewhere wants it asked there, and Git LFS does.
    pub(in super::super) fn query(
        &self,
        url: &Url,
        content_type: &'static str,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<(Url, Vec<u8>), MirrorError> {
        let headers =
            HeaderMap::from_iter([ACCEPT, CONTENT_TYPE].map(|name| (name, HeaderValue::from_static(content_type))));
        let (mut url, body) = (url.clone(), Bytes::from(body));
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_with(&Method::POST, &url, headers.clone(), Some(&body))?;
            if !response.status().is_redirection() {
                return Ok((url, self.read(response, max_bytes)?));
            }
            url = self.redirected(&url, &response)?;
        }
        Err(too_many(&url))
    }

    fn read(&self, response: Response, max_bytes: usize) -> Result<Vec<u8>, MirrorError> {
        let mut response = self.expect_success(response)?;
        let (mut bytes, begun) = (Vec::new(), Instant::now());
        let timeout = self.session().upstream.stall_timeout * RESPONSE_STALL_TIMEOUTS;
        loop {
            let chunk = self.next_chunk(&mut response)?;
            if chunk.is_empty() {
                return Ok(bytes);
            }
            if begun.elapsed() >= timeout {
                let cause = format!("its response did not come within {} s", timeout.as_secs());
                return Err(MirrorError::Upstream { step: self.session().step(), cause });
            }
            bytes.extend_from_slice(&chunk);
            if bytes.len() > max_bytes {
                let cause = format!("it answers with more than {max_bytes} bytes");
                return Err(MirrorError::Upstream { step: self.session().step(), cause });
            }
        }
    }

    /// Asks for what the response from `from` points at, with the headers that go with it, which stay with the place that
    /// they are for. Redirects are followed like what is pointed at, unless none are to be followed at all. The response may
    /// say no.
    pub(in super::super) fn download(
        &self,
        from: &Url,
        href: &str,
        headers: &HashMap<String, String>,
    ) -> Result<Response, MirrorError> {
        let (rules, reach) = (&self.session().upstream.redirects, &self.session().upstream.reach);
        let first = redirects::storage_url(&self.upstream_url, &self.external_policy, from, href)?;
        let mut url = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let given =
                if redirects::same_origin(&url, &first) { download_headers(headers)? } else { HeaderMap::new() };
            let response = self.send_with(&Method::GET, &url, given, None)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let location = self.location(&response)?;
            url = match rules {
                Redirects::None => redirects::follow(rules, reach, &url, location)?,
                Redirects::SameHost | Redirects::To(_) => {
                    redirects::storage_url(&self.upstream_url, &self.external_policy, &url, location)?
                }
            };
        }
        Err(too_many(&url))
    }
}

/// What goes with a download, by the word of an LFS server. It may be secret.
fn download_headers(headers: &HashMap<String, String>) -> Result<HeaderMap, MirrorError> {
    let mut given = HeaderMap::new();
    for (name, value) in headers {
        let wrong = || MirrorError::Upstream { step: "lfs", cause: "it asks for a header that none can be".to_owned() };
        let name = HeaderName::try_from(name).map_err(|_| wrong())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
        value.set_sensitive(true);
        if !FORBIDDEN_HEADERS.contains(&name.as_str()) {
            given.insert(name, value);
        }
    }
    Ok(given)
}
