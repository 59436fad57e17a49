//! The URL of an upstream or a proxy, parsed once.
//!
//! Two parsers read it and must agree on the host. One decides the egress policy, the rate limit and the operator's
//! secrets; the other opens connections. A URL that they read differently is invalid.

mod http_address;
mod oci_address;
mod ssh_address;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

pub use self::oci_address::{OciAddress, OciName};
pub use self::ssh_address::SshAddress;
use super::without_user_info;

/// The text of a URL, with the parsed address or the reason why it is invalid.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Endpoint {
    text: String,
    scheme: Option<Scheme>,
    host: Option<String>,
    address: Result<Address, &'static str>,
}

/// The protocol of an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `https://`.
    Https,
    /// `http://`.
    Http,
    /// `ssh://` or `user@host:path`.
    Ssh,
    /// `git://`.
    Git,
    /// `oci://`: a registry, over HTTPS unless it is insecure.
    Oci,
    /// `file://` or a path: served by a Git program on this machine.
    Local,
}

/// A parsed address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Without user info, query and fragment.
    Http(Url),
    /// Of an SSH server.
    Ssh(SshAddress),
    /// In a registry.
    Oci(OciAddress),
    /// Of a Git daemon.
    Git {
        /// A name or an IP address.
        host: String,
        /// `None`: that of the protocol.
        port: Option<u16>,
        /// As sent to the daemon.
        path: String,
    },
    /// A folder of this machine.
    Local(PathBuf),
}

impl Endpoint {
    /// Parses a URL. An invalid one is stored with the reason.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.starts_with(oci_address::OCI) {
            return Self::parse_oci(text);
        }
        let Ok(gix_url) = gix_url::parse(text.as_str()) else {
            let address = Err("it is not a valid address: write for example `https://git.example/acme/shop.git`");
            return Self { text, scheme: None, host: None, address };
        };
        let scheme = match gix_url.scheme {
            gix_url::Scheme::Https => Some(Scheme::Https),
            gix_url::Scheme::Http => Some(Scheme::Http),
            gix_url::Scheme::Ssh => Some(Scheme::Ssh),
            gix_url::Scheme::Git => Some(Scheme::Git),
            gix_url::Scheme::File => Some(Scheme::Local),
            _ => None,
        };
        let host = gix_url.host().filter(|_| scheme.is_some_and(|scheme| scheme != Scheme::Local));
        let host = host.map(|host| host.trim_matches(['[', ']']).to_ascii_lowercase());
        let address = match scheme {
            Some(scheme) => parse_address(scheme, &text, gix_url),
            None => Err("the scheme must be https, http, ssh, git, oci or file"),
        };
        Self { text, scheme, host, address }
    }

    /// The other parser does not know what a registry is. The host is of the parser that opens connections.
    fn parse_oci(text: String) -> Self {
        let address = oci_address::parse(&text);
        let host = address.as_ref().ok().and_then(|address| address.https.host_str());
        let host = host.map(|host| host.trim_matches(['[', ']']).to_owned());
        Self { text, scheme: Some(Scheme::Oci), host, address: address.map(Address::Oci) }
    }

    /// The text as it was written. It may contain a password.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host in lower case, without brackets. `None` for a local path.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The scheme, even if the rest is invalid.
    pub fn scheme(&self) -> Option<Scheme> {
        self.scheme
    }

    /// The port, also if it is the default of the scheme. `None` for a local path and an invalid address.
    pub fn port(&self) -> Option<u16> {
        match self.address.as_ref().ok()? {
            Address::Http(url) => url.port_or_known_default(),
            Address::Oci(address) => address.https.port_or_known_default(),
            Address::Ssh(address) => Some(address.port.unwrap_or(22)),
            Address::Git { port, .. } => Some(port.unwrap_or(9418)),
            Address::Local(_) => None,
        }
    }

    /// The parsed address.
    ///
    /// # Errors
    /// Returns the reason why it is invalid, without any part of the text.
    pub fn address(&self) -> Result<&Address, &'static str> {
        self.address.as_ref().map_err(|reason| *reason)
    }

    /// The URL for everybody, without a user. `None` for a local path and an invalid address.
    pub fn public(&self) -> Option<String> {
        match self.address.as_ref().ok()? {
            Address::Ssh(SshAddress { host, port, path, .. }) => {
                let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                Some(format!("ssh://{host}{port}/{}", path.trim_start_matches('/')))
            }
            Address::Http(_) | Address::Oci(_) | Address::Git { .. } => Some(self.to_string()),
            Address::Local(_) => None,
        }
    }

    /// The parsed URL of an `https://` or `http://` endpoint.
    ///
    /// # Errors
    /// It has another scheme or is invalid. The reason has no part of the text.
    pub fn http(&self) -> Result<&Url, &'static str> {
        match &self.address {
            Ok(Address::Http(url)) => Ok(url),
            Err(reason) if self.is_http() => Err(reason),
            _ => Err("it is not an `https://` or `http://` URL"),
        }
    }

    /// Whether the scheme is `https` or `http`.
    pub(crate) fn is_http(&self) -> bool {
        matches!(self.scheme, Some(Scheme::Https | Scheme::Http))
    }

    /// The requests that a listing takes from the host's budget: two over HTTP, one over SSH and `git://`, none for
    /// a local path.
    pub fn requests_per_listing(&self) -> u32 {
        match self.scheme {
            Some(Scheme::Https | Scheme::Http | Scheme::Oci) => 2,
            Some(Scheme::Ssh | Scheme::Git) => 1,
            Some(Scheme::Local) | None => 0,
        }
    }

    /// Makes a relative path relative to `base`.
    pub(crate) fn resolve(&mut self, base: &Path) {
        if let Ok(Address::Local(path)) = &self.address
            && !self.text.contains("://")
        {
            let mut path = path.clone();
            config::resolve(base, &mut path);
            *self = Self::parse(path.to_string_lossy());
        }
    }
}

