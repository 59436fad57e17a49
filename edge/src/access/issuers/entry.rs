//! An issuer, as the table has it.

use std::sync::Arc;

use weir_protocol::issuer::KeysAt;
use weir_protocol::token::{IssuerPolicy, JwkSet};

use super::fetch::KeyRequest;

/// An issuer with its keys.
#[derive(Debug, Clone)]
pub(crate) struct IssuerEntry {
    /// Where it is defined; another for each entry, and the same after a restart.
    pub(crate) source: String,
    /// The revision of its creation at an origin. 0: it is of the configuration, or of an origin that does not say it.
    pub(crate) created: u64,
    pub(crate) issuer: Arc<IssuerPolicy>,
    pub(crate) keys: Arc<JwkSet>,
    /// Where an origin says that its keys are.
    pub(crate) keys_at: Option<Arc<KeysAt>>,
    /// Notified of an unknown `kid`. `None`: the keys are not fetched.
    pub(crate) unknown_key: Option<Arc<KeyRequest>>,
}

impl IssuerEntry {
    /// Whether it was there before another entry, as their origins say. The name decides between two of one time.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.created != 0 && (self.created, &self.source) < (other.created, &other.source)
    }

    /// Whether its keys are at a URL that is not fetched.
    pub(super) fn is_not_fetched(&self) -> bool {
        self.keys_at.is_some() && self.unknown_key.is_none()
    }

    /// Whether its keys were read: a set has at least one.
    pub(super) fn is_read(&self) -> bool {
        self.keys.keys().next().is_some()
    }
}

impl PartialEq for IssuerEntry {
    fn eq(&self, other: &Self) -> bool {
        self.issuer == other.issuer && self.keys == other.keys
    }
}
