//! Requests that a web page of another site makes an operator's browser send. Pure.
//!
//! A browser reaches listeners that the page's server cannot, and adds the operator's client certificate. It also names the
//! page: by `Origin` (RFC 6454), by `Sec-Fetch-Site` (W3C Fetch Metadata), and, where a foreign name was bound to a loopback
//! address, by `Host`.

use http::{HeaderMap, Method, Request, StatusCode, header};
use weir_protocol::problem::Problem;

use crate::serve::Peer;

/// The problem of a request that another site caused, or whose body has a type that another site may send without asking:
/// any but JSON. A link to a page is followed.
pub fn refuse<B>(request: &Request<B>) -> Option<Problem> {
    let headers = request.headers();
    let value = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("not text"));
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let is_link = is_read && value("sec-fetch-mode") == Some("navigate");
    let from_foreign_site = value("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let from_foreign_origin = value("origin").is_some_and(|origin| !is_own_origin(origin, host(request)));
    if from_foreign_origin || from_foreign_site && !is_link {
        return Some(Problem::new(
            StatusCode::FORBIDDEN,
            "cross-site",
            "A page of another site caused this request",
            "`Origin` or `Sec-Fetch-Site` names another site. Send the request from a program, or from a page of this server.",
        ));
    }
    (!is_read && !has_json(headers)).then(|| {
        Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            "The body is not JSON",
            "Send `Content-Type: application/json`; curl does with `--json` instead of `--data`.",
        )
    })
}

/// Whether a request comes from this machine and was meant for it. Its `Host` is checked too: a name of another site may
/// resolve to a loopback address (DNS rebinding).
pub fn is_from_this_machine<B>(request: &Request<B>, peer: &Peer) -> bool {
    peer.address.ip().to_canonical().is_loopback() && host(request).is_none_or(is_loopback_name)
}

/// Whether the `Host` of a request names this machine's loopback interface. A request of HTTP/1.0 may have none.
pub fn is_for_loopback<B>(request: &Request<B>) -> bool {
    host(request).is_none_or(is_loopback_name)
}

/// The `Host` or `:authority` of a request.
fn host<B>(request: &Request<B>) -> Option<&str> {
    let header = || request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    request.uri().authority().map(|authority| authority.as_str()).or_else(header)
}

fn is_own_origin(origin: &str, host: Option<&str>) -> bool {
    let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_localhost = name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost");
    is_localhost || address.parse().is_ok_and(|address: std::net::IpAddr| address.to_canonical().is_loopback())
}

/// Whether the type of the body is JSON, or not stated: a browser states it.
fn has_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_none_or(|kind| {
        let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_another_site_causes_are_refused() {
        let page = "https://origin.example:7401";
        for (method, headers, expected) in [
            ("GET", &[][..], None),
            ("PUT", &[("content-type", "application/json; charset=utf-8")], None),
            ("PUT", &[("content-type", "application/merge-patch+json")], None),
            ("PUT", &[("origin", page), ("sec-fetch-site", "same-origin")], None),
            ("GET", &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")], None),
            ("GET", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], None),
            ("GET", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")], Some(403)),
            ("GET", &[("sec-fetch-site", "same-site")], Some(403)),
            ("POST", &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], Some(403)),
            ("POST", &[("origin", "https://evil.example")], Some(403)),
            ("POST", &[("origin", "https://origin.example")], Some(403)),
            ("POST", &[("origin", "null")], Some(403)),
            ("POST", &[("content-type", "application/x-www-form-urlencoded")], Some(415)),
            ("POST", &[("content-type", "text/plain")], Some(415)),
        ] {
            let mut request =
                Request::builder().method(method).uri("/v1/services").header("host", "Origin.example:7401");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let refused =
                refuse(&request.body(()).unwrap()).map(|problem| problem.into_response::<Vec<u8>>().status().as_u16());
            assert_eq!(refused, expected, "{method} {headers:?}");
        }
    }

    #[test]
    fn a_request_from_this_machine_names_it_too() {
        for (address, host, expected) in [
            ("127.0.0.1:1", "127.0.0.1:7491", true),
            ("[::1]:1", "localhost", true),
            ("[::ffff:127.0.0.1]:1", "localhost", true),
            ("127.0.0.1:1", "evil.example", false),
            ("10.0.0.1:1", "localhost", false),
        ] {
            let request = Request::builder().uri("/status").header("host", host).body(()).unwrap();
            let peer = Peer { address: address.parse().unwrap(), identity: None, certificate_ends: None };
            assert_eq!(is_from_this_machine(&request, &peer), expected, "{address} {host}");
        }
        for (host, expected) in [
            ("localhost", true),
            ("LOCALHOST:7491", true),
            ("weir.localhost", true),
            ("127.0.0.1:7491", true),
            ("127.9.9.9", true),
            ("[::1]:7491", true),
            ("[::1]", true),
            ("evil.example:7491", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:7491", false),
            ("", false),
        ] {
            assert_eq!(is_loopback_name(host), expected, "{host}");
        }
    }
}
