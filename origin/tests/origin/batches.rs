//! Many agents, assignments and issuers in one request.

use crate::operator::Reply;
use crate::prelude::*;

fn issuer(name: &str) -> Value {
    json!({ "name": name, "issuer": "https://kubernetes.default.svc", "audience": "weir",
        "subjects": ["system:serviceaccount:weir:agent"], "agent": name, "services": ["*"],
        "jwks": { "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": name, "x": "AAAA" }] } })
}

/// A batch that registers clusters, all in one ring.
fn batch(clusters: usize, ring: &str) -> Value {
    let names: Vec<String> = (0..clusters).map(|number| format!("cluster-{number:03}")).collect();
    let agents: Vec<Value> = names.iter().map(|name| json!({ "name": name, "labels": { "ring": ring } })).collect();
    let issuers: Vec<Value> = names.iter().map(|name| issuer(name)).collect();
    json!({ "agents": agents, "issuers": issuers,
        "assignments": [{ "name": "all", "agents": "cluster-*", "services": ["shop-*"] }] })
}

async fn send(operator: &Operator, path: &str, body: &Value) -> Reply {
    operator.send(Method::POST, path, &[], Some(body.clone())).await
}

fn count(answer: &Value, kind: &str, outcome: &str) -> usize {
    answer[kind].as_array().unwrap().iter().filter(|each| each["outcome"] == outcome).count()
}

#[tokio::test]
async fn a_batch_registers_two_hundred_clusters_in_one_request() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let clusters = batch(200, "canary");
    let tried = send(&operator, "/v1/batch?dry_run=true", &clusters).await;
    assert_eq!((tried.status.as_u16(), count(&tried.body, "issuers", "created")), (200, 200), "{tried:?}");
    assert_eq!(operator.get("/v1/agents").await.body["agents"], json!([]));
    let made = send(&operator, "/v1/batch", &clusters).await;
    assert_eq!(made.status, 200, "{made:?}");
    for (kind, number) in [("agents", 200), ("assignments", 1), ("issuers", 200)] {
        assert_eq!(count(&made.body, kind, "created"), number, "{kind}");
    }
    let read = operator.get("/v1/issuers/cluster-007").await;
    let of_batch = made.body["issuers"].as_array().unwrap().iter().find(|each| each["name"] == "cluster-007").unwrap();
    assert_eq!((read.status.as_u16(), &read.body["version"]), (200, &of_batch["version"]));
    let again = send(&operator, "/v1/batch", &clusters).await;
    assert_eq!((count(&again.body, "agents", "unchanged"), count(&again.body, "issuers", "unchanged")), (200, 200));

    // All are checked before one is stored.
    let mut wrong = batch(3, "stable");
    (wrong["agents"][1]["label"], wrong["agents"][2]["name"]) = (json!({}), json!("cluster-000"));
    wrong["issuers"][0]["subjects"] = json!([]);
    let refused = send(&operator, "/v1/batch", &wrong).await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (400, "invalid-batch"), "{refused:?}");
    let errors = refused.body["errors"].as_array().unwrap();
    let of = |at: usize| (errors[at]["name"].as_str().unwrap(), errors[at]["detail"].as_str().unwrap());
    assert!(of(0).0 == "cluster-001" && of(0).1.contains("did you mean `labels`?"), "{errors:?}");
    assert!(of(1) == ("cluster-000", "`cluster-000` is in the batch twice."), "{errors:?}");
    assert!(of(2).0 == "cluster-000" && of(2).1.contains("`subjects` must have") && errors.len() == 3, "{errors:?}");
    let mut copied = json!({ "agents": [{ "name": "cluster-001", "version": "old" }], "issuers": [issuer("copy")] });
    copied["issuers"][0]["jwks"] = issuer("cluster-003")["jwks"].clone();
    let refused = send(&operator, "/v1/batch", &copied).await;
    let problems: Vec<_> = refused.body["errors"].as_array().unwrap().iter().map(|each| &each["problem"]).collect();
    assert_eq!((refused.status.as_u16(), problems), (400, vec![&json!("lost-update"), &json!("key-in-use")]));
    assert_eq!(operator.get("/v1/agents/cluster-000").await.body["labels"]["ring"], "canary", "nothing was stored");
    // A key cannot change hands in one batch, in either order.
    let (mut giving, mut getting) = (issuer("cluster-001"), issuer("cluster-002"));
    giving["jwks"] = issuer("new")["jwks"].clone();
    getting["jwks"] = issuer("cluster-001")["jwks"].clone();
    for issuers in [json!([giving, getting]), json!([getting, giving])] {
        let refused = send(&operator, "/v1/batch", &json!({ "issuers": issuers })).await;
        let errors = &refused.body["errors"];
        assert!(refused.status == 400 && errors[0]["problem"] == "key-in-use", "{refused:?}");
        assert!(errors[0]["name"] == "cluster-002" && errors.as_array().unwrap().len() == 1, "{refused:?}");
    }

    // What is stored has another version than the one that it was based on.
    let read = operator.get("/v1/agents/cluster-001").await;
    let based =
        json!({ "agents": [{ "name": "cluster-001", "labels": { "ring": "late" }, "version": read.body["version"] }] });
    for outcome in ["changed", "unchanged"] {
        let made = send(&operator, "/v1/batch", &based).await;
        assert_eq!((made.status.as_u16(), count(&made.body, "agents", outcome)), (200, 1), "{made:?}");
    }

    for (body, expected) in [
        (json!({ "agent": [] }), "did you mean `agents`?"),
        (json!({ "agents": vec![json!({ "name": "a" }); 1_001] }), "1001 documents, more than 1000"),
    ] {
        let refused = send(&operator, "/v1/batch", &body).await;
        assert!(refused.status == 400 && refused.problem().1.contains(expected), "{refused:?}");
    }
    let anybody = send(&Operator::without_token(&home, &node, None), "/v1/batch", &clusters).await;
    assert!(anybody.status == 401 || anybody.status == 403, "{anybody:?}");
    node.stop().await;
}

