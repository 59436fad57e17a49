//! Records the results of services, and reports published revisions to edges.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::event::{EventKind, RevisionSeen};
use weir_protocol::name::ServiceName;
use weir_protocol::revision_id::RevisionId;
use weir_source::{RetryPolicy, Service, ServiceFailure};

use super::service_states::Cause;
use super::worker::Worker;
use crate::publish::SeenTip;

/// While more services than this are busy, results are reported together, because a report takes time in proportion to the
/// number of services.
const FEW_BUSY: usize = 16;

/// The longest delay of a report.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(1);

impl Worker {
    /// Whether failures of a service are not recorded, and its build does not query the upstream: a poll follows, after a start
    /// or an assignment, and while the mirror is incomplete.
    pub(super) fn suppress_errors(&self, service: &ServiceName) -> bool {
        let awaits_part = || {
            let service = self.services.get(service);
            service.is_some_and(|service| self.context.part_sources.awaits_first_poll(service))
        };
        self.states.last_cause(service) != Some(Cause::Changed) || !self.state.borrow().mirrored || awaits_part()
    }

    /// Records the published revision of a service, or why it does not follow its ref.
    pub(super) fn record_result(&mut self, service: &Service, result: Result<RevisionId, ServiceFailure>) {
        let name = &service.name;
        // If it is due again, its ref may be at another commit.
        let published = result.as_ref().ok().filter(|_| !self.states.is_due(name));
        self.revisions.set_published(name, published.cloned());
        self.unreported_results += 1;
        self.record_applied(name);
        let Err(failure) = result else {
            self.back_offs.remove(name);
            self.waits_for_lfs.remove(name);
            return;
        };
        if failure.step != "lfs" {
            self.waits_for_lfs.remove(name);
        }
        let suppressed = self.suppress_errors(name);
        if !suppressed {
            let reason = self.context.data_dir.redact(&failure.reason);
            service.mark_failed(failure.step, reason, SystemTime::now());
        }
        let retry_with_next_poll = match failure.retry {
            RetryPolicy::NextPoll => true,
            RetryPolicy::BackOff => !self.back_offs.contains(name),
            RetryPolicy::Never => false,
        };
        if suppressed || retry_with_next_poll {
            self.needs_reconcile.insert(name.clone());
        }
        if self.states.last_cause(name) == Some(Cause::Assigned) {
            self.schedule.trigger(Instant::now());
        }
    }

    /// Records that a service has applied all polls, or all but the last one if it is due again.
    fn record_applied(&mut self, service: &ServiceName) {
        if self.states.is_due(service) {
            let polls = self.state.borrow().polls;
            self.unapplied_polls.entry(service.clone()).and_modify(|first| *first = polls);
        } else {
            self.unapplied_polls.remove(service);
        }
    }

    /// Reports changed revisions to edges.
    pub(super) fn report_revisions(&mut self) {
        let is_delayed = self.states.busy() > FEW_BUSY && self.reported_at.elapsed() < MAX_REPORT_DELAY;
        if self.unreported_results == 0 || is_delayed {
            return;
        }
        (self.unreported_results, self.reported_at) = (0, Instant::now());
        // The revision of a composed service is of no ref of the repository.
        let services = self.services.values().filter(|service| !service.is_withdrawn() && service.parts.is_empty());
        let changed = self.revisions.update(services.map(|service| (&service.name, service.followed.to_string())));
        self.store_tips(&changed);
        for seen in changed {
            self.context.log.append(EventKind::Revision(seen));
        }
        self.revision_sender.send_replace(self.revisions.all());
    }

    /// Stores tips that changed nothing of some service: where these are is not in its publications.
    fn store_tips(&self, seen: &[RevisionSeen]) {
        let mut of_refs = HashMap::<String, Vec<_>>::new();
        for service in self.services.values() {
            let published = service.current().map(|current| (&service.name, current));
            of_refs.entry(service.followed.to_string()).or_default().extend(published);
        }
        let mut tips = Vec::new();
        for RevisionSeen { followed_ref, revision_id, .. } in seen {
            let Some(published) = of_refs.remove(followed_ref) else { continue };
            if published.iter().any(|(_, it)| it.publication().revision_id != *revision_id) {
                let in_force =
                    published.into_iter().map(|(name, it)| (name.clone(), it.publication().generation)).collect();
                tips.push(SeenTip { followed_ref: followed_ref.clone(), revision_id: revision_id.clone(), in_force });
            }
        }
        if tips.is_empty() {
            return;
        }
        let (publisher, repository) = (self.context.publisher.clone(), self.config.name.clone());
        tokio::spawn(async move {
            if let Err(error) = publisher.add_tips(&repository, tips).await {
                tracing::warn!(%repository, %error, "a tip could not be stored: whether agents lack it will not be known");
            }
        });
    }
}
