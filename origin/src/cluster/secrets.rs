//! Secrets of members. Each run of an origin has one, which its record tells. Another member shows it with each request of an
//! operator that it passes on, and so that it can read the records of the cluster: a certificate alone does not tell it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderValue;
use ring::rand::SystemRandom;
use weir_protocol::name::NodeName;

/// The secret of this run, and those of the other members. Clones share them.
#[derive(Clone)]
pub(crate) struct Secrets {
    own: String,
    others: Arc<RwLock<BTreeMap<NodeName, String>>>,
}

impl Secrets {
    /// A new secret.
    ///
    /// # Errors
    /// The machine has no randomness.
    pub(super) fn new() -> std::io::Result<Self> {
        let random = ring::rand::generate::<[u8; 32]>(&SystemRandom::new())
            .map_err(|_| std::io::Error::other("no random numbers"))?;
        Ok(Self { own: blake3::Hash::from(random.expose()).to_string(), others: Arc::default() })
    }

    /// For the own record.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Takes what the records of all members tell.
    pub(super) fn learn(&self, others: BTreeMap<NodeName, String>) {
        *self.others.write().unwrap_or_else(PoisonError::into_inner) = others;
    }

    /// What to show to a member. `None`: it is of an earlier version, or has not been read yet.
    pub(crate) fn of(&self, member: &NodeName) -> Option<HeaderValue> {
        let secret = self.others.read().unwrap_or_else(PoisonError::into_inner).get(member)?.parse();
        let mut secret: HeaderValue = secret.ok()?;
        secret.set_sensitive(true);
        Some(secret)
    }

    /// Whether a member shows the secret of this run.
    pub(crate) fn admit(&self, shown: &HeaderValue) -> bool {
        // Hashes are compared in constant time.
        blake3::hash(shown.as_bytes()) == blake3::hash(self.own.as_bytes())
    }
}
