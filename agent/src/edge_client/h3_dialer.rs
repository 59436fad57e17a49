//! Opens QUIC connections to one edge.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use h3::client::SendRequest;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, EndpointConfig, TokioRuntime, TransportConfig};
use rustls::ClientConfig;
use weir_runtime::http_client::NameLookup;
use weir_runtime::udp;

use super::error::{RequestError, chain};
use crate::config::EdgeUrl;

/// The idle timeout of a connection; longer than the poll interval.
pub(super) const MAX_IDLE: Duration = Duration::from_secs(120);

/// Keeps NAT mappings alive, and finds out that an edge was restarted: it answers with a stateless reset.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(6);

/// How long a name may be looked up.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The flow-control window of a stream: 16 MiB fill 1 Gbit/s at 130 ms.
const STREAM_WINDOW: u32 = 16 << 20;

/// The flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// The largest header section of a response, in bytes.
const MAX_HEADER_BYTES: u64 = 16 << 10;

pub(super) type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// An open connection.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) quic: quinn::Connection,
    pub(super) requests: Requests,
}

pub(super) struct Dialer {
    url: EdgeUrl,
    lookup: NameLookup,
    config: quinn::ClientConfig,
    connect_timeout: Duration,
    ipv4: OnceLock<Endpoint>,
    ipv6: OnceLock<Endpoint>,
}

impl Dialer {
    /// `tls` without ALPN. `connect_timeout` applies to each address.
    pub(super) fn new(
        url: EdgeUrl,
        lookup: NameLookup,
        mut tls: ClientConfig,
        connect_timeout: Duration,
    ) -> anyhow::Result<Self> {
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let mut transport = TransportConfig::default();
        transport
            .max_idle_timeout(Some(MAX_IDLE.try_into()?))
            .keep_alive_interval(Some(KEEP_ALIVE))
            .stream_receive_window(STREAM_WINDOW.into())
            .receive_window(CONNECTION_WINDOW.into())
            .max_concurrent_bidi_streams(0u32.into())
            .max_concurrent_uni_streams(16u32.into());
        config.transport_config(Arc::new(transport));
        Ok(Self { url, lookup, config, connect_timeout, ipv4: OnceLock::new(), ipv6: OnceLock::new() })
    }

    /// Looks the host up, and tries its addresses in order.
    ///
    /// # Errors
    /// That of the last address.
    pub(super) async fn connect(&self) -> Result<Connection, RequestError> {
        let addresses = self.lookup.addresses(self.url.host(), self.url.port());
        let addresses = tokio::time::timeout(LOOKUP_TIMEOUT, addresses)
            .await
            .map_err(|_| RequestError::Connect("the host name could not be resolved in time".to_owned()))?
            .map_err(|error| RequestError::Connect(chain(&error)))?;
        let mut last = RequestError::Connect("the host name has no address".to_owned());
        for address in addresses {
            match tokio::time::timeout(self.connect_timeout, self.connect_to(address)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => last = error,
                Err(_) => last = RequestError::Connect(format!("no QUIC handshake within {:?}", self.connect_timeout)),
            }
        }
        Err(last)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Connection, RequestError> {
        let failed = |error: &(dyn std::error::Error + 'static)| RequestError::Connect(chain(error));
        let connecting = self
            .endpoint(address)
            .map_err(|error| failed(&error))?
            .connect_with(self.config.clone(), address, self.url.host())
            .map_err(|error| failed(&error))?;
        let quic = connecting.await.map_err(|error| match &error {
            // 0x100 to 0x1ff are TLS alerts.
            quinn::ConnectionError::TransportError(inner) if u64::from(inner.code) & !0xff == 0x100 => {
                RequestError::Certificate(chain(&error))
            }
            // The edge says so over UDP.
            quinn::ConnectionError::ConnectionClosed(_) | quinn::ConnectionError::ApplicationClosed(_) => {
                RequestError::Closed(chain(&error))
            }
            _ => failed(&error),
        })?;
        let (mut driver, requests) = h3::client::builder()
            .send_grease(false)
            .max_field_section_size(MAX_HEADER_BYTES)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await
            .map_err(|error| failed(&error))?;
        // Ends with the connection, which ends when its last request and its place in `Http3` are dropped.
        tokio::spawn(async move {
            let ended = driver.wait_idle().await;
            tracing::debug!(%ended, "an HTTP/3 connection ended");
        });
        Ok(Connection { quic, requests })
    }

    fn endpoint(&self, towards: SocketAddr) -> std::io::Result<&Endpoint> {
        let (slot, any) = match towards {
            SocketAddr::V4(_) => (&self.ipv4, SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            SocketAddr::V6(_) => (&self.ipv6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        };
        if let Some(endpoint) = slot.get() {
            return Ok(endpoint);
        }
        let endpoint = Endpoint::new(EndpointConfig::default(), None, udp::bind(any)?, Arc::new(TokioRuntime))?;
        Ok(slot.get_or_init(|| endpoint))
    }
}
