//! Names whose addresses change, and connections that grow old; over real sockets.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use prometheus::Registry;
use tokio::sync::Notify;
use weir_runtime::http_client::NameLookup;
use weir_runtime::serve::{self, Body, BoxError, Handler, HttpMetrics, Peer, QuicOptions, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth, server_config};

use super::Edge;
use crate::config::{Config, HttpMode};
use crate::metrics::Metrics;

const PATIENCE: Duration = Duration::from_secs(60);

/// Counts requests. The body of `/slow` ends when the test says so.
#[derive(Clone, Default)]
struct Server {
    requests: Arc<AtomicUsize>,
    finish: Arc<Notify>,
}

impl Handler for Server {
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        if request.uri().path() != "/slow" {
            return Response::new(Body::Empty);
        }
        let finish = self.finish.clone();
        let part = |text: &'static str| Ok::<_, BoxError>(Frame::data(Bytes::from_static(text.as_bytes())));
        let end = stream::once(async move {
            finish.notified().await;
            part("the end")
        });
        Response::new(Body::stream(StreamBody::new(stream::iter([part("begin, ")]).chain(end).boxed())))
    }
}

impl Server {
    /// Serves TCP and UDP, if both ports are free.
    async fn start(&self, address: SocketAddr, certificates: &Path, drain: &Drain) -> bool {
        let Ok(listener) = tokio::net::TcpListener::bind(address).await else { return false };
        let tls = server_config(&certificates.join("edge.pem"), &certificates.join("edge.key"), ClientAuth::None);
        let (tls, metrics) = (tls.unwrap(), HttpMetrics::register(&Registry::new()).unwrap());
        let options = QuicOptions::default();
        if serve::quic(address, tls.clone(), &options, self.clone(), metrics.listener("quic"), drain).is_err() {
            return false;
        }
        serve::tcp(listener, Some(tls), self.clone(), metrics.listener("tcp"), drain);
        true
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn an_old_connection_is_replaced_by_one_to_the_name_s_new_address() {
    let dir = tempfile::tempdir().unwrap();
    weir_runtime::certificates::write(dir.path(), &["edge.invalid".to_owned()]).unwrap();
    for http in [HttpMode::H2, HttpMode::H3] {
        let (old, new, drain) = (Server::default(), Server::default(), Drain::new());
        let port = loop {
            let port = fastrand::u16(20_000..32_000);
            if old.start(([127, 0, 0, 1], port).into(), dir.path(), &drain).await
                && new.start(([127, 0, 0, 2], port).into(), dir.path(), &drain).await
            {
                break port;
            }
        };
        let url: crate::config::EdgeUrl = format!("https://edge.invalid:{port}").parse().unwrap();
        let mut config = Config::new(vec![url.clone()], dir.path().join("ca.pem"), "root");
        (config.http, config.max_connection_age) = (http, Duration::from_secs(1));
        config.h3_connect_timeout = Duration::from_secs(1);
        let addresses = Arc::new(Mutex::new(vec![SocketAddr::from(([127, 0, 0, 1], 0))]));
        let known = addresses.clone();
        let lookup = NameLookup::of(move |_| Ok(known.lock().unwrap().clone()));
        let metrics = Metrics::register(&Registry::new(), false).unwrap();
        let tls = tls::client_config(&config.ca, None).unwrap();
        let edge = Edge::new(url, &tls, &config, lookup, metrics).unwrap();

        let mut in_flight = edge.get("/slow", None, PATIENCE, None).await.unwrap();
        assert_eq!(in_flight.body.chunk().await.unwrap().as_deref(), Some(&b"begin, "[..]));
        assert_eq!((old.requests(), new.requests()), (1, 0));
        // The old server is there still, and answers. Nothing is at the first of the new addresses.
        *addresses.lock().unwrap() = [3, 2].map(|host| SocketAddr::from(([127, 0, 0, host], 0))).to_vec();
        let moved = async {
            while new.requests() == 0 {
                let _ = edge.get("/", None, PATIENCE, None).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, moved).await.expect("new requests go to the new address");
        let so_far = old.requests();
        edge.get("/", None, PATIENCE, None).await.unwrap();
        assert_eq!(old.requests(), so_far);
        old.finish.notify_one();
        assert_eq!(in_flight.body.read(100).await.unwrap().as_deref(), Some(&b"the end"[..]), "it ends on the old one");
        drain.cut().await;
    }
}
