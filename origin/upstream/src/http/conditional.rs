//! Requests for a document that may not have changed (RFC 9110, section 13).

use reqwest::header::{ETAG, HeaderMap, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use reqwest::{Response, StatusCode, Url};

use super::super::error::UpstreamError;
use super::client::Client;

/// The `ETag` and `Last-Modified` of a document, as the headers of the next request for it.
#[derive(Debug, Clone)]
pub struct Validators {
    /// The final URL of the document. Of another document they say nothing, so they are sent to this URL only.
    url: Url,
    headers: HeaderMap,
}

impl Validators {
    /// Those of a response from this URL.
    pub fn of(url: &Url, response: &Response) -> Self {
        let pairs = [(IF_NONE_MATCH, ETAG), (IF_MODIFIED_SINCE, LAST_MODIFIED)];
        let sent = |(name, from)| Some((name, response.headers().get(from)?.clone()));
        Self { url: url.clone(), headers: pairs.into_iter().filter_map(sent).collect() }
    }
}

impl Client<'_> {
    /// Sends a GET request, like [`get`](Self::get). `None`: the document is the one with these validators.
    pub fn get_if_changed(
        &self,
        url: Url,
        before: Option<&Validators>,
    ) -> Result<Option<(Url, Response)>, UpstreamError> {
        let none = HeaderMap::new();
        let sent = |url: &Url| before.filter(|before| before.url == *url).map_or(&none, |before| &before.headers);
        let (url, response) = self.get_any(url, sent)?;
        if response.status() == StatusCode::NOT_MODIFIED && !sent(&url).is_empty() {
            return Ok(None);
        }
        Ok(Some((url, self.expect_success(response)?)))
    }
}
