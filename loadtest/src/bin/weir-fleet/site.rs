//! One repository, its origin, and two edges as processes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, iter};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use tempfile::TempDir;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, free_address, until};
use weir_loadtest::{processor, scrape};
use weir_protocol::token::{Claims, SigningKey, unix_seconds};
use weir_runtime::certificates;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

use crate::content::Content;

const OPERATOR_TOKEN: &str = "the-operators-own-token";

pub(crate) struct Site {
    pub(crate) origin: Node,
    upstream: GitRepository,
    operators: SocketAddr,
    client: Http2Client,
    key: SigningKey,
    dir: TempDir,
}

/// An edge, with the processor time of its ended processes.
pub(crate) struct Edge {
    pub(crate) node: Node,
    pub(crate) address: SocketAddr,
    spent: Duration,
}

impl Site {
    /// Starts the origin and the edges, in a folder for temporary files.
    pub(crate) async fn start(
        services: usize,
        content: Content,
        max_delta_tarball: &str,
    ) -> anyhow::Result<(Self, Vec<Edge>)> {
        let dir = tempfile::tempdir()?;
        certificates::write(dir.path(), &[])?;
        let (key, _) = SigningKey::generate()?;
        let public = key.public();
        fs::write(dir.path().join("fleet.key.pub"), format!("{} {}\n", public.id(), public.encoded()))?;
        fs::write(dir.path().join("operator-token"), OPERATOR_TOKEN)?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        (0..services).try_for_each(|service| write(&upstream, content, service, 0))?;
        upstream.commit_and_push("first")?;

        let (listen, admin, operators) = (free_address()?, free_address()?, free_address()?);
        let tables = (0..services).map(|service| {
            format!(
                "[[service]]\nname = \"{0}\"\nrepository = \"shop\"\nref = \"main\"\nfolder = \"{0}\"\n",
                name(service)
            )
        });
        let origin = format!(
            r#"
name = "origin-1"
listen = "{listen}"
operator_listen = "{operators}"
admin_listen = "{admin}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
operator_api = {{ operator_token_file = "operator-token" }}
limits = {{ max_delta_tarball = "{max_delta_tarball}" }}
repository = [{{ name = "shop", url = "{url}", poll_interval = "1h", min_poll_interval = "0s" }}]
"#,
            url = upstream.bare().display(),
        );
        let origin = iter::once(origin).chain(tables).collect::<String>();
        let mut origin = Node::new(dir.path(), "origin", admin, &origin)?;
        origin.start().await?;
        let mut edges = Vec::new();
        for number in 1..=2 {
            let (address, admin) = (free_address()?, free_address()?);
            let config = format!(
                r#"
name = "edge-{number}"
listen = "{address}"
admin_listen = "{admin}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "required", keys = ["fleet.key.pub"] }}
cache = {{ dir = "edge-cache-{number}" }}
origin = [{{ url = "https://{listen}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
"#
            );
            let node = Node::new(dir.path(), &format!("edge_{number}"), admin, &config)?;
            let mut edge = Edge { node, address, spent: Duration::ZERO };
            edge.start(services).await?;
            edges.push(edge);
        }
        let client = http2_client(tls::client_config(&dir.path().join("ca.pem"), None)?);
        Ok((Self { origin, upstream, operators, client, key, dir }, edges))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Issues an agent's token that opens all services, valid for a day.
    pub(crate) fn token(&self, agent: &str) -> anyhow::Result<String> {
        let claims = Claims {
            subject: agent.parse()?,
            id: Some(agent.parse()?),
            services: vec!["*".parse()?],
            labels: Default::default(),
            expires: unix_seconds(SystemTime::now()) + 86_400,
            not_before: None,
            issued_at: None,
        };
        Ok(self.key.issue(&claims)?)
    }

    /// Commits a change of a service and pushes it; returns the commit. Blocks.
    pub(crate) fn push(&self, content: Content, service: usize, change: usize) -> anyhow::Result<String> {
        write(&self.upstream, content, service, change)?;
        self.upstream.commit_and_push("a change")
    }

    /// Has the origin poll, as a webhook does.
    pub(crate) async fn trigger(&self) -> anyhow::Result<()> {
        let request = Request::post(format!("https://{}/v1/repositories/shop/refresh", self.operators))
            .header("authorization", format!("Bearer {OPERATOR_TOKEN}"));
        let response = self.client.request(request.body(Empty::<Bytes>::new())?).await?;
        ensure!(response.status() == StatusCode::ACCEPTED, "the origin answered {}", response.status());
        Ok(())
    }
}

impl Edge {
    /// Starts it, and waits until it serves all services.
    async fn start(&mut self, services: usize) -> anyhow::Result<()> {
        self.node.start().await?;
        let knows_all = async || {
            let status = scrape::status(self.node.admin()).await.unwrap_or_default();
            status["services"].as_array().is_some_and(|all| all.len() == services)
        };
        until("the edge knows all services", knows_all).await.with_context(|| self.node.log())
    }

    /// Restarts it: with SIGTERM, after which it ends what is in flight, or with SIGKILL.
    pub(crate) async fn restart(&mut self, kill: bool, services: usize) -> anyhow::Result<()> {
        self.spent = self.processor_time()?;
        if kill {
            self.node.kill()?;
        } else {
            self.node.terminate().await?;
        }
        self.start(services).await
    }

    /// The processor time of all its processes, except what the ended ones needed for their end.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        Ok(self.spent + processor::time(self.node.pid().context("the edge runs")?)?)
    }
}

/// The name of a service.
pub(crate) fn name(service: usize) -> String {
    format!("service-{service}")
}

fn write(upstream: &GitRepository, content: Content, service: usize, change: usize) -> anyhow::Result<()> {
    content
        .changed(service, change)
        .try_for_each(|(file, text)| upstream.write(format!("{}/{file}", name(service)), text))
}
