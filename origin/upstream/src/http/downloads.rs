//! Requests to an LFS server, and to the storages of LFS servers and registries.
//!
//! The storage may be any host with a public address, because large services use other hosts, which change without
//! notice. It receives the headers from the LFS server, and never the upstream's credentials.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, Url};

use super::super::error::UpstreamError;
use super::super::redirects::Redirects;
use super::client::Client;
use super::redirects;

/// The timeout of a response, in stall timeouts: it holds a permit for which others wait.
const RESPONSE_STALL_TIMEOUTS: u32 = 4;

/// Headers that an LFS server must not set for a download: they frame the request, or are for proxies.
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
    /// Sends a POST request and reads a response of at most `max_bytes`. Returns the final URL and the response.
    /// Redirects are followed with method and body, as Git LFS does.
    pub fn query(
        &self,
        url: &Url,
        content_type: &'static str,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<(Url, Vec<u8>), UpstreamError> {
        let headers =
            HeaderMap::from_iter([ACCEPT, CONTENT_TYPE].map(|name| (name, HeaderValue::from_static(content_type))));
        let body = Bytes::from(body);
        let send = |url: &Url| self.send_with(&Method::POST, url, headers.clone(), Some(&body));
        let (url, response) =
            redirects::follow_all(url.clone(), send, |from, response| self.redirected(from, response))?;
        Ok((url, self.read(response, max_bytes)?))
    }

    fn read(&self, response: Response, max_bytes: usize) -> Result<Vec<u8>, UpstreamError> {
        let mut response = self.expect_success(response)?;
        let (mut bytes, start) = (Vec::new(), Instant::now());
        let timeout = self.session().upstream.config.stall_timeout * RESPONSE_STALL_TIMEOUTS;
        loop {
            let chunk = self.next_chunk(&mut response)?;
            if chunk.is_empty() {
                return Ok(bytes);
            }
            if start.elapsed() >= timeout {
                let cause = format!("its response took more than {} s", timeout.as_secs());
                return Err(UpstreamError::Protocol { step: self.session().step(), cause });
            }
            bytes.extend_from_slice(&chunk);
            if bytes.len() > max_bytes {
                let cause = format!("its response has more than {max_bytes} bytes");
                return Err(UpstreamError::Protocol { step: self.session().step(), cause });
            }
        }
    }

    /// Sends a GET request for the `href` of a response from `from`. The headers are sent only to the origin of `href`.
    /// Redirects are followed unless all are disabled. The response may have any status.
    pub fn download(
        &self,
        from: &Url,
        href: &str,
        headers: &HashMap<String, String>,
    ) -> Result<Response, UpstreamError> {
        let first = self.other_host(from, href)?;
        let send = |url: &Url| {
            let given = if redirects::same_origin(url, &first) { download_headers(headers)? } else { HeaderMap::new() };
            self.send_with(&Method::GET, url, given, None)
        };
        let next = |from: &Url, response: &Response| self.storage_redirect(from, response);
        redirects::follow_all(first.clone(), send, next).map(|(_, response)| response)
    }

    /// The URL to which a response from `from` refers, if its host may be contacted, and does not receive credentials that
    /// `from` has not received.
    pub fn other_host(&self, from: &Url, href: &str) -> Result<Url, UpstreamError> {
        self.not_sent_back(from, redirects::storage_url(&self.upstream_url, &self.external_policy, from, href)?)
    }

    /// The target of a redirect to a storage, which may be another host.
    pub fn storage_redirect(&self, from: &Url, response: &Response) -> Result<Url, UpstreamError> {
        let (rules, egress) = (&self.session().upstream.config.redirects, &self.session().upstream.egress);
        let location = self.location(response)?;
        match rules {
            Redirects::None => redirects::follow(rules, egress, from, location),
            Redirects::SameHost | Redirects::To(_) => self.other_host(from, location),
        }
    }
}

/// The headers that an LFS server sets for a download, which may be secret.
fn download_headers(headers: &HashMap<String, String>) -> Result<HeaderMap, UpstreamError> {
    let mut given = HeaderMap::new();
    for (name, value) in headers {
        let invalid = || UpstreamError::Protocol { step: "lfs", cause: "it sets an invalid header".to_owned() };
        let name = HeaderName::try_from(name).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        if !FORBIDDEN_HEADERS.contains(&name.as_str()) {
            given.insert(name, value);
        }
    }
    Ok(given)
}
