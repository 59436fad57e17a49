//! The services whose current version has no deltas yet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use weir_protocol::name::ServiceName;

use crate::service::Service;

/// The services whose current version has no deltas yet, each once. It is in memory only: what waits at a stop gets its
/// deltas with the next version.
#[derive(Default)]
pub(super) struct DeltaQueue {
    waiting: Mutex<BTreeMap<ServiceName, Arc<Service>>>,
    added: Notify,
}

impl DeltaQueue {
    pub(super) fn add(&self, service: Arc<Service>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(service.name.clone(), service);
        self.added.notify_one();
    }

    /// Takes the next service, and how many wait after it.
    pub(super) async fn next(&self) -> (Arc<Service>, usize) {
        loop {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((_, service)) = waiting.pop_first() {
                    return (service, waiting.len());
                }
            }
            self.added.notified().await;
        }
    }
}
