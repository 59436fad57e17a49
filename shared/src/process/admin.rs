//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/status`. Plain HTTP, on loopback by default.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;

use super::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody, ServerTls};
use super::shutdown::Drain;
use crate::problem::Problem;

/// Whether a role can do its work now; the reason when it cannot.
pub type Readiness = Result<(), String>;

/// What the admin listener shows of a role.
#[derive(Clone)]
pub struct Admin {
    /// All metrics of the role.
    pub registry: Registry,
    /// Asked on each `/readyz`.
    pub ready: Arc<dyn Fn() -> Readiness + Send + Sync>,
    /// Asked on each `/status`: what a person wants to see, as JSON.
    pub status: Arc<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// A role that drains is not ready.
    pub drain: Drain,
}

impl Admin {
    /// Serves on `listen` until the drain ends.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(self, listen: SocketAddr, metrics: &HttpMetrics) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| anyhow::anyhow!("cannot listen on admin_listen = \"{listen}\": {error}"))?;
        let address = listener.local_addr()?;
        let drain = self.drain.clone();
        serve::tcp(listener, None::<ServerTls>, self, metrics.listener("admin"), &drain);
        Ok(address)
    }

    fn answer(&self, request: &Request<RequestBody>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = Problem::method_not_allowed().into_response();
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        match request.uri().path() {
            "/livez" => text(StatusCode::OK, "alive\n".to_owned()),
            "/readyz" if self.drain.has_begun() => text(StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned()),
            "/readyz" => match (self.ready)() {
                Ok(()) => text(StatusCode::OK, "ready\n".to_owned()),
                Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
            },
            "/metrics" => match TextEncoder::new().encode_to_string(&self.registry.gather()) {
                Ok(metrics) => typed(StatusCode::OK, prometheus::TEXT_FORMAT, metrics),
                Err(error) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n"))
                }
            },
            "/status" => {
                let status = serde_json::to_string_pretty(&(self.status)()).unwrap_or_default();
                typed(StatusCode::OK, "application/json", status + "\n")
            }
            "/" => text(StatusCode::OK, "/livez\n/readyz\n/metrics\n/status\n".to_owned()),
            _ => Problem::no_such_path().into_response(),
        }
    }
}

impl Handler for Admin {
    async fn handle(&self, request: Request<RequestBody>, _: Arc<Peer>) -> Response<Body> {
        self.answer(&request)
    }
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
