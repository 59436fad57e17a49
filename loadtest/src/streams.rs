//! Event streams of many agents, each over a connection of its own, with a token of its own name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use weir_protocol::agent_event::AgentEvent;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};
use weir_runtime::tls;

use crate::connect;
use crate::poller::Version;

/// Connections that are opened at a time.
const AT_ONCE: usize = 32;

/// The agents.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The edge.
    pub server: SocketAddr,
    /// HTTP/2 or HTTP/3.
    pub version: Version,
    /// The number of agents.
    pub agents: usize,
    /// Agents have one of so many labels `group=<number>`, in turn.
    pub groups: usize,
    /// Each token opens services of its own agent alone, and all: no two agents may read the same.
    pub own_scopes: bool,
}

/// Streams that are open.
#[derive(Debug, Default)]
pub struct Streams {
    /// The lines of all streams, by the kind of event.
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Streams {
    /// Opens the streams. Returns when all have begun.
    ///
    /// # Errors
    /// The edge refuses one.
    pub async fn open(plan: &Plan, ca: &Path, key: &SigningKey) -> anyhow::Result<Self> {
        let (streams, tls) = (Self::default(), tls::client_config(ca, None)?);
        let opened = (0..plan.agents).map(|number| {
            let (tls, counts) = (tls.clone(), streams.counts.clone());
            async move {
                let authorization = authorization(plan, number, key)?;
                open(plan, tls, authorization, counts).await.with_context(|| format!("agent {number}"))
            }
        });
        stream::iter(opened).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(streams)
    }

    /// The lines so far, by the kind of event; `closed` counts streams that have ended.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn authorization(plan: &Plan, number: usize, key: &SigningKey) -> anyhow::Result<HeaderValue> {
    let name = format!("cluster-{number}");
    let group = (number % plan.groups).to_string();
    let mut services = vec!["*".parse()?];
    if plan.own_scopes {
        services.push(format!("of-{name}-*").parse()?);
    }
    let claims = Claims {
        subject: name.parse()?,
        id: Some(TokenId::random()?),
        labels: serde_json::from_value(serde_json::json!({ "group": group }))?,
        services,
        expires: unix_seconds(SystemTime::now()) + 86_400,
        not_before: None,
        issued_at: None,
    };
    Ok(HeaderValue::try_from(format!("Bearer {}", key.issue(&claims)?))?)
}

async fn open(
    plan: &Plan,
    tls: ClientConfig,
    authorization: HeaderValue,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
) -> anyhow::Result<()> {
    let uri = format!("https://{}/v1/agents/self/events", plan.server);
    let request = Request::builder().uri(uri).header(header::AUTHORIZATION, authorization);
    let mut lines = Lines { rest: Vec::new(), counts };
    if plan.version == Version::Http3 {
        let mut requests = connect::http3(plan.server, tls, None).await?;
        let mut stream = requests.send_request(request.body(())?).await?;
        stream.finish().await?;
        let response = stream.recv_response().await?;
        ensure!(response.status() == StatusCode::OK, "{}", response.status());
        tokio::spawn(async move {
            // The connection lives as long as its requests.
            let _requests = requests;
            while let Ok(Some(mut part)) = stream.recv_data().await {
                lines.take(&part.copy_to_bytes(part.remaining()));
            }
            lines.count("closed");
        });
        return Ok(());
    }
    let connection = connect::tls(plan.server, tls, b"h2", None).await?;
    let (mut requests, connection) = http2::handshake(TokioExecutor::new(), connection).await?;
    tokio::spawn(connection);
    let response = requests.send_request(request.body(Empty::<Bytes>::new())?).await?;
    ensure!(response.status() == StatusCode::OK, "{}", response.status());
    let mut body = response.into_body();
    tokio::spawn(async move {
        let _requests = requests;
        while let Some(Ok(frame)) = body.frame().await {
            if let Ok(part) = frame.into_data() {
                lines.take(&part);
            }
        }
        lines.count("closed");
    });
    Ok(())
}

/// The lines of one stream.
struct Lines {
    rest: Vec<u8>,
    counts: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Lines {
    fn take(&mut self, part: &[u8]) {
        self.rest.extend_from_slice(part);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match AgentEvent::parse(&line[..end]) {
                Ok(Some(event)) => self.count(event.kind.as_str()),
                Ok(None) => self.count("unknown"),
                Err(_) => self.count("malformed"),
            }
        }
    }

    fn count(&self, kind: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
    }
}
