//! The origin and the edges, as processes, and what operators ask.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::git_repository::GitRepository;
use crate::processes::{Node, free_address, until};
use crate::processor;
use crate::scrape::Metrics;
use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_protocol::token::{Claims, SigningKey, unix_seconds};
use weir_runtime::certificates;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::identity::Role;
use weir_runtime::tls;

pub(crate) const EDGES: usize = 3;

pub(crate) type Client = Http2Client<Full<Bytes>>;

/// The publication of a service.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Release {
    pub(crate) digest: String,
    pub(crate) generation: u64,
    pub(crate) revision: String,
}

pub(crate) struct Site {
    pub(crate) origin: Node,
    pub(crate) edges: Vec<Node>,
    /// Where agents reach the edges.
    pub(crate) addresses: Vec<SocketAddr>,
    of_edges: SocketAddr,
    of_operators: SocketAddr,
    operator: Client,
    edge: Client,
    key: SigningKey,
    upstream: GitRepository,
    dir: TempDir,
}

/// What the token of an agent asserts.
pub(crate) fn labels(number: usize) -> Value {
    json!({ "ring": (number % 5).to_string(), "region": "eu" })
}

/// The name of a service.
pub(crate) fn name(service: usize) -> String {
    format!("service-{service:03}")
}

pub(crate) async fn send(
    client: &Client,
    method: Method,
    url: &str,
    authorization: Option<&str>,
    body: Vec<u8>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let request = Request::builder().method(method).uri(url);
    let request = authorization.into_iter().fold(request, |request, value| request.header("authorization", value));
    let response = client.request(request.body(Full::new(Bytes::from(body)))?).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

impl Site {
    pub(crate) async fn start(services: usize) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        certificates::write(dir.path(), &[])?;
        let (key, _) = SigningKey::generate()?;
        fs::write(dir.path().join("fleet.key.pub"), format!("{} {}\n", key.public().id(), key.public().encoded()))?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        upstream.write("README", "")?;
        upstream.commit_and_push("zero")?;

        let (of_edges, of_operators, admin) = (free_address()?, free_address()?, free_address()?);
        let mut config = format!(
            r#"
name = "origin-1"
listen = "{of_edges}"
operator_listen = "{of_operators}"
admin_listen = "{admin}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
repository = [{{ name = "shop", url = "{}", poll_interval = "2s", min_poll_interval = "1s" }}]
"#,
            upstream.bare().display(),
        );
        for service in (0..services).map(name) {
            writeln!(
                config,
                "[[service]]\nname = \"{service}\"\nrepository = \"shop\"\nref = \"main\"\nfolder = \"{service}\""
            )?;
        }
        let mut origin = Node::new(dir.path(), "origin", admin, &config)?;
        origin.start().await?;
        let (mut edges, mut addresses) = (Vec::new(), Vec::new());
        for number in 1..=EDGES {
            let (address, admin, name) = (free_address()?, free_address()?, format!("edge-{number}"));
            certificates::write_for(dir.path(), &[], &[(Role::Edge, name.parse()?)])?;
            let config = format!(
                r#"
name = "{name}"
listen = "{address}"
admin_listen = "{admin}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "required", keys = ["fleet.key.pub"] }}
cache = {{ dir = "edge-cache-{number}" }}
origin = [{{ url = "https://{of_edges}", ca = "ca.pem", client_certificate = "edge-{name}.pem", client_key = "edge-{name}.key" }}]
"#
            );
            let mut edge = Node::new(dir.path(), &format!("edge_{number}"), admin, &config)?;
            edge.start().await?;
            edges.push(edge);
            addresses.push(address);
        }
        let client = |name: &str| -> anyhow::Result<Client> {
            let file = |extension: &str| dir.path().join(format!("{name}.{extension}"));
            Ok(http2_client(tls::client_config(
                &file("ca.pem").with_file_name("ca.pem"),
                Some((&file("pem"), &file("key"))),
            )?))
        };
        let (operator, edge) = (client("operator")?, client("edge-client")?);
        Ok(Self { origin, edges, addresses, of_edges, of_operators, operator, edge, key, upstream, dir })
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where operators reach the origin.
    pub(crate) fn operators(&self) -> SocketAddr {
        self.of_operators
    }

    /// A token of an agent, which opens all services.
    pub(crate) fn token(&self, agent: &str, number: usize) -> anyhow::Result<String> {
        Ok(self.key.issue(&Claims {
            subject: agent.parse()?,
            id: Some(agent.parse()?),
            services: vec!["*".parse()?],
            labels: serde_json::from_value(labels(number))?,
            expires: unix_seconds(SystemTime::now()) + 86_400,
            not_before: None,
            issued_at: None,
        })?)
    }

    /// Commits a change of services, and waits for their publications.
    pub(crate) async fn publish(&self, what: &str, services: &[usize]) -> anyhow::Result<(String, Vec<Release>)> {
        services.iter().try_for_each(|service| self.upstream.write(format!("{}/file", name(*service)), what))?;
        let commit = self.upstream.commit_and_push(what)?;
        let mut releases = Vec::new();
        for service in services {
            until("the service is published", || async { self.published(*service, &commit).await.is_ok() }).await?;
            releases.push(self.published(*service, &commit).await?);
        }
        Ok((commit, releases))
    }

    /// The publication of a service, if it is of this commit.
    async fn published(&self, service: usize, commit: &str) -> anyhow::Result<Release> {
        let url = format!("https://{}/v1/services/{}", self.of_edges, name(service));
        let (status, body) = send(&self.edge, Method::GET, &url, None, Vec::new()).await?;
        ensure!(status == StatusCode::OK, "{status}");
        let document: Value = serde_json::from_slice(&body)?;
        let publication = &document["publication"];
        ensure!(publication["commit"] == commit, "another commit");
        let text = |key: &str| publication[key].as_str().unwrap_or_default().to_owned();
        let generation = publication["generation"].as_u64().context("a generation")?;
        Ok(Release { digest: text("digest"), generation, revision: text("revision_id") })
    }

    /// An answer to an operator.
    pub(crate) async fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("https://{}{path}", self.of_operators);
        let (status, body) = send(&self.operator, Method::GET, &url, None, Vec::new()).await?;
        ensure!(status == StatusCode::OK, "{path}: {status} {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }

    /// Kills processes at once, and starts them again: 0 is the origin, others are edges.
    pub(crate) async fn kill(&mut self, processes: &[usize]) -> anyhow::Result<()> {
        let mut nodes: Vec<&mut Node> = std::iter::once(&mut self.origin).chain(&mut self.edges).collect();
        processes.iter().try_for_each(|process| nodes[*process].kill())?;
        for process in processes {
            nodes[*process].start().await?;
        }
        Ok(())
    }

    /// Ends the origin as an upgrade does, and starts it again.
    pub(crate) async fn restart_origin(&mut self) -> anyhow::Result<()> {
        self.origin.terminate().await?;
        self.origin.start().await
    }

    /// Memory of the origin and of an edge, in MiB.
    pub(crate) fn memory(&self) -> anyhow::Result<(u64, u64)> {
        let of =
            |node: &Node| Ok::<_, anyhow::Error>(processor::anonymous_memory(node.pid().context("it runs")?)? >> 20);
        Ok((of(&self.origin)?, of(&self.edges[0])?))
    }

    /// How many agents the edges hear, those twice that two of them do.
    pub(crate) async fn heard(&self) -> anyhow::Result<usize> {
        let mut heard = 0.0;
        for edge in &self.edges {
            heard += Metrics::read(edge.admin()).await?.sum("weir_edge_agents", &["state=\"connected\""]);
        }
        Ok(heard as usize)
    }

    /// The bytes that all edges have sent to the origin about what agents run.
    pub(crate) async fn observed_bytes(&self) -> anyhow::Result<f64> {
        let mut bytes = 0.0;
        for edge in &self.edges {
            bytes += Metrics::read(edge.admin()).await?.sum("weir_edge_observed_bytes_total", &[]);
        }
        Ok(bytes)
    }
}

/// A client for agents that this program plays.
pub(crate) fn agents_client(site: &Site) -> anyhow::Result<Client> {
    Ok(http2_client(tls::client_config(&site.path().join("ca.pem"), None)?))
}

/// How long something took, in seconds.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
