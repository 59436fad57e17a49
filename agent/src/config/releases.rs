//! `[releases]`, with what other keys say about releases.

use serde::{Deserialize, Serialize};
use weir_protocol::name::ServiceName;
use weir_release::{Limits, Modes, ReleaseOptions, Unchanged};

use super::Config;

/// How releases are written: `releases = { unchanged = "copy" }`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReleasesConfig {
    /// What a new release does with files that the release before has with the same bytes.
    pub unchanged: Unchanged,
}

impl Config {
    /// How releases of a service are made and kept.
    pub fn release_options(&self, service: &ServiceName) -> ReleaseOptions {
        let hooks = self.hooks_of(service);
        ReleaseOptions {
            keep: self.keep_releases,
            limits: Limits { max_files: self.max_files, max_bytes: self.max_tarball_bytes.as_u64() },
            modes: Modes { group_write: self.group_write },
            unchanged: self.releases.unchanged,
            runs_commands: hooks.check.is_some() || hooks.exec.is_some(),
        }
    }
}
