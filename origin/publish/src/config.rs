//! `[retention]`: how long old versions are stored.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

/// How long superseded versions are stored. Current and pinned versions are always stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Superseded versions of a service. At most 10,000, and 8 MiB of descriptors. Applied when the service is published.
    pub versions: usize,
    /// How long a superseded version is stored. Only time in which the origin runs counts, from its last start.
    #[serde(with = "config::duration")]
    pub age: Duration,
    /// Size of the frames and manifests of all versions, each counted once. Beyond it, the versions that were superseded the
    /// longest ago are deleted.
    #[serde(with = "config::optional_size")]
    pub bytes: Option<ByteSize>,
    /// How long an unreferenced object is stored, so that interrupted downloads can resume. A build must end within a quarter
    /// of it: raise it together with `build_timeout`. At least `1s`.
    #[serde(with = "config::duration")]
    pub gc_grace_period: Duration,
    /// Publications of a service in its history. At most 10,000.
    pub history: usize,
    /// How long a publication is in the history. The current one always is.
    #[serde(with = "config::duration")]
    pub history_age: Duration,
}

/// The shortest grace period of garbage collection.
const MIN_GC_GRACE_PERIOD: Duration = Duration::from_secs(1);

impl Default for RetentionConfig {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            versions: 10,
            age: 2 * DAY,
            bytes: None,
            gc_grace_period: Duration::from_secs(3 * 3600),
            history: 1000,
            history_age: 90 * DAY,
        }
    }
}

impl RetentionConfig {
    /// What is wrong with the section.
    pub fn errors(&self) -> Vec<String> {
        const MOST: usize = 10_000;
        let mut errors = Vec::new();
        for (key, value) in [("versions", self.versions), ("history", self.history)] {
            if value > MOST {
                errors.push(format!("[retention] {key} = {value}: it must be at most {MOST}"));
            }
        }
        if self.gc_grace_period < MIN_GC_GRACE_PERIOD {
            let grace = humantime::format_duration(self.gc_grace_period);
            errors.push(format!("[retention] gc_grace_period = \"{grace}\": it must be at least 1s"));
        }
        if self.bytes.is_some_and(|bytes| bytes.as_u64() == 0) {
            let error = "[retention] bytes must not be 0: write for example \"50GiB\", or leave it out for no limit";
            errors.push(error.to_owned());
        }
        errors
    }
}
