//! Many agents of a large service after one push, without their disks: each sends the requests of an update over a connection of
//! its own, and drops what arrives.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use weir_protocol::manifest::Manifest;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

/// The largest range of an agent.
const MAX_RANGE: u64 = 2 << 20;

struct Agent {
    client: Http2Client,
    service: String,
}

impl Agent {
    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<(http::HeaderMap, Bytes)> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.service));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Empty::<Bytes>::new())?).await?;
        let (head, mut body) = response.into_parts();
        ensure!(matches!(head.status, StatusCode::OK | StatusCode::PARTIAL_CONTENT), "{path}: {}", head.status);
        let mut kept = Vec::new();
        while let Some(frame) = body.frame().await {
            // Of a body nothing is kept, of a manifest all.
            if let (Ok(data), true) = (frame?.into_data(), path.ends_with("/frames")) {
                kept.extend_from_slice(&data);
            }
        }
        Ok((head.headers, kept.into()))
    }

    async fn manifest(&self, digest: &str) -> anyhow::Result<Manifest> {
        let (_, bytes) = self.send("GET", &format!("/tarballs/{digest}/frames"), &[]).await?;
        Ok(Manifest::parse(&bytes)?)
    }

    /// The requests of an agent that has stored the manifest of its release.
    async fn update(&self, old: &Option<(String, Manifest)>) -> anyhow::Result<()> {
        let zstd = ("accept-encoding", "zstd");
        let Some((digest, old)) = old else { return self.send("GET", "/tarball", &[zstd]).await.map(drop) };
        let known = format!("\"{digest}\"");
        let (head, _) = self.send("HEAD", "/tarball", &[zstd, ("if-none-match", &known)]).await?;
        let header = |name: &str| head.get(name).and_then(|value| value.to_str().ok()).context("a header");
        let (digest, etag) = (header("weir-digest")?, header("etag")?);
        let path = format!("/tarballs/{digest}");
        for (start, end) in missing(old, &self.manifest(digest).await?) {
            let range = format!("bytes={start}-{}", end - 1);
            self.send("GET", &path, &[zstd, ("range", &range), ("if-range", etag)]).await?;
        }
        Ok(())
    }
}

/// The ranges of the frames that the old tarball has not.
fn missing(old: &Manifest, new: &Manifest) -> Vec<(u64, u64)> {
    let (mut ranges, mut at): (Vec<(u64, u64)>, _) = (Vec::new(), 0);
    for frame in new.frames() {
        let start = at;
        at += frame.size;
        if old.frames().iter().any(|other| other.digest == frame.digest) {
            continue;
        }
        match ranges.last_mut() {
            Some((first, end)) if *end == start && at - *first <= MAX_RANGE => *end = at,
            _ => ranges.push((start, at)),
        }
    }
    ranges
}

/// What the agents do.
#[derive(Debug, Args)]
pub struct Plan {
    /// The URL of the edge.
    #[arg(long)]
    edge: String,
    /// PEM file of the authority of its certificate.
    #[arg(long)]
    ca: PathBuf,
    /// The number of agents.
    #[arg(long)]
    agents: usize,
    /// Agents that update at a time.
    #[arg(long)]
    at_once: usize,
    /// The digest that they have. Without it each downloads the whole tarball.
    #[arg(long)]
    old: Option<String>,
}

/// Connects the agents, says so, and lets them update after a line of input.
///
/// # Errors
/// An agent was not answered.
pub async fn run(plan: Plan) -> anyhow::Result<()> {
    let Plan { edge, ca, agents: count, at_once, old } = plan;
    let tls = tls::client_config(&ca, None)?;
    let agent = |_| Agent { client: http2_client(tls.clone()), service: format!("{edge}/v1/services/shop") };
    let agents: Vec<_> = (0..count).map(agent).collect();
    let old = match old {
        None => None,
        Some(digest) => {
            let manifest = agents.first().context("--agents is at least 1")?.manifest(&digest).await?;
            Some((digest, manifest))
        }
    };
    let connect = |agent: &'static Agent| async { agent.send("HEAD", "/tarball", &[]).await.map(drop) };
    let (agents, old): (&'static [Agent], &'static _) = (agents.leak(), Box::leak(Box::new(old)));
    stream::iter(agents).map(connect).buffer_unordered(32).try_collect::<()>().await?;
    println!("connected");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    stream::iter(agents).map(|agent| agent.update(old)).buffer_unordered(at_once).try_collect::<()>().await
}
