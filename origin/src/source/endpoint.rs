//! Where an upstream, or a proxy, is: the text that somebody wrote, read once.
//!
//! Two readers look at it, and have to see the same host: by the one is judged what may be asked, how often, and which
//! operator's secrets go with it; the other opens connections. What they read differently is no address.

mod http_address;
mod ssh_address;

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

pub(crate) use self::ssh_address::SshAddress;
use super::without_user_info;

/// An address as it was written, and what it says.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Endpoint {
    text: String,
    scheme: Option<Scheme>,
    host: Option<String>,
    place: Result<Place, &'static str>,
}

/// How an upstream is talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheme {
    Https,
    Http,
    /// `ssh://` or `user@host:path`.
    Ssh,
    /// `git://`.
    Daemon,
    /// `file://` or a path: by a program on this machine.
    Local,
}

/// Where it is, in the words of the scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Without user info, query and fragment.
    Http(Url),
    Ssh(SshAddress),
    Daemon {
        host: String,
        port: Option<u16>,
        path: String,
    },
    Local(PathBuf),
}

impl Endpoint {
    /// Reads an address. What cannot be used is kept as it was written, with the reason.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        #[cfg(debug_assertions)]
        if let Some(path) = text.strip_prefix("folder://") {
            let path = Path::new(path);
            let absolute = path.is_absolute().then(|| Place::Local(path.to_owned()));
            let place = absolute.ok_or("name the folder from the top: `folder:///srv/site`");
            return Self { text, scheme: None, host: None, place };
        }
        let Ok(seen) = gix::url::parse(text.as_str()) else {
            let place = Err("it is not an address such as `https://git.example/acme/shop.git`");
            return Self { text, scheme: None, host: None, place };
        };
        let scheme = match seen.scheme {
            gix::url::Scheme::Https => Some(Scheme::Https),
            gix::url::Scheme::Http => Some(Scheme::Http),
            gix::url::Scheme::Ssh => Some(Scheme::Ssh),
            gix::url::Scheme::Git => Some(Scheme::Daemon),
            gix::url::Scheme::File => Some(Scheme::Local),
            _ => None,
        };
        let host = seen.host().filter(|_| scheme.is_some_and(|scheme| scheme != Scheme::Local));
        let host = host.map(|host| host.trim_matches(['[', ']']).to_ascii_lowercase());
        let place = match scheme {
            Some(scheme) => place(scheme, &text, seen),
            None => Err("the scheme is none of https, http, ssh, git and file"),
        };
        Self { text, scheme, host, place }
    }

    /// As it was written. It may hold a password.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, in small letters and without brackets; none of a path on this machine.
    pub(crate) fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// What it begins with, also if the rest is wrong.
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        self.scheme
    }

    /// Where it is.
    ///
    /// # Errors
    /// What is wrong with it; never any part of it.
    pub(crate) fn place(&self) -> Result<&Place, &'static str> {
        self.place.as_ref().map_err(|reason| *reason)
    }

    /// The folder that is a source as it is, without Git.
    #[cfg(debug_assertions)]
    pub(super) fn folder(&self) -> Option<&Path> {
        match &self.place {
            Ok(Place::Local(path)) if self.scheme.is_none() => Some(path),
            _ => None,
        }
    }

    /// Where it is, if that is `https://` or `http://`.
    ///
    /// # Errors
    /// It is not, or what is wrong with it; never any part of it.
    pub(crate) fn http(&self) -> Result<&Url, &'static str> {
        match &self.place {
            Ok(Place::Http(url)) => Ok(url),
            Err(reason) if self.is_http() => Err(reason),
            _ => Err("it is no address of `https://` or `http://`"),
        }
    }

    /// Whether it begins with `https://` or `http://`.
    pub(crate) fn is_http(&self) -> bool {
        matches!(self.scheme, Some(Scheme::Https | Scheme::Http))
    }

    /// How many requests of a host's budget it takes to list the refs: two over HTTP, one over SSH and `git://`, none at
    /// this machine.
    pub(crate) fn requests_to_list(&self) -> u32 {
        match self.scheme {
            Some(Scheme::Https | Scheme::Http) => 2,
            Some(Scheme::Ssh | Scheme::Daemon) => 1,
            Some(Scheme::Local) | None => 0,
        }
    }

    /// Takes a path that depends on the working directory to be below a folder.
    pub(crate) fn resolve(&mut self, base: &Path) {
        if let Ok(Place::Local(path)) = &self.place
            && !self.text.contains("://")
        {
            let mut path = path.clone();
            config::resolve(base, &mut path);
            *self = Self::parse(path.to_string_lossy());
        }
    }
}