fn parse_address(scheme: Scheme, text: &str, gix_url: gix_url::Url) -> Result<Address, &'static str> {
    if scheme != Scheme::Local && text.contains("://") && text.contains('#') {
        return Err(
            "it contains a fragment (`#…`), which Git does not use: name a branch, a tag or a commit in `ref` of the \
                    service",
        );
    }
    if scheme == Scheme::Ssh {
        return ssh_address::parse(text, &gix_url).map(Address::Ssh);
    }
    let path = gix_url.path.to_vec();
    // No Git server needs a query, and people put tokens there.
    if matches!(scheme, Scheme::Https | Scheme::Http) && text.contains('?') {
        return Err(
            "it contains a query (`?…`), which everybody who sees the URL can read: put a password or token into a file, \
                    and name that in `password_file` or `token_file`",
        );
    }
    if gix_url.user().is_some() || gix_url.password().is_some() {
        return Err(
            "it contains a user name or a password: put the user into `username`, and the password into a file that \
                    `password_file` names (for a proxy: `proxy_username` and `proxy_password_file`)",
        );
    }
    Ok(match scheme {
        Scheme::Https | Scheme::Http => Address::Http(http_address::parse(text, &gix_url)?),
        Scheme::Git => {
            let host = gix_url.host.ok_or("it has no host")?;
            let path = String::from_utf8(path).map_err(|_| "its path is not UTF-8")?;
            Address::Git { host, port: gix_url.port, path }
        }
        Scheme::Local | Scheme::Ssh | Scheme::Oci => Address::Local(OsString::from_vec(path).into()),
    })
}

impl From<&str> for Endpoint {
    fn from(text: &str) -> Self {
        Self::parse(text)
    }
}

impl From<String> for Endpoint {
    fn from(text: String) -> Self {
        Self::parse(text)
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.text
    }
}

