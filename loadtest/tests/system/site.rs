//! One repository on a Git server and the three roles as processes: what most tests here begin with.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use tempfile::TempDir;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::git_server::{self, GitServer};
use weir_loadtest::processes::{Node, free_address, until};
use weir_loadtest::scrape::{self, Metrics};
use weir_runtime::certificates;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

/// What a test may want otherwise than usual.
pub(crate) struct Plan {
    /// `[[service]]` tables of the origin besides the repository `shop`.
    pub(crate) services: String,
    /// The services that the agent follows.
    pub(crate) follows: Vec<&'static str>,
    /// How long the edge's table is fresh.
    pub(crate) fresh: &'static str,
    /// Where the edge finds its origin, when not at the origin itself.
    pub(crate) origin_at: Option<SocketAddr>,
    /// Where the agent finds its edge, when not at the edge itself.
    pub(crate) edge_at: Option<SocketAddr>,
    /// The agent's `exec`.
    pub(crate) exec: Option<String>,
    /// The edge's `[auth]`.
    pub(crate) auth: &'static str,
    /// The origin's `[access]`.
    pub(crate) access: &'static str,
    /// Further keys of the agent.
    pub(crate) agent: &'static str,
    /// `[log]` of the origin and the edge.
    pub(crate) log: &'static str,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            services: service("shop-prod", "main", "deploy/prod"),
            follows: vec!["shop-prod"],
            fresh: "1s",
            origin_at: None,
            edge_at: None,
            exec: None,
            auth: "mode = \"open\"",
            access: "",
            agent: "",
            log: "",
        }
    }
}

/// A `[[service]]` table of the repository `shop`.
pub(crate) fn service(name: &str, reference: &str, folder: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nrepository = \"shop\"\nref = \"{reference}\"\nfolder = \"{folder}\"\n")
}

/// The processes and what they stand on. All of it goes when it is dropped.
pub(crate) struct Site {
    pub(crate) upstream: GitRepository,
    pub(crate) git: Option<GitServer>,
    pub(crate) origin: Node,
    pub(crate) edge: Node,
    pub(crate) edge_address: SocketAddr,
    pub(crate) agent: Node,
    dir: TempDir,
}

impl Site {
    /// Lays everything out around a repository that `fill` has written to; starts the Git server and no role yet.
    pub(crate) async fn new(
        fill: impl FnOnce(&GitRepository) -> anyhow::Result<()>,
        plan: Plan,
    ) -> anyhow::Result<Self> {
        let addresses = Addresses::free()?;
        Self::at(&addresses, fill, plan).await
    }

    /// As [`new`](Self::new), at addresses that were chosen before (so that a relay could be put in front of one).
    pub(crate) async fn at(
        addresses: &Addresses,
        fill: impl FnOnce(&GitRepository) -> anyhow::Result<()>,
        plan: Plan,
    ) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        fill(&upstream)?;
        let git = GitServer::start(dir.path(), &dir.path().join("git-certificates")).await?;
        certificates::write(dir.path(), &[])?;
        fs::copy(git.ca(), dir.path().join("git-ca.pem"))?;
        fs::write(dir.path().join("git-password"), format!("{}\n", git_server::PASSWORD))?;

