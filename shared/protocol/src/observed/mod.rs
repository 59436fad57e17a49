//! What each agent runs of each service, since when, and what stops it: a table of last values, without owners, without an
//! order between agents and without a disk. Agents send their rows to edges, and edges send theirs to every origin. The
//! whole protocol of both is "send what is above what you acknowledged, else all".

mod from_agent;
mod from_edge;
mod instance;
mod row;
mod transfer;

use crate::name::NodeName;

pub use self::from_agent::{AgentObserved, INTERVAL_SECONDS as AGENT_INTERVAL_SECONDS};
pub use self::from_edge::{
    AgentRows, Capability, EdgeObserved, INTERVAL_SECONDS as EDGE_INTERVAL_SECONDS, MAX_REASON_BYTES, NAME_TWICE,
    PATH as EDGE_PATH, Proved, RefusedName,
};
pub use self::instance::{Instance, InstanceError, MAX_INSTANCE_BYTES};
pub use self::row::{
    Applied, Current, Desired, HookState, MAX_OUTPUT_BYTES, MAX_PROBLEM_BYTES, Phase, Problem, ProblemKind, Row,
};
pub use self::transfer::{Transfer, TransferKind};

use crate::plain_text::{make_lines_plain, make_plain};

/// The longest message of an agent or an edge, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// The most rows of one agent, at edges and origins. An edge counts those that were removed a short time ago, too: so what
/// it has fits at an origin.
pub const MAX_AGENT_ROWS: usize = 25_000;

/// The longest version of an agent, in bytes.
pub const MAX_VERSION_BYTES: usize = 100;

/// The bytes are not a message.
#[derive(Debug, thiserror::Error)]
pub enum ObservedError {
    /// More than [`MAX_MESSAGE_BYTES`].
    #[error("a message has at most {MAX_MESSAGE_BYTES} bytes: send the rest with `more`")]
    TooLong,
    /// Not JSON, or a field is missing or wrong.
    #[error("the message cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Each agent has one entry, so that a message costs no more than its agents have rows.
    #[error("agent `{0}` is there twice")]
    AgentTwice(NodeName),
    /// A text is too long.
    #[error("`{field}` has more than {most} bytes")]
    TextTooLong {
        /// The field.
        field: &'static str,
        /// Its most bytes.
        most: usize,
    },
}

/// Reads a message of at most [`MAX_MESSAGE_BYTES`]. Unknown fields are ignored.
fn parse<T: for<'de> serde::Deserialize<'de>>(json: &[u8]) -> Result<T, ObservedError> {
    if json.len() > MAX_MESSAGE_BYTES {
        return Err(ObservedError::TooLong);
    }
    Ok(crate::json::from_slice(json)?)
}

fn check_length(field: &'static str, text: &str, most: usize) -> Result<(), ObservedError> {
    if text.len() > most { Err(ObservedError::TextTooLong { field, most }) } else { Ok(()) }
}

/// Checks the words of others, and makes them plain: they end on terminals and in pages.
fn take_text(field: &'static str, text: &mut String, most: usize) -> Result<(), ObservedError> {
    check_length(field, text, most)?;
    make_plain(text, most);
    Ok(())
}

/// As [`take_text`], of lines.
fn take_lines(field: &'static str, text: &mut String, most: usize) -> Result<(), ObservedError> {
    check_length(field, text, most)?;
    make_lines_plain(text, most);
    Ok(())
}

fn take_agent(version: &mut String, rows: &mut [Row]) -> Result<(), ObservedError> {
    take_text("version", version, MAX_VERSION_BYTES)?;
    let mut problems = rows.iter_mut().filter_map(|row| row.problem.as_mut());
    problems.try_for_each(|problem| {
        take_text("text", &mut problem.text, MAX_PROBLEM_BYTES)?;
        problem.output.as_mut().map_or(Ok(()), |output| take_lines("output", output, MAX_OUTPUT_BYTES))
    })
}
