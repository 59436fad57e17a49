//! What is pushed: from a publication at the origin to the tables of several edges.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_edge::Running;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{PATIENCE, until};
use weir_loadtest::relay::Line;
use weir_loadtest::scrape::{self, Metrics};
use weir_protocol::descriptor::Descriptor;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

const EDGES: usize = 3;

/// An hour: whatever arrives earlier was pushed.
const NEVER: Duration = Duration::from_secs(3600);

/// One repository with services `s0`, `s1`, …, all of its folder `deploy`; polled when triggered.
struct Site {
    upstream: GitRepository,
    cluster: Cluster,
    services: Vec<ServiceName>,
    _dir: tempfile::TempDir,
}

impl Site {
    /// `kept_events`: how many the origin keeps; then the edges reach it through a relay.
    async fn start(services: usize, kept_events: Option<usize>) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        let repository: RepositoryName = "shop".parse()?;
        let mut plan = Plan {
            repositories: vec![RepositoryConfig::new(repository.clone(), upstream.bare().to_str().expect("UTF-8"))],
            edges: EDGES,
            fresh: NEVER,
            kept_events,
            line: kept_events.map(|_| Line::default()),
            ..Plan::default()
        };
        plan.repositories[0].poll_interval = NEVER;
        for number in 0..services {
            let mut service = ServiceConfig::new(format!("s{number}").parse()?, repository.clone());
            service.folder = "deploy".parse()?;
            plan.services.push(service);
        }
        upstream.write("deploy/version", "1")?;
        upstream.commit_and_push("one")?;
        let services = plan.services.iter().map(|service| service.name.clone()).collect();
        let cluster = Cluster::start(plan).await?;
        let site = Self { upstream, cluster, services, _dir: dir };
        for service in &site.services {
            let mut published = site.cluster.origin.service(service).expect("it is configured");
            tokio::time::timeout(PATIENCE, published.wait_for(Option::is_some)).await??;
        }
        Ok(site)
    }

    /// Pushes a commit with another version of a file, has the repository polled as a webhook does, and waits until all
    /// services are published at it.
    async fn publish(&self, file: &str, version: &str) -> anyhow::Result<()> {
        self.upstream.write(file, version)?;
        let commit = self.upstream.commit_and_push(version)?;
        self.cluster.origin.trigger_poll(&"shop".parse()?);
        let is_it = |descriptor: &Option<Arc<Descriptor>>| {
            let published = descriptor.as_ref().and_then(|descriptor| descriptor.publication().commit.as_ref());
            published.is_some_and(|published| published.as_str() == commit)
        };
        for service in self.services.iter().rev() {
            let mut published = self.cluster.origin.service(service).expect("it is configured");
            tokio::time::timeout(PATIENCE, published.wait_for(is_it)).await??;
        }
        Ok(())
    }

    /// Waits until each edge has what is published now in its table.
    async fn until_in_all_catalogs(&self) -> anyhow::Result<()> {
        let generation = |service: &ServiceName| {
            let published = self.cluster.origin.service(service).expect("it is configured");
            let generation = published.borrow().as_ref().expect("it is published").publication().generation;
            (service.to_string(), generation)
        };
        let published: BTreeMap<String, u64> = self.services.iter().map(generation).collect();
        for edge in &self.cluster.edges {
            until("the edge has it in its table", async || held(admin(edge)).await == published).await?;
        }
        Ok(())
    }
}

fn admin(edge: &Running) -> SocketAddr {
    edge.admin_address().expect("there is an admin listener")
}

async fn until_in_step(edge: &Running) -> anyhow::Result<()> {
    until("the edge follows", async || {
        Metrics::read(admin(edge)).await.is_ok_and(|metrics| metrics.sum("weir_edge_stream_up", &[]) == 1.0)
    })
    .await
}

/// The generations of all services in an edge's table, by their names.
async fn held(edge: SocketAddr) -> BTreeMap<String, u64> {
    let status = scrape::status(edge).await.unwrap_or_default();
    let services = status["services"].as_array().into_iter().flatten();
    services.filter_map(|one| Some((one["service"].as_str()?.to_owned(), one["generation"].as_u64()?))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_reaches_the_catalogs_of_three_edges_without_a_query() -> anyhow::Result<()> {
    let site = Site::start(1, None).await?;
    for edge in &site.cluster.edges {
        until_in_step(edge).await?;
    }
    site.publish("deploy/version", "2").await?;
    site.until_in_all_catalogs().await?;
    for edge in &site.cluster.edges {
        let metrics = Metrics::read(admin(edge)).await?;
        let [pushed, took] = ["count", "sum"].map(|of| metrics.sum(&format!("weir_edge_push_delay_seconds_{of}"), &[]));
        println!("{pushed} pushes, on their way for {:.1} ms on average", took * 1000.0 / pushed);
        assert!(pushed >= 1.0, "it was pushed");
        let asked = metrics.sum("weir_edge_origin_requests_total", &["kind=\"service\""]);
        assert_eq!(asked, 0.0, "no query was sent");
    }
    assert!(site.cluster.drain(PATIENCE).await);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_behind_the_event_log_gets_a_snapshot() -> anyhow::Result<()> {
    // Each commit is a publication of every service: three are 120 events, of which a hundred are kept.
    let site = Site::start(40, Some(100)).await?;
    for edge in &site.cluster.edges {
        until_in_step(edge).await?;
    }
    let relay = site.cluster.relay.as_ref().expect("the plan wants one");
    relay.sever(true);
    for version in 2..5 {
        site.publish("deploy/version", &version.to_string()).await?;
    }
    relay.sever(false);
    site.until_in_all_catalogs().await?;
    for edge in &site.cluster.edges {
        let metrics = Metrics::read(admin(edge)).await?;
        assert_eq!(metrics.sum("weir_edge_resyncs_total", &["reason=\"cursor_unknown\""]), 1.0);
        assert_eq!(metrics.sum("weir_edge_generation_regressions_total", &[]), 0.0);
        assert_eq!(metrics.sum("weir_edge_origin_requests_total", &["kind=\"service\""]), 0.0, "no query was sent");
    }
    assert!(site.cluster.drain(PATIENCE).await);
    Ok(())
}
