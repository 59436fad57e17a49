//! Every origin of a cluster answers for what operators have just changed at another one.

use crate::prelude::*;
use crate::several_operators::member;
use crate::several_origins::address;
use weir_store::testing::TestServer;

const TEST: u8 = 9;

/// Nodes of a new bucket: the first owns everything. It does not reach the third.
async fn nodes(server: &TestServer) -> (Home, Vec<Node>) {
    server.create_bucket("weir-hub").await;
    let home = Home::of_hosts(&[1, 2, 3].map(|index| address(TEST, index)));
    ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
    let config = |index: u8| {
        let mut config = member(&home, server, TEST, index);
        let cluster = config.cluster.as_mut().unwrap();
        if index == 1 {
            cluster.weight = 1000;
        }
        if index == 3 {
            cluster.advertise = format!("https://{}:1", address(TEST, index));
        }
        config
    };
    let (first, second, third) = tokio::join!(home.start(config(1)), home.start(config(2)), home.start(config(3)));
    let nodes = vec![first, second, third];
    until(async || {
        let mut joined = 0;
        for node in &nodes {
            joined += node.status().await["cluster"]["others"].as_array().map_or(0, Vec::len);
        }
        joined == 6
    })
    .await;
    (home, nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_true_at_every_origin() {
    let Some(server) = TestServer::moto() else { return };
    let ((home, nodes), upstream) = (Box::pin(nodes(&server)).await, Upstream::small());
    let git = serve(&upstream);
    // It owns nothing of it.
    let operator = Operator::of(&home, &nodes[1]);
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&git)).await.status, 201);
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    assert_eq!(operator.put("/v1/services/shop", document.clone()).await.status, 201);
    assert_eq!(operator.put("/v1/services/shop", document).await.status, 200);
    let announced = nodes[0].metric("weir_origin_member_requests_total{kind=\"changed\",status=\"204\"}").await;
    assert_eq!(announced, 2.0, "what changes nothing costs the others nothing");
    assert_eq!(nodes[0].status().await["cluster"]["owned"][0]["repository"], "shop");
    for node in &nodes {
        let unknown = node.get("/v1/services/none").await;
        assert_eq!((unknown.status.as_u16(), unknown.problem().0.as_str()), (404, "no-such-service"), "{unknown:?}");
        let answer = node.get("/v1/services/shop").await;
        assert!(answer.status == 200 || answer.problem().0 == "not-published-yet", "{answer:?}");
    }
    for node in &nodes {
        until(async || node.get("/v1/services/shop").await.status == 200).await;
    }
    assert_eq!(operator.delete("/v1/services/shop").await.status, 204);
    for node in &nodes {
        assert_eq!(node.get("/v1/services/shop").await.status, 404);
        assert_eq!(Operator::of(&home, node).get("/v1/services/shop").await.status, 404);
    }
    for node in nodes {
        node.stop().await;
    }
}