        let origin = format!(
            r#"
name = "origin-1"
listen = "{listen}"
admin_listen = "{admin}"
data_dir = "origin-data"
[tls]
certificate = "origin.pem"
key = "origin.key"
client_ca = "ca.pem"
[[repository]]
name = "shop"
url = "{url}"
poll_interval = "1s"
ca = "git-ca.pem"
username = "{username}"
password_file = "git-password"
[access]
{access}
[log]
{log}
{services}"#,
            listen = addresses.origin,
            admin = addresses.origin_admin,
            url = git.url("shop"),
            username = git_server::USERNAME,
            access = plan.access,
            log = plan.log,
            services = plan.services,
        );
        let edge = format!(
            r#"
name = "edge-1"
listen = "{listen}"
admin_listen = "{admin}"
[tls]
certificate = "edge.pem"
key = "edge.key"
[auth]
{auth}
[cache]
dir = "edge-cache"
disk = "1GiB"
[freshness]
fresh = "{fresh}"
[log]
{log}
[[origin]]
url = "https://{origin}"
ca = "ca.pem"
client_certificate = "edge-client.pem"
client_key = "edge-client.key"
"#,
            listen = addresses.edge,
            admin = addresses.edge_admin,
            auth = plan.auth,
            fresh = plan.fresh,
            log = plan.log,
            origin = plan.origin_at.unwrap_or(addresses.origin),
        );
        let exec = plan.exec.map(|exec| format!("exec = '{exec}'\n")).unwrap_or_default();
        let follows: String =
            plan.follows.iter().map(|name| format!("[[service]]\nname = \"{name}\"\n{exec}")).collect();
        let agent = format!(
            r#"
name = "cluster-1"
admin_listen = "{admin}"
edges = ["https://{edge}"]
ca = "ca.pem"
root = "agent-data"
poll_interval = "1s"
{keys}
{follows}"#,
            admin = addresses.agent_admin,
            keys = plan.agent,
            edge = plan.edge_at.unwrap_or(addresses.edge),
        );
        Ok(Self {
            upstream,
            git: Some(git),
            origin: Node::new(dir.path(), "origin", addresses.origin_admin, &origin)?,
            edge: Node::new(dir.path(), "edge", addresses.edge_admin, &edge)?,
            edge_address: addresses.edge,
            agent: Node::new(dir.path(), "agent", addresses.agent_admin, &agent)?,
            dir,
        })
    }

    /// Starts all three roles.
    pub(crate) async fn start(&mut self) -> anyhow::Result<()> {
        self.origin.start().await?;
        self.edge.start().await?;
        self.agent.start().await
    }

    /// A path below the site's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The agent's current release of a service.
    pub(crate) fn current(&self, service: &str) -> PathBuf {
        self.path("agent-data").join(service).join("current")
    }

    /// The digest of the agent's current release, by the name of its directory.
    pub(crate) fn current_digest(&self, service: &str) -> Option<String> {
        let release = fs::read_link(self.current(service)).ok()?;
        Some(release.file_name()?.to_str()?.to_owned())
    }

    /// Waits until a file of the agent's current release of a service has these contents.
    pub(crate) async fn until_released(&self, service: &str, file: &str, contents: &str) -> anyhow::Result<()> {
        let path = self.current(service).join(file);
        until(&format!("{} is {contents:?}", path.display()), async || {
            fs::read(&path).is_ok_and(|found| found == contents.as_bytes())
        })
        .await
        .with_context(|| self.logs())
    }

    /// Waits until a counter of a role passes a value.
    pub(crate) async fn until_counter(
        &self,
        node: &Node,
        name: &str,
        labels: &[&str],
        above: f64,
    ) -> anyhow::Result<()> {
        until(&format!("{name}{labels:?} is above {above}"), async || {
            Metrics::read(node.admin()).await.is_ok_and(|metrics| metrics.sum(name, labels) > above)
        })
        .await
        .with_context(|| self.logs())
    }

    /// Waits until the origin says of a service or repository, in its `/status`, what `condition` looks for.
    pub(crate) async fn until_status(
        &self,
        node: &Node,
        what: &str,
        condition: impl Fn(&serde_json::Value) -> bool,
    ) -> anyhow::Result<()> {
        until(what, async || scrape::status(node.admin()).await.is_ok_and(|status| condition(&status)))
            .await
            .with_context(|| self.logs())
    }

    /// What all roles logged, for the message of a failure.
    pub(crate) fn logs(&self) -> String {
        format!("origin:\n{}\nedge:\n{}\nagent:\n{}", self.origin.log(), self.edge.log(), self.agent.log())
    }

    /// A client of the edge, as an agent would be.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.path("ca.pem"), self.edge_address)
    }
}

/// The addresses of a site's listeners.
pub(crate) struct Addresses {
    pub(crate) origin: SocketAddr,
    origin_admin: SocketAddr,
    pub(crate) edge: SocketAddr,
    edge_admin: SocketAddr,
    agent_admin: SocketAddr,
}

impl Addresses {
    pub(crate) fn free() -> anyhow::Result<Self> {
        Ok(Self {
            origin: free_address()?,
            origin_admin: free_address()?,
            edge: free_address()?,
            edge_admin: free_address()?,
            agent_admin: free_address()?,
        })
    }
}

/// An HTTP/2 client of an edge, with connections of its own.
#[derive(Clone)]
pub(crate) struct Client {
    http: Http2Client,
    base: String,
}

impl Client {
    pub(crate) fn new(ca: &Path, edge: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self { http: http2_client(tls::client_config(ca, None)?), base: format!("https://{edge}") })
    }

    /// One that shows a certificate, for an origin.
    pub(crate) fn of_role(ca: &Path, certificate: &Path, key: &Path, server: SocketAddr) -> anyhow::Result<Self> {
        let tls = tls::client_config(ca, Some((certificate, key)))?;
        Ok(Self { http: http2_client(tls), base: format!("https://{server}") })
    }

    /// Another one of the same edge, with connections of its own.
    pub(crate) fn another(&self, ca: &Path) -> anyhow::Result<Self> {
        Ok(Self { http: http2_client(tls::client_config(ca, None)?), base: self.base.clone() })
    }

    /// The edge's URL.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Sends a request without a body.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(self.http.request(request.body(Empty::<Bytes>::new())?).await?)
    }
}

/// What an edge says of `shop-prod` beside its publication: up to which revision it is right, and whether the upstream
/// answers.
pub(crate) async fn seen(client: &Client) -> anyhow::Result<serde_json::Value> {
    let answer = client.send("GET", "/v1/services/shop-prod", &[]).await?;
    let descriptor: serde_json::Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
    Ok(descriptor["seen"].clone())
}

/// A header as text.
pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Bytes that no compressor makes smaller, the same in every run.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(b"noise").finalize_xof().fill(&mut bytes);
    bytes
}
