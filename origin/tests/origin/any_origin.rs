//! Every origin of a cluster answers for what operators have just changed at another one.

use crate::prelude::*;
use crate::service_names::{document, of_each};
use crate::several_operators::member;
use crate::several_origins::address;
use weir_store::testing::TestServer;

const TEST: u8 = 9;

/// Nodes of a new bucket, with these numbers and weights: who weighs little owns nothing. Nobody reaches the third.
async fn nodes(server: &TestServer, numbers: [u8; 3], weights: [u32; 3]) -> (Home, Vec<Node>) {
    server.create_bucket("weir-hub").await;
    let home = Home::of_hosts(&numbers.map(|number| address(TEST, number)));
    ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
    let config = |index: usize| {
        let mut config = member(&home, server, TEST, numbers[index]);
        let cluster = config.cluster.as_mut().unwrap();
        cluster.weight = weights[index];
        if index == 2 {
            cluster.advertise = format!("https://{}:1", address(TEST, numbers[index]));
        }
        config
    };
    let (first, second, third) = tokio::join!(home.start(config(0)), home.start(config(1)), home.start(config(2)));
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
    let ((home, nodes), upstream) = (Box::pin(nodes(&server, [1, 2, 3], [1000, 1, 1])).await, Upstream::small());
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
    // The owner is told of freezes, too.
    let at_owner = Operator::of(&home, &nodes[0]);
    let frozen = async || at_owner.get("/v1/services/shop").await.body["status"]["frozen"]["name"].take();
    assert_eq!(operator.put("/v1/freezes/sale", json!({ "services": ["*"] })).await.status, 201);
    until(async || frozen().await == "sale").await;
    assert_eq!(operator.put("/v1/freezes/sale", json!({ "services": [] })).await.status, 400);
    assert_eq!(operator.delete("/v1/freezes/sale").await.status, 204);
    until(async || frozen().await.is_null()).await;
    let told = nodes[1].metric("weir_origin_member_requests_total{kind=\"lists\",status=\"204\"}").await;
    assert_eq!(told, 2.0, "what is refused costs the others nothing");
    assert_eq!(operator.delete("/v1/services/shop").await.status, 204);
    for node in &nodes {
        assert_eq!(node.get("/v1/services/shop").await.status, 404);
        assert_eq!(Operator::of(&home, node).get("/v1/services/shop").await.status, 404);
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_that_was_told_of_nothing_decides_by_what_the_others_have_acknowledged() {
    let Some(server) = TestServer::moto() else { return };
    let ((home, nodes), upstream) = (Box::pin(nodes(&server, [4, 5, 6], [1000, 1000, 1])).await, Upstream::small());
    let git = serve(&upstream);
    let [first, untold] = [0, 2].map(|index| Operator::of(&home, &nodes[index]));
    let of = of_each(&nodes, &first, &git).await;
    let (one, two) = (&of[0][0], &of[1][0]);
    let path = "/v1/services/shop";
    assert_eq!(first.put(path, document(one)).await.status, 201);
    let read = untold.get(path).await;
    assert_eq!((read.status.as_u16(), read.body["repository"].as_str()), (200, Some(&**one)), "{read:?}");

    // Another folder, and then another repository.
    let elsewhere = |repository: &str| json!({ "repository": repository, "ref": "main", "folder": "elsewhere" });
    for (edited, stale) in [(elsewhere(one), read.etag), (document(two), untold.get(path).await.etag)] {
        assert_eq!(first.put(path, edited).await.status, 200);
        let only_that = [("if-match", &*stale)];
        let refused = untold.send(Method::PUT, path, &only_that, Some(elsewhere(two))).await;
        assert_eq!((refused.status.as_u16(), refused.problem().0), (412, "precondition-failed"), "{refused:?}");
    }
    // Without a precondition the last writer wins, in the repository that the service has moved to.
    let written = untold.put(path, elsewhere(two)).await;
    assert_eq!(written.status, 200, "{written:?}");
    for node in &nodes {
        let read = Operator::of(&home, node).get(path).await;
        assert_eq!(read.body["folder"], "elsewhere", "{read:?}");
        assert_eq!(read.body["repository"].as_str(), Some(&**two), "{read:?}");
    }
    for node in nodes {
        node.stop().await;
    }
}
