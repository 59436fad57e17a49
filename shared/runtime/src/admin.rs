//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/status`, and a page at `/`. Plain HTTP, on loopback by default;
//! beyond it without `/status`.

mod config;
mod local;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use prometheus::{Registry, TextEncoder};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

pub use self::config::AdminConfig;
pub use self::local::{NotAnswered, STATUS_SOCKET, status_at};
use super::cross_site;
use super::operator_token::{NotAdmitted, OperatorToken, TokenError};
use super::page::Page;
use super::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody, ServerTls};
use super::shutdown::Drain;
use weir_protocol::problem::Problem;

/// Whether a role can do its work now. Each reason is a sentence for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It can, but something needs attention.
    Degraded(Vec<String>),
    /// It cannot.
    NotReady(Vec<String>),
}

impl Readiness {
    /// Whether it can do its work, and the reasons why not or what needs attention: for `/status`.
    pub fn into_parts(self) -> (bool, Vec<String>) {
        match self {
            Readiness::Ready => (true, Vec::new()),
            Readiness::Degraded(reasons) => (true, reasons),
            Readiness::NotReady(reasons) => (false, reasons),
        }
    }

    /// The same, with one more thing that needs attention.
    #[must_use]
    pub fn degraded_by(self, reason: Option<String>) -> Self {
        match (self, reason) {
            (Readiness::Ready, Some(reason)) => Readiness::Degraded(vec![reason]),
            (Readiness::Degraded(mut reasons), Some(reason)) => {
                reasons.push(reason);
                Readiness::Degraded(reasons)
            }
            (same, _) => same,
        }
    }
}

/// The key of `[admin]` that names the file of the token for `/metrics`.
pub const METRICS_TOKEN: &str = "metrics_token_file";

/// The document of `/status`, or what is wrong with the query.
pub type StatusDocument = Result<serde_json::Value, String>;

/// What the page of a role shows: the document of `/v1/summary`.
pub type Summary = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The admin listener of a role.
#[derive(Clone)]
pub struct Admin {
    /// All metrics of the role.
    pub registry: Registry,
    /// Called on each `/readyz`.
    pub ready: Arc<dyn Fn() -> Readiness + Send + Sync>,
    /// Called on each `/status`, with the query.
    pub status: Arc<dyn Fn(&str) -> StatusDocument + Send + Sync>,
    /// What `/` shows to people.
    pub page: Option<(Page, Summary)>,
    /// What `/metrics` requires.
    pub metrics_token: Option<Arc<OperatorToken>>,
    /// While it drains the role is not ready.
    pub drain: Drain,
}

/// Opens the token that `/metrics` requires.
///
/// # Errors
/// The file cannot be read, or holds no valid token.
pub fn metrics_token(file: Option<&Path>) -> Result<Option<Arc<OperatorToken>>, TokenError> {
    file.map(|file| OperatorToken::open(METRICS_TOKEN, file)).transpose().map(|token| token.map(Arc::new))
}

impl Admin {
    /// Serves on `listen` until the drain has ended, so that `/readyz` can report it.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(self, listen: SocketAddr, metrics: &HttpMetrics) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| anyhow::anyhow!("cannot listen on admin_listen = \"{listen}\": {error}"))?;
        let address = listener.local_addr()?;
        let drain = self.drain.clone();
        let listening = Listening { admin: self, is_loopback: listen.ip().is_loopback() };
        serve::tcp(listener, None::<ServerTls>, listening, metrics.listener("admin"), drain.last());
        Ok(address)
    }

    /// Checks the token of a request for `/metrics`, before [`answer`](Self::answer).
    ///
    /// # Errors
    /// A token is required, and the request has another one or none.
    pub async fn admit(&self, request: &Request<RequestBody>) -> Result<(), Problem> {
        match &self.metrics_token {
            Some(token) if request.uri().path() == "/metrics" => {
                token.admits(request.headers()).await.map_err(not_admitted)
            }
            _ => Ok(()),
        }
    }

    /// Responds to one request. A role with more endpoints has a handler of its own, which calls this for the rest. Reasons
    /// of `/readyz` may name services and repositories: peers beyond loopback get their number alone. `is_loopback`: whether
    /// the listener is on loopback; beyond it Prometheus asks by any name.
    pub fn answer(&self, request: &Request<RequestBody>, peer: &Peer, is_loopback: bool) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Problem::method_not_allowed("GET, HEAD").into_response();
        }
        match (request.uri().path(), &self.page) {
            ("/", Some(_)) if is_loopback && !cross_site::is_for_loopback(request) => {
                not_from_here("/").into_response()
            }
            ("/", Some((page, _))) => page.response(),
            ("/v1/summary", Some((_, summary))) => compact_json(&summary()),
            ("/livez", _) => text(StatusCode::OK, "alive\n".to_owned()),
            ("/readyz", _) if self.drain.has_begun() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
            ("/readyz", _) => {
                let lines = if cross_site::is_from_this_machine(request, peer) { lines } else { number };
                match (self.ready)() {
                    Readiness::Ready => text(StatusCode::OK, "ready\n".to_owned()),
                    Readiness::Degraded(reasons) => {
                        text(StatusCode::OK, format!("ready\n{}", lines("degraded", &reasons)))
                    }
                    Readiness::NotReady(reasons) => text(StatusCode::SERVICE_UNAVAILABLE, lines("not ready", &reasons)),
                }
            }
            ("/metrics", _) if is_loopback && !cross_site::is_for_loopback(request) => {
                not_from_here("/metrics").into_response()
            }
            ("/metrics", _) => match TextEncoder::new().encode_to_string(&self.registry.gather()) {
                Ok(metrics) => typed(StatusCode::OK, prometheus::TEXT_FORMAT, metrics),
                Err(error) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n"))
                }
            },
            ("/status", _) => match (self.status)(request.uri().query().unwrap_or_default()) {
                Ok(status) => json(&status),
                Err(reason) => Problem::malformed(reason).into_response(),
            },
            _ => Problem::no_such_path().into_response(),
        }
    }
}

