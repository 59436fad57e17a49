//! Builds a request from its field section by the rules of RFC 9114 section 4.3.

use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version, header};

use super::error::{Code, RequestError};
use super::qpack;

/// Reads the field section of a request of at most `limit` bytes.
///
/// # Errors
/// The section is too large, cannot be decoded, or is not that of a valid request.
pub(super) fn read(section: &[u8], limit: usize) -> Result<Request<()>, RequestError> {
    let mut fields = Fields::default();
    qpack::decode(section, limit, |name, value| fields.take(name, value))?;
    fields.into_request().ok_or(RequestError::Stream(Code::MESSAGE_ERROR))
}

#[derive(Default)]
struct Fields {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    headers: HeaderMap,
    malformed: bool,
}

impl Fields {
    fn take(&mut self, name: &[u8], value: &[u8]) {
        let taken = match name.strip_prefix(b":") {
            // Pseudo-header fields come first, and each once.
            Some(_) if !self.headers.is_empty() => false,
            Some(b"method") => once(&mut self.method, value),
            Some(b"scheme") => once(&mut self.scheme, value),
            Some(b"authority") => once(&mut self.authority, value),
            // `*` is for OPTIONS (section 4.3.1).
            Some(b"path") => (value.starts_with(b"/") || value == b"*") && once(&mut self.path, value),
            Some(_) => false,
            None => self.header(name, value),
        };
        self.malformed |= !taken;
    }

    fn header(&mut self, name: &[u8], value: &[u8]) -> bool {
        let is_upper = name.iter().any(u8::is_ascii_uppercase);
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) else {
            return false;
        };
        // Connection-specific fields are not allowed (section 4.2).
        let is_connection_specific =
            matches!(name.as_str(), "connection" | "keep-alive" | "proxy-connection" | "transfer-encoding" | "upgrade")
                || name == header::TE && value != "trailers";
        if is_upper || is_connection_specific {
            return false;
        }
        self.headers.append(name, value);
        true
    }

    fn into_request(self) -> Option<Request<()>> {
        let (method, scheme, path) = (self.method?, self.scheme?, self.path?);
        if self.malformed || method == Method::CONNECT || path == "*" && method != Method::OPTIONS {
            return None;
        }
        // The host is in `:authority` or `Host`; if both are there they must be equal.
        let mut hosts = self.headers.get_all(header::HOST).iter();
        let host = hosts.next();
        if hosts.next().is_some() {
            return None;
        }
        let authority = match (self.authority, host) {
            (Some(authority), None) => authority,
            (Some(authority), Some(host)) if authority.as_str().as_bytes() == host.as_bytes() => authority,
            (None, Some(host)) => Authority::try_from(host.as_bytes()).ok()?,
            _ => return None,
        };
        if authority.as_str().contains('@') {
            return None;
        }
        let mut parts = http::uri::Parts::default();
        (parts.scheme, parts.authority, parts.path_and_query) = (Some(scheme), Some(authority), Some(path));
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_parts(parts).ok()?;
        *request.version_mut() = Version::HTTP_3;
        *request.headers_mut() = self.headers;
        Some(request)
    }
}

fn once<'a, T: TryFrom<&'a [u8]>>(field: &mut Option<T>, value: &'a [u8]) -> bool {
    if field.is_some() {
        return false;
    }
    *field = T::try_from(value).ok();
    field.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A section of literal fields without Huffman coding.
    fn section(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut section = vec![0, 0];
        for (name, value) in fields {
            assert!(name.len() < 7 + 128 && value.len() < 127);
            match name.len() {
                length @ 0..7 => section.push(0b0010_0000 | length as u8),
                length => section.extend([0b0010_0111, length as u8 - 7]),
            }
            section.extend(name.as_bytes());
            section.push(value.len() as u8);
            section.extend(value.as_bytes());
        }
        section
    }

    const GET: [(&str, &str); 4] =
        [(":method", "GET"), (":scheme", "https"), (":authority", "edge:7443"), (":path", "/v1/x?y=z")];

    fn read_fields(fields: &[(&str, &str)]) -> Option<Request<()>> {
        match read(&section(fields), 4096) {
            Ok(request) => Some(request),
            Err(RequestError::Stream(Code::MESSAGE_ERROR)) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_built_from_its_fields() {
        let request =
            read_fields(&[&GET[..], &[("if-none-match", "\"a\""), ("cookie", "a"), ("cookie", "b")]].concat()).unwrap();
        assert_eq!((request.method(), request.version()), (&Method::GET, Version::HTTP_3));
        assert_eq!(request.uri(), "https://edge:7443/v1/x?y=z");
        assert_eq!(request.headers()["if-none-match"], "\"a\"");
        assert_eq!(request.headers().get_all("cookie").iter().count(), 2);
        assert!(read_fields(&[&GET[..2], &GET[3..], &[("host", "edge:7443")]].concat()).is_some());
        assert!(read_fields(&[&GET[..], &[("host", "edge:7443"), ("te", "trailers")]].concat()).is_some());
    }

    #[test]
    fn malformed_requests_are_refused() {
        for (missing, _) in GET.iter().enumerate() {
            let fields: Vec<_> =
                GET.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, field)| *field).collect();
            assert!(read_fields(&fields).is_none(), "without {}", GET[missing].0);
        }
        for more in [
            (":method", "GET"),
            (":status", "200"),
            ("Accept", "x"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip"),
            ("host", "another"),
            ("bad name", "x"),
            ("value", "line\nbreak"),
        ] {
            assert!(read_fields(&[&GET[..], &[more]].concat()).is_none(), "{more:?}");
        }
        assert!(read_fields(&[&GET[..3], &[("accept", "x")], &GET[3..]].concat()).is_none(), "a late pseudo-header");
        assert!(read_fields(&[(":method", "CONNECT"), GET[1], GET[2], GET[3]]).is_none());
        assert!(read_fields(&[GET[0], GET[1], (":authority", "user@edge"), GET[3]]).is_none());
        assert!(read_fields(&[GET[0], GET[1], (":authority", ""), GET[3]]).is_none());
        let host = ("host", "edge:7443");
        assert!(read_fields(&[GET[0], GET[1], GET[3], host, host]).is_none(), "two hosts");
        for path in ["", "*", "v1", "?y", "https://edge/"] {
            assert!(read_fields(&[GET[0], GET[1], GET[2], (":path", path)]).is_none(), "the path `{path}`");
        }
        let options = read_fields(&[(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")]).unwrap();
        assert_eq!(options.uri().path(), "*");
        assert!(matches!(read(&section(&GET), 50), Err(RequestError::HeadTooLarge)));
    }

    proptest! {
        #[test]
        fn no_section_panics(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = read(&bytes, 4096);
        }
    }
}
