//! Which redirects of an upstream are followed, as configured.

use serde::{Deserialize, Serialize};

use super::egress_policy::Hosts;

/// Which redirects are followed. They never lead from `https://` to `http://`, and credentials are never sent to
/// another origin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Redirects {
    /// None.
    None,
    /// Redirects to the same host: another path, or from `http://` to `https://`.
    #[default]
    SameHost,
    /// Also redirects to these hosts.
    To(Hosts),
}

/// The configured value: a word or a list of hosts.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Word(String),
    Hosts(Vec<String>),
}

impl Redirects {
    /// The hosts to which redirects are followed.
    pub(crate) fn hosts(&self) -> Option<&Hosts> {
        match self {
            Self::To(hosts) => Some(hosts),
            Self::None | Self::SameHost => None,
        }
    }
}

impl TryFrom<Written> for Redirects {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Word(word) if word == "none" => Ok(Self::None),
            Written::Word(word) if word == "same-host" => Ok(Self::SameHost),
            Written::Word(word) => Err(format!("`{word}` is neither `none` nor `same-host` nor a list of hosts")),
            Written::Hosts(hosts) => Hosts::try_from(hosts).map(Self::To),
        }
    }
}

impl From<Redirects> for Written {
    fn from(rules: Redirects) -> Self {
        match rules {
            Redirects::None => Self::Word("none".to_owned()),
            Redirects::SameHost => Self::Word("same-host".to_owned()),
            Redirects::To(hosts) => Self::Hosts(hosts.into()),
        }
    }
}
