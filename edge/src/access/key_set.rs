//! The keys that verify tokens, the denials, and a cache of verified tokens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use moka::sync::Cache;
use weir_protocol::access_list::AccessList;
use weir_protocol::name::NodeName;
use weir_protocol::token::{
    Claims, KeyId, MAX_TOKEN_BYTES, PublicKey, TokenError, TokenId, UnixSeconds, UnverifiedToken, ValidityError,
};

use super::issuers::{IssuerTable, KeyRequest};
use super::refusal::Refusal;

/// The keys and denials of all lists; immutable.
pub(super) struct KeySet {
    keys: HashMap<KeyId, PublicKey>,
    issuers: Arc<IssuerTable>,
    /// Keys and issuers that only origins know, of which this edge takes none.
    ignored_keys: HashSet<KeyId>,
    ignored_issuers: HashSet<String>,
    /// They also revoke keys of issuers.
    revoked_keys: HashSet<KeyId>,
    denied_tokens: HashSet<TokenId>,
    denied_agents: HashSet<NodeName>,
    verified_tokens: VerifiedTokens,
}

/// The claims of verified tokens by the hash of the token, so that a poll does not verify a signature. It belongs to
/// one set of keys: tokens are dropped with their key. Only hashes are compared, never secrets.
type VerifiedTokens = Cache<blake3::Hash, Arc<Claims>>;

impl KeySet {
    pub(super) fn empty(cached_tokens: u64) -> Self {
        Self {
            keys: HashMap::new(),
            issuers: Arc::default(),
            ignored_keys: HashSet::new(),
            ignored_issuers: HashSet::new(),
            revoked_keys: HashSet::new(),
            denied_tokens: HashSet::new(),
            denied_agents: HashSet::new(),
            verified_tokens: Cache::new(cached_tokens),
        }
    }

    /// Merges the edge's own list and those of the origins. A denial in any list applies. Of two keys with the same id
    /// the edge's own wins.
    pub(super) fn of<'a>(
        own: &'a AccessList,
        issuers: Arc<IssuerTable>,
        origin_lists: &(impl Iterator<Item = &'a AccessList> + Clone),
        keys_from_origins: bool,
        before: &Self,
        cached_tokens: u64,
        now: UnixSeconds,
    ) -> Self {
        let mut keys: HashMap<KeyId, PublicKey> = HashMap::new();
        for key in own.keys().chain(origin_lists.clone().filter(|_| keys_from_origins).flat_map(AccessList::keys)) {
            let known = keys.entry(key.id().clone()).or_insert_with(|| key.clone());
            if known != key {
                tracing::error!(key = %key.id(), "an origin sent another key under a known id; it is ignored");
            }
        }
        let ignored_keys = origin_lists.clone().filter(|_| !keys_from_origins).flat_map(AccessList::keys);
        let ignored_keys = ignored_keys.map(|key| key.id().clone()).collect();
        let lists = || std::iter::once(own).chain(origin_lists.clone());
        let revoked_keys = lists().flat_map(AccessList::revoked_keys).cloned().collect();
        let denied_tokens = lists().flat_map(|list| list.denied_tokens(now)).cloned().collect();
        let denied_agents = lists().flat_map(AccessList::denied_agents).cloned().collect();
        let same_issuers = Arc::ptr_eq(&issuers, &before.issuers) || issuers == before.issuers;
        let same_keys = keys == before.keys && revoked_keys == before.revoked_keys && same_issuers;
        let verified_tokens = if same_keys { before.verified_tokens.clone() } else { Cache::new(cached_tokens) };
        let ignored_issuers = HashSet::new();
        Self {
            keys,
            issuers,
            ignored_keys,
            ignored_issuers,
            revoked_keys,
            denied_tokens,
            denied_agents,
            verified_tokens,
        }
    }

    /// Issuers whose tokens are refused, although origins know them.
    pub(super) fn ignoring(self, ignored_issuers: HashSet<String>) -> Self {
        Self { ignored_issuers, ..self }
    }

