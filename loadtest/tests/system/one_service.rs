//! One service and one edge in this process. The edge prefetches nothing, and its catalog stays fresh.

use std::time::Duration;

use anyhow::Context;
use http::StatusCode;
use tempfile::TempDir;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;
use weir_protocol::name::ServiceName;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

use crate::site::Client;

pub(crate) const TARBALL: &str = "/v1/services/shop/tarball";

pub(crate) struct OneService {
    pub(crate) cluster: Cluster,
    _dir: TempDir,
}

impl OneService {
    /// Returns when the edge knows the service, of which it holds no body. `gzip`: whether the origin stores that form too.
    pub(crate) async fn start(contents: impl AsRef<[u8]>, gzip: bool) -> anyhow::Result<Self> {
        Self::with(contents, gzip, Plan::default()).await
    }

    /// With so many edges behind a shield, which is the first of all.
    pub(crate) async fn behind_a_shield(contents: impl AsRef<[u8]>, edges: usize) -> anyhow::Result<Self> {
        Self::with(contents, false, Plan { edges: 1 + edges, shielded: true, ..Plan::default() }).await
    }

    async fn with(contents: impl AsRef<[u8]>, gzip: bool, plan: Plan) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        upstream.write("contents", contents)?;
        upstream.commit_and_push("one")?;
        let name: ServiceName = "shop".parse()?;
        let plan = Plan {
            repositories: vec![RepositoryConfig::new("shop".parse()?, upstream.bare().to_str().context("UTF-8")?)],
            services: vec![ServiceConfig { gzip, ..ServiceConfig::new(name, "shop".parse()?) }],
            fresh: Duration::from_secs(3600),
            prefetch: false,
            ..plan
        };
        let one = Self { cluster: Cluster::start(plan).await?, _dir: dir };
        for edge in 0..one.cluster.edges.len() {
            let client = one.client_of(edge)?;
            until("the edge knows the service", async || {
                client.send("HEAD", TARBALL, &[]).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
            })
            .await?;
        }
        Ok(one)
    }

    /// A client of the edge, with connections of its own.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.client_of(0)
    }

    /// A client of one of the edges.
    pub(crate) fn client_of(&self, edge: usize) -> anyhow::Result<Client> {
        Client::new(&self.cluster.ca(), self.cluster.edges[edge].address())
    }

    /// The requests of all edges to nodes behind them, of one kind.
    pub(crate) async fn requested(&self, kind: &str) -> anyhow::Result<f64> {
        let mut requests = 0.0;
        for edge in &self.cluster.edges {
            let metrics = Metrics::read(edge.admin_address().context("it has an admin listener")?).await?;
            requests += metrics.sum("weir_edge_origin_requests_total", &[&format!("kind=\"{kind}\"")]);
        }
        Ok(requests)
    }

    /// What a counter of the origin has come to, over all its labels.
    pub(crate) async fn at_origin(&self, counter: &str) -> anyhow::Result<f64> {
        let admin = self.cluster.origin.admin_address().context("it has an admin listener")?;
        Ok(Metrics::read(admin).await?.sum(counter, &[]))
    }
}
