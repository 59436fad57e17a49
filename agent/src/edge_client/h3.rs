//! HTTP/3 to one edge: one long-lived connection, replaced when it is found dead.
//!
//! No 0-RTT: it saves nothing that could be measured and can be replayed. `stop_sending` is never called: h3-quinn
//! panics on it while a read is pending; a stream that is no longer wanted is dropped.

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

/// A connection is kept this long without a word; longer than the interval of polls.
const MAX_IDLE: Duration = Duration::from_secs(120);

/// Keeps the mappings of NAT devices on the way.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// What one download may have under way: 16 MiB fill 1 Gbit/s at 130 ms.
const STREAM_WINDOW: u32 = 16 << 20;

/// The same for all streams together.
const CONNECTION_WINDOW: u32 = 64 << 20;

/// Not one datagram of the edge for this long after a request means that UDP is dead. An edge that is only slow
/// acknowledges.
const SILENCE: Duration = Duration::from_secs(3);

/// The same once it has acknowledged: then nothing but the answer to a keep-alive need come.
const LONG_SILENCE: Duration = KEEP_ALIVE.saturating_add(SILENCE);

/// The largest header section of an answer, in bytes.
const MAX_HEADER_BYTES: u64 = 16 << 10;

type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// HTTP/3 to one edge.
pub(super) struct Http3 {
    url: EdgeUrl,
    config: quinn::ClientConfig,
    connect_timeout: Duration,
    idle_timeout: Duration,
    ipv4: OnceLock<Endpoint>,
    ipv6: OnceLock<Endpoint>,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    live: Option<Live>,
    /// When connecting failed last, and why: whoever asked before that need not try for himself.
    failed: Option<(Instant, RequestError)>,
}

#[derive(Clone)]
struct Live {
    quic: quinn::Connection,
    requests: Requests,
}

/// The stream of one answer. It holds its connection open, also when that is replaced for others.
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
    /// `tls` without ALPN. `connect_timeout` is for each address.
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

    /// Sends a request and waits at most `patience` for the head of its answer. A connection that turns out to be dead
    /// (the edge was restarted, or UDP is blocked) is replaced once.
    pub(super) async fn request(&self, request: &Request<()>, patience: Duration) -> Result<Response, RequestError> {
        let (live, reused) = self.connection().await?;
        let error = match self.exchange(live.clone(), request, patience).await {
            Ok(response) => return Ok(response),
            Err(error) if !error.is_of_the_way() => return Err(error),
            Err(error) => error,
        };
        tracing::debug!(edge = %self.url, %error, reused, "an HTTP/3 connection is given up");
        self.forget(&live).await;
        if !reused {
            return Err(error);
        }
        let (live, _) = self.connection().await?;
        let answer = self.exchange(live.clone(), request, patience).await;
        if answer.as_ref().is_err_and(RequestError::is_of_the_way) {
            self.forget(&live).await;
        }
        answer
    }

    /// Gives up the connection, so that the next request makes a new one. Answers that still come over it are not cut.
    pub(super) async fn give_up(&self) {
        self.slot.lock().await.live = None;
    }

    async fn forget(&self, dead: &Live) {
        let mut slot = self.slot.lock().await;
        if slot.live.as_ref().is_some_and(|live| live.quic.stable_id() == dead.quic.stable_id()) {
            slot.live = None;
        }
    }

    /// The connection, and whether it was there before.
    async fn connection(&self) -> Result<(Live, bool), RequestError> {
        let asked = Instant::now();
        let mut slot = self.slot.lock().await;
        if let Some(live) = &slot.live {
            if live.quic.close_reason().is_none() {
                return Ok((live.clone(), true));
            }
            slot.live = None;
        }
        if let Some((when, error)) = &slot.failed
            && *when >= asked
        {
            return Err(error.clone());
        }
        match self.connect().await {
            Ok(live) => {
                slot.live = Some(live.clone());
                Ok((live, false))
            }
            Err(error) => {
                slot.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Tries the host's addresses in order.
    async fn connect(&self) -> Result<Live, RequestError> {
        let host = (self.url.host(), self.url.port());
        let addresses = tokio::time::timeout(self.connect_timeout.max(SILENCE), tokio::net::lookup_host(host))
            .await
            .map_err(|_| RequestError::Connect("the host name is not resolved in time".to_owned()))?
            .map_err(|error| RequestError::Connect(chain(&error)))?;
        let mut last = RequestError::Connect("the host name has no address".to_owned());
        for address in addresses {
            match tokio::time::timeout(self.connect_timeout, self.connect_to(address)).await {
                Ok(Ok(live)) => return Ok(live),
                Ok(Err(error)) => last = error,
                Err(_) => last = RequestError::Connect(format!("no QUIC handshake within {:?}", self.connect_timeout)),
            }
        }
        Err(last)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<Live, RequestError> {
        let failed = |error: &(dyn std::error::Error + 'static)| RequestError::Connect(chain(error));
        let connecting = self
            .endpoint(address)
            .map_err(|error| failed(&error))?
            .connect_with(self.config.clone(), address, self.url.host())
            .map_err(|error| failed(&error))?;
        let quic = connecting.await.map_err(|error| match &error {
            // 0x100 to 0x1ff are the alerts of TLS.
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
        // Ends with the connection, which ends when the last of its requests and this `Http3` let go of it.
        tokio::spawn(async move {
            let ended = driver.wait_idle().await;
            tracing::debug!(%ended, "an HTTP/3 connection ended");
        });
        Ok(Live { quic, requests })
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

    async fn exchange(&self, live: Live, request: &Request<()>, patience: Duration) -> Result<Response, RequestError> {
        let Live { quic, mut requests } = live;
        let held_open = requests.clone();
        let answer = async {
            let mut stream = requests.send_request(request.clone()).await?;
            stream.finish().await?;
            let head = stream.recv_response().await?;
            if request.method() == Method::HEAD {
                // Read to the end of the stream: dropping it earlier would tell the edge to stop sending.
                stream.recv_data().await?;
            }
            Ok::<_, StreamError>((head, stream))
        };
        let mut answer = pin!(answer);
        let deadline = tokio::time::Instant::now() + patience;
        let asked = quic.stats().udp_rx.datagrams;
        let mut heard = asked;
        let (head, stream) = loop {
            let allowed = if heard == asked { SILENCE } else { LONG_SILENCE };
            let until = deadline.min(tokio::time::Instant::now() + allowed);
            match tokio::time::timeout_at(until, answer.as_mut()).await {
                Ok(answer) => break answer.map_err(|error| request_error(&error))?,
                Err(_) => {
                    let now = quic.stats().udp_rx.datagrams;
                    if until == deadline && now != asked {
                        return Err(RequestError::Slow(patience));
                    }
                    if until == deadline || now == heard {
                        return Err(RequestError::Silent(allowed.min(patience)));
                    }
                    heard = now;
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

/// What an error of a stream says of the way and of the edge.
pub(super) fn request_error(error: &StreamError) -> RequestError {
    match error {
        StreamError::ConnectionError { 0: ConnectionError::Timeout { .. }, .. } => RequestError::Silent(MAX_IDLE),
        StreamError::ConnectionError { .. } | StreamError::RemoteClosing { .. } => RequestError::Closed(chain(error)),
        _ => RequestError::Broken(chain(error)),
    }
}
