//! What headers of a request say, for the APIs of agents and of other edges.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use weir_protocol::dcz::AVAILABLE_DICTIONARY;
use weir_runtime::serve::RequestBody;

use crate::catalog::RevalidateMode;

/// The value of a list header, several lines joined by commas. Lines that are not text are skipped.
pub(crate) fn joined<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let mut all = Cow::Borrowed(lines.next()?);
    for line in lines {
        let all = all.to_mut();
        all.push_str(", ");
        all.push_str(line);
    }
    Some(all)
}

/// Whether a `GET` forces revalidation and verification with `no-cache`.
pub(crate) fn is_forced(request: &Request<RequestBody>) -> bool {
    let headers = request.headers();
    let no_cache = |value: &HeaderValue| {
        let directives = value.to_str().unwrap_or_default().split(',');
        directives.map(str::trim).any(|directive| directive.eq_ignore_ascii_case("no-cache"))
    };
    request.method() == Method::GET
        && !headers.contains_key(header::IF_NONE_MATCH)
        && !headers.contains_key(AVAILABLE_DICTIONARY)
        && headers.get_all(header::CACHE_CONTROL).iter().any(no_cache)
}

/// When an origin is asked before the request is answered.
pub(crate) fn revalidate_mode(request: &Request<RequestBody>) -> RevalidateMode {
    if is_forced(request) { RevalidateMode::Forced } else { RevalidateMode::IfStale }
}
