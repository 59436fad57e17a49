//! A client that begins a download and then takes nothing more of it until it is told to: what a cache must bear.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use anyhow::{Context as _, ensure};
use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::poller::Version;

/// Bytes that the system keeps for a TCP client that reads nothing: little, so that the server feels it soon.
const RECEIVE_BUFFER: u32 = 32 << 10;

/// What a client over HTTP/2 says that it would take at once: much more than it does.
const HTTP2_WINDOW: u32 = 4 << 20;

/// What a client over QUIC says that it would take.
const QUIC_WINDOW: u32 = 64 << 10;

/// A download that stands still. Dropping it closes its connection.
pub struct SlowReader {
    body: Held,
    gate: Arc<Gate>,
}

enum Held {
    Tcp(Incoming),
    Quic(Box<Quic>),
}

/// A stream, and what has to live for it to live.
struct Quic {
    stream: h3::client::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
    _sender: h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
    _endpoint: quinn::Endpoint,
}

impl SlowReader {
    /// Connects, asks for a path, reads the head of the answer, which must be a `200`, and stops.
    ///
    /// # Errors
    /// The server cannot be reached or answers otherwise.
    pub async fn begin(
        version: Version,
        server: SocketAddr,
        path: &str,
        mut tls: ClientConfig,
    ) -> anyhow::Result<Self> {
        let gate = Arc::new(Gate::default());
        let request = Request::get(format!("https://{server}{path}")).header("accept-encoding", "zstd");
        tls.alpn_protocols = match version {
            Version::Http1 => vec![b"http/1.1".to_vec()],
            Version::Http2 => vec![b"h2".to_vec()],
            Version::Http3 => vec![b"h3".to_vec()],
        };
        let body = match version {
            Version::Http1 => {
                let (mut sender, driver) = http1::handshake(connect(server, tls, &gate).await?).await?;
                tokio::spawn(driver);
                let request = request.uri(path).header("host", server.to_string()).body(Empty::<Bytes>::new())?;
                Held::Tcp(checked(sender.send_request(request).await?)?.into_body())
            }
            Version::Http2 => {
                let (mut sender, driver) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(HTTP2_WINDOW)
                    .initial_connection_window_size(HTTP2_WINDOW)
                    .handshake(connect(server, tls, &gate).await?)
                    .await?;
                tokio::spawn(driver);
                Held::Tcp(checked(sender.send_request(request.body(Empty::<Bytes>::new())?).await?)?.into_body())
            }
            Version::Http3 => {
                let mut endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into())?;
                let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
                let mut transport = quinn::TransportConfig::default();
                transport.stream_receive_window(QUIC_WINDOW.into());
                config.transport_config(Arc::new(transport));
                endpoint.set_default_client_config(config);
                let connection = endpoint.connect(server, &server.ip().to_string())?.await?;
                let (mut driver, mut sender) =
                    h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection)).await?;
                tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
                let mut stream = sender.send_request(request.body(())?).await?;
                stream.finish().await?;
                checked(stream.recv_response().await?)?;
                Held::Quic(Box::new(Quic { stream, _sender: sender, _endpoint: endpoint }))
            }
        };
        gate.close();
        Ok(Self { body, gate })
    }

    /// Reads what is left, to the end, and hands each part to `take`.
    ///
    /// # Errors
    /// The body breaks off.
    pub async fn finish(self, mut take: impl FnMut(&[u8])) -> anyhow::Result<()> {
        self.gate.open();
        match self.body {
            Held::Tcp(mut body) => {
                while let Some(frame) = body.frame().await {
                    if let Ok(data) = frame?.into_data() {
                        take(&data);
                    }
                }
            }
            Held::Quic(mut quic) => {
                while let Some(mut data) = quic.stream.recv_data().await? {
                    take(&data.copy_to_bytes(data.remaining()));
                }
            }
        }
        Ok(())
    }
}

fn checked<B>(response: Response<B>) -> anyhow::Result<Response<B>> {
    ensure!(response.status() == StatusCode::OK, "the answer is {}", response.status());
    Ok(response)
}

async fn connect(server: SocketAddr, tls: ClientConfig, gate: &Arc<Gate>) -> anyhow::Result<TokioIo<Gated>> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    let stream = socket.connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    let name = ServerName::IpAddress(server.ip().into());
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    Ok(TokioIo::new(Gated { stream, gate: gate.clone() }))
}

/// Whether a connection is read.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

impl Gate {
    fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
        if let Some(waker) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }

    /// Ready when the connection may be read.
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        if self.closed.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(()) }
    }
}

/// A connection that is read while its gate is open. hyper reads an HTTP/2 connection whether anybody wants its bodies or
/// not, and would hide from the server that nobody does.
struct Gated {
    stream: TlsStream<TcpStream>,
    gate: Arc<Gate>,
}

impl AsyncRead for Gated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.gate.poll(cx));
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
