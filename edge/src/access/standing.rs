//! Which keys verify tokens just now, what is denied, and the tokens whose signature was verified already.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use moka::sync::Cache;
use weir_protocol::access_list::AccessList;
use weir_protocol::token::{
    Claims, KeyId, MAX_TOKEN_BYTES, NotNow, PublicKey, TokenError, TokenId, UnixSeconds, UnverifiedToken,
};

use super::decision::Refusal;

/// What holds until a list changes.
pub(super) struct Standing {
    keys: HashMap<KeyId, PublicKey>,
    revoked_keys: HashSet<KeyId>,
    denied_tokens: HashSet<TokenId>,
    remembered: Remembered,
}

/// What verified tokens say, by the hash of the token: a poll does not pay for a signature. It belongs to one set of
/// keys, so that a token is forgotten when its key goes. Secrets are never compared, only their hashes.
type Remembered = Cache<blake3::Hash, Arc<Claims>>;

impl Standing {
    /// No keys, nothing denied.
    pub(super) fn empty(cached_tokens: u64) -> Self {
        Self {
            keys: HashMap::new(),
            revoked_keys: HashSet::new(),
            denied_tokens: HashSet::new(),
            remembered: Cache::new(cached_tokens),
        }
    }

    /// The standing of the edge's own list and of what origins said. What one of them denies is denied; of two keys with
    /// one id the edge's own counts.
    pub(super) fn of<'a>(
        own: &'a AccessList,
        heard: &(impl Iterator<Item = &'a AccessList> + Clone),
        keys_from_origins: bool,
        before: &Self,
        cached_tokens: u64,
        now: UnixSeconds,
    ) -> Self {
        let mut keys: HashMap<KeyId, PublicKey> = HashMap::new();
        for key in own.keys().chain(heard.clone().filter(|_| keys_from_origins).flat_map(AccessList::keys)) {
            let known = keys.entry(key.id().clone()).or_insert_with(|| key.clone());
            if known != key {
                tracing::error!(key = %key.id(), "an origin says another key under the id of a known one; it is ignored");
            }
        }
        let lists = || std::iter::once(own).chain(heard.clone());
        let revoked_keys = lists().flat_map(AccessList::revoked_keys).cloned().collect();
        let denied_tokens = lists().flat_map(|list| list.denied_tokens(now)).cloned().collect();
        let same_keys = keys == before.keys && revoked_keys == before.revoked_keys;
        let remembered = if same_keys { before.remembered.clone() } else { Cache::new(cached_tokens) };
        Self { keys, revoked_keys, denied_tokens, remembered }
    }

