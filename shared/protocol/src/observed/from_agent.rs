//! Agent to edge: `POST /v1/agents/self/observed`.

use serde::{Deserialize, Serialize};

use super::{Instance, ObservedError, Row, parse, take_agent};
use crate::labels::Labels;
use crate::name::ServiceName;

/// How often an agent sends a message when nothing changes, in seconds.
pub const INTERVAL_SECONDS: u64 = 600;

/// What an agent tells the edge in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentObserved {
    /// The run of the agent.
    pub instance: Instance,
    /// One more than that of the message before, of the same instance.
    pub seq: u64,
    /// These are all rows, or the first part of them: nothing before them counts any longer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub full: bool,
    /// The next message continues this one: what a `full` began ends with the first that has no `more`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub more: bool,
    /// The version of the program, for display.
    pub version: String,
    /// Labels that the agent gives itself, for display alone.
    #[serde(default)]
    pub labels: Labels,
    /// What changed; with `full` what there is.
    pub rows: Vec<Row>,
    /// Services of which the agent runs nothing any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<ServiceName>,
}

impl AgentObserved {
    /// Reads a message. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, or exceeds a bound.
    pub fn parse(json: &[u8]) -> Result<Self, ObservedError> {
        let mut read: Self = parse(json)?;
        take_agent(&mut read.version, &mut read.rows)?;
        read.labels.make_plain();
        Ok(read)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MAX_MESSAGE_BYTES, ObservedError};
    use super::*;

    const GOLDEN: &str = include_str!("../../golden/agent/observed.json");

    #[test]
    fn a_message_has_exactly_these_bytes() {
        let read = AgentObserved::parse(GOLDEN.as_bytes()).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap() + "\n", GOLDEN);
        let later = GOLDEN.replace(r#""seq""#, r#""later":{},"seq""#);
        assert_eq!(AgentObserved::parse(later.as_bytes()).unwrap(), read);
    }

    #[test]
    fn words_of_others_are_plain_after_reading() {
        let long = format!("{}{}", "e".repeat(250), "\\u202e");
        for (field, words, expected) in [
            ("no edge has it", r"one\ntwo\u001b[31m", r"one two\u{1b}[31m"),
            ("no edge has it", long.as_str(), &format!(r"{}\u{{202", "e".repeat(250))),
            ("0.3.0", r"1\u0000", r"1\u{0}"),
            ("b2", r"b\u20662", r"b\u{2066}2"),
            ("a line", r"a\n\u001b[31mb", "a\n\\u{1b}[31mb"),
        ] {
            let read = AgentObserved::parse(GOLDEN.replacen(field, words, 1).as_bytes()).unwrap();
            let problem = read.rows.iter().find_map(|row| row.problem.as_ref()).expect("a row has a problem");
            let labels = read.labels.iter().map(|(_, value)| value.to_owned());
            let all: Vec<_> =
                labels.chain([problem.text.clone(), read.version.clone()]).chain(problem.output.clone()).collect();
            assert!(all.iter().any(|text| text == expected), "{words}: {all:?}");
        }
    }

    #[test]
    fn what_exceeds_a_bound_is_refused() {
        let (long, version) = ("e".repeat(257), format!(r#""{}""#, "1".repeat(101)));
        for (field, other, expected) in [
            ("no edge has it", long.as_str(), "`text` has more than 256 bytes"),
            ("a line", &*"e".repeat(513), "`output` has more than 512 bytes"),
            (r#""0.3.0""#, version.as_str(), "`version` has more than 100 bytes"),
            (r#""4f2a-1""#, r#""a b""#, "`a b` is not an instance"),
            (r#""seq":7"#, r#""seq":-7"#, "invalid value"),
            (r#""seq":7"#, r#""seq":7,"seq":8"#, "twice"),
        ] {
            let changed = GOLDEN.replacen(field, other, 1);
            assert_ne!(changed, GOLDEN);
            let error = AgentObserved::parse(changed.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{changed}: {error}");
        }
        let error = AgentObserved::parse(&vec![b' '; MAX_MESSAGE_BYTES + 1]);
        assert!(matches!(error, Err(ObservedError::TooLong)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = AgentObserved::parse(&bytes);
        }
    }
}
