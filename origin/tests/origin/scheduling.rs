//! When upstreams are asked, and who waits for whom.

use tokio::net::TcpListener;
use weir_origin::config::RepositoryConfig;
use weir_origin::repository_agent::{Phase, RepositoryState, WaitsFor};

use crate::node::{Home, repository};
use crate::smart_http::SmartHttp;
use crate::upstream::Upstream;

#[tokio::test]
async fn a_host_that_hangs_with_eight_repositories_delays_no_other() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let mut config = home.config(&upstream.url());
    assert_eq!(config.limits.concurrent_fetches, 8);
    let hanging: Vec<_> = (0..8)
        .map(|n| {
            let url = format!("http://{}/{n}.git", silent.local_addr().unwrap());
            RepositoryConfig::new(format!("hanging-{n}").parse().unwrap(), url)
        })
        .collect();
    let names: Vec<_> = hanging.iter().map(|each| each.name.clone()).collect();
    // First in line.
    config.repositories.splice(0..0, hanging);
    let limit = config.limits.concurrent_fetches_per_host;
    let node = home.start(config).await;
    let mut held = Vec::new();
    for _ in 0..limit {
        held.push(silent.accept().await.unwrap());
    }
    // The rest of them wait, and say what for.
    let mut waiting = 0;
    for name in &names {
        let mut state = node.running.repository(name).unwrap();
        let asked = |state: &RepositoryState| state.waits_for.is_some() || matches!(state.phase, Phase::Cloning { .. });
        let state = state.wait_for(asked).await.unwrap().clone();
        waiting += usize::from(state.waits_for == Some(WaitsFor::HostPlace));
    }
    assert_eq!(waiting, names.len() - limit);
    node.published(|_| true).await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    assert_eq!(node.descriptor().await.publication().commit.as_str(), commit);
    drop((held, silent));
    node.running.cut().await;
}

#[tokio::test]
async fn an_unchanged_poll_is_one_listing_and_a_small_budget_makes_polls_wait() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), None);
    let mut config = home.config(&server.url("bare.git"));
    // What is saved up does for one poll; the next has to wait.
    config.limits.requests_per_minute_per_host = 10;
    let node = home.start(config).await;
    node.published(|_| true).await;
    server.take_requests();
    node.running.kick(&repository());
    let state = node.repository(|state| state.waits_for.is_some()).await;
    assert_eq!(state.waits_for, Some(WaitsFor::HostBudget));
    let shown = node.status().await;
    assert_eq!(shown["repositories"][0]["waits_for"], "host_budget");
    assert_eq!(server.take_requests().len(), 0);
    node.running.cut().await;

    let mut config = home.config(&server.url("bare.git"));
    config.limits.requests_per_minute_per_host = 6000;
    let node = home.start(config).await;
    node.poll().await;
    server.take_requests();
    node.poll().await;
    let requests = server.take_requests();
    let lines: Vec<&str> = requests.iter().map(|head| head.lines().next().unwrap()).collect();
    assert_eq!(
        lines,
        ["GET /bare.git/info/refs?service=git-upload-pack HTTP/1.1", "POST /bare.git/git-upload-pack HTTP/1.1"]
    );
    node.stop().await;
}
