//! The egress policy: the hosts and addresses to which the origin may connect.
//!
//! The author of the configuration file may name any upstream. Operators who create repositories at run time are trusted
//! less: without a policy they could make the origin query the metadata service of a cloud, a host behind the firewall, or
//! read its own disk.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::error::{NotAllowed, UpstreamError};

/// The hosts and addresses that an upstream may have. Default: any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct EgressPolicy {
    /// Allowed hosts of URLs and redirects.
    pub hosts: Hosts,
    /// Whether only addresses of the public internet are allowed: no loopback, private or link-local address. A host that
    /// `hosts` lists by its own name (without `*`) is exempt.
    pub public_only: bool,
    /// Further exempt hosts.
    pub exempt: Hosts,
}

impl EgressPolicy {
    /// The policy for hosts to which an allowed upstream refers, such as the storage of an LFS server: public addresses, and
    /// the hosts that the configuration lists.
    pub(crate) fn for_other_hosts(&self, listed: Option<&Hosts>) -> Self {
        // A list in an operator's document does not extend the operator's own policy.
        let exempt = listed.filter(|_| !self.public_only).cloned().unwrap_or_default();
        Self { hosts: self.hosts.clone(), public_only: true, exempt }
    }

    /// Checks a host by its name. Its addresses are checked when they are resolved.
    ///
    /// # Errors
    /// The host is not allowed.
    pub fn check_host(&self, host: &str) -> Result<(), NotAllowed> {
        self.hosts.check(host)?;
        match normalized(host).parse() {
            Ok(address) if !self.allows(host, address) => Err(NotAllowed::Address(normalized(host))),
            _ => Ok(()),
        }
    }

    /// Resolves the allowed addresses of a host, which was checked before.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, UpstreamError> {
        let all = resolve_all(host, port).await?;
        let allowed: Vec<_> = all.into_iter().filter(|address| self.allows(host, address.ip())).collect();
        if allowed.is_empty() { Err(NotAllowed::Address(normalized(host)).into()) } else { Ok(allowed) }
    }

    /// Checks a host that a proxy will resolve. The proxy may choose any address, so all of them must be allowed.
    ///
    /// # Errors
    /// The host is not allowed, or its name cannot be resolved here.
    pub(crate) async fn check_behind_proxy(&self, host: &str, port: u16) -> Result<(), NotAllowed> {
        if self.allows_any_address(host) {
            return Ok(());
        }
        let all = resolve_all(host, port).await.map_err(|_| NotAllowed::Unresolved(normalized(host)))?;
        let allowed = all.iter().all(|address| is_public(address.ip()));
        if allowed { Ok(()) } else { Err(NotAllowed::Address(normalized(host))) }
    }

    fn allows(&self, host: &str, address: IpAddr) -> bool {
        self.allows_any_address(host) || is_public(address)
    }

    /// Whether a host is allowed with any address.
    fn allows_any_address(&self, host: &str) -> bool {
        !self.public_only || self.hosts.lists_by_name(host) || self.exempt.lists(host)
    }
}

/// A list of allowed hosts. An empty list allows any host.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Creates a list of host names. `*.` at the start matches all hosts below a domain.
    ///
    /// # Errors
    /// Returns the first invalid name.
    pub fn new(names: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut hosts = Vec::new();
        for name in names {
            // As in a URL.
            let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let address = address.filter(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
            let plain = address.unwrap_or_else(|| name.strip_prefix("*.").unwrap_or(&name));
            let fits = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
            if plain.is_empty() || plain.starts_with(['.', '-']) || !plain.chars().all(fits) {
                return Err(name);
            }
            hosts.push(address.unwrap_or(&name).to_ascii_lowercase());
        }
        Ok(Self(hosts))
    }

    /// Checks that a host is allowed.
    ///
    /// # Errors
    /// The host is not allowed.
    pub fn check(&self, host: &str) -> Result<(), NotAllowed> {
        if self.0.is_empty() || self.lists(host) { Ok(()) } else { Err(NotAllowed::Host(normalized(host))) }
    }

    /// Whether the list has the host's name or its domain.
    pub(crate) fn lists(&self, host: &str) -> bool {
        let host = normalized(host);
        self.0.iter().any(|known| match known.strip_prefix('*') {
            Some(ending) => host.len() > ending.len() && host.ends_with(ending),
            None => *known == host,
        })
    }

    /// Whether the list has the host's own name.
    fn lists_by_name(&self, host: &str) -> bool {
        self.0.contains(&normalized(host))
    }
}

