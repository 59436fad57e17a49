//! One service and one edge in this process. The edge prefetches nothing, and its catalog stays fresh.

use std::time::Duration;

use anyhow::Context;
use http::StatusCode;
use tempfile::TempDir;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;
use weir_origin::config::{RepositoryConfig, ServiceConfig};
use weir_protocol::name::ServiceName;

use crate::site::Client;

pub(crate) const TARBALL: &str = "/v1/services/shop/tarball";

pub(crate) struct OneService {
    pub(crate) cluster: Cluster,
    _dir: TempDir,
}

impl OneService {
    /// Returns when the edge knows the service, of which it holds no body. `gzip`: whether the origin stores that form too.
    pub(crate) async fn start(contents: impl AsRef<[u8]>, gzip: bool) -> anyhow::Result<Self> {
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
            ..Plan::default()
        };
        let one = Self { cluster: Cluster::start(plan).await?, _dir: dir };
        let client = one.client()?;
        until("the edge knows the service", async || {
            client.send("HEAD", TARBALL, &[]).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
        })
        .await?;
        Ok(one)
    }

    /// A client of the edge, with connections of its own.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Client::new(&self.cluster.ca(), self.cluster.edges[0].address())
    }

    /// What a counter of the origin has come to, over all its labels.
    pub(crate) async fn at_origin(&self, counter: &str) -> anyhow::Result<f64> {
        let admin = self.cluster.origin.admin_address().context("it has an admin listener")?;
        Ok(Metrics::read(admin).await?.sum(counter, &[]))
    }
}
