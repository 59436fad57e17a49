//! Signs publications and freshness statements.

use weir_protocol::access_list::key_line;
use weir_protocol::descriptor::{Descriptor, DescriptorFields};
use weir_protocol::envelope::Envelope;
use weir_protocol::freshness::Freshness;
use weir_protocol::token::SigningKey;

/// The signing keys of an origin. All keys sign every publication, so that keys can be rotated while readers know
/// only some of them. Without keys nothing is signed.
#[derive(Debug, Default)]
pub struct Signer {
    keys: Vec<SigningKey>,
    /// They sign manifests for `cosign verify`, too.
    cosign: bool,
}

impl Signer {
    /// A signer with these keys.
    pub fn new(keys: Vec<SigningKey>) -> Self {
        Self { keys, cosign: false }
    }

    /// The same, whose keys sign the manifests of OCI forms, too.
    #[must_use]
    pub fn with_cosign(self, cosign: bool) -> Self {
        Self { cosign, ..self }
    }

    /// Creates a descriptor with a signed publication.
    pub fn descriptor(&self, fields: DescriptorFields) -> Descriptor {
        Descriptor::signed(fields, &self.keys, self.cosign)
    }

    /// Signs a freshness statement. `None`: there is no key.
    pub fn freshness(&self, statement: &Freshness) -> Option<Envelope> {
        (!self.keys.is_empty()).then(|| statement.sign(&self.keys))
    }

    /// The statement of another member, which has the same keys. `None`: none of them signed it.
    pub fn read_freshness(&self, envelope: &Envelope) -> Option<Freshness> {
        self.keys.iter().find_map(|key| Freshness::signed_by(envelope, key.public()))
    }

    /// What signs descriptors: the public keys, and whether they sign manifests.
    pub fn signs_with(&self) -> String {
        self.public_keys() + if self.cosign && !self.keys.is_empty() { "cosign\n" } else { "" }
    }

    /// The sorted public keys, one a line.
    pub fn public_keys(&self) -> String {
        let mut lines: Vec<String> = self.keys.iter().map(|key| key_line(key.public()) + "\n").collect();
        lines.sort();
        lines.concat()
    }
}
