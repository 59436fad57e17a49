//! The admin listener: a page for people, `/status`, `/v1/summary`, `/v1/explain`, `/v1/agents`, `/v1/purge`, probes and
//! metrics.
//!
//! Reads are open on loopback. Beyond it, and for writes, the operator token is required.

mod agents;
mod error;
mod page;
mod purge;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use http::{HeaderMap, Method, Request, Response};
use prometheus::IntCounterVec;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_runtime::admin::{self, Admin};
use weir_runtime::cross_site;
use weir_runtime::metric_families;
use weir_runtime::operator_token::{OPERATOR_TOKEN, OperatorToken};
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody, ServerTls};
use weir_runtime::shutdown::Drain;

pub(crate) use self::page::page;

use self::purge::PurgeRequest;
use crate::config::AdminConfig;
use crate::status::Status;

/// The longest purge request, in bytes.
const MAX_PURGE_REQUEST_BYTES: usize = 4096;

metric_families! {
    /// The families of operators' requests.
    pub(crate) struct PurgeMetrics {
        /// Purges by operators.
        purges: IntCounterVec = "weir_edge_purges_total"
            { kind: ["digest", "service", "repository"], mode: ["hard", "soft"] };
    }
}

#[derive(Clone)]
pub(crate) struct OperatorApi {
    admin: Admin,
    status: Arc<Status>,
    purges: IntCounterVec,
    token: Option<Arc<OperatorToken>>,
    /// The listener is on loopback.
    is_loopback: bool,
}

impl OperatorApi {
    /// # Errors
    /// The token's file cannot be used, or the name of a metric is taken.
    pub(crate) fn new(
        listen: SocketAddr,
        config: &AdminConfig,
        admin: Admin,
        status: Arc<Status>,
    ) -> anyhow::Result<Self> {
        let purges = PurgeMetrics::register(&admin.registry)?.purges;
        let token = config.operator_token_file.as_deref().map(|file| OperatorToken::open(OPERATOR_TOKEN, file));
        let token = token.transpose()?.map(Arc::new);
        Ok(Self { admin, status, purges, token, is_loopback: listen.ip().is_loopback() })
    }

    /// Serves on `listen` until the drain has ended; plain HTTP without `tls`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) async fn start(
        self,
        listen: SocketAddr,
        tls: Option<ServerTls>,
        metrics: &HttpMetrics,
        drain: &Drain,
    ) -> anyhow::Result<SocketAddr> {
        let cannot = || format!("cannot listen on admin_listen = \"{listen}\"");
        let listener = TcpListener::bind(listen).await.with_context(cannot)?;
        let address = listener.local_addr()?;
        serve::tcp(listener, tls, self, metrics.listener("admin"), drain.last());
        Ok(address)
    }

    async fn answer(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Result<Response<Body>, Problem> {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match request.uri().path() {
            "/v1/purge" => {
                if *request.method() != Method::POST {
                    return Err(Problem::method_not_allowed("POST"));
                }
                self.check(request.headers()).await?;
                let purge = PurgeRequest::parse(&request.into_body().read(MAX_PURGE_REQUEST_BYTES).await?)?;
                let (status, purges) = (self.status.clone(), self.purges.clone());
                let done = spawn_blocking(move || purge.execute(&status, &purges)).await;
                let mut done = done.map_err(error::failed)?;
                // A purge survives a restart unless the disk fails.
                done["durable"] = self.status.catalog.durable().await.is_ok().into();
                Ok(admin::json(&done))
            }
            "/v1/explain" => {
                if !reads {
                    return Err(Problem::method_not_allowed("GET, HEAD"));
                }
                self.check_reader(&request).await?;
                let (service, digest) = parse_explain(request.uri().query().unwrap_or_default())?;
                let status = self.status.clone();
                let explained = spawn_blocking(move || (status.explain(&service, digest.as_ref()), service)).await;
                let (explained, service) = explained.map_err(error::failed)?;
                Ok(admin::json(&explained.ok_or_else(|| error::unknown_service(&service))?))
            }
            path if path == "/v1/agents" || path.starts_with("/v1/agents/") => {
                if !reads {
                    return Err(Problem::method_not_allowed("GET, HEAD"));
                }
                self.check_reader(&request).await?;
                let status = self.status.clone();
                let answered = spawn_blocking(move || agents::answer(&status.observed, request.uri())).await;
                answered.map_err(error::failed)?
            }
            "/status" | "/v1/summary" if reads => {
                self.check_reader(&request).await?;
                // It scans all services.
                let (admin, is_loopback) = (self.admin.clone(), self.is_loopback);
                let answered = spawn_blocking(move || admin.answer(&request, &peer, is_loopback)).await;
                answered.map_err(error::failed)
            }
            _ => {
                self.admin.admit(&request).await?;
                Ok(self.admin.answer(&request, &peer, self.is_loopback))
            }
        }
    }

    /// Documents with service names need the token unless the listener is on loopback and the request is meant for it.
    async fn check_reader(&self, request: &Request<RequestBody>) -> Result<(), Problem> {
        if self.is_loopback && cross_site::is_for_loopback(request) {
            return Ok(());
        }
        self.check(request.headers()).await
    }

    async fn check(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let token = self.token.clone().ok_or_else(error::no_token_configured)?;
        token.admits(headers).await.map_err(error::not_admitted)
    }
}

impl Handler for OperatorApi {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        match cross_site::refuse(&request) {
            Some(problem) => problem.into_response(),
            None => self.answer(request, peer).await.unwrap_or_else(Problem::into_response),
        }
    }
}

fn parse_explain(query: &str) -> Result<(ServiceName, Option<TarballDigest>), Problem> {
    let mut service = None;
    let mut digest = None;
    for (key, value) in query::pairs(query)? {
        match key {
            "service" => service = Some(query::parsed(key, &value)?),
            "digest" => digest = Some(query::parsed(key, &value)?),
            other => return Err(query::QueryError::unknown(other, "`service` and `digest`").into()),
        }
    }
    let missing = || Problem::malformed("name the service: `/v1/explain?service=…`.");
    Ok((service.ok_or_else(missing)?, digest))
}
