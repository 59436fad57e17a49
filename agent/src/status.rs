//! The status of a service, for watchers and `/status`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use weir_protocol::commit_id::CommitId;
use weir_protocol::digest::TarballDigest;
use weir_protocol::observed::{Applied, Current, Desired, HookState, Phase, Problem, Transfer};
use weir_protocol::revision_id::RevisionId;
use weir_protocol::source_version::SourceVersion;
use weir_release::{ServiceDirectory, State};

use crate::dependencies::Progress;
use crate::edge_client::Protocol;
use crate::verify::{Assessment, CurrentRelease, Proof};

/// The release that `current` points at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Release {
    /// The digest of its tarball.
    pub digest: TarballDigest,
    /// The generation that an edge last confirmed; 0 when it is unknown.
    pub generation: u64,
    /// The commit of that generation; `None` if the revision is no commit.
    pub commit: Option<CommitId>,
    /// The revision of that generation, for any kind of source.
    pub revision_id: Option<RevisionId>,
    /// The version of that revision, if its source names it by one.
    pub version: Option<SourceVersion>,
    /// Its directory, `root/<service>/releases/<name>`.
    pub directory: PathBuf,
}

/// The release in force, as a status shows it.
pub(crate) fn release_of(directory: &ServiceDirectory, state: &State) -> Option<Release> {
    let record = state.release.as_ref()?;
    Some(Release {
        digest: record.directory.digest(),
        generation: record.generation,
        commit: record.commit.clone(),
        revision_id: record.revision_id.clone(),
        version: record.version.clone(),
        directory: directory.release_path(record.directory),
    })
}

/// The last release whose hooks succeeded, if the service has any.
pub(crate) fn applied(has_hook: bool, state: &State) -> Applied {
    if !has_hook {
        return Applied::Unsaid;
    }
    Applied::Said(state.last_applied().map(|record| Current {
        digest: record.directory.digest(),
        generation: record.generation,
        revision_id: record.revision_id.clone(),
        since: state.hook_last_success().unwrap_or(SystemTime::UNIX_EPOCH),
    }))
}

/// A release at which `weir-agent rollback` holds a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Its digest.
    pub digest: TarballDigest,
    /// Since when.
    pub since: SystemTime,
    /// What the edges offered at the last poll.
    pub offered: Option<TarballDigest>,
}

/// What the task of a service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Activity {
    /// It waits.
    #[default]
    Idle,
    /// It requests another release.
    Fetching,
    /// The check runs.
    Checking,
    /// It replaces the release.
    Switching,
}

/// The status of one service. Counters are of this process.
#[derive(Debug, Clone, Default)]
pub struct ServiceStatus {
    /// The release in force; `None` before the first.
    pub release: Option<Release>,
    /// How it arrived; `None`: before the start, or it was on disk.
    pub transfer: Option<Transfer>,
    /// The revision of the last row of a batch poll or an event that offered one.
    pub offered: Option<RevisionId>,
    /// What an edge last offered.
    pub desired: Option<Desired>,
    /// What the task of the service does.
    pub(crate) activity: Activity,
    /// The pin, until `weir-agent unpin`.
    pub pinned: Option<Pinned>,
    /// Whether an edge has confirmed the release, or sent a new one, since the start.
    pub confirmed: bool,
    /// The number of switches of `current`.
    pub switches: u64,
    /// Polls and refreshes that ended, also with an error.
    pub polls: u64,
    /// Polls that found nothing new.
    pub unchanged: u64,
    /// Polls that failed at every edge.
    pub errors: u64,
    /// Forced refreshes that succeeded.
    pub refreshes: u64,
    /// The error of the last poll; `None` when it succeeded.
    pub last_error: Option<String>,
    /// Whether a retry may succeed without a change of configuration.
    pub last_error_retryable: bool,
    /// What has made polls fail since the last success.
    pub(crate) problem: Option<Problem>,
    /// Since when lists of edges lack the service; `None`: the last one has it, or the configuration names it.
    pub unassigned_since: Option<SystemTime>,
    /// Whether no edge has a publication of the service, as far as they said.
    pub is_unpublished: bool,
    /// The end of the last poll.
    pub last_poll: Option<SystemTime>,
    /// When an edge last confirmed the release or sent a new one.
    pub last_success: Option<SystemTime>,
    /// The version of HTTP of the last response.
    pub protocol: Option<Protocol>,
    /// The last release whose hooks succeeded.
    pub(crate) applied: Applied,
    /// The state of `exec`.
    pub hook: HookState,
    /// Runs of `exec`.
    pub hook_runs: u64,
    /// Failed runs of `exec`.
    pub hook_failures: u64,
    /// The last error of `exec` for the release in force.
    pub hook_error: Option<String>,
    /// What has made hooks fail since the last success, also those of earlier releases.
    pub(crate) hook_problem: Option<Problem>,
    /// The last line that the command of this error wrote to stderr. It stays on this machine.
    pub hook_stderr: Option<String>,
    /// Old releases that could not be removed.
    pub unremoved_releases: usize,
    /// Since when the origin has not reached the upstream, as an edge's events say. Not signed.
    pub upstream_unreachable_since: Option<SystemTime>,
    /// With `trust`: what is proved about the freshness of the release, and `max_proof_age`.
    pub(crate) proof: Option<(Proof, Duration)>,
}

