//! The secrets of webhooks that are sent as they are, by senders that cannot sign: from where they can put it to one header.
//!
//! This is done before anything else reads the request, so no log, metric, audit line or error has a secret of a path.

use http::{HeaderValue, Request, Uri, header};

use crate::webhook::TOKEN;

/// The paths of deliveries whose senders may send the secret.
const PATH: &str = "/v1/webhooks/generic/";

/// Moves the secret of `/v1/webhooks/generic/NAME/SECRET`, or of `Authorization: Bearer SECRET`, to [`TOKEN`].
pub(super) fn to_header<B>(request: &mut Request<B>) {
    let Some(rest) = request.uri().path().strip_prefix(PATH) else { return };
    let token = match rest.split_once('/') {
        Some((name, secret)) => {
            let (path, secret) = (format!("{PATH}{name}"), HeaderValue::from_str(secret));
            *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static(PATH));
            secret.ok()
        }
        None => request.headers().get(header::AUTHORIZATION).and_then(bearer),
    };
    if let Some(mut token) = token.filter(|token| !token.is_empty()) {
        token.set_sensitive(true);
        request.headers_mut().insert(TOKEN, token);
    }
}

fn bearer(authorization: &HeaderValue) -> Option<HeaderValue> {
    let (scheme, token) = authorization.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| HeaderValue::from_str(token.trim()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_leaves_the_path_and_the_authorization() {
        let moved = |path: &str, authorization: Option<&str>| {
            let mut request = Request::post(path).body(()).unwrap();
            request.headers_mut().extend(authorization.map(|value| (header::AUTHORIZATION, value.parse().unwrap())));
            to_header(&mut request);
            let token = request.headers().get(TOKEN).map(|token| token.to_str().unwrap().to_owned());
            (request.uri().to_string(), token)
        };
        let of = |path: &str, token: Option<&str>| (path.to_owned(), token.map(str::to_owned));
        let path = "/v1/webhooks/generic/shop";
        assert_eq!(moved(path, None), of(path, None));
        assert_eq!(moved(path, Some("bearer s3cret")), of(path, Some("s3cret")));
        assert_eq!(moved(path, Some("Basic s3cret")), of(path, None));
        assert_eq!(moved("/v1/webhooks/generic/shop/s3cret", None), of(path, Some("s3cret")));
        assert_eq!(moved("/v1/webhooks/generic/shop/s3cret?a=b", Some("Bearer x")), of(path, Some("s3cret")));
        assert_eq!(moved("/v1/webhooks/generic/shop/a/b", None), of(path, Some("a/b")));
        assert_eq!(moved("/v1/webhooks/generic/shop/", None), of(path, None));
        let other = "/v1/webhooks/github/shop/s3cret";
        assert_eq!(moved(other, Some("Bearer x")), of(other, None));
    }
}
