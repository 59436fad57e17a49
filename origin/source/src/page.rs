//! Pages for people, which servers send instead of what was requested: to sign in, or during maintenance.

use reqwest::Response;
use reqwest::header::{CONTENT_TYPE, HeaderValue};

/// What a server sent, for messages.
pub(crate) const PAGE: &str = "the server sent a page (`text/html`)";

/// Whether a response says that it is a page.
pub(crate) fn is_page(response: &Response) -> bool {
    let header = response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let media_type = header.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"text/html")
}