impl ServiceStatus {
    /// The release in force, for which freshness statements are judged.
    pub(crate) fn held(&self) -> Option<CurrentRelease> {
        self.release.as_ref().map(|release| CurrentRelease { generation: release.generation, digest: release.digest })
    }

    /// With `trust`: what is proved about the freshness of the release at this time.
    pub fn freshness(&self, now: SystemTime) -> Option<Assessment> {
        self.proof.as_ref().map(|(proof, max_age)| proof.assess(self.held(), self.pinned.is_some(), *max_age, now))
    }

    /// What the agent does about the service.
    pub fn phase(&self) -> Phase {
        let runs_desired =
            self.release.as_ref().is_some_and(|release| self.desired.is_none_or(|it| it.digest == release.digest));
        match (self.activity, self.hook) {
            _ if self.unassigned_since.is_some() => Phase::Unassigned,
            _ if self.pinned.is_some() => Phase::Pinned,
            (Activity::Fetching, _) => Phase::Fetching,
            (Activity::Checking, _) => Phase::Checking,
            (Activity::Switching, _) => Phase::Switching,
            (Activity::Idle, _) if !runs_desired => Phase::Waiting,
            (Activity::Idle, HookState::Pending | HookState::Running | HookState::Failed) => Phase::Hook,
            (Activity::Idle, HookState::None | HookState::Succeeded | HookState::Other) => Phase::Current,
        }
    }

    /// How far the service is for those that depend on it. One that is pinned is where somebody wants it.
    pub(crate) fn progress(&self) -> Progress {
        let wanted = match (&self.pinned, &self.desired) {
            (Some(pinned), _) => pinned.digest,
            (None, Some(desired)) => desired.digest,
            (None, None) => return Progress::Unknown,
        };
        match self.hook {
            _ if self.release.as_ref().is_none_or(|release| release.digest != wanted) => Progress::Behind,
            HookState::None | HookState::Succeeded => Progress::Done,
            HookState::Pending | HookState::Running | HookState::Failed | HookState::Other => Progress::HookDue,
        }
    }

    /// What stops the service from being as it should: polls first, then its hooks, then a lack of proof.
    pub fn current_problem(&self, now: SystemTime) -> Option<Problem> {
        let of_proof = || {
            let assessed = self.freshness(now)?;
            let (kind, since) = assessed.kind?;
            Some(Problem::after(None, kind, assessed.problem.unwrap_or_default(), since))
        };
        self.problem.clone().or_else(|| self.hook_problem.clone()).or_else(of_proof)
    }

