//! Encodings of responses. None is requested, and none is undone: what is fetched is compressed already, or has a digest.

use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;
use weir_upstream::http::IDENTITY;
use weir_upstream::shown;

/// The end of a message about a response that cannot be used, if it is labelled with an encoding. A label alone harms nothing.
pub(crate) fn unrequested(response: &Response) -> String {
    let value = response.headers().get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()));
    value.filter(|value| !value.is_empty() && !value.eq_ignore_ascii_case(IDENTITY)).map_or_else(String::new, |value| {
        let value = shown(&value, 60);
        format!("; the server, or a proxy before it, sent `Content-Encoding: {value}`, which was not requested: turn that off")
    })
}
