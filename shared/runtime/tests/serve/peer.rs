//! A client that writes its streams by hand.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{
    Connection, ConnectionError, Endpoint, ReadError, ReadToEndError, RecvStream, SendStream, TransportConfig,
};
use tokio::time::timeout;
use weir_runtime::tls;

use crate::site::{BIG, PATIENCE, Site};
use crate::wire;

pub(crate) struct Peer {
    _endpoint: Endpoint,
    pub(crate) connection: Connection,
}

/// An answer, or the code with which its stream was reset.
pub(crate) type Answer = Result<Reply, u64>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// `None`: there was no DATA frame.
    pub(crate) body: Option<Vec<u8>>,
}

impl Reply {
    pub(crate) fn well() -> Answer {
        Ok(Self { status: 200, body: Some(b"well".to_vec()) })
    }
}

impl Peer {
    /// Connects, and says nothing.
    pub(crate) async fn silent(site: &Site) -> Self {
        Self::with(site, site.address, TransportConfig::default()).await
    }

    /// Connects, and opens a control stream with empty settings.
    pub(crate) async fn polite(site: &Site) -> (Self, SendStream) {
        let peer = Self::silent(site).await;
        let control = peer.uni(wire::CONTROL, &wire::frame(wire::SETTINGS, &[])).await;
        (peer, control)
    }

    pub(crate) async fn with(site: &Site, address: SocketAddr, transport: TransportConfig) -> Self {
        let (endpoint, connecting) = Self::connecting(site.pki.path(), address, transport);
        Self::connected(endpoint, connecting).await
    }

    /// Waits for the end of a handshake.
    pub(crate) async fn connected(endpoint: Endpoint, connecting: quinn::Connecting) -> Self {
        let connection = timeout(PATIENCE, connecting).await.unwrap().unwrap();
        Self { _endpoint: endpoint, connection }
    }

    /// Begins a handshake, trusting the authority in a directory. It goes on by itself for as long as both are kept.
    pub(crate) fn connecting(
        pki: &Path,
        address: SocketAddr,
        transport: TransportConfig,
    ) -> (Endpoint, quinn::Connecting) {
        Self::connecting_from([127, 0, 0, 1].into(), pki, address, transport)
    }

    /// The same from this address.
    pub(crate) fn connecting_from(
        source: IpAddr,
        pki: &Path,
        address: SocketAddr,
        mut transport: TransportConfig,
    ) -> (Endpoint, quinn::Connecting) {
        let mut tls = tls::client_config(&pki.join("ca.pem"), None).unwrap();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        transport.keep_alive_interval(Some(Duration::from_secs(5)));
        config.transport_config(Arc::new(transport));
        let mut endpoint = Endpoint::client((source, 0).into()).unwrap();
        endpoint.set_default_client_config(config);
        let connecting = endpoint.connect(address, "localhost").unwrap();
        (endpoint, connecting)
    }

    /// Opens a stream of a type in one direction.
    pub(crate) async fn uni(&self, kind: u64, bytes: &[u8]) -> SendStream {
        let mut stream = timeout(PATIENCE, self.connection.open_uni()).await.unwrap().unwrap();
        stream.write_all(&[&wire::integer(kind), bytes].concat()).await.unwrap();
        stream
    }

    /// Opens a stream for a request, writes to it, and leaves it open.
    pub(crate) async fn begin(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut sender, receiver) = timeout(PATIENCE, self.connection.open_bi()).await.unwrap().unwrap();
        sender.write_all(bytes).await.unwrap();
        (sender, receiver)
    }

    /// Sends a whole request and reads the answer.
    pub(crate) async fn ask(&self, bytes: &[u8]) -> Answer {
        let (mut sender, receiver) = self.begin(bytes).await;
        // A request that was refused already needs no end.
        let _ = sender.finish();
        answer(receiver).await
    }

    /// The code with which the server closes the connection.
    pub(crate) async fn closed(&self) -> u64 {
        match timeout(PATIENCE, self.connection.closed()).await.expect("the server closes the connection") {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("the connection ended with {other}"),
        }
    }

    /// The server's control stream, behind its type.
    pub(crate) async fn control(&self) -> Control {
        let stream = timeout(PATIENCE, self.connection.accept_uni()).await.unwrap().unwrap();
        let mut control = Control { stream, bytes: Vec::new() };
        assert_eq!(control.integer().await, wire::CONTROL);
        control
    }
}

/// Reads an answer to its end.
pub(crate) async fn answer(mut receiver: RecvStream) -> Answer {
    match timeout(PATIENCE, receiver.read_to_end(BIG + 4096)).await.expect("the answer ends") {
        Ok(bytes) => {
            let mut frames = wire::frames(&bytes).into_iter();
            let (kind, section) = frames.next().expect("a clean end has a head before it");
            assert_eq!(kind, wire::HEADERS);
            let mut body = None;
            for (kind, payload) in frames {
                assert_eq!(kind, wire::DATA);
                body.get_or_insert_with(Vec::new).extend(payload);
            }
            Ok(Reply { status: wire::status(&section), body })
        }
        Err(ReadToEndError::Read(ReadError::Reset(code))) => Err(code.into_inner()),
        Err(other) => panic!("the answer ended with {other}"),
    }
}

/// The server's control stream.
pub(crate) struct Control {
    stream: RecvStream,
    bytes: Vec<u8>,
}

impl Control {
    pub(crate) async fn frame(&mut self) -> (u64, Vec<u8>) {
        let (kind, length) = (self.integer().await, self.integer().await);
        while (self.bytes.len() as u64) < length {
            self.more().await;
        }
        (kind, self.bytes.drain(..length as usize).collect())
    }

    /// The stream that a GOAWAY names, which has to be the next frame.
    pub(crate) async fn goaway(&mut self) -> u64 {
        let (kind, payload) = self.frame().await;
        assert_eq!(kind, wire::GOAWAY);
        wire::read_integer(&mut &payload[..]).unwrap()
    }

    async fn integer(&mut self) -> u64 {
        loop {
            let mut rest = &self.bytes[..];
            if let Some(value) = wire::read_integer(&mut rest) {
                self.bytes.drain(..self.bytes.len() - rest.len());
                return value;
            }
            self.more().await;
        }
    }

    async fn more(&mut self) {
        let chunk = timeout(PATIENCE, self.stream.read_chunk(1024, true)).await.expect("the server says more");
        self.bytes.extend_from_slice(&chunk.unwrap().expect("the control stream never ends").bytes);
    }
}
