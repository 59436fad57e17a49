//! A rollout whose owner dies.

use weir_store::testing::TestServer;

use crate::observed::report;
use crate::prelude::*;
use crate::rollout_plans::{PLAN, canary, rollout, staged_commit};
use crate::rollouts::staged;
use crate::several_operators::Pair;

#[tokio::test(flavor = "multi_thread")]
async fn the_next_owner_goes_on_with_the_stage() {
    let Some(server) = TestServer::moto() else { return };
    let upstream = Upstream::small();
    let pair = Pair::with(19, &server, |_, config| {
        config.rollouts = vec![serde_json::from_str(PLAN).unwrap()];
        let shop: RepositoryName = "shop".parse().unwrap();
        let mut service = ServiceConfig::new("shop-prod".parse().unwrap(), shop.clone());
        service.folder = "deploy".parse().unwrap();
        service.rollout = Some("careful".parse().unwrap());
        let mut repository = RepositoryConfig::new(shop, upstream.url());
        repository.min_poll_interval = Duration::from_millis(100);
        config.repositories.push(repository);
        config.services.push(service);
    });
    let Pair { home, nodes, operators } = Box::pin(pair).await;
    let owned = async |node: &Node| node.status().await["cluster"]["owned"].as_array().map_or(0, Vec::len);
    until(async || owned(&nodes[0]).await + owned(&nodes[1]).await == 1).await;
    let owner = owned(&nodes[1]).await;
    let first = nodes[owner].published(|_| true).await;
    // Edges report to all origins.
    let runs = (first.publication().generation, &first.publication().digest);
    let edges = [Operator::as_edge(&home, &nodes[0]), Operator::as_edge(&home, &nodes[1])];
    for edge in &edges {
        assert_eq!(report(edge, canary(1, runs, true)).await.status, 204);
    }
    let commit = upstream.push("deploy/app.yaml", b"replicas: 7\n");
    nodes[owner].running.trigger_poll(&repository());
    let begun = staged_commit(&nodes[owner], &commit).await;
    assert_eq!(rollout(&operators[owner], "running").await["waits_for"], "1 agent does not run the version yet");

    let [one, two] = nodes;
    let (dead, stays) = if owner == 0 { (one, two) } else { (two, one) };
    let (operator, edge) = (&operators[1 - owner], &edges[1 - owner]);
    dead.running.cut().await;
    until(async || owned(&stays).await == 1).await;
    assert_eq!(report(edge, canary(2, runs, true)).await.status, 204);
    let running = rollout(operator, "running").await;
    assert_eq!([&running["stage"], &running["to"]["commit"]], [&json!("canary"), &json!(commit)], "{running}");
    let in_force = stays.descriptor().await;
    assert_eq!(in_force.publication(), first.publication());

    assert_eq!(report(edge, canary(3, (begun.0, &begun.1), true)).await.status, 204);
    let now = stays.published(|now| commit_of(now) == commit).await;
    assert_eq!((now.publication().generation, staged(&now)), (begun.0, None));
    stays.stop().await;
}
