//! Requests to edges: HTTP/3 or HTTP/2, to the edge in use, or to the next one when that fails.

mod edge;
mod edge_url;
mod edges;
mod error;
mod h2;
mod h3;
mod h3_dialer;
mod http3_state;
mod preference;
mod protocol_selector;
mod response;
mod rest;
#[cfg(test)]
mod tests;
mod token_file;

use std::sync::{Arc, PoisonError, RwLock};

pub(crate) use edge::{Edge, TarballRequest};
pub use edge_url::{EdgeUrl, EdgeUrlError};
pub(crate) use edges::Edges;
pub(crate) use error::RequestError;
pub use response::Protocol;
pub(crate) use response::{Response, ResponseBody};
pub(crate) use rest::Rest;

/// The configured edges; a reload replaces them.
pub(crate) struct EdgeClient(RwLock<Arc<Edges>>);

impl EdgeClient {
    pub(crate) fn new(edges: Edges) -> Self {
        Self(RwLock::new(edges.into()))
    }

    /// The current edges. Requests in flight keep the old ones after a reload.
    pub(crate) fn current(&self) -> Arc<Edges> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, edges: Edges) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = edges.into();
    }
}
