//! What an origin signs: its publications.

use weir_protocol::access_list::key_line;
use weir_protocol::descriptor::{Descriptor, DescriptorFields};
use weir_protocol::token::SigningKey;

/// The keys of an origin. All of them sign everything, so that keys can be changed while readers know only some; with
/// none, nothing is signed.
#[derive(Debug, Default)]
pub(crate) struct Signer {
    keys: Vec<SigningKey>,
}

impl Signer {
    /// A signer with these keys.
    pub(crate) fn new(keys: Vec<SigningKey>) -> Self {
        Self { keys }
    }

    /// Writes a descriptor, its publication signed.
    pub(crate) fn descriptor(&self, fields: DescriptorFields) -> Descriptor {
        Descriptor::signed(fields, &self.keys)
    }

    /// The public keys, a line each, whatever the order in which they are configured.
    pub(crate) fn public_keys(&self) -> String {
        let mut lines: Vec<String> = self.keys.iter().map(|key| key_line(key.public()) + "\n").collect();
        lines.sort();
        lines.concat()
    }
}
