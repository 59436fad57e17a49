//! Stands for `bucket.rs` in a build without support for any provider.

use std::sync::Arc;

use object_store::{Error, ObjectStore};

use crate::config::{Provider, StoreConfig};

/// Always an error.
pub(super) fn open(_: &StoreConfig, provider: Provider, _: &str, _: &str) -> Result<Arc<dyn ObjectStore>, String> {
    Err(format!("[store] url: this build has no support for {provider:?}"))
}

/// There is none that could be gone.
pub(super) fn exists(_: &Error) -> bool {
    true
}
