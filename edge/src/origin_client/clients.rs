//! What one origin is called with: connections that show the edge's certificate, and trust the origin's authority alone.

use std::time::SystemTime;

use anyhow::Context;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

use crate::config::OriginConfig;

/// The clients that call one origin. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// For everything but events.
    pub(super) requests: Http2Client,
    /// A connection of its own, so that no tarball stands in the way of an event.
    pub(super) events: Http2Client,
    /// When the certificate that they show ends, or the first of its chain.
    pub(crate) not_after: SystemTime,
}

impl Clients {
    /// Reads the files. Nothing is connected yet.
    ///
    /// # Errors
    /// One cannot be read, or they do not fit each other.
    pub(crate) fn read(config: &OriginConfig) -> anyhow::Result<Self> {
        let cannot = || format!("origin {} cannot be called", config.url);
        let identity = (config.client_certificate.as_path(), config.client_key.as_path());
        let tls = tls::client_config(&config.ca, Some(identity)).with_context(cannot)?;
        let not_after = tls::not_after(&config.client_certificate).with_context(cannot)?;
        Ok(Self { requests: http2_client(tls.clone()), events: http2_client(tls), not_after })
    }

    /// Whether the certificate has ended.
    pub(crate) fn have_ended(&self) -> bool {
        self.not_after < SystemTime::now()
    }
}
