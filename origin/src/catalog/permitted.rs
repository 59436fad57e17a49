//! What operators may name in a repository: who may write a document is not to read the origin's disk with it, nor to send
//! a secret to a host that it was not put there for. Pure.

use std::path::{Component, Path};

use gix::url::Scheme;

use super::definitions::{Defined, DefinedBy};
use crate::config::{NamedBy, RepositoryConfig};

/// The configuration of a repository as its agent uses it. A file that an operator names is looked for in the folder of
/// the URL's host, in the folder of secrets.
///
/// # Errors
/// It names what operators may not name; the field, and why.
pub(crate) fn permitted(
    defined: &Defined<RepositoryConfig>,
    secrets_dir: Option<&Path>,
) -> Result<RepositoryConfig, (&'static str, String)> {
    let mut config = RepositoryConfig::clone(&defined.document);
    if defined.by == DefinedBy::File {
        return Ok(config);
    }
    config.named_by = NamedBy::Operator;
    let host = remote_host(&config.url).map_err(|error| ("url", error))?;
    for (field, file) in config.files_mut() {
        if field == "proxy_password_file" {
            let reason = "operators can name no password of a proxy: it would go to whatever proxy the document names";
            return Err((field, reason.to_owned()));
        }
        let Some(secrets_dir) = secrets_dir else {
            return Err((field, "operators can name no file here: `[operator] secrets_dir` is not set".to_owned()));
        };
        let mut components = file.components();
        let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else {
            return Err((field, format!("name a file in the folder `{host}` of `secrets_dir`, without any `/`")));
        };
        *file = secrets_dir.join(&host).join(name);
    }
    Ok(config)
}

/// The host of a URL that leads to another machine: what operators may mirror.
fn remote_host(url: &str) -> Result<String, String> {
    let local = || "operators can mirror from other machines only: use a URL such as `https://git.example/shop.git`";
    let url = gix::url::parse(url).map_err(|_| local())?;
    let host = match url.scheme {
        Scheme::File | Scheme::Ext => return Err(local().to_owned()),
        _ => url.host().ok_or_else(local)?,
    };
    // It becomes the name of a folder.
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    let host = host.to_ascii_lowercase();
    if host.is_empty() || !host.bytes().all(is_plain) || host.starts_with('.') {
        return Err("the URL's host must be a name or an IPv4 address".to_owned());
    }
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn of_operators(url: &str, file: Option<&str>) -> Defined<RepositoryConfig> {
        let mut document = RepositoryConfig::new("shop".parse().unwrap(), url);
        document.password_file = file.map(PathBuf::from);
        Defined { by: DefinedBy::Api, document: document.into() }
    }

    const SECRETS: Option<&str> = Some("/etc/weir/secrets");

    fn password_file(url: &str, file: &str, secrets_dir: Option<&str>) -> Result<PathBuf, (&'static str, String)> {
        let config = permitted(&of_operators(url, Some(file)), secrets_dir.map(Path::new))?;
        Ok(config.password_file.unwrap())
    }

    #[test]
    fn a_secret_is_that_of_the_url_s_host() {
        let url = "https://Git.Example:8443/acme/shop.git";
        assert_eq!(password_file(url, "token", SECRETS).unwrap(), Path::new("/etc/weir/secrets/git.example/token"));
        for file in ["/etc/shadow", "../other.example/token", "a/b", "..", ".", "", "/"] {
            let (field, _) = password_file(url, file, SECRETS).unwrap_err();
            assert_eq!(field, "password_file", "{file}");
        }
        let mut defined = of_operators(url, None);
        let mut document = RepositoryConfig::clone(&defined.document);
        document.proxy_password_file = Some("token".into());
        defined.document = document.into();
        assert_eq!(permitted(&defined, SECRETS.map(Path::new)).unwrap_err().0, "proxy_password_file");
        let (field, error) = password_file(url, "token", None).unwrap_err();
        assert!(field == "password_file" && error.contains("secrets_dir"), "{error}");
    }

    #[test]
    fn the_origin_s_own_disk_is_not_mirrored() {
        for url in ["file:///etc", "/etc", "../x", "x", "file://host/etc", "ext::sh -c id", "https:///x", "git://../x"]
        {
            let refused = permitted(&of_operators(url, None), None);
            assert_eq!(refused.unwrap_err().0, "url", "{url}");
        }
        for url in ["https://git.example/x", "http://127.0.0.1:80/x", "git://git.example/x"] {
            permitted(&of_operators(url, None), None).unwrap();
        }
        let of_the_file = Defined { by: DefinedBy::File, ..of_operators("/srv/x", Some("/etc/token")) };
        assert_eq!(permitted(&of_the_file, None).unwrap(), *of_the_file.document);
    }
}
