//! Which redirects are followed. Pure, but for what the caller sends.

use reqwest::{Response, StatusCode, Url};

use super::super::egress_policy::EgressPolicy;
use super::super::error::UpstreamError;
use super::super::redirects::Redirects;

/// The most consecutive redirects.
const MAX_REDIRECTS: usize = 5;

/// Sends a request to a URL, and to each target of a redirect. Returns the final URL and its response.
///
/// # Errors
/// Those of `send`, and of `next`, which names the target. There are too many redirects.
pub fn follow_all<E: From<UpstreamError>>(
    mut url: Url,
    send: impl Fn(&Url) -> Result<Response, E>,
    next: impl Fn(&Url, &Response) -> Result<Url, UpstreamError>,
) -> Result<(Url, Response), E> {
    for _ in 0..=MAX_REDIRECTS {
        let response = send(&url)?;
        if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
            return Ok((url, response));
        }
        url = next(&url, &response)?;
    }
    let reason = "there are too many consecutive redirects";
    Err(UpstreamError::Redirected { to: display_origin(&url), reason }.into())
}

/// The target of a redirect, if it may be followed. `location` is relative to `from` (RFC 9110).
pub(crate) fn follow(
    rules: &Redirects,
    egress: &EgressPolicy,
    from: &Url,
    location: &str,
) -> Result<Url, UpstreamError> {
    let to = target(from, location)?;
    let host = to.host_str().unwrap_or_default();
    let allowed = match rules {
        Redirects::None => return refused(&to, "`redirects` is `none`: change `url` to the target"),
        Redirects::SameHost => same_host(from, &to),
        Redirects::To(hosts) => same_host(from, &to) || hosts.lists(host),
    };
    if !allowed {
        return refused(&to, "it is another host: change `url`, or add the host to `redirects`");
    }
    egress.check_host(host)?;
    Ok(to)
}

/// The URL of an LFS object, if its host may be contacted: the upstream itself, or one that the egress policy permits.
pub(crate) fn storage_url(
    upstream: &Url,
    beyond: &EgressPolicy,
    from: &Url,
    location: &str,
) -> Result<Url, UpstreamError> {
    let to = target(from, location)?;
    if !same_host(upstream, &to) {
        beyond.check_host(to.host_str().unwrap_or_default())?;
    }
    Ok(to)
}

/// The URL of `location`, if it is HTTP, no downgrade to http, and without credentials.
fn target(from: &Url, location: &str) -> Result<Url, UpstreamError> {
    let Ok(to) = from.join(location) else {
        let to = "an invalid URL".to_owned();
        return Err(UpstreamError::Redirected { to, reason: "its `Location` cannot be parsed" });
    };
    let secure = match (from.scheme(), to.scheme()) {
        ("http" | "https", "https") | ("http", "http") => true,
        ("https", "http") => false,
        _ => return refused(&to, "it is neither https nor http"),
    };
    if !secure {
        return refused(&to, "it leads from https to http");
    }
    if !to.username().is_empty() || to.password().is_some() {
        return refused(&to, "its URL contains a user name or a password");
    }
    if to.host_str().is_none() {
        return refused(&to, "its URL has no host");
    }
    Ok(to)
}

fn refused(to: &Url, reason: &'static str) -> Result<Url, UpstreamError> {
    Err(UpstreamError::Redirected { to: display_origin(to), reason })
}

/// Whether two URLs have the same host and port. From http to https the default port changes with the scheme.
pub fn same_host(from: &Url, to: &Url) -> bool {
    let ports = (from.port_or_known_default(), to.port_or_known_default());
    let same_port = ports.0 == ports.1 || (from.scheme() != to.scheme() && ports == (Some(80), Some(443)));
    from.host_str() == to.host_str() && same_port
}

/// Whether two URLs have the same origin, and so may receive the same credentials.
pub fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// The origin of a URL, for messages.
pub fn display_origin(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{}://{host}:{port}", url.scheme()),
        (Some(host), None) => format!("{}://{host}", url.scheme()),
        _ => format!("`{}:`", url.scheme()),
    }
}

