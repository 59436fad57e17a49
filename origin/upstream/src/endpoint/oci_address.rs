//! Parses an `oci://` URL: a registry, and the path of a repository in it.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

use super::http_address;

/// What `oci://` URLs begin with.
pub(super) const OCI: &str = "oci://";

/// The longest name of a repository, in bytes, as registries have it.
const MAX_NAME_BYTES: usize = 255;

/// The host of Docker Hub's registry. People write another one.
const DOCKER_HUB: &str = "registry-1.docker.io";
const DOCKER_HUB_ALIASES: [&str; 2] = ["docker.io", "index.docker.io"];

/// An `oci://` URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciAddress {
    /// The registry's own URL, without a path.
    pub(super) https: Url,
    http: Url,
    path: Option<OciName>,
}

/// The name of a repository in a registry: `acme/shop`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OciName(Box<str>);

/// Why an `oci://` URL is not one, without any part of it.
pub(super) fn parse(text: &str) -> Result<OciAddress, &'static str> {
    let rest =
        text.strip_prefix(OCI).ok_or("it is not a valid address: write for example `oci://ghcr.io/acme/shop`")?;
    if rest.contains(['?', '#']) {
        return Err(
            "it contains a query (`?…`) or a fragment (`#…`), which registries do not use: put a password or token \
                    into a file, and name that in `password_file` or `token_file`",
        );
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(
            "it contains a user name or a password: put the user into `username`, and the password into a file \
                    that `password_file` names",
        );
    }
    if path.contains([':', '@']) {
        return Err("it contains a tag or a digest: put it into `ref` of the service");
    }
    let is_alias = DOCKER_HUB_ALIASES.iter().any(|alias| alias.eq_ignore_ascii_case(authority));
    let authority = if is_alias { DOCKER_HUB } else { authority };
    let url = |scheme: &str| {
        let text = format!("{scheme}://{authority}/");
        let invalid = "it is not a valid address";
        http_address::parse(&text, &gix_url::parse(text.as_str()).map_err(|_| invalid)?)
    };
    let path = match path.strip_suffix('/').unwrap_or(path) {
        "" => None,
        path => Some(path.parse()?),
    };
    Ok(OciAddress { https: url("https")?, http: url("http")?, path })
}

impl OciAddress {
    /// The URL of the registry.
    pub fn registry(&self, is_insecure: bool) -> &Url {
        if is_insecure { &self.http } else { &self.https }
    }

    /// The name of the repository that the URL names, or of one below it.
    ///
    /// # Errors
    /// There is none of this name, with the reason.
    pub fn repository(&self, below: Option<&str>) -> Result<OciName, &'static str> {
        let of_url = self.path.as_ref().map(|name| &*name.0);
        let parts: Vec<&str> = of_url.into_iter().chain(below).collect();
        let mut name = parts.join("/");
        if name.is_empty() {
            return Err("it names no repository: write for example `oci://ghcr.io/acme/shop`");
        }
        if self.https.host_str() == Some(DOCKER_HUB) && !name.contains('/') {
            name.insert_str(0, "library/");
        }
        name.parse()
    }
}

impl FromStr for OciName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_separator = |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-');
        let is_component = |component: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            component.starts_with(plain) && component.ends_with(plain) && component.split(plain).all(is_separator)
        };
        if text.len() <= MAX_NAME_BYTES && text.split('/').all(is_component) {
            Ok(Self(text.into()))
        } else {
            Err("its path is not the name of a repository in a registry: that has components of `a-z` and `0-9`, with \
                 `.`, `_`, `__` or `-` between them, and at most 255 bytes")
        }
    }
}

impl fmt::Display for OciName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_registry_has_a_host_and_a_repository_a_name() {
        for (text, below, registry, name) in [
            ("oci://ghcr.io/acme/manifests/shop", None, "https://ghcr.io/", "acme/manifests/shop"),
            ("oci://Registry.example:5000/shop/", None, "https://registry.example:5000/", "shop"),
            ("oci://docker.io/redis", None, "https://registry-1.docker.io/", "library/redis"),
            ("oci://index.docker.io/acme/shop", None, "https://registry-1.docker.io/", "acme/shop"),
            ("oci://docker.io/charts", Some("redis"), "https://registry-1.docker.io/", "charts/redis"),
            ("oci://docker.io", Some("redis"), "https://registry-1.docker.io/", "library/redis"),
            ("oci://[::1]:5000/a.b/c_d/e__f/g---h", None, "https://[::1]:5000/", "a.b/c_d/e__f/g---h"),
            ("oci://quay.io", Some("charts/shop"), "https://quay.io/", "charts/shop"),
        ] {
            let address = parse(text).unwrap();
            assert_eq!(address.registry(false).as_str(), registry);
            assert_eq!(address.repository(below).unwrap().to_string(), name, "{text}");
        }
        let insecure = |text: &str| parse(text).unwrap().registry(true).to_string();
        assert_eq!(insecure("oci://localhost:443/x"), "http://localhost:443/");
        assert_eq!(insecure("oci://localhost/x"), "http://localhost/");
        assert!(parse("oci://ghcr.io").unwrap().repository(None).unwrap_err().contains("names no repository"));
        assert!(parse("oci://ghcr.io/acme").unwrap().repository(Some("A")).is_err());
    }

    #[test]
    fn tags_digests_and_secrets_do_not_belong_into_a_url() {
        let digest = format!("oci://ghcr.io/acme/shop@sha256:{}", "ab".repeat(32));
        for (text, reason) in [
            ("oci://ghcr.io/acme/shop:v1", "put it into `ref` of the service"),
            (&digest, "put it into `ref` of the service"),
            ("oci://me:s3cret@ghcr.io/acme", "`password_file`"),
            ("oci://ghcr.io/acme?token=s3cret", "`token_file`"),
            ("oci://ghcr.io/acme#v1", "fragment"),
            ("oci://ghcr.io/Acme/shop", "its path is not the name"),
            ("oci://ghcr.io/acme//shop", "its path is not the name"),
            ("oci://ghcr.io/../shop", "its path is not the name"),
            ("oci://ghcr.io/acme/.shop", "its path is not the name"),
            ("oci://ghcr.io/a_-b", "its path is not the name"),
            (&format!("oci://ghcr.io/{}", "x".repeat(256)), "its path is not the name"),
            ("oci:///acme/shop", ""),
            ("oci://ghcr.io\\@evil.example/x", ""),
            ("oci://host:port/x", ""),
            ("OCI://ghcr.io/x", "not a valid address"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reason) && !error.contains("s3cret"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_a_plain_path(text in "[a-b0-1A./_:@%-]{0,12}") {
            if let Ok(name) = text.parse::<OciName>() {
                prop_assert_eq!(name.to_string(), text.clone());
                prop_assert!(!text.contains("..") && !text.contains("//") && !text.contains(['A', ':', '@', '%']));
            }
        }
    }
}
