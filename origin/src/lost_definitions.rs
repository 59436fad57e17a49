//! Detects that the catalog may lack definitions of operators, which are stored only in the records. Edges must not
//! drop a service because its definition was lost.
//!
//! A lost or emptied volume looks like a first installation. What others have tells them apart: an edge shows with its
//! request the version of a service that it has from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_protocol::name::ServiceName;
use weir_publish::{Publisher, Repositories};

/// Tells whether services may be missing from the catalog. Clones are cheap.
#[derive(Clone)]
pub(crate) struct LostDefinitions {
    repositories: Arc<Repositories>,
    /// Whether there is an operators' listener.
    operators: bool,
    /// Whether an edge had a service that this store never had.
    has_evidence: Arc<AtomicBool>,
}

impl LostDefinitions {
    pub(crate) fn new(publisher: &Publisher, operators: bool) -> Self {
        Self { repositories: publisher.repositories.clone(), operators, has_evidence: Arc::default() }
    }

    /// Whether an edge has a service that this store never had. A definition by an operator ends the suspicion.
    pub(crate) fn is_suspected(&self) -> bool {
        self.has_evidence.load(Ordering::Relaxed) && self.may_be_lost()
    }

    /// How many repositories have objects but no record.
    pub(crate) fn without_record(&self) -> usize {
        self.repositories.without_record()
    }

    /// Why a service that is not in the catalog may still be defined. `edge_has_it`: the edge that requests it shows a
    /// version of it.
    pub(crate) fn why(&self, service: &ServiceName, edge_has_it: bool) -> Option<&'static str> {
        if edge_has_it && self.may_be_lost() && !self.repositories.has_ever_had(service) {
            let was_known = self.has_evidence.swap(true, Ordering::Relaxed);
            if !was_known {
                tracing::warn!(
                    %service,
                    "an edge has a service that this store never had, and operators have defined nothing in the store: if its \
                     data was lost, restore it. Until operators define a repository or a service, requests for unknown \
                     services are answered with 503"
                );
            }
        }
        if self.is_suspected() {
            Some("edges have services that the origin's store never had: its data may have been lost")
        } else if self.repositories.may_have_unknown_definitions() {
            Some("some definitions of operators cannot be read: the origin's log has the reason")
        } else {
            None
        }
    }

    fn may_be_lost(&self) -> bool {
        self.operators && !self.repositories.operators_have_defined()
    }
}