/// For the fuzzer: redirects obey the rules.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_redirect(location: &str) {
    for from in ["https://git.example/a/info/refs", "http://git.example:80/a"].map(Url::parse).into_iter().flatten() {
        if let Ok(to) = follow(&Redirects::SameHost, &EgressPolicy::default(), &from, location) {
            assert!(to.host_str() == from.host_str() && to.username().is_empty(), "{to}");
            assert!(to.scheme() == "https" || from.scheme() == "http", "{to}");
        }
        let beyond = EgressPolicy::default().for_other_hosts(None);
        if let Ok(to) = storage_url(&from, &beyond, &from, location) {
            assert!(to.scheme() == "https" || from.scheme() == "http", "{to}");
            assert!(to.username().is_empty() && beyond.check_host(to.host_str().unwrap_or_default()).is_ok(), "{to}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::egress_policy::Hosts;
    use super::*;
    use proptest::prelude::*;

    const FROM: &str = "https://git.example/acme/shop/info/refs?service=git-upload-pack";

    fn to(rules: &Redirects, from: &str, location: &str) -> Result<String, String> {
        let from = Url::parse(from).unwrap();
        follow(rules, &EgressPolicy::default(), &from, location).map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn redirects_to_other_hosts_are_followed_only_if_listed() {
        let same = Redirects::SameHost;
        assert_eq!(to(&same, FROM, "/new/info/refs").unwrap(), "https://git.example/new/info/refs");
        assert_eq!(to(&same, FROM, "https://GIT.example:443/x").unwrap(), "https://git.example/x");
        assert_eq!(to(&same, "http://h/x", "https://h/x").unwrap(), "https://h/x");
        for location in
            ["https://git.example:444/x", "https://evil.example/x", "//evil.example/x", "https://git.example.evil/x"]
        {
            assert!(to(&same, FROM, location).unwrap_err().contains("another host"), "{location}");
        }
        let listed = Redirects::To(Hosts::new(["*.mirror.example".to_owned()]).unwrap());
        to(&listed, FROM, "https://a.mirror.example/x").unwrap();
        to(&listed, FROM, "/x").unwrap();
        assert!(to(&listed, FROM, "https://evil.example/x").is_err());
        assert!(
            to(&Redirects::To(Hosts::default()), FROM, "https://evil.example/x").is_err(),
            "an empty list permits no host"
        );
        assert!(to(&Redirects::None, FROM, "/x").unwrap_err().contains("`none`"));
    }

    #[test]
    fn redirects_never_leave_https_or_http_or_the_egress_policy() {
        let hosts = Hosts::new(["git.example".to_owned(), "evil.example".to_owned()]).unwrap();
        for rules in [Redirects::SameHost, Redirects::To(hosts)] {
            for location in [
                "http://git.example/x",
                "file:///etc/passwd",
                "ftp://git.example/x",
                "data:x",
                "https://me:pw@git.example/x",
                "http://[",
            ] {
                let error = to(&rules, FROM, location).unwrap_err();
                assert!(error.contains("not followed") && !error.contains("pw"), "{location}: {error}");
            }
        }
        let egress = EgressPolicy { public_only: true, ..EgressPolicy::default() };
        let rules = Redirects::To(Hosts::new(["169.254.169.254".to_owned()]).unwrap());
        let from = Url::parse("http://git.example/x").unwrap();
        let error = follow(&rules, &egress, &from, "http://169.254.169.254/x").unwrap_err();
        assert!(matches!(error, UpstreamError::NotAllowed(_)), "{error}");
    }

    #[test]
    fn a_storage_is_the_upstream_or_public_or_listed() {
        let upstream = Url::parse("https://10.0.0.1/acme/shop.git").unwrap();
        let to = |rules: &Redirects, egress: &EgressPolicy, href: &str| {
            let beyond = egress.for_other_hosts(rules.hosts());
            storage_url(&upstream, &beyond, &upstream, href).map(String::from).map_err(|error| error.to_string())
        };
        let anywhere = EgressPolicy::default();
        for href in ["/x", "https://10.0.0.1/x", "https://storage.example/x", "https://1.1.1.1/x"] {
            to(&Redirects::None, &anywhere, href).unwrap();
        }
        for href in ["https://10.0.0.1:444/x", "https://10.0.0.2/x", "https://169.254.169.254/x", "https://[::1]/x"] {
            let error = to(&Redirects::SameHost, &anywhere, href).unwrap_err();
            assert!(error.contains("no public address"), "{href}: {error}");
        }
        for href in ["http://storage.example/x", "file:///x", "https://u:p@storage.example/x", "https://["] {
            assert!(to(&Redirects::None, &anywhere, href).unwrap_err().contains("not followed"), "{href}");
        }
        let listed = Redirects::To(Hosts::new(["10.0.0.2".to_owned()]).unwrap());
        to(&listed, &anywhere, "https://10.0.0.2/x").unwrap();
        to(&listed, &anywhere, "https://storage.example/x").unwrap();
        // For repositories of operators, listed hosts must be public as well.
        let public = EgressPolicy { public_only: true, ..EgressPolicy::default() };
        assert!(to(&listed, &public, "https://10.0.0.2/x").is_err());
        let few = EgressPolicy { hosts: Hosts::new(["10.0.0.1".to_owned()]).unwrap(), ..EgressPolicy::default() };
        assert!(to(&listed, &few, "https://storage.example/x").unwrap_err().contains("`[upstreams] hosts`"));
    }

    #[test]
    fn credentials_go_to_one_origin_however_its_port_is_written() {
        let url = |text: &str| Url::parse(text).unwrap();
        let (upstream, plain) = (url("https://charts.example/stable"), url("http://charts.example:80/x"));
        assert!(same_origin(&upstream, &url("https://CHARTS.example:443/a.tgz")), "helm/helm#9868");
        assert!(same_origin(&plain, &url("http://charts.example/x")));
        for other in ["http://charts.example:443/x", "https://charts.example:444/x", "https://x.charts.example/x"] {
            assert!(!same_origin(&upstream, &url(other)), "{other}");
        }
    }

    proptest! {
        #[test]
        fn the_rules_apply_to_every_redirect(location in "[ -~]{0,60}") {
            let from = Url::parse(FROM).unwrap();
            if let Ok(to) = follow(&Redirects::SameHost, &EgressPolicy::default(), &from, &location) {
                prop_assert!(same_origin(&from, &to));
            }
        }
    }
}
