//! Which redirects are followed: a decision on two addresses.

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::super::MirrorError;
use super::super::reach::{Hosts, Reach};

/// So many redirects are followed in a row.
pub(super) const LONGEST_CHAIN: usize = 5;

/// Which redirects are followed. In each case `https://` never leads to `http://`, and no credential leaves its host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Redirects {
    /// None.
    None,
    /// Those that stay with the host: another path, or from `http://` to `https://`.
    #[default]
    SameHost,
    /// Besides, those to hosts of a list.
    To(Hosts),
}

/// The rules as they are written: a word, or a list of hosts.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Hosts(Vec<String>),
}

impl TryFrom<Written> for Redirects {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Word(word) if word == "none" => Ok(Self::None),
            Written::Word(word) if word == "same-host" => Ok(Self::SameHost),
            Written::Word(word) => Err(format!("`{word}` is none of `none`, `same-host` and a list of hosts")),
            Written::Hosts(hosts) => Hosts::try_from(hosts).map(Self::To),
        }
    }
}

impl From<Redirects> for Written {
    fn from(rules: Redirects) -> Self {
        match rules {
            Redirects::None => Self::Word("none".to_owned()),
            Redirects::SameHost => Self::Word("same-host".to_owned()),
            Redirects::To(hosts) => Self::Hosts(hosts.into()),
        }
    }
}

/// Where a redirect leads, if it is to be followed. `location` is relative to `from`, as RFC 9110 has it.
pub(super) fn follow(rules: &Redirects, reach: &Reach, from: &Url, location: &str) -> Result<Url, MirrorError> {
    let refused = |to: &Url, reason| Err(MirrorError::Redirected { to: place(to), reason });
    let Ok(to) = from.join(location) else {
        let to = "what is no address".to_owned();
        return Err(MirrorError::Redirected { to, reason: "its `Location` makes no sense" });
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
        return refused(&to, "its address holds a user name or a password");
    }
    let Some(host) = to.host_str() else { return refused(&to, "it names no host") };
    let allowed = match rules {
        Redirects::None => return refused(&to, "`redirects` is `none`: change `url` to where it leads"),
        Redirects::SameHost => stays(from, &to),
        Redirects::To(hosts) => stays(from, &to) || (!hosts.is_empty() && hosts.check(host).is_ok()),
    };
    if !allowed {
        return refused(&to, "it is another host: change `url`, or name the host in `redirects`");
    }
    reach.check_host(host)?;
    Ok(to)
}

/// Whether a redirect stays with its host. From http to https the port changes with the scheme.
fn stays(from: &Url, to: &Url) -> bool {
    let ports = (from.port_or_known_default(), to.port_or_known_default());
    let same_port = ports.0 == ports.1 || (from.scheme() != to.scheme() && ports == (Some(80), Some(443)));
    from.host_str() == to.host_str() && same_port
}

/// Whether a credential that belongs to one address may be sent to another.
pub(super) fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// Scheme, host and port of an address, for people.
pub(super) fn place(url: &Url) -> String {
    match (url.host_str(), url.port()) {
        (Some(host), Some(port)) => format!("{}://{host}:{port}", url.scheme()),
        (Some(host), None) => format!("{}://{host}", url.scheme()),
        _ => format!("`{}:`", url.scheme()),
    }
}

/// Wherever a redirect leads, it is within the rules.
#[cfg(fuzzing)]
pub(crate) fn fuzz_redirect(location: &str) {
    for from in ["https://git.example/a/info/refs", "http://git.example:80/a"].map(Url::parse).into_iter().flatten() {
        if let Ok(to) = follow(&Redirects::SameHost, &Reach::default(), &from, location) {
            assert!(to.host_str() == from.host_str() && to.username().is_empty(), "{to}");
            assert!(to.scheme() == "https" || from.scheme() == "http", "{to}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FROM: &str = "https://git.example/acme/shop/info/refs?service=git-upload-pack";

    fn to(rules: &Redirects, from: &str, location: &str) -> Result<String, String> {
        let from = Url::parse(from).unwrap();
        follow(rules, &Reach::default(), &from, location).map(String::from).map_err(|error| error.to_string())
    }

    #[test]
    fn a_redirect_stays_with_its_host_unless_others_are_listed() {
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
            "an empty list is nobody"
        );
        assert!(to(&Redirects::None, FROM, "/x").unwrap_err().contains("`none`"));
    }

    #[test]
    fn never_from_https_to_http_nor_out_of_http_nor_out_of_reach() {
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
        let reach = Reach { hosts: Hosts::default(), public_only: true };
        let rules = Redirects::To(Hosts::new(["169.254.169.254".to_owned()]).unwrap());
        let from = Url::parse("http://git.example/x").unwrap();
        let error = follow(&rules, &reach, &from, "http://169.254.169.254/x").unwrap_err();
        assert!(matches!(error, MirrorError::NotAllowed(_)), "{error}");
    }

    proptest! {
        #[test]
        fn wherever_it_leads_the_rules_hold(location in "[ -~]{0,60}") {
            let from = Url::parse(FROM).unwrap();
            if let Ok(to) = follow(&Redirects::SameHost, &Reach::default(), &from, &location) {
                prop_assert!(same_origin(&from, &to));
            }
        }
    }
}