#[tokio::test]
async fn a_batch_that_breaks_off_says_what_is_stored_and_is_completed_by_itself() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    assert_eq!(send(&operator, "/v1/batch", &batch(40, "canary")).await.status, 200);
    // One shard of the agents cannot be written.
    let records = home.data_dir().join("records").join("cluster");
    let names = |suffix: &str| {
        let files = fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().path());
        let mut of_agents: Vec<_> = files
            .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("agents."))
            .filter(|path| path.to_str().unwrap().ends_with(suffix) && !path.ends_with("agents.record"))
            .collect();
        of_agents.sort();
        of_agents
    };
    let shard = names(".record").swap_remove(10);
    let previous = shard.with_extension("previous");
    let (bytes, before) = (fs::read(&shard).unwrap(), fs::read(&previous).ok());
    fs::write(&shard, "damaged").unwrap();
    let _ = fs::remove_file(&previous);
    let broken = send(&operator, "/v1/batch", &batch(40, "stable")).await;
    assert_eq!((broken.status.as_u16(), broken.problem().0), (503, "batch-incomplete"), "{broken:?}");
    let each = broken.body["errors"].as_array().unwrap();
    let stored: Vec<_> = each.iter().filter(|each| each["stored"] == true).map(|each| each["name"].clone()).collect();
    assert!(each.len() == 81 && (10..40).contains(&stored.len()), "{each:?}");
    assert!(each.iter().all(|each| each["kind"] == "agent" || each["stored"] == false), "issuers come last: {each:?}");
    for agent in operator.get("/v1/agents?limit=1000").await.body["agents"].as_array().unwrap() {
        let ring = if stored.contains(&agent["name"]) { "stable" } else { "canary" };
        assert_eq!(agent["labels"]["ring"], ring, "{agent}");
    }
    fs::write(&shard, bytes).unwrap();
    before.iter().for_each(|before| fs::write(&previous, before).unwrap());
    let done = send(&operator, "/v1/batch", &batch(40, "stable")).await;
    assert_eq!(done.status, 200, "{done:?}");
    assert_eq!(count(&done.body, "agents", "unchanged"), stored.len());
    assert_eq!(count(&done.body, "agents", "changed"), 40 - stored.len());
    node.stop().await;
}
