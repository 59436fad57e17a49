//! Pure: restricts the files and hosts that operators' documents may name. An operator must not read the origin's
//! disk, nor send a secret to a scheme, host or port that it is not meant for.

use std::path::{Component, Path};

use weir_upstream::{DefinedBy, Endpoint, RepositoryConfig, Scheme};

/// The configuration for a repository's worker. Secret files are resolved in the folder of the URL's scheme, host and port,
/// below the folder of secrets.
///
/// # Errors
/// The fields that name something forbidden, with reasons.
pub(crate) fn permitted(
    by: DefinedBy,
    document: &RepositoryConfig,
    secrets_dir: Option<&Path>,
) -> Result<RepositoryConfig, Vec<(&'static str, String)>> {
    let mut config = document.clone();
    if by == DefinedBy::File {
        return Ok(config);
    }
    config.defined_by = by;
    let mut refused = Vec::new();
    let folder = secrets_folder(&config.url).unwrap_or_else(|error| {
        refused.push(("url", error));
        "<host>".to_owned()
    });
    for (field, file) in config.files_mut() {
        if field == "proxy_password_file" {
            let reason =
                "operators cannot name a proxy password: it would be sent to any proxy that the document names";
            refused.push((field, reason.to_owned()));
            continue;
        }
        let Some(secrets_dir) = secrets_dir else {
            refused.push((field, "operators can name files only if `[operator_api] secrets_dir` is set".to_owned()));
            continue;
        };
        let mut components = file.components();
        let (Some(Component::Normal(name)), None) = (components.next(), components.next()) else {
            refused.push((field, format!("name a file in the folder `{folder}` of `secrets_dir`, without a `/`")));
            continue;
        };
        *file = secrets_dir.join(&folder).join(name);
    }
    if refused.is_empty() { Ok(config) } else { Err(refused) }
}

/// The folder of the secrets for a URL that operators may mirror: its host for `https://` on port 443, otherwise
/// `<scheme>_<host>_<port>`. No host has a `_`, so no two share a folder.
fn secrets_folder(url: &Endpoint) -> Result<String, String> {
    let host = remote_host(url)?;
    // An invalid address has no port. It is refused before a connection, and so needs no secret.
    let port = url.port().unwrap_or_default();
    Ok(match url.scheme() {
        Some(Scheme::Https | Scheme::Oci) if port == 443 => host,
        Some(Scheme::Https | Scheme::Oci) => format!("https_{host}_{port}"),
        Some(Scheme::Http) => format!("http_{host}_{port}"),
        Some(Scheme::Ssh) => format!("ssh_{host}_{port}"),
        Some(Scheme::Git | Scheme::Local) | None => format!("git_{host}_{port}"),
    })
}

/// The host of a URL that operators may mirror: one on another machine.
fn remote_host(url: &Endpoint) -> Result<String, String> {
    let local = || "operators can mirror only from other machines: use a URL such as `https://git.example/shop.git`";
    let host = url.host().ok_or_else(local)?;
    // The host becomes the name of a folder.
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-');
    if host.is_empty() || !host.bytes().all(is_plain) || host.starts_with('.') {
        return Err("the URL's host must be a name or an IPv4 address".to_owned());
    }
    Ok(host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn document(url: &str, file: Option<&str>) -> RepositoryConfig {
        let mut document = RepositoryConfig::new("shop".parse().unwrap(), url);
        document.password_file = file.map(PathBuf::from);
        document
    }

    fn of_operators(
        document: &RepositoryConfig,
        secrets_dir: Option<&str>,
    ) -> Result<RepositoryConfig, Vec<(&'static str, String)>> {
        permitted(DefinedBy::Api, document, secrets_dir.map(Path::new))
    }

    const SECRETS: Option<&str> = Some("/etc/weir/secrets");

    fn password_file(url: &str, file: &str, secrets_dir: Option<&str>) -> Result<PathBuf, Vec<(&'static str, String)>> {
        let config = of_operators(&document(url, Some(file)), secrets_dir)?;
        Ok(config.password_file.unwrap())
    }

    #[test]
    fn a_secret_is_that_of_the_url_s_scheme_host_and_port() {
        let url = "https://Git.Example:8443/acme/shop.git";
        for (url, folder) in [
            ("https://Git.Example/acme/shop.git", "git.example"),
            ("https://git.example:443/acme/shop.git", "git.example"),
            (url, "https_git.example_8443"),
            ("http://git.example/acme/shop.git", "http_git.example_80"),
            ("oci://git.example/acme/shop", "git.example"),
            ("oci://docker.io/acme/shop", "registry-1.docker.io"),
            ("oci://git.example:5000/acme/shop", "https_git.example_5000"),
            ("http://git.example:443/acme/shop.git", "http_git.example_443"),
            ("ssh://git@git.example/acme/shop.git", "ssh_git.example_22"),
            ("git@git.example:acme/shop.git", "ssh_git.example_22"),
            ("ssh://git@git.example:443/acme/shop.git", "ssh_git.example_443"),
            ("git://git.example/acme/shop.git", "git_git.example_9418"),
        ] {
            let file = password_file(url, "token", SECRETS).unwrap();
            assert_eq!(file, Path::new("/etc/weir/secrets").join(folder).join("token"), "{url}");
        }
        for file in ["/etc/shadow", "../other.example/token", "a/b", "..", ".", "", "/"] {
            let refused = password_file(url, file, SECRETS).unwrap_err();
            assert_eq!(refused[0].0, "password_file", "{file}");
        }
        let mut proxied = document(url, None);
        proxied.proxy_password_file = Some("token".into());
        assert_eq!(of_operators(&proxied, SECRETS).unwrap_err()[0].0, "proxy_password_file");
        let refused = password_file(url, "token", None).unwrap_err();
        assert!(refused[0].0 == "password_file" && refused[0].1.contains("secrets_dir"), "{refused:?}");
        let refused = password_file("/etc", "/etc/shadow", SECRETS).unwrap_err();
        assert_eq!(refused.iter().map(|(field, _)| *field).collect::<Vec<_>>(), ["url", "password_file"]);
    }

    #[test]
    fn the_origin_s_own_disk_is_not_mirrored() {
        for url in ["file:///etc", "/etc", "../x", "x", "file://host/etc", "ext::sh -c id", "https:///x", "git://../x"]
        {
            let refused = of_operators(&document(url, None), None);
            assert_eq!(refused.unwrap_err()[0].0, "url", "{url}");
        }
        for url in ["https://git.example/x", "http://127.0.0.1:80/x", "git://git.example/x"] {
            of_operators(&document(url, None), None).unwrap();
        }
        let of_the_file = document("/srv/x", Some("/etc/token"));
        assert_eq!(permitted(DefinedBy::File, &of_the_file, None).unwrap(), of_the_file);
    }
}