impl TryFrom<Vec<String>> for Hosts {
    type Error = String;

    fn try_from(names: Vec<String>) -> Result<Self, String> {
        Self::new(names).map_err(|wrong| format!("`{wrong}` is neither a host nor `*.` and a domain"))
    }
}

impl From<Hosts> for Vec<String> {
    fn from(hosts: Hosts) -> Self {
        hosts.0
    }
}

impl fmt::Debug for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Resolves the addresses of a host.
async fn resolve_all(host: &str, port: u16) -> Result<Vec<SocketAddr>, UpstreamError> {
    let name = host.trim_matches(['[', ']']);
    let failed = |cause: String| UpstreamError::Resolve { host: name.to_owned(), cause };
    let all: Vec<_> = tokio::net::lookup_host((name, port)).await.map_err(|e| failed(e.to_string()))?.collect();
    if all.is_empty() { Err(failed("there is none".to_owned())) } else { Ok(all) }
}

/// Normalizes a host for comparison: no brackets, no final dot, lower case.
fn normalized(host: &str) -> String {
    host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

/// Whether an address belongs to the public internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let benchmarks = a == 198 && (18..20).contains(&b);
    let assignments = [a, b, c] == [192, 0, 0];
    // The metadata address of Azure.
    let cloud = address.octets() == [168, 63, 129, 16];
    !(a == 0
        || a >= 224
        || cloud
        || shared
        || benchmarks
        || assignments
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation())
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let v4_in = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        Ipv4Addr::new(a, b, c, d)
    };
    match segments {
        // An embedded IPv4 address: mapped, compatible, translated (NAT64) or tunnelled (6to4).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            is_public_v4(v4_in(high, low))
        }
        [0x2002, high, low, ..] => is_public_v4(v4_in(high, low)),
        // Teredo, documentation.
        [0x2001, 0 | 0xdb8, ..] => false,
        // Global unicast is 2000::/3; all else is local, multicast or unassigned.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_recognized_in_every_notation() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in ["140.82.121.4", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::8c52:7904"]
        {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn hosts_are_listed_by_name_or_by_domain() {
        let address = Hosts::new(["[2001:DB8::1]".to_owned()]).unwrap();
        assert!(address.lists("[2001:db8::1]") && address.lists("2001:db8::1"));
        let hosts = Hosts::new(["github.com".to_owned(), "*.Example.org".to_owned(), "10.0.0.7".to_owned()]).unwrap();
        for host in ["github.com", "GitHub.com.", "git.example.org", "a.b.example.org", "10.0.0.7"] {
            hosts.check(host).unwrap();
        }
        for host in ["evilgithub.com", "github.com.evil.org", "example.org", ".example.org", "10.0.0.8", ""] {
            assert_eq!(hosts.check(host), Err(NotAllowed::Host(host.trim_end_matches('.').to_owned())));
        }
        Hosts::default().check("any.host").unwrap();
        for wrong in ["", "*", "*.", "a b", "https://github.com", "*.*.org", "-x"] {
            assert_eq!(Hosts::new([wrong.to_owned()]), Err(wrong.to_owned()));
        }
    }

    #[tokio::test]
    async fn addresses_are_checked_when_the_name_is_resolved() {
        EgressPolicy::default().resolve("127.0.0.1", 1).await.unwrap();
        let public = EgressPolicy { public_only: true, ..EgressPolicy::default() };
        public.check_host("localhost").unwrap();
        for host in ["127.0.0.1", "localhost", "[::1]", "169.254.169.254"] {
            let error = public.resolve(host, 80).await.unwrap_err();
            assert!(matches!(error, UpstreamError::NotAllowed(NotAllowed::Address(_))), "{host}: {error}");
        }
        for host in ["127.0.0.1", "[::1]", "169.254.169.254."] {
            assert!(matches!(public.check_host(host), Err(NotAllowed::Address(_))), "{host}");
        }
        let hosts = Hosts::new(["127.0.0.1".to_owned()]).unwrap();
        let named = EgressPolicy { hosts, public_only: true, ..EgressPolicy::default() };
        named.check_host("127.0.0.1").unwrap();
        named.resolve("127.0.0.1", 1).await.unwrap();
        assert!(named.check_host("127.0.0.2").is_err());
    }
}
