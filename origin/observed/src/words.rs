//! The words for phases and kinds of problems, as they are in JSON.

use weir_protocol::observed::{Phase, ProblemKind};

/// All phases.
pub const PHASES: [(&str, Phase); 9] = [
    ("current", Phase::Current),
    ("waiting", Phase::Waiting),
    ("fetching", Phase::Fetching),
    ("checking", Phase::Checking),
    ("switching", Phase::Switching),
    ("hook", Phase::Hook),
    ("pinned", Phase::Pinned),
    ("unassigned", Phase::Unassigned),
    ("other", Phase::Other),
];

/// All kinds of problems.
pub const PROBLEMS: [(&str, ProblemKind); 18] = [
    ("unreachable", ProblemKind::Unreachable),
    ("timeout", ProblemKind::Timeout),
    ("unauthorized", ProblemKind::Unauthorized),
    ("not-found", ProblemKind::NotFound),
    ("too-stale", ProblemKind::TooStale),
    ("digest-mismatch", ProblemKind::DigestMismatch),
    ("signature", ProblemKind::Signature),
    ("regressed", ProblemKind::Regressed),
    ("withheld", ProblemKind::Withheld),
    ("disk", ProblemKind::Disk),
    ("check-vetoed", ProblemKind::CheckVetoed),
    ("hook-failed", ProblemKind::HookFailed),
    ("hook-timeout", ProblemKind::HookTimeout),
    ("unpack", ProblemKind::Unpack),
    ("delta", ProblemKind::Delta),
    ("not-allowed", ProblemKind::NotAllowed),
    ("dependency", ProblemKind::Dependency),
    ("other", ProblemKind::Other),
];

/// The word for a value.
pub(crate) fn word<T: PartialEq>(words: &'static [(&'static str, T)], of: &T) -> &'static str {
    words.iter().find(|(_, value)| value == of).map_or("other", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_json() {
        for (word, phase) in PHASES {
            assert_eq!(serde_json::to_value(phase).unwrap(), word);
        }
        for (word, problem) in PROBLEMS {
            assert_eq!(serde_json::to_value(problem).unwrap(), word);
        }
    }
}
