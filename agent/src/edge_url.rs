//! The URL of an edge.

use std::fmt;
use std::str::FromStr;

/// `https://host[:port]`, with port 443 by default and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EdgeUrl {
    /// As in a URL: with brackets around an IPv6 address.
    host: String,
    port: u16,
}

/// The text is not the URL of an edge. The error does not repeat it, because it may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not the URL of an edge, such as `https://edge.example:7443`: {0}")]
pub struct EdgeUrlError(&'static str);

impl EdgeUrl {
    /// The host without brackets, as resolvers and certificates have it.
    pub fn host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&self.host)
    }

    /// The port, for TCP and UDP.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for EdgeUrl {
    type Err = EdgeUrlError;

    fn from_str(text: &str) -> Result<Self, EdgeUrlError> {
        let uri: http::Uri = text.parse().map_err(|_| EdgeUrlError("it is not a URL"))?;
        if uri.scheme_str() != Some("https") {
            return Err(EdgeUrlError("it does not begin with `https://`"));
        }
        let authority = uri.authority().ok_or(EdgeUrlError("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(EdgeUrlError("it contains a user name"));
        }
        if authority.host().is_empty() {
            return Err(EdgeUrlError("it names no host"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(EdgeUrlError("it has a path"));
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(':') || authority.as_str().len() > authority.host().len() => {
                return Err(EdgeUrlError("its port is not a number"));
            }
            None => 443,
        };
        Ok(Self { host: authority.host().to_owned(), port })
    }
}

impl fmt::Display for EdgeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            443 => write!(f, "https://{}", self.host),
            port => write!(f, "https://{}:{port}", self.host),
        }
    }
}

weir_protocol::serde_as_text!(EdgeUrl);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_and_nothing_else() {
        for (text, host, port, written) in [
            ("https://edge.example", "edge.example", 443, "https://edge.example"),
            ("https://edge.example:443/", "edge.example", 443, "https://edge.example"),
            ("https://127.0.0.1:7443", "127.0.0.1", 7443, "https://127.0.0.1:7443"),
            ("https://[::1]:7443", "::1", 7443, "https://[::1]:7443"),
        ] {
            let url: EdgeUrl = text.parse().unwrap();
            assert_eq!((url.host(), url.port(), url.to_string().as_str()), (host, port, written));
            assert_eq!(url.to_string().parse::<EdgeUrl>(), Ok(url));
        }
        for wrong in [
            "",
            "edge.example",
            "http://edge.example",
            "https://",
            "https://edge.example/v1",
            "https://edge.example?x",
            "https://user:secret@edge.example",
            "https://edge.example:port",
        ] {
            let error = wrong.parse::<EdgeUrl>().expect_err(wrong);
            assert!(!error.to_string().contains("secret"));
        }
    }
}
