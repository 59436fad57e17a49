//! `[access]`: the keys and denials of tokens, for edges.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_runtime::access_files::AccessFiles;

/// Keys and denials for tokens, announced to edges on the event stream. Both files are read again within two seconds of a
/// change; a file that cannot be used changes nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Files of public keys, as `weir token key` writes them. Edges accept them if they set `auth.keys_from_origins`.
    pub keys: Vec<PathBuf>,
    /// File of denied tokens and revoked keys. All edges of this origin apply it.
    pub deny: Option<PathBuf>,
}

impl AccessConfig {
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.keys.iter_mut().chain(&mut self.deny)
    }

    pub(crate) fn files(&self) -> AccessFiles {
        AccessFiles { keys: self.keys.clone(), deny: self.deny.clone() }
    }
}