    /// The value in `/status`.
    pub(crate) fn to_json(&self, now: SystemTime) -> serde_json::Value {
        let time = |time: Option<SystemTime>| time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
        serde_json::json!({
            "release": self.release,
            "desired": self.desired,
            "applied": self.applied,
            "phase": self.phase(),
            "problem": self.current_problem(now),
            "transfer": self.transfer,
            "pinned": self.pinned.as_ref().map(|pinned| serde_json::json!({
                "digest": pinned.digest,
                "since": time(Some(pinned.since)),
                "offered": pinned.offered,
            })),
            "unassigned_since": time(self.unassigned_since),
            "confirmed": self.confirmed,
            "last_error": self.last_error,
            "last_success": time(self.last_success),
            "last_poll": time(self.last_poll),
            "protocol": self.protocol,
            "polls": self.polls,
            "unchanged": self.unchanged,
            "errors": self.errors,
            "refreshes": self.refreshes,
            "switches": self.switches,
            "hook": {
                "state": self.hook,
                "runs": self.hook_runs,
                "failures": self.hook_failures,
                "last_error": self.hook_error,
                "stderr": self.hook_stderr,
            },
            "unremoved_releases": self.unremoved_releases,
            "upstream_unreachable_since": time(self.upstream_unreachable_since),
            "proof": self.freshness(now).map(|assessed| serde_json::json!({
                "current_at": time(assessed.current_at),
                "newest_generation": assessed.newest_generation,
                "upstream_unreachable_since": time(assessed.upstream_unreachable_since),
                "problem": assessed.problem,
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_is_what_delays_the_service_most() {
        let digest = TarballDigest::of(b"one");
        let release = Release {
            digest,
            generation: 1,
            commit: None,
            revision_id: None,
            version: None,
            directory: PathBuf::new(),
        };
        let has = ServiceStatus { release: Some(release), ..ServiceStatus::default() };
        let desires = |content: &[u8]| Some(Desired { digest: TarballDigest::of(content), generation: 2 });
        let now = Some(SystemTime::UNIX_EPOCH);
        let pinned = Pinned { digest, since: SystemTime::UNIX_EPOCH, offered: None };
        for (status, expected) in [
            (ServiceStatus::default(), Phase::Waiting),
            (ServiceStatus { activity: Activity::Fetching, ..ServiceStatus::default() }, Phase::Fetching),
            (has.clone(), Phase::Current),
            (ServiceStatus { desired: desires(b"one"), ..has.clone() }, Phase::Current),
            (ServiceStatus { desired: desires(b"two"), hook: HookState::Failed, ..has.clone() }, Phase::Waiting),
            (
                ServiceStatus { activity: Activity::Switching, hook: HookState::Running, ..has.clone() },
                Phase::Switching,
            ),
            (ServiceStatus { hook: HookState::Failed, ..has.clone() }, Phase::Hook),
            (ServiceStatus { hook: HookState::Succeeded, ..has.clone() }, Phase::Current),
            (ServiceStatus { pinned: Some(pinned), activity: Activity::Checking, ..has.clone() }, Phase::Pinned),
            (ServiceStatus { unassigned_since: now, ..has }, Phase::Unassigned),
        ] {
            assert_eq!(status.phase(), expected, "{status:?}");
        }
    }

    #[test]
    fn a_dependency_is_done_with_its_hooks_at_the_release_that_it_is_to_have() {
        let [one, two] = [b"one", b"two"].map(|content| TarballDigest::of(content));
        let release = |digest| {
            let (commit, revision_id, version) = (None, None, None);
            Some(Release { digest, generation: 1, commit, revision_id, version, directory: PathBuf::new() })
        };
        let desires = |digest| Some(Desired { digest, generation: 2 });
        let pinned = |digest| Some(Pinned { digest, since: SystemTime::UNIX_EPOCH, offered: Some(two) });
        let of = |release, desired, pinned, hook| {
            ServiceStatus { release, desired, pinned, hook, ..ServiceStatus::default() }.progress()
        };
        let (done, failed) = (HookState::Succeeded, HookState::Failed);
        assert_eq!(of(release(one), None, None, done), Progress::Unknown);
        assert_eq!(of(None, desires(one), None, HookState::None), Progress::Behind);
        assert_eq!(of(release(one), desires(two), None, done), Progress::Behind);
        assert_eq!(of(release(one), desires(one), None, failed), Progress::HookDue);
        assert_eq!(of(release(one), desires(one), None, done), Progress::Done);
        assert_eq!(of(release(one), desires(one), None, HookState::None), Progress::Done);
        assert_eq!(of(release(one), desires(two), pinned(one), done), Progress::Done, "somebody wants it there");
        assert_eq!(of(release(one), None, pinned(one), HookState::Pending), Progress::HookDue);
        assert_eq!(of(release(two), None, pinned(one), done), Progress::Behind);
    }
}
