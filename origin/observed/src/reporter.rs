//! Who reports what an agent runs.

use std::fmt;
use std::str::FromStr;

use weir_protocol::name::{EdgeName, NameError};
use weir_protocol::serde_as_text;

/// An edge that reports by itself, or through a shield, whose claim it is then. In records `edge` or `edge@shield`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reporter {
    /// The edge.
    pub edge: EdgeName,
    /// The shield.
    pub via: Option<EdgeName>,
}

impl Reporter {
    /// The identity of the certificate with which its messages come.
    pub(crate) fn certificate(&self) -> &str {
        self.via.as_ref().unwrap_or(&self.edge).identity()
    }

    /// Whether it may change what the other one reported: it is the same, or the same edge through another shield. No shield
    /// changes what an edge reports by itself.
    pub(crate) fn speaks_for(&self, other: &Self) -> bool {
        self.edge == other.edge && (self.via == other.via || self.via.is_some() && other.via.is_some())
    }
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.via {
            Some(via) => write!(f, "{}@{via}", self.edge),
            None => self.edge.fmt(f),
        }
    }
}

impl FromStr for Reporter {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (edge, via) = text.split_once('@').map_or((text, None), |(edge, via)| (edge, Some(via)));
        Ok(Self { edge: edge.parse()?, via: via.map(str::parse).transpose()? })
    }
}

serde_as_text!(Reporter);
