//! Who asks, where an agent asks about itself.

use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::UnixSeconds;

use super::decision::Refusal;

/// An authenticated agent, and what it may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) name: NodeName,
    /// The labels that its token asserts. Those of operators win over them.
    pub(crate) labels: Labels,
    pub(super) scope: Scope,
    /// The end of its credential. `None`: it ends with the connection.
    pub(crate) expires: Option<UnixSeconds>,
}

/// The services that an agent may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    /// All: the edge is open.
    All,
    Matching(Vec<NameGlob>),
}

/// There is no reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoReader {
    /// The edge is open, and the client did not prove a name.
    Anonymous,
    Refused(Refusal),
}

impl Reader {
    pub(crate) fn may_read(&self, service: &ServiceName) -> bool {
        match &self.scope {
            Scope::All => true,
            Scope::Matching(globs) => globs.iter().any(|glob| glob.matches(service.as_str())),
        }
    }
}
