//! Requests for a document that may not have changed (RFC 9110, section 13).

use reqwest::header::{ETAG, HeaderMap, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use reqwest::{Response, StatusCode, Url};

use super::super::error::UpstreamError;
use super::client::Client;

/// The `ETag` and `Last-Modified` of a document, as the headers of the next request for it. Default: none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Validators(HeaderMap);

impl Validators {
    pub(crate) fn of(response: &Response) -> Self {
        let pairs = [(IF_NONE_MATCH, ETAG), (IF_MODIFIED_SINCE, LAST_MODIFIED)];
        let sent = |(name, from)| Some((name, response.headers().get(from)?.clone()));
        Self(pairs.into_iter().filter_map(sent).collect())
    }
}

impl Client<'_> {
    /// Sends a GET request, like [`get`](Self::get). `None`: the document is the one with these validators.
    pub(crate) fn get_if_changed(
        &self,
        url: Url,
        before: &Validators,
    ) -> Result<Option<(Url, Response)>, UpstreamError> {
        let (url, response) = self.get_any(url, &before.0)?;
        if response.status() == StatusCode::NOT_MODIFIED && !before.0.is_empty() {
            return Ok(None);
        }
        Ok(Some((url, self.expect_success(response)?)))
    }
}
