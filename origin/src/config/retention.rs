//! `[retention]`: what is kept of the past.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use weir_runtime::config;

/// `[retention]`: which superseded versions are kept. What is current or pinned is kept whatever stands here.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Superseded versions of a service that are kept at the most.
    pub versions: usize,
    /// How long a superseded version is kept, in time that the process has seen pass: a restart begins it again.
    #[serde(with = "config::duration")]
    pub age: Duration,
    /// While the objects of all versions together have more bytes than this, each counted once, the versions that were
    /// superseded the longest ago go. Absent: no such bound.
    #[serde(with = "config::optional_size")]
    pub bytes: Option<ByteSize>,
    /// How long an object is stored after nothing refers to it any more: a download that broke off may come back for the
    /// rest. A build with its publication must end within a quarter of it, else it is stopped, and tried again later each
    /// time: the default has room for the default `build_timeout`, and half as long again.
    #[serde(with = "config::duration")]
    pub gc_grace_period: Duration,
    /// Publications of a service that its history remembers at the most.
    pub history: usize,
    /// How long they are remembered.
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
    pub(super) fn faults(&self) -> Vec<String> {
        const MOST: usize = 10_000;
        let mut faults = Vec::new();
        for (key, value) in [("versions", self.versions), ("history", self.history)] {
            if value > MOST {
                faults.push(format!("[retention] {key} = {value}: it must be at most {MOST}"));
            }
        }
        if self.gc_grace_period < MIN_GC_GRACE_PERIOD {
            let grace = humantime::format_duration(self.gc_grace_period);
            faults.push(format!("[retention] gc_grace_period = \"{grace}\": it must be at least 1s"));
        }
        if self.bytes.is_some_and(|bytes| bytes.as_u64() == 0) {
            let fault =
                "[retention] bytes must be more than nothing, for example \"50GiB\"; leave it out for no such bound";
            faults.push(fault.to_owned());
        }
        faults
    }
}
