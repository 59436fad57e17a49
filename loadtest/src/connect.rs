//! TLS and QUIC connections to a server on this machine.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{EndpointConfig, TokioRuntime};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_runtime::udp;

/// Requests over HTTP/3. The connection lives as long as this does.
pub(crate) type Http3Requests = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// Opens a TLS connection. `receive_buffer`: the socket's receive buffer in bytes.
pub(crate) async fn tls(
    server: SocketAddr,
    mut config: ClientConfig,
    protocol: &[u8],
    receive_buffer: Option<u32>,
) -> anyhow::Result<TokioIo<TlsStream<TcpStream>>> {
    config.alpn_protocols = vec![protocol.to_vec()];
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let stream = socket.connect(server).await.with_context(|| format!("cannot connect to {server}"))?;
    stream.set_nodelay(true)?;
    let name = ServerName::IpAddress(server.ip().into());
    Ok(TokioIo::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

/// Opens an HTTP/3 connection. `stream_window`: the flow-control window of a stream in bytes.
pub(crate) async fn http3(
    server: SocketAddr,
    mut config: ClientConfig,
    stream_window: Option<u32>,
) -> anyhow::Result<Http3Requests> {
    config.alpn_protocols = vec![b"h3".to_vec()];
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?));
    if let Some(bytes) = stream_window {
        let mut transport = quinn::TransportConfig::default();
        transport.stream_receive_window(bytes.into());
        config.transport_config(Arc::new(transport));
    }
    // A socket as the agent's.
    let socket = udp::bind(([127, 0, 0, 1], 0).into())?;
    let mut endpoint = quinn::Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime))?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(server, &server.ip().to_string())?.await?;
    let (mut driver, requests) =
        h3::client::builder().send_grease(false).build(h3_quinn::Connection::new(connection)).await?;
    tokio::spawn(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
    Ok(requests)
}
