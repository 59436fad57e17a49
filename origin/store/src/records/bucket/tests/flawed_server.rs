//! A server of S3 with one flaw, for what correct servers do not do, or seldom.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use crate::records::proof::WRITERS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Checks the conditions of all writers of a race, and then lets each of them write.
    Races,
    /// Ignores conditions.
    Unconditional,
    /// Answers 503 to a write that it has done.
    Fails,
    /// Breaks the connection off after a write that it has done.
    BreaksOff,
    /// Does not answer a write that it has done.
    Silent,
}

pub(crate) struct FlawedServer {
    pub(crate) endpoint: String,
    state: Arc<State>,
}

struct State {
    flaw: Flaw,
    objects: Mutex<HashMap<String, (Bytes, String)>>,
    /// The number of writes that were requested.
    writes: AtomicUsize,
    race: Barrier,
}

impl FlawedServer {
    pub(crate) async fn start(flaw: Flaw) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let race = Barrier::new(WRITERS);
        let state = Arc::new(State { flaw, objects: Mutex::default(), writes: AtomicUsize::new(0), race });
        let served = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = served.clone();
                let service = service_fn(move |request| answer(state.clone(), request));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { endpoint, state }
    }

    pub(crate) fn writes(&self) -> usize {
        self.state.writes.load(Ordering::SeqCst)
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (request, body) = request.into_parts();
    let name = request.uri.path().to_owned();
    let stored = state.objects.lock().unwrap().get(&name).cloned();
    let status = |status| Response::builder().status(status);
    let empty = |response: http::response::Builder| Ok(response.body(Full::default()).unwrap());
    match (request.method, stored) {
        (Method::GET, Some((bytes, etag))) => Ok(status(StatusCode::OK).header(ETAG, etag).body(bytes.into()).unwrap()),
        (Method::GET, None) => empty(status(StatusCode::NOT_FOUND)),
        (Method::PUT, stored) => {
            let number = state.writes.fetch_add(1, Ordering::SeqCst);
            let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let expected = match (request.headers.get(IF_MATCH), request.headers.contains_key(IF_NONE_MATCH)) {
                _ if state.flaw == Flaw::Unconditional => true,
                (Some(expected), _) => stored.is_some_and(|(_, etag)| expected == etag.as_str()),
                (None, create) => !create || stored.is_none(),
            };
            if state.flaw == Flaw::Races {
                state.race.wait().await;
            }
            if !expected {
                return empty(status(StatusCode::PRECONDITION_FAILED));
            }
            let etag = format!("\"{number}\"");
            state.objects.lock().unwrap().insert(name, (bytes, etag.clone()));
            match state.flaw {
                Flaw::Races | Flaw::Unconditional => empty(status(StatusCode::OK).header(ETAG, etag)),
                Flaw::Fails => empty(status(StatusCode::SERVICE_UNAVAILABLE)),
                Flaw::BreaksOff => Err(io::ErrorKind::ConnectionReset.into()),
                Flaw::Silent => std::future::pending().await,
            }
        }
        _ => empty(status(StatusCode::NOT_IMPLEMENTED)),
    }
}
