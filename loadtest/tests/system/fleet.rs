//! A small fleet in one process, in step with events: every agent follows every service.

use std::fs;
use std::time::Duration;

use weir_agent::ServiceStatus;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::PATIENCE;
use weir_protocol::name::ServiceName;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

const SERVICES: usize = 24;
const AGENTS: usize = 3;
const REPOSITORIES: usize = 3;

/// Waits until every agent has switched to a release of every service that says `version`.
async fn until_everywhere(cluster: &Cluster, services: &[ServiceName], version: &str) -> anyhow::Result<()> {
    for (number, agent) in cluster.agents.iter().enumerate() {
        for service in services {
            let mut status = agent.service(service).expect("the agent follows it");
            let published = cluster.origin.service(service).expect("the origin publishes it");
            let says_version = |status: &ServiceStatus| {
                let release = status.release.as_ref();
                release.is_some_and(|r| fs::read_to_string(r.directory.join("version")).is_ok_and(|v| v == version))
            };
            let release = tokio::time::timeout(PATIENCE, status.wait_for(says_version))
                .await
                .map_err(|_| anyhow::anyhow!("agent {number} does not follow {service} to {version}"))??
                .release
                .clone()
                .expect("it says a version");
            let descriptor = published.borrow().clone().expect("it is published");
            assert_eq!(release.digest, descriptor.publication().digest);
            assert_eq!(fs::canonicalize(cluster.current(number, service))?, fs::canonicalize(release.directory)?);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_agents_follow_twenty_four_services() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut upstreams = Vec::new();
    let mut plan = Plan { edges: 2, agents: AGENTS, ..Plan::default() };
    for number in 0..REPOSITORIES {
        let upstream = GitRepository::create(dir.path(), &format!("upstream-{number}"))?;
        let name = format!("repository-{number}");
        let url = format!("file://{}", upstream.bare().display());
        let mut repository = RepositoryConfig::new(name.parse()?, url);
        repository.poll_interval = Duration::from_secs(1);
        plan.repositories.push(repository);
        for service in (0..SERVICES).filter(|service| service % REPOSITORIES == number) {
            upstream.write(format!("services/{service}/version"), "1")?;
            upstream.write(format!("services/{service}/name"), service.to_string())?;
            let mut config = ServiceConfig::new(format!("service-{service}").parse()?, name.parse()?);
            config.folder = format!("services/{service}").parse()?;
            plan.services.push(config);
        }
        upstream.commit_and_push("one")?;
        upstreams.push(upstream);
    }
    let services: Vec<ServiceName> = plan.services.iter().map(|service| service.name.clone()).collect();
    let cluster = Cluster::start(plan).await?;
    until_everywhere(&cluster, &services, "1").await?;

    for (number, upstream) in upstreams.iter().enumerate() {
        for service in (0..SERVICES).filter(|service| service % REPOSITORIES == number) {
            upstream.write(format!("services/{service}/version"), "2")?;
        }
        upstream.commit_and_push("two")?;
        // No need to wait for a poll: this is what a webhook will do.
        cluster.origin.trigger_poll(&format!("repository-{number}").parse()?);
    }
    until_everywhere(&cluster, &services, "2").await?;
    for agent in 0..AGENTS {
        for (number, service) in services.iter().enumerate() {
            let name = fs::read_to_string(cluster.current(agent, service).join("name"))?;
            assert_eq!(format!("service-{name}"), services[number].as_str());
        }
    }
    assert!(cluster.drain(PATIENCE).await, "something had to be cut");
    Ok(())
}