    /// What a token says, once it has proved itself.
    ///
    /// # Errors
    /// Why it has not.
    pub(super) fn claims(&self, token: &str, now: UnixSeconds) -> Result<Arc<Claims>, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Malformed);
        }
        let hash = blake3::hash(token.as_bytes());
        let claims = match self.remembered.get(&hash) {
            Some(claims) => claims,
            None => {
                let claims = Arc::new(self.verify(token)?);
                self.remembered.insert(hash, claims.clone());
                claims
            }
        };
        // These change while the signature does not.
        if self.denied_tokens.contains(&claims.id) {
            return Err(Refusal::Denied);
        }
        claims.valid_at(now).map_err(|not_now| match not_now {
            NotNow::Expired => Refusal::Expired,
            NotNow::NotYet => Refusal::NotYetValid,
        })?;
        Ok(claims)
    }

    fn verify(&self, token: &str) -> Result<Claims, Refusal> {
        let refusal = |error: TokenError| match error {
            TokenError::TooLong(_) | TokenError::Malformed(_) => Refusal::Malformed,
            TokenError::UnknownKey(_) => Refusal::UnknownKey,
            TokenError::BadSignature => Refusal::BadSignature,
        };
        let token = UnverifiedToken::parse(token).map_err(refusal)?;
        if self.revoked_keys.contains(token.key_id()) {
            return Err(Refusal::RevokedKey);
        }
        let key = self.keys.get(token.key_id()).ok_or(Refusal::UnknownKey)?;
        token.verify(key).map_err(refusal)
    }

    /// Whether a token is denied.
    #[cfg(test)]
    pub(super) fn denies(&self, token: &TokenId) -> bool {
        self.denied_tokens.contains(token)
    }

    /// Tokens whose signature need not be verified again.
    pub(super) fn remembered(&self) -> u64 {
        self.remembered.run_pending_tasks();
        self.remembered.entry_count()
    }

    /// How many keys verify tokens; how many are revoked; how many tokens are denied.
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let usable = self.keys.keys().filter(|id| !self.revoked_keys.contains(*id)).count();
        (usable, self.revoked_keys.len(), self.denied_tokens.len())
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
            id: id.parse().unwrap(),
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

    fn standing(own: &AccessList, heard: &[AccessList], keys_from_origins: bool, before: &Standing) -> Standing {
        Standing::of(own, &heard.iter(), keys_from_origins, before, 10, NOW)
    }

    fn key() -> SigningKey {
        SigningKey::generate().unwrap().0
    }

    #[test]
    fn a_key_that_goes_takes_the_memory_with_it() {
        let (old, new) = (key(), key());
        let token = issue(&old, "one");
        let both = standing(&with_keys(&[&old, &new]), &[], false, &Standing::empty(10));
        assert!(both.claims(&token, NOW).is_ok());
        let without = standing(&with_keys(&[&new]), &[], false, &both);
        assert_eq!((without.claims(&token, NOW), without.remembered()), (Err(Refusal::UnknownKey), 0));
        let mut revoking = AccessList::default();
        revoking.revoke_key(old.public().id().clone()).unwrap();
        let revoked = standing(&with_keys(&[&old, &new]), &[revoking], false, &both);
        assert_eq!((revoked.claims(&token, NOW), revoked.remembered()), (Err(Refusal::RevokedKey), 0));
        assert_eq!(revoked.sizes(), (1, 1, 0));
    }

    #[test]
    fn keys_of_origins_count_when_that_is_wanted_and_their_denials_always() {
        let (own, theirs) = (key(), key());
        let mut heard = with_keys(&[&theirs]);
        heard.deny_token("lost".parse().unwrap(), None).unwrap();
        let heard = [heard];
        let nobody = Standing::empty(10);
        let trusting = standing(&with_keys(&[&own]), &heard, true, &nobody);
        assert!(trusting.claims(&issue(&theirs, "one"), NOW).is_ok());
        let wary = standing(&with_keys(&[&own]), &heard, false, &nobody);
        assert_eq!(wary.claims(&issue(&theirs, "one"), NOW), Err(Refusal::UnknownKey));
        for standing in [trusting, wary] {
            assert_eq!(standing.claims(&issue(&own, "lost"), NOW), Err(Refusal::Denied));
            assert!(standing.claims(&issue(&own, "one"), NOW).is_ok());
        }
        // The same id, and another key behind it: the edge's own stays.
        let impostor = PublicKey::with_id(own.public().id().clone(), [1; 32]);
        let mut claiming = AccessList::default();
        claiming.add_key(impostor).unwrap();
        assert!(standing(&with_keys(&[&own]), &[claiming], true, &nobody).claims(&issue(&own, "one"), NOW).is_ok());
    }

    #[test]
    fn nothing_that_fails_is_remembered_and_the_memory_is_bounded() {
        let key = key();
        let standing = standing(&with_keys(&[&key]), &[], false, &Standing::empty(10));
        let mut forged = issue(&key, "one").into_bytes();
        let last = forged.len() - 10;
        forged[last] = if forged[last] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        assert_eq!(standing.claims(&forged, NOW), Err(Refusal::BadSignature));
        assert_eq!(standing.claims(&"x".repeat(MAX_TOKEN_BYTES + 1), NOW), Err(Refusal::Malformed));
        assert_eq!(standing.remembered(), 0);
        for i in 0..50 {
            standing.claims(&issue(&key, &format!("t{i}")), NOW).unwrap();
        }
        assert!(standing.remembered() <= 10, "{}", standing.remembered());
    }
}
