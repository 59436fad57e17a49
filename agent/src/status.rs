//! What is known of a service at this moment, for whoever watches.

use std::path::PathBuf;
use std::time::SystemTime;

use serde::Serialize;
use weir_protocol::commit_id::CommitId;
use weir_protocol::digest::TarballDigest;
use weir_protocol::revision_id::RevisionId;

use crate::edge_client::Protocol;

/// The release that `current` points at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Release {
    /// The content.
    pub digest: TarballDigest,
    /// The generation under which it was last confirmed; 0 when that is not known.
    pub generation: u64,
    /// The commit of that generation.
    pub commit: Option<CommitId>,
    /// The revision of that generation, whatever kind of source it is of.
    pub revision_id: Option<RevisionId>,
    /// The release's own folder, `root/<service>/releases/<name>`.
    pub directory: PathBuf,
}

/// How `exec` stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HookState {
    /// There is none, or nothing to run it for.
    #[default]
    None,
    /// It has to run.
    Pending,
    /// It runs.
    Running,
    /// It ran to a good end for the release in force.
    Done,
    /// It failed for the release in force, and is tried again.
    Failed,
}

/// One service, as it stands. The counts are of this process.
#[derive(Debug, Clone, Default)]
pub struct ServiceStatus {
    /// The release in force; `None` before the first.
    pub release: Option<Release>,
    /// Whether an edge has confirmed the release, or given a new one, since the start.
    pub confirmed: bool,
    /// Switches of `current`.
    pub switches: u64,
    /// Polls and refreshes that ended, however.
    pub polls: u64,
    /// Those that found nothing new.
    pub unchanged: u64,
    /// Those that failed at every edge.
    pub errors: u64,
    /// Forced refreshes that ended without an error.
    pub refreshes: u64,
    /// Why the last poll failed; `None` once one succeeded.
    pub last_error: Option<String>,
    /// Whether time alone may heal that.
    pub last_error_retryable: bool,
    /// When the last poll ended.
    pub last_poll: Option<SystemTime>,
    /// When an edge last confirmed the release or gave a new one.
    pub last_success: Option<SystemTime>,
    /// The version of HTTP that brought the last answer.
    pub protocol: Option<Protocol>,
    /// How `exec` stands.
    pub hook: HookState,
    /// Runs of `exec`.
    pub hook_runs: u64,
    /// Those that failed.
    pub hook_failures: u64,
    /// Why `exec` failed last for the release in force.
    pub hook_error: Option<String>,
}

impl ServiceStatus {
    /// As `/status` shows it.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let time = |time: Option<SystemTime>| time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
        serde_json::json!({
            "release": self.release,
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
            },
        })
    }
}
