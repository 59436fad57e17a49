//! Whose keys are fetched, of the issuers of origins, and the keys that were fetched. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use weir_protocol::issuer::KeysAt;
use weir_protocol::token::JwkSet;

use super::entry::IssuerEntry;
use super::fetch::KeyRequest;
use crate::config::{AuthConfig, KeyHosts};

/// The most hosts that are named in the log at a time; the metric counts all.
const MAX_HOSTS_LOGGED: usize = 10;

/// An issuer of an origin whose keys are fetched. It is another one when its URL or its authority changes.
#[derive(Debug, Clone)]
pub(crate) struct Followed {
    pub(super) keys_at: Arc<KeysAt>,
    pub(super) unknown_key: Arc<KeyRequest>,
    keys: Arc<JwkSet>,
}

impl Followed {
    pub(super) fn is(&self, other: &Arc<KeyRequest>) -> bool {
        Arc::ptr_eq(&self.unknown_key, other)
    }
}

/// The issuers of origins with the URL of their keys.
#[derive(Debug, Default)]
pub(crate) struct FollowedKeys {
    hosts: KeyHosts,
    limit: usize,
    /// By [`IssuerEntry::source`].
    followed: HashMap<String, Followed>,
    /// The hosts that are not allowed.
    refused_hosts: BTreeSet<String>,
    /// Entries at these hosts, and entries that are too many.
    not_fetched: [usize; 2],
}

impl FollowedKeys {
    pub(crate) fn new(config: &AuthConfig) -> Self {
        Self { hosts: config.key_hosts.clone(), limit: config.max_issuer_urls, ..Self::default() }
    }

    /// Chooses whose keys are fetched, of all entries of origins, which begin with the oldest, and gives them the keys that were
    /// fetched.
    pub(crate) fn update(&mut self, entries: &mut [IssuerEntry]) {
        let mut before = std::mem::take(&mut self.followed);
        let (mut refused_hosts, [mut refused, mut too_many]) = (BTreeSet::new(), [0; 2]);
        for entry in entries {
            let Some(keys_at) = &entry.keys_at else { continue };
            let host = keys_at.url.host().unwrap_or_default();
            if !self.hosts.allows(host) {
                refused += 1;
                refused_hosts.insert(host.to_owned());
                continue;
            }
            if self.followed.len() >= self.limit {
                too_many += 1;
                continue;
            }
            let known = before.remove(&entry.source).filter(|known| known.keys_at == *keys_at);
            let made = || Followed { keys_at: keys_at.clone(), unknown_key: Arc::default(), keys: Arc::default() };
            let followed = known.unwrap_or_else(made);
            (entry.keys, entry.unknown_key) = (followed.keys.clone(), Some(followed.unknown_key.clone()));
            self.followed.insert(entry.source.clone(), followed);
        }
        for host in refused_hosts.difference(&self.refused_hosts).take(MAX_HOSTS_LOGGED) {
            tracing::error!(
                host,
                "operators define issuers whose keys are at a host that `[auth] key_hosts` does not have: tokens of these issuers are rejected"
            );
        }
        (self.refused_hosts, self.not_fetched) = (refused_hosts, [refused, too_many]);
    }

    /// Keeps what was fetched for an issuer, unless its entry has changed meanwhile.
    pub(crate) fn set_keys(&mut self, source: &str, unknown_key: &Arc<KeyRequest>, keys: JwkSet) {
        if let Some(followed) = self.followed.get_mut(source).filter(|followed| followed.is(unknown_key)) {
            followed.keys = Arc::new(keys);
        }
    }

    /// Whether an issuer is the one of which keys are requested so.
    pub(crate) fn is(&self, source: &str, unknown_key: &Arc<KeyRequest>) -> bool {
        self.followed.get(source).is_some_and(|followed| followed.is(unknown_key))
    }

    /// Whether these are the keys of an issuer already.
    pub(crate) fn has(&self, source: &str, keys: &JwkSet) -> bool {
        self.followed.get(source).is_some_and(|followed| *followed.keys == *keys)
    }

    /// Those whose keys are fetched.
    pub(crate) fn all(&self) -> HashMap<String, Followed> {
        self.followed.clone()
    }

    /// Their number, and its limit.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.followed.len(), self.limit)
    }

    /// The entries whose keys are not fetched, by reason.
    pub(crate) fn not_fetched(&self) -> [(&'static str, usize); 2] {
        [("host", self.not_fetched[0]), ("limit", self.not_fetched[1])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::issuers::tests::{entry, jwks};

    fn at(name: &str, url: &str) -> IssuerEntry {
        let keys_at = Some(Arc::new(KeysAt { url: url.parse().unwrap(), ca: "ca".to_owned() }));
        IssuerEntry { keys_at, keys: Arc::default(), unknown_key: None, ..entry("https://i", name, &["k"]) }
    }

    #[test]
    fn keys_of_allowed_hosts_are_followed_within_the_limit_and_stay_with_their_entry() {
        let hosts = vec!["*.good.example".to_owned()].try_into().unwrap();
        let config = AuthConfig { key_hosts: hosts, max_issuer_urls: 2, ..AuthConfig::default() };
        let mut followed = FollowedKeys::new(&config);
        let bad = at("bad", "https://bad.example/jwks");
        let [one, two, three] = [1, 2, 3].map(|n| at(&format!("n{n}"), &format!("https://{n}.good.example:6443/")));
        let mut entries = [bad, one.clone(), entry("https://i", "keys", &["k"]), two.clone(), three.clone()];
        followed.update(&mut entries);
        let fetched = entries.each_ref().map(|entry| !entry.is_not_fetched());
        assert_eq!((fetched, followed.in_use()), ([false, true, true, true, false], (2, 2)));
        assert_eq!(followed.not_fetched(), [("host", 1), ("limit", 1)]);

        let request = entries[1].unknown_key.clone().unwrap();
        let keys = jwks(&["a"]);
        followed.set_keys(&one.source, &request, keys.clone());
        followed.set_keys(&two.source, &request, keys.clone());
        let mut entries = [one.clone(), two.clone(), three.clone()];
        followed.update(&mut entries);
        assert!(
            followed.has(&one.source, &keys) && !followed.has(&two.source, &keys),
            "the request is of another entry"
        );
        assert!(*entries[0].keys == keys && !entries[1].is_read());
        assert!(Arc::ptr_eq(entries[0].unknown_key.as_ref().unwrap(), &request), "it goes on as it was");

        // Another URL is another source of keys, and what a fetch from the earlier one brings is dropped.
        let moved = IssuerEntry { keys_at: at("n1", "https://new.good.example/").keys_at, ..one.clone() };
        let mut entries = [moved, three];
        followed.update(&mut entries);
        followed.set_keys(&one.source, &request, keys);
        assert_eq!((entries[0].is_read(), followed.not_fetched()), (false, [("host", 0), ("limit", 0)]));
        followed.update(&mut entries);
        assert!(!entries[0].is_read());
    }
}
