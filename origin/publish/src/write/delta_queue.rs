//! The services whose current version has no deltas yet.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use weir_protocol::name::ServiceName;
use weir_source::Service;

/// The services whose current version has no deltas yet, each once, the longest waiting first. It is in memory only: what
/// waits at a stop gets its deltas with the next version.
#[derive(Default)]
pub(crate) struct DeltaQueue {
    waiting: Mutex<Waiting>,
    added: Notify,
}

#[derive(Default)]
struct Waiting {
    order: VecDeque<ServiceName>,
    /// As they were published last.
    services: BTreeMap<ServiceName, Arc<Service>>,
}

impl Waiting {
    fn add(&mut self, service: Arc<Service>) {
        let name = service.name.clone();
        if self.services.insert(name.clone(), service).is_none() {
            self.order.push_back(name);
        }
    }

    fn pop(&mut self) -> Option<Arc<Service>> {
        self.services.remove(&self.order.pop_front()?)
    }
}

impl DeltaQueue {
    pub(crate) fn add(&self, service: Arc<Service>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).add(service);
        self.added.notify_one();
    }

    /// Takes the next service, and how many wait after it.
    pub(crate) async fn next(&self) -> (Arc<Service>, usize) {
        loop {
            {
                let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(service) = waiting.pop() {
                    return (service, waiting.order.len());
                }
            }
            self.added.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_source::ServiceConfig;

    use super::*;

    fn service(name: &str) -> Arc<Service> {
        Arc::new(
            Service::new(&ServiceConfig::new(name.parse().unwrap(), "shop".parse().unwrap()), |_| None, None).unwrap(),
        )
    }

    #[tokio::test]
    async fn a_service_that_is_published_often_keeps_no_other_waiting() {
        let queue = DeltaQueue::default();
        let again = service("busy");
        for service in [service("busy"), service("zoo"), service("art"), again.clone()] {
            queue.add(service);
        }
        let (first, waiting) = queue.next().await;
        assert!(Arc::ptr_eq(&first, &again), "the definition of now");
        assert_eq!(waiting, 2);
        queue.add(again);
        let mut order = Vec::new();
        for _ in 0..3 {
            order.push(queue.next().await.0.name.to_string());
        }
        assert_eq!(order, ["zoo", "art", "busy"]);
    }
}
