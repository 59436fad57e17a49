//! The operating manual names every metric that the roles have, and no other.

use std::collections::BTreeSet;
use std::time::Duration;

use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::PATIENCE;
use weir_loadtest::scrape;
use weir_origin::config::{RepositoryConfig, ServiceConfig};

const MANUAL: &str = include_str!("../../../docs/operating.md");

/// The names of metrics that a text mentions between backticks, without the suffixes of a histogram's series.
fn mentioned(manual: &str) -> BTreeSet<&str> {
    manual.split('`').skip(1).step_by(2).filter(|code| code.starts_with("weir_") && is_name(code)).collect()
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_stands_in_the_operating_manual() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let upstream = GitRepository::create(dir.path(), "shop")?;
    upstream.write("version", "1")?;
    upstream.commit_and_push("one")?;
    let repository = RepositoryConfig::new("shop".parse()?, upstream.bare().to_str().expect("UTF-8"));
    let service: weir_shared::name::ServiceName = "shop".parse()?;
    let cluster = Cluster::start(Plan {
        repositories: vec![repository],
        services: vec![ServiceConfig::new(service.clone(), "shop".parse()?)],
        edges: 1,
        agents: 1,
        poll_interval: Duration::from_secs(1),
        fresh: Duration::from_secs(1),
        kept_events: None,
        relayed: false,
    })
    .await?;
    let mut status = cluster.agents[0].service(&service).expect("the agent follows it");
    tokio::time::timeout(PATIENCE, status.wait_for(|status| status.unchanged > 0)).await??;

    let mentioned = mentioned(MANUAL);
    for admin in [cluster.origin.admin_address(), cluster.edges[0].admin_address(), cluster.agents[0].admin_address()] {
        let (_, metrics) = scrape::get(admin.expect("there is an admin listener"), "/metrics").await?;
        for line in metrics.lines() {
            let Some(name) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) else { continue };
            assert!(mentioned.contains(name), "`{name}` does not stand in docs/operating.md");
        }
    }
    assert!(cluster.drain(PATIENCE).await);
    Ok(())
}
