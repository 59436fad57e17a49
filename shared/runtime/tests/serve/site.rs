//! A server whose handler answers, waits, breaks off or panics as the path says.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use prometheus::Registry;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use weir_runtime::serve::{
    self, AccessLog, AccessMode, Body, BoxError, Handler, HttpMetrics, LogConfig, PartWriter, Peer, QuicOptions,
    RequestBody, RequestFacts, ServerTls, TcpOptions,
};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The size of the answer to `/big`, in bytes: more than the server sends ahead of its reader by far.
pub(crate) const BIG: usize = 24 << 20;

pub(crate) struct Site {
    pub(crate) pki: tempfile::TempDir,
    /// Of UDP.
    pub(crate) address: SocketAddr,
    pub(crate) tcp_address: SocketAddr,
    registry: Registry,
    pub(crate) drain: Drain,
    pub(crate) gate: Gate,
}

/// What `/wait` waits for.
#[derive(Clone)]
pub(crate) struct Gate {
    all: Arc<AtomicUsize>,
    begun: Arc<Semaphore>,
    open: Arc<Semaphore>,
    passed: Arc<Semaphore>,
    left: Arc<AtomicUsize>,
}

/// A request that waits, until it is answered or given up.
struct Leaves(Arc<AtomicUsize>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Gate {
    /// Waits until so many more requests wait.
    pub(crate) async fn reached(&self, requests: u32) {
        tokio::time::timeout(PATIENCE, self.begun.acquire_many(requests)).await.unwrap().unwrap().forget();
    }

    /// How many requests have come to wait, whatever became of them.
    pub(crate) fn began(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Requests that wait no longer, answered or not.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Waits until so many more requests wait no longer.
    pub(crate) async fn passed(&self, requests: u32) {
        tokio::time::timeout(PATIENCE, self.passed.acquire_many(requests)).await.unwrap().unwrap().forget();
    }

    pub(crate) fn open(&self, requests: usize) {
        self.open.add_permits(requests);
    }
}

#[derive(Clone)]
struct Answers {
    gate: Gate,
    big: Bytes,
}

impl Handler for Answers {
    fn fast_path(&self, request: &Request<RequestBody>, _: &Peer) -> Option<Response<Body>> {
        match request.uri().path() {
            "/" => {
                let mut response = Response::new(Body::from(b"well".to_vec()));
                response.extensions_mut().insert(RequestFacts {
                    route: Some("root"),
                    service: Some("shop".parse().unwrap()),
                    agent: Some("agent-1".parse().unwrap()),
                    cache: Some("hit"),
                    tier: Some(Arc::new(|| "memory")),
                });
                Some(response)
            }
            "/big" => Some(Response::new(Body::from(self.big.clone()))),
            "/panic-at-once" => panic!("as the test wants it"),
            _ => None,
        }
    }

    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        let first = || stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
        let body = match request.uri().path() {
            "/wait" => {
                self.gate.all.fetch_add(1, Ordering::Relaxed);
                self.gate.begun.add_permits(1);
                let _leaves = Leaves(self.gate.left.clone());
                self.gate.open.acquire().await.unwrap().forget();
                self.gate.passed.add_permits(1);
                Body::from(b"waited".to_vec())
            }
            "/failing" => {
                let error = stream::iter([Err(BoxError::from("as the test wants it"))]);
                Body::stream(StreamBody::new(Box::pin(first().chain(error))))
            }
            "/parts" => {
                let parts = self.big.chunks(128 << 10).map(|part| Ok(Frame::data(self.big.slice_ref(part))));
                Body::stream(StreamBody::new(stream::iter(parts.collect::<Vec<_>>())))
            }
            "/endless" => Body::stream(StreamBody::new(Box::pin(first().chain(stream::pending())))),
            // Ends with an error when the gate opens, after more than the server sends ahead of a reader.
            "/denied" => {
                let (parts, body) = PartWriter::new(&Drain::new());
                let (gate, part) = (self.gate.clone(), self.big.clone());
                tokio::spawn(async move {
                    parts.send(part.clone()).await.unwrap();
                    parts.send(part).await.unwrap();
                    gate.begun.add_permits(1);
                    gate.open.acquire().await.unwrap().forget();
                    parts.fail("as the test wants it");
                });
                body
            }
            "/panic" => panic!("as the test wants it"),
            _ => {
                let mut response = Response::new(Body::Empty);
                *response.status_mut() = StatusCode::NOT_FOUND;
                return response;
            }
        };
        Response::new(body)
    }
}

impl Site {
    pub(crate) fn start() -> Self {
        Self::with(&QuicOptions::default())
    }

    pub(crate) fn with(options: &QuicOptions) -> Self {
        Self::with_options(options, &TcpOptions::default())
    }

    pub(crate) fn with_options(quic: &QuicOptions, tcp: &TcpOptions) -> Self {
        Self::with_log(quic, tcp, AccessMode::Off, 1)
    }

    /// With HTTP/3 at this address.
    pub(crate) fn at(quic_address: SocketAddr, options: &QuicOptions) -> Self {
        Self::new(quic_address, options, &TcpOptions::default(), AccessMode::Off, 1)
    }

    /// `lines`: the most lines of the access log in a second.
    pub(crate) fn logging(access: AccessMode, lines: u32) -> Self {
        Self::with_log(&QuicOptions::default(), &TcpOptions::default(), access, lines)
    }

    fn with_log(quic: &QuicOptions, tcp: &TcpOptions, access: AccessMode, access_lines: u32) -> Self {
        Self::new(([127, 0, 0, 1], 0).into(), quic, tcp, access, access_lines)
    }

    fn new(
        quic_address: SocketAddr,
        quic: &QuicOptions,
        tcp: &TcpOptions,
        access: AccessMode,
        access_lines: u32,
    ) -> Self {
        let pki = tempfile::tempdir().unwrap();
        weir_runtime::certificates::write(pki.path(), &[]).unwrap();
        let file = |name: &str| pki.path().join(name);
        let tls = tls::server_config(&file("edge.pem"), &file("edge.key"), ClientAuth::None).unwrap();
        let tls = ServerTls::from(tls);
        let registry = Registry::new();
        let access_log = AccessLog::new(&LogConfig { access, access_lines }, &registry).unwrap();
        let access_log = access_log
            .naming(|path| RequestFacts { route: (path == "/wait").then_some("wait"), ..RequestFacts::default() });
        let metrics = HttpMetrics::register(&registry).unwrap().listener("test").with_access_log(&access_log);
        let drain = Drain::new();
        let closed = || Arc::new(Semaphore::new(0));
        let gate =
            Gate { all: Arc::default(), begun: closed(), open: closed(), passed: closed(), left: Arc::default() };
        let handler = Answers { gate: gate.clone(), big: vec![7; BIG].into() };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = serve::quic(quic_address, tls.clone(), quic, handler.clone(), metrics.clone(), &drain).unwrap();
        let listener = std::net::TcpListener::bind(any).unwrap();
        listener.set_nonblocking(true).unwrap();
        let tcp_address = listener.local_addr().unwrap();
        serve::tcp_with(TcpListener::from_std(listener).unwrap(), Some(tls), tcp, handler, metrics, &drain);
        Self { pki, address, tcp_address, registry, drain, gate }
    }

    pub(crate) async fn tcp(&self) -> TcpStream {
        self.tcp_from([127, 0, 0, 1].into()).await
    }

    /// A connection from this address.
    pub(crate) async fn tcp_from(&self, source: IpAddr) -> TcpStream {
        // Little lies between the ends, so that one notices soon when the other reads no further.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(self.tcp_address).await.unwrap()
    }

    /// A TLS connection with these protocols to choose from.
    pub(crate) async fn tls(&self, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
        self.try_tls(self.pki.path(), protocols).await.unwrap()
    }

    /// Tries to connect, trusting the authority in a directory.
    pub(crate) async fn try_tls(&self, pki: &Path, protocols: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
        handshake(pki, self.tcp().await, protocols).await
    }

    /// The same over a connection that is there.
    pub(crate) async fn tls_over(
        &self,
        stream: TcpStream,
        protocols: &[&[u8]],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        handshake(self.pki.path(), stream, protocols).await
    }

    /// A metric's value, or the number of what a histogram has seen: the sum over those that have this label's value,
    /// or of all.
    pub(crate) fn metric(&self, name: &str, label: &str) -> u64 {
        let families = self.registry.gather();
        let metrics = families.iter().filter(|family| family.name() == name).flat_map(|family| family.get_metric());
        let has = |metric: &prometheus::proto::Metric| metric.get_label().iter().any(|pair| pair.value() == label);
        let labelled = metrics.filter(|metric| label.is_empty() || has(metric));
        let value = |metric: &prometheus::proto::Metric| {
            metric.get_counter().get_value() as u64
                + metric.get_gauge().get_value() as u64
                + metric.get_histogram().get_sample_count()
        };
        labelled.map(value).sum()
    }

    /// How many connections a bound kept out.
    pub(crate) fn limited(&self, transport: &str, bound: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == "weir_http_connections_limited_total");
        let has = |metric: &prometheus::proto::Metric, value: &str| {
            metric.get_label().iter().any(|label| label.value() == value)
        };
        let metrics = family.into_iter().flat_map(|family| family.get_metric());
        let matching = metrics.filter(|metric| has(metric, transport) && has(metric, bound));
        matching.map(|metric| metric.get_counter().get_value() as u64).sum()
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let holds = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, holds).await.unwrap_or_else(|_| panic!("in vain: {what}"));
    }

    /// Begins the drain; gives whether nothing had to be cut.
    pub(crate) fn finish(&self) -> impl Future<Output = bool> + use<> {
        let drain = self.drain.clone();
        let finished = tokio::spawn(async move { drain.finish(PATIENCE).await });
        async { finished.await.unwrap() }
    }
}

async fn handshake(pki: &Path, stream: TcpStream, protocols: &[&[u8]]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut tls = tls::client_config(&pki.join("ca.pem"), None).unwrap();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    TlsConnector::from(Arc::new(tls)).connect("localhost".try_into().unwrap(), stream).await
}
