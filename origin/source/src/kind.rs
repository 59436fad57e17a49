//! The kinds of repositories, and which keys have a meaning for each.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::endpoint::{Address, Endpoint, Scheme};
use super::helm::ChartName;
use super::ref_text::RefText;

/// The kind of a repository: `git`, `helm` or `oci`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SourceKind(pub(super) KindName);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KindName {
    #[default]
    Git,
    Helm,
    Oci,
}

/// The keys of repositories and services that not every kind has, with the kinds that have them.
const KEYS: [(&str, &[KindName]); 11] = [
    ("ssh_key", &[KindName::Git]),
    ("ssh_known_hosts", &[KindName::Git]),
    ("verify.mode", &[KindName::Git]),
    ("verify.ssh_allowed_signers", &[KindName::Git]),
    ("verify.pgp_keyring", &[KindName::Git, KindName::Helm]),
    ("verify.cosign_keys", &[KindName::Helm, KindName::Oci]),
    ("lfs", &[KindName::Git]),
    ("chart", &[KindName::Helm]),
    ("insecure", &[KindName::Helm, KindName::Oci]),
    ("layer", &[KindName::Oci]),
    ("platform", &[KindName::Oci]),
];

impl SourceKind {
    #[cfg(test)]
    pub(crate) const HELM: Self = Self(KindName::Helm);

    #[cfg(test)]
    pub(crate) const OCI: Self = Self(KindName::Oci);

    /// The kind of a repository that is not defined, for a service with these keys.
    pub fn assumed(text: &RefText, chart: Option<&ChartName>) -> Self {
        Self(match chart {
            Some(_) => KindName::Helm,
            None if text.is_oci_digest() => KindName::Oci,
            None => KindName::Git,
        })
    }

    /// For documents: earlier versions do not know the key.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a key has a meaning for this kind.
    pub(crate) fn has(self, key: &str) -> bool {
        KEYS.iter().all(|(known, kinds)| *known != key || kinds.contains(&self.0))
    }

    /// Why a key that this kind does not have is refused.
    pub(crate) fn refused(self) -> String {
        format!("it has no meaning for `kind = \"{self}\"`: remove it")
    }

    /// Why a URL cannot be of this kind, whatever else may be wrong with it.
    pub(crate) fn refused_url(self, url: &Endpoint) -> Option<&'static str> {
        match self.0 {
            KindName::Helm if !url.is_http() && url.scheme() != Some(Scheme::Oci) => Some(
                "`kind = \"helm\"` needs the `https://` or `http://` URL of a folder with an `index.yaml`, or the `oci://` URL \
                 below which a registry has charts",
            ),
            KindName::Git if url.scheme() == Some(Scheme::Oci) => {
                Some("`kind = \"git\"` cannot follow what is in a registry (`oci://`)")
            }
            KindName::Oci => match url.address() {
                Ok(Address::Oci(address)) => address.repository(None).err(),
                _ if url.scheme() == Some(Scheme::Oci) => None,
                _ => Some("`kind = \"oci\"` needs the `oci://` URL of a repository in a registry"),
            },
            KindName::Git | KindName::Helm => None,
        }
    }
}

/// As in documents.
impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            KindName::Git => "git",
            KindName::Helm => "helm",
            KindName::Oci => "oci",
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
