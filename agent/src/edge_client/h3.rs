//! HTTP/3 to one edge: one long-lived connection, replaced when it is dead.
//!
//! 0-RTT is not used: it can be replayed and saves nothing measurable. `stop_sending` is never called, because h3-quinn
//! panics on it while a read is pending; an unwanted stream is dropped.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::{ConnectionError, StreamError};
use http::{Method, Request};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Endpoint, TransportConfig};
use rustls::ClientConfig;
use tokio::sync::Mutex;

use super::edge_url::EdgeUrl;
use super::error::{RequestError, chain};
use super::response::{Protocol, Response, ResponseBody};

/// The idle timeout of a connection; longer than the poll interval.
const MAX_IDLE: Duration = Duration::from_secs(120);

/// Keeps NAT mappings alive.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The flow-control window of a stream: 16 MiB fill 1 Gbit/s at 130 ms.
const STREAM_WINDOW: u32 = 16 << 20;

/// The flow-control window of a connection.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// UDP counts as dead when no datagram arrives for this long after a request. A slow edge acknowledges.
const UDP_TIMEOUT: Duration = Duration::from_secs(3);

/// The same after an acknowledgement: then only responses to keep-alives need to arrive.
const ACKNOWLEDGED_UDP_TIMEOUT: Duration = KEEP_ALIVE.saturating_add(UDP_TIMEOUT);

/// The largest header section of a response, in bytes.
const MAX_HEADER_BYTES: u64 = 16 << 10;

type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

pub(super) struct Http3 {
    url: EdgeUrl,
    config: quinn::ClientConfig,
    connect_timeout: Duration,
    idle_timeout: Duration,
    ipv4: OnceLock<Endpoint>,
    ipv6: OnceLock<Endpoint>,
    slot: Mutex<ConnectionSlot>,
}

#[derive(Default)]
struct ConnectionSlot {
    connection: Option<Connection>,
    /// The last failure to connect: requests that waited for it do not try again.
    failed: Option<(Instant, RequestError)>,
}

#[derive(Clone)]
struct Connection {
    quic: quinn::Connection,
    requests: Requests,
}

/// The stream of one response. It keeps its connection open, also after that was replaced.
pub(super) struct Http3Stream {
    stream: RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
    _requests: Requests,
}

impl Http3Stream {
    pub(super) async fn recv_data(&mut self) -> Result<Option<impl Buf + use<>>, StreamError> {
        Ok(self.stream.recv_data().await?.map(|mut data| data.copy_to_bytes(data.remaining())))
    }
}

impl Http3 {
    /// `tls` without ALPN. `connect_timeout` applies to each address.
    pub(super) fn new(
        url: EdgeUrl,
        mut tls: ClientConfig,
        connect_timeout: Duration,
        idle_timeout: Duration,
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
        Ok(Self {
            url,
            config,
            connect_timeout,
            idle_timeout,
            ipv4: OnceLock::new(),
            ipv6: OnceLock::new(),
            slot: Mutex::default(),
        })
    }

    /// Sends a request and waits at most `timeout` for the response's head. A pooled connection that turns out to be
    /// dead is replaced once.
    pub(super) async fn request(&self, request: &Request<Bytes>, timeout: Duration) -> Result<Response, RequestError> {
        let (connection, reused) = self.connection().await?;
        let error = match self.send_on(connection.clone(), request, timeout).await {
            Ok(response) => return Ok(response),
            Err(error) if !error.is_transport_error() => return Err(error),
            Err(error) => error,
        };
        tracing::debug!(edge = %self.url, %error, reused, "an HTTP/3 connection is dead");
        self.discard(&connection).await;
        if !reused {
            return Err(error);
        }
        let (connection, _) = self.connection().await?;
        let answer = self.send_on(connection.clone(), request, timeout).await;
        if answer.as_ref().is_err_and(RequestError::is_transport_error) {
            self.discard(&connection).await;
        }
        answer
    }

    /// Opens a connection, unless there is one.
    pub(super) async fn handshake(&self) -> Result<(), RequestError> {
        self.connection().await.map(drop)
    }