/// The handler of a listener without authentication: `/status`, which names services, is for this machine alone.
#[derive(Clone)]
struct Listening {
    admin: Admin,
    is_loopback: bool,
}

impl Handler for Listening {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if let Some(problem) = cross_site::refuse(&request) {
            return problem.into_response();
        }
        let path = request.uri().path();
        if matches!(path, "/status" | "/v1/summary") {
            if !cross_site::is_from_this_machine(&request, &peer) {
                return not_from_here(path).into_response();
            }
            // They scan all services.
            let (admin, is_loopback) = (self.admin.clone(), self.is_loopback);
            let answered = spawn_blocking(move || admin.answer(&request, &peer, is_loopback)).await;
            let failed = || text(StatusCode::INTERNAL_SERVER_ERROR, "the document could not be built\n".to_owned());
            return answered.unwrap_or_else(|_| failed());
        }
        match self.admin.admit(&request).await {
            Ok(()) => self.admin.answer(&request, &peer, self.is_loopback),
            Err(problem) => problem.into_response(),
        }
    }
}

fn not_admitted(why: NotAdmitted) -> Problem {
    match why {
        NotAdmitted::Missing | NotAdmitted::Wrong => Problem::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            if why == NotAdmitted::Wrong {
                "The token for metrics is wrong"
            } else {
                "The token for metrics is missing"
            },
            "Send the token of `metrics_token_file` in `[admin]` as `Authorization: Bearer <token>`.",
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        NotAdmitted::Unusable => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "metrics-token-unusable",
            "The token for metrics cannot be read",
            "The file of the token cannot be used; the log has the reason.",
        ),
    }
}

fn not_from_here(path: &str) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "not-from-here",
        "Only for this machine",
        format!("{path} is served to this machine only: request it at 127.0.0.1, [::1] or localhost on the machine."),
    )
}

/// A response with indented JSON.
pub fn json(document: &impl Serialize) -> Response<Body> {
    let text = serde_json::to_string_pretty(document).unwrap_or_default();
    typed(StatusCode::OK, "application/json", text + "\n")
}

