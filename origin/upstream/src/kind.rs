//! The kinds of repositories, and which keys have a meaning for each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::endpoint::{Address, Endpoint, Scheme};

/// The kind of a repository: `git`, `helm` or `oci`. What a source of a kind does is above this crate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// A repository of Git.
    #[default]
    Git,
    /// A Helm repository.
    Helm,
    /// The repository of an artifact in a registry.
    Oci,
}

/// The keys of repositories and services that not every kind has, with the kinds that have them.
const KEYS: [(&str, &[SourceKind]); 11] = [
    ("ssh_key", &[SourceKind::Git]),
    ("ssh_known_hosts", &[SourceKind::Git]),
    ("verify.mode", &[SourceKind::Git]),
    ("verify.ssh_allowed_signers", &[SourceKind::Git]),
    ("verify.pgp_keyring", &[SourceKind::Git, SourceKind::Helm]),
    ("verify.cosign_keys", &[SourceKind::Helm, SourceKind::Oci]),
    ("lfs", &[SourceKind::Git]),
    ("chart", &[SourceKind::Helm]),
    ("insecure", &[SourceKind::Helm, SourceKind::Oci]),
    ("layer", &[SourceKind::Oci]),
    ("platform", &[SourceKind::Oci]),
];

impl SourceKind {
    /// For documents: earlier versions do not know the key.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a key has a meaning for this kind.
    pub fn has(self, key: &str) -> bool {
        KEYS.iter().all(|(known, kinds)| *known != key || kinds.contains(&self))
    }

    /// Why a key that this kind does not have is refused.
    pub fn refused(self) -> String {
        format!("it has no meaning for `kind = \"{self}\"`: remove it")
    }

    /// Why a URL cannot be of this kind, whatever else may be wrong with it.
    pub(crate) fn refused_url(self, url: &Endpoint) -> Option<&'static str> {
        match self {
            SourceKind::Helm if !url.is_http() && url.scheme() != Some(Scheme::Oci) => Some(
                "`kind = \"helm\"` needs the `https://` or `http://` URL of a folder with an `index.yaml`, or the `oci://` URL \
                 below which a registry has charts",
            ),
            SourceKind::Helm if url.as_str().ends_with("/index.yaml") => {
                Some("it is the URL of an index: leave `/index.yaml` out, which is added to it")
            }
            SourceKind::Git if url.scheme() == Some(Scheme::Oci) => {
                Some("`kind = \"git\"` cannot follow what is in a registry (`oci://`)")
            }
            SourceKind::Oci => match url.address() {
                Ok(Address::Oci(address)) => address.repository(None).err(),
                _ if url.scheme() == Some(Scheme::Oci) => None,
                _ => Some("`kind = \"oci\"` needs the `oci://` URL of a repository in a registry"),
            },
            SourceKind::Git | SourceKind::Helm => None,
        }
    }
}

/// As in documents.
impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SourceKind::Git => "git",
            SourceKind::Helm => "helm",
            SourceKind::Oci => "oci",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_shown() {
        for name in ["git", "helm", "oci"] {
            let kind: SourceKind = serde_json::from_value(name.into()).unwrap();
            assert_eq!((kind.to_string().as_str(), kind.is_default()), (name, name == "git"));
        }
        let error = serde_json::from_str::<SourceKind>("\"svn\"").unwrap_err().to_string();
        assert!(error.contains("`svn`") && error.contains("`git`, `helm`, `oci`"), "{error}");
    }
}