    /// Verifies a token and returns its claims.
    ///
    /// # Errors
    /// Why the token is rejected.
    pub(super) fn claims(&self, token: &str, now: UnixSeconds) -> Result<Arc<Claims>, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Malformed);
        }
        let hash = blake3::hash(token.as_bytes());
        let claims = match self.verified_tokens.get(&hash) {
            Some(claims) => claims,
            None => {
                let claims = Arc::new(self.verify(token)?);
                self.verified_tokens.insert(hash, claims.clone());
                claims
            }
        };
        // These change while the signature does not.
        if claims.id.as_ref().is_some_and(|id| self.denied_tokens.contains(id)) || self.denies_agent(&claims.subject) {
            return Err(Refusal::Denied);
        }
        claims.valid_at(now).map_err(|error| match error {
            ValidityError::Expired => Refusal::Expired,
            ValidityError::NotYetValid => Refusal::NotYetValid,
        })?;
        Ok(claims)
    }

    fn verify(&self, token: &str) -> Result<Claims, Refusal> {
        let refusal = |error: TokenError| match error {
            TokenError::TooLong(_) | TokenError::Malformed(_) => Refusal::Malformed,
            TokenError::UnknownKey(_) => Refusal::UnknownKey,
            TokenError::BadSignature => Refusal::BadSignature,
            TokenError::WrongAudience => Refusal::WrongAudience,
            TokenError::WrongSubject => Refusal::WrongSubject,
            TokenError::NoAgent(_) => Refusal::NoAgent,
        };
        let token = UnverifiedToken::parse(token).map_err(refusal)?;
        if self.revoked_keys.contains(token.key_id()) {
            return Err(Refusal::RevokedKey);
        }
        // The issuer is not verified yet: it selects the key, whose signature covers it.
        if let Some(issuer) = token.issuer().filter(|issuer| self.issuers.has(issuer)) {
            let mut refused = None;
            for (policy, key) in self.issuers.find(issuer, token.key_id()) {
                match token.verify_of(policy, key) {
                    // Perhaps the token of another entry.
                    Err(error @ (TokenError::BadSignature | TokenError::Malformed(_))) => {
                        refused = refused.or(Some(error));
                    }
                    claims => return claims.map_err(refusal),
                }
            }
            self.issuers.request_keys(issuer);
            let unknown = if self.issuers.lacks_keys(issuer) { Refusal::KeysNotFetched } else { Refusal::UnknownKey };
            return Err(refused.map_or(unknown, refusal));
        }
        let Some(key) = self.keys.get(token.key_id()) else {
            let is_ignored = self.ignored_keys.contains(token.key_id())
                || token.issuer().is_some_and(|issuer| self.ignored_issuers.contains(issuer));
            return Err(if is_ignored { Refusal::KeyOfOrigins } else { Refusal::UnknownKey });
        };
        token.verify(key).map_err(refusal)
    }

    /// The requests for the keys of a token's issuer.
    pub(super) fn key_requests(&self, token: &str) -> &[Arc<KeyRequest>] {
        let token = UnverifiedToken::parse(token).ok();
        token.and_then(|token| Some(self.issuers.key_requests(token.issuer()?))).unwrap_or_default()
    }

    /// Whether an agent is denied, whatever its credential.
    pub(super) fn denies_agent(&self, name: &NodeName) -> bool {
        self.denied_agents.contains(name)
    }

    #[cfg(test)]
    pub(super) fn denies(&self, token: &TokenId) -> bool {
        self.denied_tokens.contains(token)
    }

    /// The number of cached tokens.
    pub(super) fn cached_tokens(&self) -> u64 {
        self.verified_tokens.run_pending_tasks();
        self.verified_tokens.entry_count()
    }

    /// The numbers of usable keys, revoked keys and denied tokens.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let usable = self.keys.keys().filter(|id| !self.revoked_keys.contains(*id)).count();
        (usable, self.revoked_keys.len(), self.denied_tokens.len())
    }

    /// The number of denied agents.
    pub(super) fn denied_agents(&self) -> usize {
        self.denied_agents.len()
    }

    pub(super) fn issuers(&self) -> &IssuerTable {
        &self.issuers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::token::SigningKey;

    const NOW: UnixSeconds = 1_800_000_000;

    fn issue(key: &SigningKey, id: &str) -> String {
        let claims = Claims {
            subject: "cluster-1".parse().unwrap(),
            id: Some(id.parse().unwrap()),
            labels: Default::default(),
            services: vec!["shop-*".parse().unwrap()],
            expires: NOW + 1000,
            not_before: Some(NOW),
            issued_at: None,
        };
        key.issue(&claims).unwrap()
    }

    fn with_keys(keys: &[&SigningKey]) -> AccessList {
        let mut list = AccessList::default();
        for key in keys {
            list.add_key(key.public().clone()).unwrap();
        }
        list
    }

    fn key_set(own: &AccessList, origin_lists: &[AccessList], keys_from_origins: bool, before: &KeySet) -> KeySet {
        KeySet::of(own, Arc::default(), &origin_lists.iter(), keys_from_origins, before, 10, NOW)
    }

    fn key() -> SigningKey {
        SigningKey::generate().unwrap().0
    }

    #[test]
    fn a_removed_key_invalidates_cached_tokens() {
        let (old, new) = (key(), key());
        let token = issue(&old, "one");
        let both = key_set(&with_keys(&[&old, &new]), &[], false, &KeySet::empty(10));
        assert!(both.claims(&token, NOW).is_ok());
        let without = key_set(&with_keys(&[&new]), &[], false, &both);
        assert_eq!((without.claims(&token, NOW), without.cached_tokens()), (Err(Refusal::UnknownKey), 0));
        let mut revoking = AccessList::default();
        revoking.revoke_key(old.public().id().clone()).unwrap();
        let revoked = key_set(&with_keys(&[&old, &new]), &[revoking], false, &both);
        assert_eq!((revoked.claims(&token, NOW), revoked.cached_tokens()), (Err(Refusal::RevokedKey), 0));
        assert_eq!(revoked.sizes(), (1, 1, 0));
    }

    #[test]
    fn keys_of_origins_are_optional_and_their_denials_are_not() {
        let (own, theirs) = (key(), key());
        let mut origin_lists = with_keys(&[&theirs]);
        origin_lists.deny_token("lost".parse().unwrap(), None).unwrap();
        let origin_lists = [origin_lists];
        let nobody = KeySet::empty(10);
        let trusting = key_set(&with_keys(&[&own]), &origin_lists, true, &nobody);
        assert!(trusting.claims(&issue(&theirs, "one"), NOW).is_ok());
        let wary = key_set(&with_keys(&[&own]), &origin_lists, false, &nobody);
        assert_eq!(wary.claims(&issue(&theirs, "one"), NOW), Err(Refusal::KeyOfOrigins));
        for key_set in [trusting, wary] {
            assert_eq!(key_set.claims(&issue(&own, "lost"), NOW), Err(Refusal::Denied));
            assert!(key_set.claims(&issue(&own, "one"), NOW).is_ok());
        }
        // The same id with another key: the edge's own key wins.
        let impostor = PublicKey::with_id(own.public().id().clone(), [1; 32]);
        let mut claiming = AccessList::default();
        claiming.add_key(impostor).unwrap();
        assert!(key_set(&with_keys(&[&own]), &[claiming], true, &nobody).claims(&issue(&own, "one"), NOW).is_ok());
    }

    #[test]
    fn only_verified_tokens_are_cached_within_the_bound() {
        let key = key();
        let key_set = key_set(&with_keys(&[&key]), &[], false, &KeySet::empty(10));
        let mut forged = issue(&key, "one").into_bytes();
        let last = forged.len() - 10;
        forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        assert_eq!(key_set.claims(&forged, NOW), Err(Refusal::BadSignature));
        assert_eq!(key_set.claims(&"x".repeat(MAX_TOKEN_BYTES + 1), NOW), Err(Refusal::Malformed));
        assert_eq!(key_set.cached_tokens(), 0);
        for i in 0..50 {
            key_set.claims(&issue(&key, &format!("t{i}")), NOW).unwrap();
        }
        assert!(key_set.cached_tokens() <= 10, "{}", key_set.cached_tokens());
    }
}