fn place(scheme: Scheme, text: &str, seen: gix::Url) -> Result<Place, &'static str> {
    if scheme == Scheme::Ssh {
        return ssh_address::parse(text, &seen).map(Place::Ssh);
    }
    let path = seen.path.to_vec();
    // No Git server asks for one, and what people put there is a token.
    if matches!(scheme, Scheme::Https | Scheme::Http) && text.contains('?') {
        return Err(
            "it holds a query (`?…`), which whoever may see the URL may see: a password or token belongs into a \
                    file, named by `password_file` or `token_file`",
        );
    }
    if seen.user().is_some() || seen.password().is_some() {
        return Err(
            "it holds a user name or a password, which have keys of their own: put the user into `username` and \
                    the password into a file named by `password_file` (of a proxy: `proxy_username`, \
                    `proxy_password_file`)",
        );
    }
    Ok(match scheme {
        Scheme::Https | Scheme::Http => {
            let mut url = http_address::parse(text, &seen)?;
            url.set_fragment(None);
            Place::Http(url)
        }
        Scheme::Daemon => {
            let host = seen.host.ok_or("it names no host")?;
            let path = String::from_utf8(path).map_err(|_| "its path is no UTF-8")?;
            Place::Daemon { host, port: seen.port, path }
        }
        Scheme::Local | Scheme::Ssh => Place::Local(OsString::from_vec(path).into()),
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

/// Without user name and password, for people.
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

/// Whatever is written, it has one host, and nothing of it is taken for an option.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(text: &str) {
    let endpoint = Endpoint::parse(text);
    match endpoint.place() {
        Ok(Place::Http(url)) => {
            let host = url.host_str().map(|host| host.trim_matches(['[', ']']));
            assert_eq!(host, endpoint.host(), "{url}");
        }
        Ok(Place::Ssh(address)) => {
            assert_eq!(Some(&*address.host.to_ascii_lowercase()), endpoint.host(), "{address:?}");
            for part in [&address.user, &address.host, &address.path] {
                assert!(
                    !part.is_empty() && !part.starts_with('-') && !part.chars().any(char::is_control),
                    "{address:?}"
                );
            }
        }
        Ok(Place::Daemon { .. } | Place::Local(_)) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_a_place_or_a_reason() {
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
        ] {
            let endpoint = Endpoint::parse(text);
            assert!(endpoint.place().is_ok(), "{text}: {:?}", endpoint.place());
            assert_eq!((endpoint.host(), endpoint.requests_to_list()), (host, requests), "{text}");
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
            ("https://me:s3cret@git.example/x", "`username`"),
            ("git://s3cret@git.example/x", "`username`"),
            ("https://git.example\\@evil.example/x", "address"),
            ("ssh://git:s3cret@git.example/x", "user name"),
        ] {
            let endpoint = Endpoint::parse(text);
            let reason = endpoint.place().unwrap_err();
            assert!(reason.contains(word) && !reason.contains("s3cret"), "{text}: {reason}");
            assert!(!format!("{endpoint} {endpoint:?}").contains("me:s3cret"), "{endpoint}");
        }
        let reason = |text: &str| Endpoint::parse(text).http().unwrap_err();
        assert!(reason("proxy:3128").contains("no address of `https://`"));
        assert!(reason("http://me:s3cret@proxy:3128").contains("`proxy_username`"));
    }

    #[test]
    fn a_path_of_the_configuration_is_below_its_folder() {
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