    /// Drops the connection: the next request opens a new one. Responses in progress continue.
    pub(super) async fn drop_connection(&self) {
        self.slot.lock().await.connection = None;
    }

    async fn discard(&self, dead: &Connection) {
        let mut slot = self.slot.lock().await;
        if slot.connection.as_ref().is_some_and(|connection| connection.quic.stable_id() == dead.quic.stable_id()) {
            slot.connection = None;
        }
    }

    /// The connection, and whether it is a pooled one.
    async fn connection(&self) -> Result<(Connection, bool), RequestError> {
        let requested_at = Instant::now();
        let mut slot = self.slot.lock().await;
        if let Some(connection) = &slot.connection {
            if connection.quic.close_reason().is_none() {
                return Ok((connection.clone(), true));
            }
            slot.connection = None;
        }
        if let Some((when, error)) = &slot.failed
            && *when >= requested_at
        {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                slot.connection = Some(connection.clone());
                Ok((connection, false))
            }
            Err(error) => {
                slot.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Tries the addresses of the host in order.
    async fn connect(&self) -> Result<Connection, RequestError> {
        let host = (self.url.host(), self.url.port());
        let addresses = tokio::time::timeout(self.connect_timeout.max(UDP_TIMEOUT), tokio::net::lookup_host(host))
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
            _ => failed(&error),
        })?;
        let (mut driver, requests) = h3::client::builder()
            .send_grease(false)
            .max_field_section_size(MAX_HEADER_BYTES)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await
            .map_err(|error| failed(&error))?;
        // Ends with the connection, which ends when its last request and this `Http3` are dropped.
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
        let endpoint = Endpoint::client(any)?;
        Ok(slot.get_or_init(|| endpoint))
    }

    async fn send_on(
        &self,
        connection: Connection,
        request: &Request<Bytes>,
        timeout: Duration,
    ) -> Result<Response, RequestError> {
        let Connection { quic, mut requests } = connection;
        let held_open = requests.clone();
        let answer = async {
            let (head, body) = request.clone().into_parts();
            let mut stream = requests.send_request(Request::from_parts(head, ())).await?;
            if !body.is_empty() {
                stream.send_data(body).await?;
            }
            stream.finish().await?;
            let head = stream.recv_response().await?;
            if request.method() == Method::HEAD {
                // Read to the end of the stream: dropping it earlier would send STOP_SENDING.
                stream.recv_data().await?;
            }
            Ok::<_, StreamError>((head, stream))
        };
        let mut answer = pin!(answer);
        let deadline = tokio::time::Instant::now() + timeout;
        let at_start = quic.stats().udp_rx.datagrams;
        let mut received = at_start;
        let (head, stream) = loop {
            let allowed = if received == at_start { UDP_TIMEOUT } else { ACKNOWLEDGED_UDP_TIMEOUT };
            let until = deadline.min(tokio::time::Instant::now() + allowed);
            match tokio::time::timeout_at(until, answer.as_mut()).await {
                Ok(answer) => break answer.map_err(|error| request_error(&error))?,
                Err(_) => {
                    let now = quic.stats().udp_rx.datagrams;
                    if until == deadline && now != at_start {
                        return Err(RequestError::Slow(timeout));
                    }
                    if until == deadline || now == received {
                        return Err(RequestError::Silent(allowed.min(timeout)));
                    }
                    received = now;
                }
            }
        };
        let (head, ()) = head.into_parts();
        let stream = Box::new(Http3Stream { stream, _requests: held_open });
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body: ResponseBody::h3(stream, self.idle_timeout),
            protocol: Protocol::H3,
        })
    }
}

/// Classifies a stream error.
pub(super) fn request_error(error: &StreamError) -> RequestError {
    match error {
        StreamError::ConnectionError { 0: ConnectionError::Timeout { .. }, .. } => RequestError::Silent(MAX_IDLE),
        StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. } => RequestError::Closed(chain(error)),
        _ => RequestError::Broken(chain(error)),
    }
}