/// A response with JSON for programs, without white space.
fn compact_json(document: &serde_json::Value) -> Response<Body> {
    let mut response = typed(StatusCode::OK, "application/json", document.to_string());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn lines(word: &str, reasons: &[String]) -> String {
    reasons.iter().map(|reason| format!("{word}: {reason}\n")).collect()
}

fn number(word: &str, reasons: &[String]) -> String {
    format!("{word}: reasons: {}; /status has them, and /readyz over loopback\n", reasons.len())
}

fn text(status: StatusCode, body: String) -> Response<Body> {
    typed(status, "text/plain; charset=utf-8", body)
}

fn typed(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into_bytes()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, UdpSocket};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    /// An address of this machine that is not loopback; `None` without a network. Nothing is sent.
    fn outward() -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        get_with(address, path, &format!("host: {address}")).await
    }

    async fn get_with(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    async fn status(address: SocketAddr, path: &str) -> String {
        status_with(address, path, &format!("host: {address}")).await
    }

    async fn status_with(address: SocketAddr, path: &str, headers: &str) -> String {
        get_with(address, path, headers).await.split(' ').nth(1).unwrap().to_owned()
    }

    async fn degraded(listen: &str, token: Option<&Path>) -> (SocketAddr, Drain) {
        let (registry, drain) = (Registry::new(), Drain::new());
        let metrics = HttpMetrics::register(&registry).unwrap();
        let admin = Admin {
            registry,
            ready: Arc::new(|| Readiness::Degraded(vec!["shop: its upstream fails".to_owned()])),
            status: Arc::new(|_| Ok(serde_json::json!({}))),
            page: None,
            metrics_token: metrics_token(token).unwrap(),
            drain: drain.clone(),
        };
        (admin.start(listen.parse().unwrap(), &metrics).await.unwrap(), drain)
    }

    #[tokio::test]
    async fn metrics_are_scraped_by_any_name_beyond_loopback_only() {
        for (listen, by_foreign_name) in [("127.0.0.1:0", "403"), ("0.0.0.0:0", "200")] {
            let (address, drain) = degraded(listen, None).await;
            let address = SocketAddr::from(([127, 0, 0, 1], address.port()));
            assert_eq!(status(address, "/metrics").await, "200");
            assert_eq!(status_with(address, "/metrics", "host: localhost").await, "200");
            assert_eq!(status_with(address, "/metrics", "host: weir.example:7490").await, by_foreign_name, "{listen}");
            assert_eq!(status_with(address, "/livez", "host: weir.example:7490").await, "200", "a probe");
            assert!(drain.finish(std::time::Duration::from_secs(5)).await);
        }
    }

    #[tokio::test]
    async fn metrics_are_for_those_with_the_token_where_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "prometheus-s-own-token").unwrap();
        let (address, drain) = degraded("127.0.0.1:0", Some(&file)).await;
        let refused = get(address, "/metrics").await;
        assert!(refused.starts_with("HTTP/1.1 401") && refused.contains("www-authenticate: Bearer"), "{refused}");
        assert!(refused.contains("metrics_token_file"), "{refused}");
        let with = |token: &str| format!("host: {address}\r\nauthorization: Bearer {token}");
        assert_eq!(status_with(address, "/metrics", &with("prometheus-s-own-token")).await, "200");
        assert_eq!(status_with(address, "/metrics", &with("prometheus-s-old-token")).await, "401");
        for open in ["/livez", "/readyz", "/status"] {
            assert_eq!(status(address, open).await, "200", "{open}");
        }
        assert!(drain.finish(std::time::Duration::from_secs(5)).await);
    }

    #[test]
    fn one_more_reason_degrades_what_is_ready() {
        let one = || Some("one".to_owned());
        assert_eq!(Readiness::Ready.degraded_by(None), Readiness::Ready);
        assert_eq!(Readiness::Ready.degraded_by(one()), Readiness::Degraded(vec!["one".to_owned()]));
        let not_ready = Readiness::NotReady(vec!["other".to_owned()]);
        assert_eq!(not_ready.clone().degraded_by(one()), not_ready);
    }

    #[tokio::test]
    async fn services_are_named_to_this_machine_only() {
        let (address, drain) = degraded("0.0.0.0:0", None).await;
        let port = address.port();
        let loopback = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(status(loopback, "/status").await, "200");
        assert!(get(loopback, "/readyz").await.ends_with("ready\ndegraded: shop: its upstream fails\n"));
        // JSON has texts of others, which no browser may take for a page.
        let is_declared = |answer: String| answer.contains("\r\nx-content-type-options: nosniff\r\n");
        assert!(is_declared(get(loopback, "/status").await) && is_declared(get(loopback, "/unknown").await));
        // A page of another site: its name bound to this address, or a request to this address.
        let evil = "host: evil.example";
        assert_eq!(status_with(loopback, "/status", evil).await, "403");
        assert!(!get_with(loopback, "/readyz", evil).await.contains("shop"));
        let page = format!("host: {loopback}\r\nsec-fetch-site: cross-site");
        assert_eq!(status_with(loopback, "/metrics", &page).await, "403");
        if let Some(outward) = outward() {
            let outward = (outward, port).into();
            assert_eq!(
                (status(outward, "/status").await, status(outward, "/readyz").await),
                ("403".into(), "200".into())
            );
            let ready = get(outward, "/readyz").await;
            assert!(ready.contains("ready\ndegraded: reasons: 1") && !ready.contains("shop"), "{ready}");
        }
        assert!(drain.finish(std::time::Duration::from_secs(5)).await);
    }
}
