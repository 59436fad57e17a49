//! `[access]`: what edges are told of tokens.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use weir_runtime::access_files::AccessFiles;

/// `[access]`: which keys verify tokens, and what is denied. Edges are told on the event stream.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Files of public keys, as `weir token key` writes them. Read again when they change.
    pub keys: Vec<PathBuf>,
    /// A file of denied tokens and revoked keys. Read again when it changes.
    pub deny: Option<PathBuf>,
}

impl AccessConfig {
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.keys.iter_mut().chain(&mut self.deny)
    }

    /// The files, to be read.
    pub(crate) fn files(&self) -> AccessFiles {
        AccessFiles { keys: self.keys.clone(), deny: self.deny.clone() }
    }
}
