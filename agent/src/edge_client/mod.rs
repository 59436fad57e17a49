//! Requests to edges: HTTP/3 or HTTP/2, to the edge in use, or to the next one when that fails.

mod body_range;
mod edge;
mod edges;
mod error;
mod h2;
mod h3;
mod h3_dialer;
mod h3_stream;
mod http3_state;
mod metrics;
mod preference;
mod protocol_selector;
mod response;
#[cfg(test)]
mod tests;
mod token_file;

use std::sync::Arc;

use tokio::sync::watch;

pub(crate) use body_range::BodyRange;
pub(crate) use edge::{Edge, TarballRequest};
pub(crate) use edges::Edges;
pub(crate) use error::RequestError;
pub(crate) use metrics::{EdgeMetrics, register as register_edges};
pub use response::Protocol;
pub(crate) use response::{Response, ResponseBody};

use crate::selection::Selection;

/// The configured edges, and what all of them are asked for. A reload replaces both at once: no edge is asked for what was
/// configured with other edges.
pub(crate) struct EdgeClient(watch::Sender<Asked>);

/// Which edges are asked, and for what.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) edges: Arc<Edges>,
    /// `None`: each service is polled by itself.
    pub(crate) selection: Option<Selection>,
}

impl EdgeClient {
    pub(crate) fn new(edges: Edges) -> Self {
        Self(watch::Sender::new(Asked { edges: edges.into(), selection: None }))
    }

    /// The current edges. Requests in flight keep the old ones after a reload.
    pub(crate) fn current(&self) -> Arc<Edges> {
        self.0.borrow().edges.clone()
    }

    /// What edges are asked for now.
    pub(crate) fn selection(&self) -> Option<Selection> {
        self.0.borrow().selection.clone()
    }

    /// Both, now and later.
    pub(crate) fn asked(&self) -> watch::Receiver<Asked> {
        self.0.subscribe()
    }

    /// `edges`: `None` keeps them. Returns whether other services are asked for.
    pub(crate) fn replace(&self, edges: Option<Edges>, selection: Option<Selection>) -> bool {
        let mut is_other = false;
        self.0.send_if_modified(|asked| {
            is_other = asked.selection != selection;
            let has_changed = is_other || edges.is_some();
            asked.edges = edges.map_or_else(|| asked.edges.clone(), Arc::new);
            asked.selection = selection;
            has_changed
        });
        is_other
    }
}
