//! A service has one repository in the whole cluster, whoever defines, moves or deletes it, and at whatever time.

use crate::prelude::*;
use crate::several_operators::{Pair, member};
use crate::several_origins::address;
use weir_store::testing::TestServer;

/// Enough that each of two origins owns some.
const REPOSITORIES: usize = 6;

pub(crate) fn document(repository: &str) -> serde_json::Value {
    json!({ "repository": repository, "ref": "main", "folder": "deploy" })
}

/// Defines repositories, and returns those of each origin.
pub(crate) async fn of_each(nodes: &[Node], operator: &Operator, git: &SmartHttp) -> [Vec<String>; 2] {
    let mut of = [Vec::new(), Vec::new()];
    for number in 0..REPOSITORIES {
        let name = format!("shop-{number}");
        let made = operator.put(&format!("/v1/repositories/{name}"), repository_at(git)).await;
        assert_eq!(made.status, 201, "{made:?}");
        let owner = usize::from(owns(&nodes[1], &name).await);
        of[owner].push(name);
    }
    assert!(of.iter().all(|of| !of.is_empty()), "each owns some: {of:?}");
    of
}

async fn owns(node: &Node, repository: &str) -> bool {
    let status = node.status().await;
    status["cluster"]["owned"].as_array().unwrap().iter().any(|owned| owned["repository"] == repository)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_origins_that_create_a_service_one_does() {
    let Some(server) = TestServer::moto() else { return };
    let pair = Box::pin(Pair::start(12, &server)).await;
    let upstream = Upstream::small();
    let git = serve(&upstream);
    let of = of_each(&pair.nodes, &pair.operators[0], &git).await;
    let [one, two] = [of[0][0].clone(), of[1][0].clone()];
    let is_new = [("if-none-match", "*")];
    for number in 0..8 {
        let path = format!("/v1/services/new-{number}");
        let create = |index: usize, of: &str| {
            let (operator, document) = (&pair.operators[index], document(of));
            let path = path.clone();
            async move { operator.send(Method::PUT, &path, &is_new, Some(document)).await }
        };
        let made = tokio::join!(create(0, &one), create(1, &two));
        let (created, refused) = if made.0.status == 201 { made } else { (made.1, made.0) };
        assert_eq!((created.status.as_u16(), refused.status.as_u16()), (201, 409), "{created:?} {refused:?}");
        let (kind, detail) = refused.problem();
        let home = created.body["repository"].as_str().unwrap();
        assert!(kind == "service-exists" && detail.contains(&format!("repository `{home}`")), "{kind}: {detail}");
        for operator in &pair.operators {
            assert_eq!(operator.get(&path).await.body["repository"], home);
        }
        // It is free again at once.
        assert_eq!(pair.operators[number % 2].delete(&path).await.status, 204);
        let (operator, other) = (&pair.operators[0], if home == one { &two } else { &one });
        assert_eq!(operator.send(Method::PUT, &path, &is_new, Some(document(other))).await.status, 201);
    }
    // A move between repositories of one owner, and back.
    let of_one = of.iter().find(|of| of.len() > 1).unwrap();
    let current = async |index: usize| {
        let answer = pair.nodes[index].get("/v1/services/local").await;
        (answer.status == 200).then(|| Descriptor::parse(answer.body).unwrap().publication().clone())
    };
    let mut last = 0;
    for repository in [&of_one[0], &of_one[1], &of_one[0]] {
        let made = pair.operators[0].put("/v1/services/local", document(repository)).await;
        assert!(made.status.is_success(), "{made:?}");
        for index in [0, 1] {
            until(async || current(index).await.is_some_and(|now| now.repository.as_str() == repository)).await;
        }
        let now = current(0).await.unwrap();
        assert!(now.generation > last, "{now:?}");
        last = now.generation;
    }
    for node in pair.nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_moved_and_deleted_stays_deleted_whoever_dies() {
    const TEST: u8 = 12;
    let Some(server) = TestServer::moto() else { return };
    server.create_bucket("weir-hub").await;
    let home = Home::of_hosts(&[address(TEST, 5), address(TEST, 6)]);
    ["id", "secret"].iter().for_each(|name| fs::write(home.file(name), name).unwrap());
    let config = |index: u8| {
        let mut config = member(&home, &server, TEST, index);
        // Nobody takes over in between.
        config.cluster.as_mut().unwrap().session_ttl = Some(Duration::from_secs(60));
        config
    };
    let (first, second) = tokio::join!(home.start(config(5)), home.start(config(6)));
    let mut nodes = [first, second];
    until(async || {
        let mut joined = 0;
        for node in &nodes {
            joined += node.status().await["cluster"]["others"].as_array().map_or(0, Vec::len);
        }
        joined == 2
    })
    .await;
    let operator = Operator::of(&home, &nodes[1]);
    let upstream = Upstream::small();
    let git = serve(&upstream);
    let of = of_each(&nodes, &operator, &git).await;
    let [one, two] = [of[0][0].as_str(), of[1][0].as_str()];

    // A move, and a deletion before the new repository has published anything.
    assert_eq!(operator.put("/v1/services/moves", document(one)).await.status, 201);
    until(async || nodes[1].get("/v1/services/moves").await.status == 200).await;
    let moved = operator.put("/v1/services/moves", document(two)).await;
    assert_eq!((moved.status.as_u16(), &moved.body["repository"]), (200, &json!(two)), "{moved:?}");
    assert_eq!(operator.delete("/v1/services/moves").await.status, 204);
    for node in &nodes {
        assert_eq!(node.get("/v1/services/moves").await.status, 404);
    }

    // The old owner dies after the move.
    for (service, of) in [("moves", one), ("stays", one), ("goes", one)] {
        let made = operator.put(&format!("/v1/services/{service}"), document(of)).await;
        assert_eq!(made.status, 201, "{made:?}");
        until(async || nodes[1].get(&format!("/v1/services/{service}")).await.status == 200).await;
    }
    // Its branch is gone when it moves.
    upstream.git(&["push", "--quiet", "origin", "HEAD:refs/heads/other"]);
    let back = json!({ "repository": two, "ref": "other", "folder": "deploy" });
    assert_eq!(operator.put("/v1/services/back", back).await.status, 201);
    until(async || nodes[1].get("/v1/services/back").await.status == 200).await;
    upstream.git(&["push", "--quiet", "origin", ":refs/heads/other"]);
    assert_eq!(operator.post(&format!("/v1/repositories/{two}/refresh")).await.status, 202);
    until(async || operator.get("/v1/services/back").await.body["status"].to_string().contains("other")).await;
    assert_eq!(operator.delete("/v1/services/goes").await.status, 204);
    assert_eq!(operator.put("/v1/services/moves", document(two)).await.status, 200);
    let [dies, node] = nodes;
    dies.running.cut().await;
    assert_eq!(operator.delete("/v1/services/moves").await.status, 204);
    let refused = operator.put("/v1/services/stays", document(two)).await;
    assert_eq!(refused.status, 503, "its repository has no owner to release it: {refused:?}");

    // A move to a repository whose owner is away has failed when it is answered: the service is as it was.
    let refused = operator.put("/v1/services/back", document(one)).await;
    assert!(refused.status.is_server_error(), "{refused:?}");
    assert_eq!(operator.put("/v1/services/back/pin", json!({})).await.status, 200);

    // A name that it has freed waits for nobody.
    assert_eq!(operator.put("/v1/services/goes", document(two)).await.status, 201);
    until(async || node.get("/v1/services/goes").await.status == 200).await;
    assert!(!owns(&node, one).await, "nobody has taken over");

    nodes = [home.start(config(5)).await, node];
    until(async || owns(&nodes[0], one).await || owns(&nodes[1], one).await).await;
    until(async || nodes[0].get("/v1/services/stays").await.status == 200).await;
    for node in &nodes {
        assert_eq!(node.get("/v1/services/moves").await.status, 404, "it does not come back");
    }
    assert_eq!(operator.get("/v1/services/moves").await.status, 404);
    // The same `PUT` works now.
    until(async || operator.put("/v1/services/stays", document(two)).await.status == 200).await;
    assert_eq!(operator.get("/v1/services/stays").await.body["repository"], json!(two));
    for node in nodes {
        node.stop().await;
    }
}
