//! Clients that know registries send a token as the password of Basic (RFC 7617), with any user name.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Request, header};
use weir_runtime::serve::RequestBody;

/// The same request with its password as a token, and without its body. `None`: it has no password.
pub(super) fn with_token(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    encoded(request.headers())?;
    let mut copy = Request::new(RequestBody::Empty);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    use_as_token(copy.headers_mut());
    Some(copy)
}

/// Replaces a password by the token that it is. What cannot be read becomes a token that cannot be read.
pub(super) fn use_as_token(headers: &mut HeaderMap) {
    let Some(encoded) = encoded(headers) else { return };
    let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let password = decoded.as_deref().and_then(|decoded| decoded.split_once(':')).map_or("", |(_, password)| password);
    let bearer = HeaderValue::try_from(format!("Bearer {password}"));
    headers.insert(header::AUTHORIZATION, bearer.unwrap_or(HeaderValue::from_static("Bearer")));
}

/// The credentials of Basic, if they are the only ones.
fn encoded(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, encoded) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("basic").then_some(encoded.trim_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_token_whatever_the_user() {
        let basic = |text: &str| format!("bAsic {}", STANDARD.encode(text));
        for (values, expected) in [
            (vec![basic("user:a.b.c")], Some("Bearer a.b.c")),
            (vec![basic(":a:b")], Some("Bearer a:b")),
            (vec![basic("user")], Some("Bearer ")),
            (vec![basic("user:a\nb")], Some("Bearer")),
            (vec!["Basic ?".to_owned()], Some("Bearer ")),
            (vec!["Bearer a.b.c".to_owned()], None),
            (vec![basic("user:a"), basic("user:a")], None),
            (vec![], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            let before = headers.clone();
            let mut request = Request::builder().method("HEAD").uri("/v2/a").body(RequestBody::Empty).unwrap();
            *request.headers_mut() = headers.clone();
            let copy = with_token(&request);
            assert_eq!(copy.is_some(), expected.is_some(), "{values:?}");
            use_as_token(&mut headers);
            if let Some(copy) = copy {
                assert_eq!((copy.method(), copy.uri(), copy.headers()), (request.method(), request.uri(), &headers));
            }
            match expected {
                Some(bearer) => assert_eq!(headers[header::AUTHORIZATION], bearer, "{values:?}"),
                None => assert_eq!(headers, before),
            }
        }
    }
}
