//! Reports published revisions to edges, and stores tips.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use weir_protocol::event::{EventKind, RevisionSeen};
use weir_protocol::name::ServiceName;
use weir_publish::{PublishError, SeenTip};

use super::repository::{Repository, Services};
use super::revisions::Revisions;

/// While more services than this are busy, results are reported together, because a report takes time in proportion to the
/// number of services.
const FEW_BUSY: usize = 16;

/// The longest delay of a report.
const MAX_REPORT_DELAY: Duration = Duration::from_secs(1);

/// The reports of one repository.
pub(super) struct RevisionReports {
    repository: Arc<Repository>,
    pub(super) revisions: Revisions,
    sender: watch::Sender<Vec<RevisionSeen>>,
    /// Whether there was a result since the last report.
    is_due: bool,
    reported_at: Instant,
}

impl RevisionReports {
    pub(super) fn new(repository: Arc<Repository>, sender: watch::Sender<Vec<RevisionSeen>>) -> Self {
        let revisions = Revisions::new(repository.name.clone());
        Self { repository, revisions, sender, is_due: false, reported_at: Instant::now() }
    }

    /// The revisions, to record a result that must be reported.
    pub(super) fn record(&mut self) -> &mut Revisions {
        self.is_due = true;
        &mut self.revisions
    }

    /// Reports changed revisions to edges. `busy`: the number of services that may have results soon.
    pub(super) fn send(&mut self, busy: usize, services: &Services) {
        let is_delayed = busy > FEW_BUSY && self.reported_at.elapsed() < MAX_REPORT_DELAY;
        if !self.is_due || is_delayed {
            return;
        }
        (self.is_due, self.reported_at) = (false, Instant::now());
        // The revision of a composed service is of no ref of the repository.
        let followed = services.values().filter(|service| !service.is_withdrawn() && service.parts.is_empty());
        let changed = self.revisions.update(followed.map(|service| (&service.name, service.followed.to_string())));
        self.store_tips(&changed, services);
        for seen in changed {
            self.repository.context.log.append(EventKind::Revision(seen));
        }
        self.sender.send_replace(self.revisions.all());
    }

    /// Stores tips that changed nothing of some service: where these are is not in its publications.
    fn store_tips(&self, seen: &[RevisionSeen], services: &Services) {
        let mut of_refs = HashMap::<String, Vec<_>>::new();
        for service in services.values() {
            let published = service.current().map(|current| (&service.name, current));
            of_refs.entry(service.followed.to_string()).or_default().extend(published);
        }
        let (mut tips, now) = (Vec::new(), SystemTime::now());
        for RevisionSeen { followed_ref, revision_id, .. } in seen {
            let Some(published) = of_refs.remove(followed_ref) else { continue };
            // What a frozen service would have published at it is not known.
            let is_frozen = |name: &ServiceName| self.repository.context.publisher.freezes.of(name, now).is_some();
            if published.iter().any(|(name, it)| it.publication().revision_id != *revision_id && is_frozen(name)) {
                continue;
            }
            if published.iter().any(|(_, it)| it.publication().revision_id != *revision_id) {
                let in_force =
                    published.into_iter().map(|(name, it)| (name.clone(), it.publication().generation)).collect();
                tips.push(SeenTip { followed_ref: followed_ref.clone(), revision_id: revision_id.clone(), in_force });
            }
        }
        if tips.is_empty() {
            return;
        }
        let (publisher, repository) = (self.repository.context.publisher.clone(), self.repository.name.clone());
        tokio::spawn(async move {
            match publisher.add_tips(&repository, tips).await {
                Ok(()) => {}
                // The next owner polls, and stores it.
                Err(error @ (PublishError::NotOwner(_) | PublishError::ShuttingDown)) => {
                    tracing::debug!(%repository, %error, "a tip is left to the next owner");
                }
                Err(error) => tracing::warn!(
                    %repository, %error,
                    "a tip could not be stored: whether agents lack it will not be known"
                ),
            }
        });
    }
}