/// Without user name and password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_user_info(&self.text))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Any text has at most one host, and no part can be an option of a program.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str) {
    let endpoint = Endpoint::parse(text);
    match endpoint.address() {
        Ok(Address::Http(url)) => {
            let host = url.host_str().map(|host| host.trim_matches(['[', ']']));
            assert_eq!(host, endpoint.host(), "{url}");
        }
        Ok(Address::Ssh(address)) => {
            assert_eq!(Some(&*address.host.to_ascii_lowercase()), endpoint.host(), "{address:?}");
            for part in [&address.user, &address.host, &address.path] {
                assert!(
                    !part.is_empty() && !part.starts_with('-') && !part.chars().any(char::is_control),
                    "{address:?}"
                );
            }
        }
        Ok(Address::Oci(address)) => {
            for registry in [address.registry(false), address.registry(true)] {
                assert_eq!(
                    registry.host_str().map(|host| host.trim_matches(['[', ']'])),
                    endpoint.host(),
                    "{registry}"
                );
            }
        }
        Ok(Address::Git { .. } | Address::Local(_)) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_an_address_or_a_reason() {
        for (text, host, requests) in [
            ("https://Git.Example/acme/shop.git", Some("git.example"), 2),
            ("http://127.0.0.1:80/x", Some("127.0.0.1"), 2),
            ("https://[2001:DB8::1]/x", Some("2001:db8::1"), 2),
            ("git://git.example/x", Some("git.example"), 1),
            ("ssh://git@git.example/x", Some("git.example"), 1),
            ("ssh://git@[::1]/x", Some("::1"), 1),
            ("/srv/what?.git", None, 0),
            ("file:///srv/x", None, 0),
            ("file://host/srv/x", None, 0),
            ("oci://GHCR.io/acme/shop", Some("ghcr.io"), 2),
            ("oci://docker.io/acme/shop", Some("registry-1.docker.io"), 2),
            ("oci://[2001:DB8::1]:5000/x", Some("2001:db8::1"), 2),
        ] {
            let endpoint = Endpoint::parse(text);
            assert!(endpoint.address().is_ok(), "{text}: {:?}", endpoint.address());
            assert_eq!((endpoint.host(), endpoint.requests_per_listing()), (host, requests), "{text}");
            assert_eq!(endpoint.as_str(), text);
        }
        for (text, word) in [
            ("", "address"),
            ("ftp://git.example/x", "scheme"),
            ("svn://git.example/x", "scheme"),
            ("ext::sh -c id", "scheme"),
            ("bogus::x", "scheme"),
            ("https://git.example/x?private_token=s3cret", "password_file"),
            ("http://git.example?private_token=s3cret", "password_file"),
            ("https://git.example/x.git#release", "`ref`"),
            ("oci://ghcr.io/acme/shop:v1", "`ref`"),
            ("oci://me:s3cret@ghcr.io/acme/shop", "`username`"),
            ("ssh://git@git.example/x.git#release", "`ref`"),
            ("https://me:s3cret@git.example/x", "`username`"),
            ("git://s3cret@git.example/x", "`username`"),
            ("https://git.example\\@evil.example/x", "address"),
            ("ssh://git:s3cret@git.example/x", "user name"),
        ] {
            let endpoint = Endpoint::parse(text);
            let reason = endpoint.address().unwrap_err();
            assert!(reason.contains(word) && !reason.contains("s3cret"), "{text}: {reason}");
            assert!(!format!("{endpoint} {endpoint:?}").contains("me:s3cret"), "{endpoint}");
        }
        for (text, public) in [
            ("https://git.example/acme/shop.git", Some("https://git.example/acme/shop.git")),
            ("oci://ghcr.io/acme/shop", Some("oci://ghcr.io/acme/shop")),
            ("deploy@git.example:acme/shop.git", Some("ssh://git.example/acme/shop.git")),
            ("ssh://git@[::1]:22/~me/x", Some("ssh://[::1]:22/~me/x")),
            ("/srv/git/shop.git", None),
            ("https://me:s3cret@git.example/x", None),
        ] {
            assert_eq!(Endpoint::parse(text).public().as_deref(), public, "{text}");
        }
        let reason = |text: &str| Endpoint::parse(text).http().unwrap_err();
        assert!(reason("proxy:3128").contains("not an `https://`"));
        assert!(reason("http://me:s3cret@proxy:3128").contains("`proxy_username`"));
    }

    #[test]
    fn a_relative_path_is_relative_to_the_folder_of_the_configuration() {
        for (text, expected) in [
            ("../git/x", "/etc/weir/../git/x"),
            ("/srv/x", "/srv/x"),
            ("file:///srv/x", "file:///srv/x"),
            ("git.example:x", "git.example:x"),
            ("", ""),
        ] {
            let mut endpoint = Endpoint::parse(text);
            endpoint.resolve(Path::new("/etc/weir"));
            assert_eq!(endpoint.as_str(), expected);
        }
    }
}
