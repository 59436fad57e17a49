//! The access log: one line for each request that it is to have, when its response has ended.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tracing::subscriber::DefaultGuard;
use weir_runtime::serve::AccessMode;

use crate::peer::{Peer, answer};
use crate::site::{BIG, PATIENCE, Site};
use crate::wire;

const VERSIONS: [&str; 3] = ["h1", "h2", "h3"];

/// What this thread, and so everything in a test, writes to the log.
struct Log {
    written: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

#[derive(Clone)]
struct Into(Arc<Mutex<Vec<u8>>>);

impl io::Write for Into {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn begin() -> Self {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let into = Into(written.clone());
        let format = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || into.clone());
        Self { written, _guard: tracing::subscriber::set_default(format.finish()) }
    }

    /// The lines of the access log: of requests, or about lines that were left out.
    fn lines(&self, of_requests: bool) -> Vec<Value> {
        let written = self.written.lock().unwrap().clone();
        let lines = written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        lines.filter(|line| line["target"] == "weir_access" && (line["message"] == "request") == of_requests).collect()
    }

    /// The line of the request with this id, when it is there.
    async fn of(&self, site: &Site, id: &str) -> Value {
        let find = || self.lines(true).into_iter().find(|line| line["request_id"] == id);
        site.until(id, || find().is_some()).await;
        find().unwrap()
    }
}

/// A client that does not wait for the end of a body.
enum Client {
    Http1(AsyncMutex<http1::SendRequest<Empty<Bytes>>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
    Http3(Peer),
}

impl Client {
    async fn connect(site: &Site, version: &str) -> Self {
        match version {
            "h1" => {
                let (sender, connection) = http1::handshake(TokioIo::new(site.tls(&[]).await)).await.unwrap();
                tokio::spawn(connection);
                Self::Http1(sender.into())
            }
            "h2" => {
                let stream = TokioIo::new(site.tls(&[b"h2"]).await);
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
                tokio::spawn(connection);
                Self::Http2(sender)
            }
            _ => Self::Http3(Peer::silent(site).await),
        }
    }

