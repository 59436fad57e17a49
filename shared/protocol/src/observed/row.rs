//! A row of the table: what an agent runs of a service, and what stops it.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Transfer;
use crate::descriptor::{Generation, rfc3339};
use crate::digest::TarballDigest;
use crate::name::ServiceName;
use crate::revision_id::RevisionId;

/// The longest text of a problem, in bytes.
pub const MAX_PROBLEM_BYTES: usize = 256;

/// The most of what a command wrote, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 512;

/// The publication that a service should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The digest of its tarball.
    pub digest: TarballDigest,
    /// Its generation.
    pub generation: Generation,
}

/// The release that an agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// The digest of its tarball.
    pub digest: TarballDigest,
    /// Its generation; 0 if the agent does not know it yet.
    pub generation: Generation,
    /// What it was made of; `None` if the agent does not know it yet.
    pub revision_id: Option<RevisionId>,
    /// When the agent switched to it. Whole seconds, UTC, by the agent's clock.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
}

/// The last release whose hooks succeeded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<Current>", into = "Option<Current>")]
pub enum Applied {
    /// The agent says nothing: it has no hooks, or is of an earlier version.
    #[default]
    Unsaid,
    /// `None`: the hooks have succeeded for no release. `since` is when they last succeeded.
    Said(Option<Current>),
}

impl Applied {
    fn is_unsaid(&self) -> bool {
        *self == Self::Unsaid
    }
}

impl From<Option<Current>> for Applied {
    fn from(said: Option<Current>) -> Self {
        Self::Said(said)
    }
}

impl From<Applied> for Option<Current> {
    fn from(applied: Applied) -> Self {
        match applied {
            Applied::Unsaid => None,
            Applied::Said(said) => said,
        }
    }
}

/// What an agent runs of one service, and what stops it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The service.
    pub service: ServiceName,
    /// What it should have; `None` before the first answer of an edge.
    pub desired: Option<Desired>,
    /// What it has; `None` before the first release.
    pub current: Option<Current>,
    /// What the agent does about it.
    pub phase: Phase,
    /// The hook of the current release.
    pub hook: HookState,
    /// The last release whose hooks succeeded. See [`Row::applied`].
    #[serde(default, skip_serializing_if = "Applied::is_unsaid")]
    pub applied: Applied,
    /// What stops it; `None`: nothing.
    pub problem: Option<Problem>,
    /// How the current release arrived; `None`: before this run of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
}

impl Row {
    /// The last release whose hooks succeeded, or that was switched to without any. `None`: the agent does not say.
    pub fn applied(&self) -> Option<Option<&Current>> {
        match (&self.applied, self.hook) {
            (Applied::Said(said), _) => Some(said.as_ref()),
            (Applied::Unsaid, HookState::None | HookState::Succeeded) => Some(self.current.as_ref()),
            (Applied::Unsaid, HookState::Pending | HookState::Running | HookState::Failed | HookState::Other) => None,
        }
    }
}

/// What an agent does about a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Nothing: it has what it should have.
    Current,
    /// It lacks something, and waits for its next attempt.
    Waiting,
    /// It requests another release.
    Fetching,
    /// Its check runs.
    Checking,
    /// It replaces the release.
    Switching,
    /// A hook of the release runs, or is retried.
    Hook,
    /// It stays at the release that an operator chose.
    Pinned,
    /// No list of an edge has the service any more, and it ends later; or `allow` of the agent excludes it.
    Unassigned,
    /// A phase of a later version.
    #[serde(other)]
    Other,
}

/// The state of a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookState {
    /// There is no hook.
    #[default]
    None,
    /// It has to run for this release.
    Pending,
    /// It runs.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// A state of a later version.
    #[serde(other)]
    Other,
}

/// What kind of problem stops an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// No edge answers, or edges fail.
    Unreachable,
    /// An answer takes too long, or comes too slowly.
    Timeout,
    /// The agent's credential or the edge's certificate is not accepted, or cannot be read.
    Unauthorized,
    /// No edge has the service, or the agent may not read it.
    NotFound,
    /// With `trust`: the newest freshness statement is too old.
    TooStale,
    /// The tarball or a part of it has another digest.
    DigestMismatch,
    /// With `trust`: no trusted key signed what edges send.
    Signature,
    /// The generation goes back, or is ahead of all clocks.
    Regressed,
    /// With `trust`: the origin signed a newer generation, which the agent does not get.
    Withheld,
    /// The disk of the agent fails.
    Disk,
    /// The check refused the release.
    CheckVetoed,
    /// A hook failed.
    HookFailed,
    /// A hook ran too long.
    HookTimeout,
    /// The tarball cannot be unpacked.
    Unpack,
    /// A delta is wrong.
    Delta,
    /// The service is assigned, and `allow` of the agent excludes it.
    NotAllowed,
    /// The switch waits for other services that go first.
    Dependency,
    /// Another problem, or one of a later version.
    #[serde(other)]
    Other,
}

/// What stops an agent from having a service as it should.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Its kind.
    pub kind: ProblemKind,
    /// Since when there is one of this kind, without a success. Whole seconds, UTC.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// The failed attempts since then.
    pub tries: u64,
    /// For people. At most [`MAX_PROBLEM_BYTES`].
    pub text: String,
    /// The last lines that the command wrote to stderr, where the agent's configuration allows it. At most
    /// [`MAX_OUTPUT_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Problem {
    /// The problem after another failure; `before`: the problem until then.
    pub fn after(before: Option<&Self>, kind: ProblemKind, mut text: String, now: SystemTime) -> Self {
        text.truncate(text.floor_char_boundary(MAX_PROBLEM_BYTES));
        let same = before.filter(|before| before.kind == kind);
        let (since, tries) = same.map_or((now, 0), |same| (same.since, same.tries));
        Self { kind, since, tries: tries + 1, text, output: None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_problem_lasts_while_its_kind_stays() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let first = Problem::after(None, ProblemKind::Timeout, "é".repeat(200), at(1));
        assert_eq!((first.since, first.tries, first.text.len()), (at(1), 1, MAX_PROBLEM_BYTES));
        let again = Problem::after(Some(&first), ProblemKind::Timeout, "slow".to_owned(), at(2));
        assert_eq!((again.since, again.tries, &*again.text), (at(1), 2, "slow"));
        let other = Problem::after(Some(&again), ProblemKind::NotFound, "404".to_owned(), at(3));
        assert_eq!((other.since, other.tries), (at(3), 1));
        let json = serde_json::to_string(&other).unwrap();
        assert_eq!(json, r#"{"kind":"not-found","since":"1970-01-01T00:00:03Z","tries":1,"text":"404"}"#);
        let later = json.replace("not-found", "haunted");
        assert_eq!(serde_json::from_str::<Problem>(&later).unwrap().kind, ProblemKind::Other);
        assert_eq!(serde_json::from_str::<Phase>("\"haunted\"").unwrap(), Phase::Other);
    }
}
