//! A server whose handler answers, waits, breaks off or panics as the path says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use prometheus::Registry;
use tokio::sync::Semaphore;
use weir_shared::process::serve::{self, Body, BoxError, Handler, HttpMetrics, Peer, QuicOptions, RequestBody};
use weir_shared::process::shutdown::Drain;
use weir_shared::process::tls::{self, ClientAuth};

/// How long anything may take before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The size of the answer to `/big`, in bytes: more than the server sends ahead of its reader by far.
pub(crate) const BIG: usize = 24 << 20;

pub(crate) struct Site {
    pub(crate) pki: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) drain: Drain,
    pub(crate) gate: Gate,
}

/// What `/wait` waits for.
#[derive(Clone)]
pub(crate) struct Gate {
    begun: Arc<Semaphore>,
    open: Arc<Semaphore>,
    passed: Arc<Semaphore>,
}

impl Gate {
    /// Waits until so many more requests wait.
    pub(crate) async fn reached(&self, requests: u32) {
        tokio::time::timeout(PATIENCE, self.begun.acquire_many(requests)).await.unwrap().unwrap().forget();
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
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        let first = || stream::iter([Ok(Frame::data(Bytes::from_static(b"half")))]);
        let body = match request.uri().path() {
            "/" => Body::from(b"well".to_vec()),
            "/big" => Body::from(self.big.clone()),
            "/wait" => {
                self.gate.begun.add_permits(1);
                self.gate.open.acquire().await.unwrap().forget();
                self.gate.passed.add_permits(1);
                Body::from(b"waited".to_vec())
            }
            "/failing" => {
                let error = stream::iter([Err(BoxError::from("as the test wants it"))]);
                Body::stream(StreamBody::new(Box::pin(first().chain(error))))
            }
            "/endless" => Body::stream(StreamBody::new(Box::pin(first().chain(stream::pending())))),
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
        let pki = tempfile::tempdir().unwrap();
        weir_shared::process::certificates::write(pki.path(), &[]).unwrap();
        let file = |name: &str| pki.path().join(name);
        let tls = tls::server_config(&file("edge.pem"), &file("edge.key"), ClientAuth::None).unwrap();
        let metrics = HttpMetrics::register(&Registry::new()).unwrap().listener("test");
        let drain = Drain::new();
        let closed = || Arc::new(Semaphore::new(0));
        let gate = Gate { begun: closed(), open: closed(), passed: closed() };
        let handler = Answers { gate: gate.clone(), big: vec![7; BIG].into() };
        let address = serve::quic(([127, 0, 0, 1], 0).into(), tls, options, handler, metrics, &drain).unwrap();
        Self { pki, address, drain, gate }
    }

    /// Begins the drain; gives whether nothing had to be cut.
    pub(crate) fn finish(&self) -> impl Future<Output = bool> + use<> {
        let drain = self.drain.clone();
        let finished = tokio::spawn(async move { drain.finish(PATIENCE).await });
        async { finished.await.unwrap() }
    }
}
