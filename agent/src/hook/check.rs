//! The check before a switch: a command that can veto it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_protocol::name::{NodeName, ServiceName};
use weir_release::{ReleaseName, ReleaseRecord, ServiceDirectory};

use super::run::{HookError, Run};
use super::{facts, retry};
use crate::config::HookCommand;
use crate::hook_labels::LabelsReader;
use crate::metrics::CheckMetrics;

/// The check of one service.
pub(crate) struct Check {
    pub(crate) agent: NodeName,
    pub(crate) service: ServiceName,
    /// Only with `labels`.
    pub(crate) labels: Option<LabelsReader>,
    pub(crate) command: HookCommand,
    pub(crate) timeout: Duration,
    pub(crate) report_output: bool,
    pub(crate) metrics: CheckMetrics,
}

/// A release that the check refused. It stays on disk: the next run needs no download.
#[derive(Debug, Clone)]
pub(crate) struct Veto {
    pub(crate) release: ReleaseName,
    /// The newest generation for which it was refused.
    pub(crate) generation: u64,
    pub(crate) message: String,
    /// What the command wrote, if it is reported.
    pub(crate) output: Option<String>,
    failures: u32,
    retry_at: Instant,
}

impl Veto {
    /// Whether the check runs again for a release.
    pub(crate) fn allows(&self, release: ReleaseName, now: Instant) -> bool {
        self.release.digest() != release.digest() || now >= self.retry_at
    }

    /// The veto after a failed run. `random` is from 0 to 1.
    fn after(before: Option<&Self>, release: &ReleaseRecord, message: String, now: Instant, random: f64) -> Self {
        let (release, generation) = (release.directory, release.generation);
        let same = before.filter(|before| before.release.digest() == release.digest());
        let failures = same.map_or(0, |before| before.failures);
        let retry_at = now + retry::pause(failures, random);
        Self { release, generation, message, output: None, failures: failures.saturating_add(1), retry_at }
    }
}

impl Check {
    /// Whether it cannot run yet: it uses labels, and there are none.
    pub(crate) fn lacks_labels(&self) -> bool {
        self.labels.as_ref().is_some_and(|labels| labels.borrow().is_none())
    }

    /// Runs the check in a release that is not current yet.
    ///
    /// # Errors
    /// The new veto. `before`: the last one.
    pub(crate) async fn run(
        &self,
        directory: &Arc<ServiceDirectory>,
        release: ReleaseRecord,
        before: Option<&Veto>,
    ) -> Result<(), Veto> {
        let (name, current) = (release.directory, directory.state().release);
        tracing::info!(service = %self.service, digest = %name.digest(), "running the check");
        let result = async {
            let labels = self.labels.as_ref().and_then(|labels| labels.borrow().clone());
            let facts = facts(&self.agent, &self.service, directory, release.clone(), current, labels).await?;
            Run { what: "check", command: &self.command, facts: &facts, timeout: self.timeout }.finish().await
        };
        let result = result.await;
        self.metrics.ran(result.as_ref().map_or_else(HookError::result, |()| "success"));
        result.map_err(|error| {
            let message = format!("cannot switch to {}: {error}", name.digest());
            let output = error.stderr().filter(|_| self.report_output).map(str::to_owned);
            Veto { output, ..Veto::after(before, &release, message, Instant::now(), fastrand::f64()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::digest::TarballDigest;

    #[test]
    fn a_refused_release_waits_and_another_does_not() {
        let now = Instant::now();
        let [one, two] = [b"one", b"two"].map(|content| ReleaseName::new(TarballDigest::of(content), 0));
        let record = |directory| ReleaseRecord {
            directory,
            generation: 1,
            commit: None,
            revision_id: None,
            version: None,
            tar: None,
        };
        let first = Veto::after(None, &record(one), String::new(), now, 0.0);
        assert!(!first.allows(one, now) && first.allows(two, now));
        assert!(first.allows(one, now + Duration::from_secs(1)));
        // A copy of the same content is the same content.
        assert!(!first.allows(ReleaseName::new(one.digest(), 1), now));
        let second = Veto::after(Some(&first), &record(one), String::new(), now, 0.0);
        assert!(!second.allows(one, now + Duration::from_millis(1900)));
        assert!(second.allows(one, now + Duration::from_secs(2)));
        assert!(
            Veto::after(Some(&second), &record(two), String::new(), now, 0.0).allows(two, now + Duration::from_secs(1))
        );
    }
}
