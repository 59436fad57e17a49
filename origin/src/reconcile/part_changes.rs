//! Changes of parts on their way from the worker whose poll found them to those that publish composed services. The poll counts as
//! applied when these have resolved what it changed.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

/// A change that a poll found. Whoever has a clone has not applied it yet.
#[derive(Debug)]
pub(super) struct PartChange(Arc<Notify>);

impl Drop for PartChange {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The changes that were sent to a worker, until it takes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Inbox {
    changes: Arc<Mutex<Vec<Arc<PartChange>>>>,
    /// There are some.
    pub(super) arrived: Arc<Notify>,
}

impl Inbox {
    /// A service that is a part has another version: no poll waits for that.
    pub(super) fn notify(&self) {
        self.arrived.notify_one();
    }

    pub(super) fn put(&self, change: Arc<PartChange>) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        self.arrived.notify_one();
    }
}

/// The changes of one worker.
#[derive(Default)]
pub(super) struct PartChanges {
    /// The polls of its repository whose changes are not applied everywhere.
    sent: Vec<(u64, Weak<PartChange>)>,
    /// What its own composed services have not applied.
    received: Vec<Arc<PartChange>>,
}

impl PartChanges {
    /// A change that this poll found; `applied` is notified when nobody has it any more.
    pub(super) fn begin(&mut self, poll: u64, applied: &Arc<Notify>) -> Arc<PartChange> {
        let change = Arc::new(PartChange(applied.clone()));
        self.sent.push((poll, Arc::downgrade(&change)));
        change
    }

    pub(super) fn receive(&mut self, inbox: &Inbox) {
        self.received.append(&mut inbox.changes.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The composed services have applied all that was received.
    pub(super) fn apply(&mut self) {
        self.received.clear();
    }

    /// How many of these polls others have applied.
    pub(super) fn applied_polls(&mut self, polls: u64) -> u64 {
        self.sent.retain(|(_, change)| change.strong_count() > 0);
        self.sent.iter().map(|(poll, _)| poll - 1).min().unwrap_or(polls)
    }
}
