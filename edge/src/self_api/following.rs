//! Which services an agent is to follow and may read. Pure.

use std::collections::BTreeSet;

use weir_protocol::access_list::Fleet;
use weir_protocol::name_glob::NameGlob;

use crate::access::Agent;

/// The most patterns of a request. The length of a URL bounds their bytes.
pub(crate) const MAX_PATTERNS: usize = 256;

/// What an agent wants to follow.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// What operators have assigned to it.
    Assigned,
    /// What matches these patterns, whether assigned or not.
    Matching(Vec<NameGlob>),
}

/// The query is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WantedError {
    #[error("`services` has more than {MAX_PATTERNS} patterns: use `*` in them")]
    TooMany,
    #[error("`services` has an invalid pattern: {0}")]
    Pattern(#[from] weir_protocol::name_glob::NameGlobError),
}

impl Wanted {
    /// Reads the value of the parameter `services`: patterns, separated by commas.
    pub(crate) fn parse(services: Option<&str>) -> Result<Self, WantedError> {
        let Some(services) = services else { return Ok(Self::Assigned) };
        if services.split(',').count() > MAX_PATTERNS {
            return Err(WantedError::TooMany);
        }
        Ok(Self::Matching(services.split(',').map(str::parse).collect::<Result<_, _>>()?))
    }

    /// Whether the services depend on which there are.
    pub(crate) fn needs_names(&self) -> bool {
        match self {
            Self::Assigned => true,
            Self::Matching(patterns) => patterns.iter().any(has_star),
        }
    }

    /// The patterns of the services, and names.
    pub(crate) fn patterns<'w>(&'w self, agent: &Agent, fleet: &'w Fleet) -> BTreeSet<&'w NameGlob> {
        match self {
            Self::Matching(patterns) => patterns.iter().collect(),
            Self::Assigned => {
                let labels = fleet.labels_of(&agent.name, &agent.labels);
                let assignments = fleet.assignments.table().unsorted();
                let assignments = assignments.filter(|one| one.is_for(&agent.name, &labels));
                assignments.flat_map(|assignment| &assignment.services).collect()
            }
        }
    }

    /// The memory of the patterns, approximately, in bytes.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Assigned => 0,
            Self::Matching(patterns) => patterns.iter().map(|pattern| 50 + pattern.as_str().len()).sum(),
        }
    }
}

/// Whether a pattern may match several services.
pub(super) fn has_star(pattern: &NameGlob) -> bool {
    pattern.as_str().contains('*')
}
