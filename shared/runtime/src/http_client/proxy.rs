//! A proxy between this process and its servers: a tunnel by CONNECT.

use std::fmt;
use std::str::FromStr;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The URL of an HTTP proxy, `http://[user:password@]host[:port]`. Neither its text nor an error contains the password.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    /// Without user and password.
    uri: Uri,
    authorization: Option<HeaderValue>,
}

/// The text is not the URL of a proxy. The error does not repeat it, because it may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the URL of a proxy, such as `http://proxy.example:3128`: {0}")]
pub struct ProxyUrlError(&'static str);

impl ProxyUrl {
    /// Where to connect to.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The value of `Proxy-Authorization`.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// The host, without brackets around an IPv6 address.
    pub fn host(&self) -> &str {
        let host = self.uri.host().expect("it was checked");
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port; 80 by default.
    pub fn port(&self) -> u16 {
        self.uri.port_u16().unwrap_or(80)
    }
}

impl FromStr for ProxyUrl {
    type Err = ProxyUrlError;

    fn from_str(text: &str) -> Result<Self, ProxyUrlError> {
        let uri: Uri = text.parse().map_err(|_| ProxyUrlError("it is not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(ProxyUrlError(
                "it does not begin with `http://`: TLS goes through the tunnel, not to the proxy",
            ));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(ProxyUrlError("it has a path"));
        }
        // Decodes user and password.
        let any = Uri::from_static("https://any.invalid");
        let proxy = Matcher::builder().https(text).build().intercept(&any).ok_or(ProxyUrlError("it names no host"))?;
        let authority = proxy.uri().authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or(ProxyUrlError("it names no host"))?;
        if authority.port().is_none() && authority.as_str().len() > authority.host().len() {
            return Err(ProxyUrlError("its port is not a number"));
        }
        let authorization = Intercept::basic_auth(&proxy).cloned().map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Ok(Self { uri: proxy.uri().clone(), authorization })
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.uri.authority().expect("it was checked");
        write!(f, "http://{authority}")
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

weir_protocol::serde_as_text!(ProxyUrl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_host_and_perhaps_credentials_that_no_text_contains() {
        for (text, host, port, authorization) in [
            ("http://proxy.example:3128", "proxy.example", 3128, None),
            ("http://proxy.example/", "proxy.example", 80, None),
            ("http://[::1]:3128", "::1", 3128, None),
            // user:s3cret:@
            ("http://user:s3cret%3A%40@proxy.example:3128", "proxy.example", 3128, Some("Basic dXNlcjpzM2NyZXQ6QA==")),
        ] {
            let proxy: ProxyUrl = text.parse().unwrap();
            assert_eq!((proxy.host(), proxy.port()), (host, port));
            let value = proxy.authorization().map(|value| value.to_str().unwrap());
            assert_eq!(value, authorization);
            let shown = format!("{proxy} {proxy:?} {}", serde_json::to_string(&proxy).unwrap());
            assert!(shown.contains("proxy.example") == (host != "::1") && !shown.contains('@'), "{shown}");
        }
        for wrong in [
            "",
            "proxy.example:3128",
            "https://proxy.example",
            "socks5://user:s3cret@proxy.example",
            "http://user:s3cret@",
            "http://user:s3cret@proxy.example/path",
            "http://user:s3cret@proxy.example:port",
        ] {
            let error = wrong.parse::<ProxyUrl>().expect_err(wrong).to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
