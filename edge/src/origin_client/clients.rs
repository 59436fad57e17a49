//! The HTTP clients of one origin, with the edge's client certificate. They trust the origin's CA only.

use std::time::SystemTime;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use weir_protocol::name::NodeName;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::identity::Role;
use weir_runtime::tls;

use crate::config::OriginConfig;

#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// For all requests but the event stream.
    pub(super) requests: Http2Client<Full<Bytes>>,
    /// Its own connection, so that no tarball delays an event.
    pub(super) events: Http2Client<Full<Bytes>>,
    /// The end of the client certificate, or the first end in its chain.
    pub(crate) not_after: SystemTime,
    /// The name of this edge, as the certificate proves it.
    pub(super) edge: Option<NodeName>,
}

impl Clients {
    /// Reads the files. Connects lazily.
    ///
    /// # Errors
    /// A file cannot be read, or the key does not belong to the certificate.
    pub(crate) fn read(config: &OriginConfig) -> anyhow::Result<Self> {
        let cannot = || format!("cannot use the client certificate, key or CA of origin {}", config.url);
        let identity = (config.client_certificate.as_path(), config.client_key.as_path());
        let client = tls::client_config(&config.ca, Some(identity)).with_context(cannot)?;
        let not_after = tls::not_after(&config.client_certificate).with_context(cannot)?;
        let proved = tls::identity(&config.client_certificate).with_context(cannot)?;
        let edge = proved.filter(|identity| identity.role == Role::Edge).map(|identity| identity.name);
        Ok(Self { requests: http2_client(client.clone()), events: http2_client(client), not_after, edge })
    }

    pub(crate) fn have_expired(&self) -> bool {
        self.not_after < SystemTime::now()
    }
}
