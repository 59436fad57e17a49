//! The requests that are not answered yet.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_protocol::name::RepositoryName;

use super::messages::Request;

/// What a request is about. There is at most one request about each at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    OwnNode,
    Nodes,
    Listing,
    Repository(RepositoryName),
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) subject: Subject,
    pub(super) sent: Instant,
    deadline: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Requests {
    pub(super) fn begin(&mut self, subject: Subject, sent: Instant, deadline: Instant) -> Request {
        self.last += 1;
        self.pending.insert(self.last, Pending { subject, sent, deadline });
        Request { id: self.last, deadline }
    }

    /// Ends a request. `None`: it was answered before, or its deadline has passed.
    pub(super) fn end(&mut self, id: u64) -> Option<Pending> {
        self.pending.remove(&id)
    }

    /// Ends a request whose deadline has passed.
    pub(super) fn end_late(&mut self, now: Instant) -> Option<Pending> {
        let id = self.pending.iter().find(|(_, pending)| pending.deadline <= now).map(|(id, _)| *id)?;
        self.end(id)
    }

    /// Whether there is a request about a subject.
    pub(super) fn has(&self, subject: &Subject) -> bool {
        self.pending.values().any(|pending| pending.subject == *subject)
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.pending.values().map(|pending| pending.deadline).min()
    }
}
