//! `[repository.verify]`: which commits, charts and artifacts may be published.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What must be signed before it is published: commits and tags of Git, charts of Helm repositories, artifacts in registries.
/// At least one file is needed.
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
    /// Files of public keys in PEM, 1 to 8, read for each poll: ECDSA P-256, Ed25519, or RSA of at least 2048 bits. One of them
    /// must have signed with `cosign sign --key`. For artifacts and charts in registries only, and not with `pgp_keyring`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cosign_keys: Vec<PathBuf>,
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
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let ssh = self.ssh_allowed_signers.iter().map(|file| ("verify.ssh_allowed_signers", file.as_path()));
        let pgp = self.pgp_keyring.iter().map(|file| ("verify.pgp_keyring", file.as_path()));
        ssh.chain(pgp).chain(self.cosign_keys.iter().map(|file| ("verify.cosign_keys", file.as_path())))
    }

    pub(super) fn files_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut PathBuf)> {
        let ssh = self.ssh_allowed_signers.iter_mut().map(|file| ("verify.ssh_allowed_signers", file));
        let pgp = self.pgp_keyring.iter_mut().map(|file| ("verify.pgp_keyring", file));
        ssh.chain(pgp).chain(self.cosign_keys.iter_mut().map(|file| ("verify.cosign_keys", file)))
    }
}
