//! How much one source may hold at the same time: connections of a listener, or requests that have no credentials.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Where a client comes from: its IPv4 address, or the /64 of its IPv6 address, because one host usually has all of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceAddress(IpAddr);

impl SourceAddress {
    /// The source of a remote address. An IPv4 address mapped into IPv6 is that IPv4 address.
    #[must_use]
    pub fn of(address: SocketAddr) -> Self {
        Self(match address.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Limits what each source holds. Clones share the count.
#[derive(Debug, Clone)]
pub struct SourceLimit {
    limit: usize,
    /// Sources that hold something.
    held: Arc<Mutex<HashMap<SourceAddress, usize>>>,
}

impl SourceLimit {
    /// A limit of so many permits for each source.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, held: Arc::default() }
    }

    /// A permit, unless the source of this address holds as many as it may.
    #[must_use]
    pub fn admit(&self, address: SocketAddr) -> Option<SourcePermit> {
        let source = SourceAddress::of(address);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let count = held.entry(source).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(SourcePermit { source, held: self.held.clone() })
    }
}

/// A permit of a source, until it is dropped.
#[derive(Debug)]
pub struct SourcePermit {
    source: SourceAddress,
    held: Arc<Mutex<HashMap<SourceAddress, usize>>>,
}

impl Drop for SourcePermit {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = held.entry(self.source) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_ipv4_address_or_a_64_of_ipv6() {
        let limit = SourceLimit::new(1);
        for (first, second, is_same_source) in [
            ("192.0.2.1:1", "192.0.2.1:2", true),
            ("192.0.2.1:1", "192.0.2.2:1", false),
            ("192.0.2.1:1", "[::ffff:192.0.2.1]:1", true),
            ("[2001:db8:0:1::1]:1", "[2001:db8:0:1:ffff::2]:1", true),
            ("[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1", false),
        ] {
            let permit = limit.admit(first.parse().unwrap());
            assert!(permit.is_some(), "{first}");
            assert_eq!(limit.admit(second.parse().unwrap()).is_none(), is_same_source, "{first} {second}");
            drop(permit);
            assert!(limit.held.lock().unwrap().is_empty(), "{first}");
        }
    }
}
