//! `[repository.verify]`: which commits and charts may be published.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What must be signed before it is published: commits and tags of Git, charts of Helm repositories. At least one file is
/// needed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyConfig {
    /// The object that must be signed. Needed for Git, and for Git only, as the next key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SignedBy>,
    /// File of accepted SSH keys, in the format of `gpg.ssh.allowedSignersFile`. Read for each check. Needs `ssh-keygen` of
    /// OpenSSH 8.9 or later.
    #[serde(default)]
    pub ssh_allowed_signers: Option<PathBuf>,
    /// Binary keyring of accepted PGP keys: `gpg --export KEY > keyring.gpg`. Read for each check, and for each poll of a Helm
    /// repository. Needs `gpgv`.
    #[serde(default)]
    pub pgp_keyring: Option<PathBuf>,
}

/// The object that must be signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignedBy {
    /// The commit that is published.
    Commit,
    /// The tag that is followed.
    Tag,
    /// One of them.
    Either,
}

impl VerifyConfig {
    /// The named files, each with its key.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let ssh = self.ssh_allowed_signers.iter().map(|file| ("verify.ssh_allowed_signers", file.as_path()));
        ssh.chain(self.pgp_keyring.iter().map(|file| ("verify.pgp_keyring", file.as_path())))
    }

    pub(super) fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let ssh = self.ssh_allowed_signers.iter_mut().map(|file| ("verify.ssh_allowed_signers", file));
        ssh.chain(self.pgp_keyring.iter_mut().map(|file| ("verify.pgp_keyring", file)))
    }
}
