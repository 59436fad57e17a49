//! `auth.key_hosts`: the hosts from which an edge fetches keys that origins name.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// Names and addresses of hosts, and `*.` before a domain for all hosts below it. An empty list allows none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct KeyHosts(BTreeSet<String>);

impl KeyHosts {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether keys may be fetched from the host of a URL. Takes one lookup for each part of its name.
    pub(crate) fn allows(&self, host: &str) -> bool {
        let host = normalized(host);
        let is_below = |(at, _): (usize, &str)| at > 0 && self.0.contains(&format!("*{}", &host[at..]));
        self.0.contains(&host) || host.match_indices('.').any(is_below)
    }
}

impl TryFrom<Vec<String>> for KeyHosts {
    type Error = String;

    fn try_from(hosts: Vec<String>) -> Result<Self, String> {
        let wrong = |host: &String| {
            let name = normalized(host.strip_prefix("*.").unwrap_or(host));
            let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
            name.is_empty() || name.starts_with(['.', '-']) || !(is_name || name.parse::<Ipv6Addr>().is_ok())
        };
        match hosts.iter().find(|host| wrong(host)) {
            Some(host) => Err(format!("`{host}` is neither a host nor `*.` and a domain: write no port and no path")),
            None => Ok(Self(hosts.iter().map(|host| normalized(host)).collect())),
        }
    }
}

impl From<KeyHosts> for Vec<String> {
    fn from(hosts: KeyHosts) -> Self {
        hosts.0.into_iter().collect()
    }
}

/// A host as it is compared: without the brackets of a URL.
fn normalized(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_hosts_and_those_below_listed_domains_are_allowed() {
        let hosts = |hosts: &[&str]| KeyHosts::try_from(hosts.iter().map(ToString::to_string).collect::<Vec<_>>());
        let listed = hosts(&["api.one.example", "*.Two.example", "10.0.0.1", "[2001:db8::1]"]).unwrap();
        for (host, expected) in [
            ("api.one.example", true),
            ("API.one.example.", true),
            ("one.example", false),
            ("x.api.one.example", false),
            ("a.two.example", true),
            ("a.b.two.example", true),
            ("two.example", false),
            (".two.example", false),
            ("atwo.example", false),
            ("a.two.example.evil", false),
            ("10.0.0.1", true),
            ("10.0.0.10", false),
            ("[2001:db8::1]", true),
            ("", false),
        ] {
            assert_eq!(listed.allows(host), expected, "{host}");
        }
        assert!(!KeyHosts::default().allows("api.one.example"));
        for wrong in ["", "*", "*.", "*.*.example", "https://a", "a:6443", "a/b", "-a", ".a", "a b", "a.*"] {
            assert!(hosts(&[wrong]).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