    /// Reads the whole response, or what there is of it.
    async fn ask(&self, method: Method, path: &str, id: &str) {
        let request = Request::builder().method(method.clone()).uri(format!("http://site{path}"));
        let request = request.header("host", "site").header("x-request-id", id).body(Empty::new()).unwrap();
        let response = match self {
            Self::Http1(sender) => sender.lock().await.send_request(request).await,
            Self::Http2(sender) => sender.clone().send_request(request).await,
            Self::Http3(peer) => {
                let head = wire::head(method.as_str(), path, &[("x-request-id", id)]);
                let (mut sender, receiver) = peer.begin(&head).await;
                let _ = sender.finish();
                let _ = answer(receiver).await;
                return;
            }
        };
        if let Ok(response) = response {
            let _ = response.into_body().collect().await;
        }
    }
}

#[tokio::test]
async fn all_requests_are_logged_with_what_the_server_and_the_handler_know() {
    let (log, site) = (Log::begin(), Site::logging(AccessMode::All, 1000));
    for version in VERSIONS {
        for (method, path, status, bytes, is_complete) in [
            (Method::GET, "/", 200, 4, true),
            (Method::HEAD, "/", 200, 0, true),
            (Method::GET, "/big", 200, BIG, true),
            (Method::GET, "/parts", 200, BIG, true),
            (Method::GET, "/nothing-is-here", 404, 0, true),
            (Method::GET, "/failing", 200, 4, false),
        ] {
            let id = format!("{version}:{method}:{path}");
            Client::connect(&site, version).await.ask(method.clone(), path, &id).await;
            let line = log.of(&site, &id).await;
            let known = json!({
                "level": line["level"], "listener": line["listener"], "protocol": line["protocol"],
                "method": line["method"], "status": line["status"], "bytes": line["bytes"], "complete": line["complete"],
            });
            let expected = json!({
                "level": "INFO", "listener": "test", "protocol": version,
                "method": method.as_str(), "status": status, "bytes": bytes, "complete": is_complete,
            });
            assert_eq!(known, expected, "{id}");
            assert!(line["duration_seconds"].is_f64(), "{line}");
            assert!(line["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
            let facts = ["route", "service", "agent", "cache", "tier"].map(|fact| line[fact].as_str().unwrap_or("-"));
            let expected = if path == "/" { ["root", "shop", "agent-1", "hit", "memory"] } else { ["-"; 5] };
            assert_eq!(facts, expected, "{id}");
        }
    }
    assert_eq!(log.lines(true).len(), 3 * 6, "one line for each request");
}

#[tokio::test]
async fn a_request_whose_client_leaves_is_logged_as_far_as_it_came() {
    let (log, site) = (Log::begin(), Site::logging(AccessMode::All, 1000));
    for version in VERSIONS {
        let client = Client::connect(&site, version).await;
        let id = format!("{version}:waiting");
        tokio::select! {
            () = client.ask(Method::GET, "/wait", &id) => panic!("nothing lets it go on"),
            () = site.gate.reached(1) => {}
        }
        drop(client);
        let line = log.of(&site, &id).await;
        assert_eq!(
            (&line["status"], &line["complete"], &line["bytes"], &line["route"]),
            (&Value::Null, &json!(false), &json!(0), &json!("wait")),
            "{line}"
        );

        let client = Client::connect(&site, version).await;
        let id = format!("{version}:endless");
        let counted = site.metric("weir_http_requests_total", version);
        tokio::select! {
            () = client.ask(Method::GET, "/endless", &id) => panic!("it has no end"),
            () = site.until("the response has begun", || site.metric("weir_http_requests_total", version) > counted) => {}
        }
        drop(client);
        let line = log.of(&site, &id).await;
        assert_eq!((&line["status"], &line["complete"]), (&json!(200), &json!(false)), "{line}");
    }
}

#[tokio::test]
async fn errors_alone_are_logged_or_nothing() {
    for (mode, expected) in [(AccessMode::Errors, &["abandoned", "missing"][..]), (AccessMode::Off, &[])] {
        let (log, site) = (Log::begin(), Site::logging(mode, 1000));
        for version in VERSIONS {
            let ids = ["well", "broken", "missing", "abandoned"].map(|what| format!("{version}:{what}"));
            let client = Client::connect(&site, version).await;
            client.ask(Method::GET, "/", &ids[0]).await;
            client.ask(Method::GET, "/failing", &ids[1]).await;
            let client = Client::connect(&site, version).await;
            client.ask(Method::GET, "/nothing-is-here", &ids[2]).await;
            let left = site.gate.left();
            tokio::select! {
                () = client.ask(Method::GET, "/wait", &ids[3]) => panic!("nothing lets it go on"),
                () = site.gate.reached(1) => {}
            }
            drop(client);
            site.until("the request is given up", || site.gate.left() > left).await;
        }
        // What is logged is so before the drain ends.
        assert!(site.finish().await);
        let mut logged: Vec<_> =
            log.lines(true).iter().map(|line| line["request_id"].as_str().unwrap().to_owned()).collect();
        logged.sort();
        let expected =
            VERSIONS.map(|version| expected.iter().map(|what| format!("{version}:{what}")).collect::<Vec<_>>());
        assert_eq!(logged, expected.concat(), "{mode:?}");
    }
}

#[tokio::test]
async fn lines_beyond_the_limit_are_counted_and_reported() {
    let (log, site) = (Log::begin(), Site::logging(AccessMode::All, 1));
    let client = Client::connect(&site, "h2").await;
    let mut sent = 0;
    let until_reported = async {
        while log.lines(false).is_empty() {
            client.ask(Method::GET, "/", "one").await;
            sent += 1;
        }
    };
    tokio::time::timeout(PATIENCE, until_reported).await.expect("lines are left out");
    let left_out = || site.metric("weir_access_log_left_out_total", "");
    site.until("each request is written or counted", || log.lines(true).len() as u64 + left_out() == sent).await;
    let reported = log.lines(false)[0]["left_out"].as_u64().unwrap();
    assert!(reported > 0 && reported <= left_out(), "{reported} of {sent}");
}
