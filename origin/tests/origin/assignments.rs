//! Agents, assignments and issuers: by operators and by the file, on the event stream, across restarts and origins.

use weir_protocol::access_list::{AccessList, Fleet};
use weir_protocol::assignment::assigned_services;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::{NodeName, ServiceName};

use crate::observed::{ask, message, report};
use crate::prelude::*;
use crate::several_operators::Pair;
use weir_store::testing::TestServer;

/// Reads a stream until an access list is as wanted.
async fn access(reader: &mut Reader, is: impl Fn(&Fleet) -> bool) -> Fleet {
    let fleet = |kind: &EventKind| {
        let EventKind::Access(json) = kind else { return None };
        Some(AccessList::parse(json).unwrap().fleet().clone())
    };
    let kind = reader.until(|kind| fleet(kind).is_some_and(|fleet| is(&fleet))).await;
    fleet(&kind).unwrap()
}

fn follows(fleet: &Fleet, agent: &str, known: &[&str]) -> Vec<String> {
    let agent: NodeName = agent.parse().unwrap();
    let labels = fleet.agents.get(&agent).map(|agent| agent.labels.clone()).unwrap_or_default();
    let known: Vec<ServiceName> = known.iter().map(|name| name.parse().unwrap()).collect();
    let services = assigned_services(&agent, &labels, fleet.assignments.iter(), &known);
    services.iter().map(ToString::to_string).collect()
}

fn issuer(url: &str, kid: &str) -> Value {
    json!({ "issuer": url, "audience": "weir", "subjects": ["system:serviceaccount:weir:agent"],
        "jwks": { "keys": [{ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": "AAAA" }] }, "agent": "cluster-1",
        "services": ["*"] })
}

#[tokio::test]
async fn an_edge_that_knows_shards_is_sent_digests_and_fetches_what_changed() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let mut reader = Reader::of(&home.client("edge-client"), &node, "?lists=shards").await;
    let mut known = AccessList::default();
    let mut fetched = Vec::new();
    for (name, ring) in [("cluster-1", "1"), ("cluster-2", "1"), ("cluster-1", "2")] {
        let made = operator.put(&format!("/v1/agents/{name}"), json!({ "labels": { "ring": ring } })).await;
        assert!(made.status.is_success(), "{made:?}");
        loop {
            let kind = reader.until(|kind| matches!(kind, EventKind::Access(_))).await;
            let EventKind::Access(json) = kind else { unreachable!() };
            let mut list = AccessList::parse(&json).unwrap();
            list.fill_from(&known);
            let lacking = list.lacking();
            for digest in &lacking {
                let answer = node.get(&format!("/v1/access/{digest}")).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                list.add_shard(digest, &answer.body).unwrap();
                fetched.push(*digest);
            }
            known = list;
            let agent = known.fleet().agents.get(&name.parse().unwrap()).cloned();
            if agent.is_some_and(|agent| agent.labels.iter().eq([("ring", ring)])) {
                break;
            }
        }
    }
    assert_eq!((fetched.len(), known.fleet().agents.iter().count()), (3, 2), "one for each change");
    let answer = node.get(&format!("/v1/access/{}", ObjectDigest::of(b"none"))).await;
    assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (404, "no-such-shard"));
    node.stop().await;
}

#[tokio::test]
async fn what_operators_assign_reaches_edges_and_survives_a_restart() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let mut reader = Reader::of(&home.client("edge-client"), &node, "").await;
    let fleet = access(&mut reader, |_| true).await;
    let cluster = fleet.agents.cluster().expect("the origin says whose documents these are").clone();
    assert_eq!(fleet, Fleet::default().of_cluster(&cluster), "nothing is known");

    let made = operator.put("/v1/agents/cluster-1", json!({ "labels": { "ring": "canary" } })).await;
    assert_eq!((made.status.as_u16(), &made.body["defined_by"]), (201, &json!("api")), "{made:?}");
    assert_eq!(made.body["name"], "cluster-1");
    let rule = json!({ "agents": "cluster-*", "labels": { "ring": "canary" }, "services": ["shop-*"] });
    let made = operator.put("/v1/assignments/shop-to-all", rule.clone()).await;
    assert_eq!(made.status, 201, "{made:?}");
    // Nothing that it is for is there yet.
    let (read, mut sent) = (operator.get("/v1/assignments/shop-to-all").await, made.body.clone());
    let warnings = sent.as_object_mut().unwrap().remove("warnings").unwrap();
    assert!(warnings[0].as_str().unwrap().contains("no service matches `shop-*`"), "{warnings}");
    assert_eq!((&read.etag, &read.body), (&made.etag, &sent));
    let headers = [("if-match", read.etag.as_str())];
    let again = operator.send(Method::PUT, "/v1/assignments/shop-to-all", &headers, Some(made.body)).await;
    assert_eq!((again.status.as_u16(), &again.etag), (200, &made.etag), "what was read is accepted back");
    assert_eq!(operator.put("/v1/issuers/cluster-1", issuer("https://one", "k1")).await.status, 201);
    let fleet = access(&mut reader, |fleet| fleet.issuers.iter().count() == 1).await;
    assert_eq!(follows(&fleet, "cluster-1", &["shop-a", "docs"]), ["shop-a"]);
    assert_eq!(follows(&fleet, "cluster-2", &["shop-a", "docs"]), [""; 0]);
    let revision = fleet.assignments.revision();

    for (method, path, headers, body, status, kind, detail) in [
        (Method::GET, "/v1/agents/none", &[][..], Value::Null, 404, "no-such-agent", "There is no agent `none` here."),
        (Method::DELETE, "/v1/assignments/none", &[], Value::Null, 404, "no-such-assignment", "`none`"),
        (
            Method::PUT,
            "/v1/agents/cluster-1",
            &[("if-none-match", "*")],
            json!({}),
            412,
            "precondition-failed",
            "agent",
        ),
        (
            Method::PUT,
            "/v1/assignments/a",
            &[],
            json!({ "services": ["*"] }),
            400,
            "invalid-document",
            "names no agents: set",
        ),
        (
            Method::PUT,
            "/v1/assignments/a",
            &[],
            json!({ "agents": "*" }),
            400,
            "invalid-document",
            "`services`: it is missing",
        ),
        (
            Method::PUT,
            "/v1/agents/a",
            &[],
            json!({ "label": {} }),
            400,
            "invalid-document",
            "`label`: unknown field `label`; did you mean `labels`?",
        ),
        (
            Method::POST,
            "/v1/assignments/dry-run",
            &[],
            json!({ "assignment": [] }),
            400,
            "malformed-request",
            "did you mean `assignments`?",
        ),
        (
            Method::PUT,
            "/v1/issuers/b",
            &[],
            issuer("https://one", "k1"),
            409,
            "key-in-use",
            "issuer `cluster-1` has the key `k1`",
        ),
        (Method::POST, "/v1/agents", &[], Value::Null, 405, "method-not-allowed", "Allow"),
        (Method::GET, "/v1/assignments/dry-run", &[], Value::Null, 405, "method-not-allowed", "Allow"),
    ] {
        let answer = operator.send(method, path, headers, Some(body).filter(|body| !body.is_null())).await;
        let (found, text) = answer.problem();
        assert!((answer.status.as_u16(), found) == (status, kind) && text.contains(detail), "{path}: {answer:?}");
    }
    assert_eq!(operator.put("/v1/issuers/b", issuer("https://two", "k1")).await.status, 201);

    let listed = operator.get("/v1/assignments").await;
    assert_eq!(listed.body["assignments"].as_array().unwrap().len(), 1, "{listed:?}");
    drop(reader);
    node.stop().await;

    let (node, operator) = operated(&home).await;
    let mut reader = Reader::of(&home.client("edge-client"), &node, "").await;
    let fleet = access(&mut reader, |_| true).await;
    assert_eq!(follows(&fleet, "cluster-1", &["shop-a"]), ["shop-a"], "in the first list already");
    assert_eq!((fleet.assignments.revision(), fleet.agents.cluster()), (revision, Some(&cluster)));
    assert_eq!(node.metric("weir_origin_fleet_entries{defined_by=\"api\",kind=\"issuers\"}").await, 2.0);
    assert_eq!(operator.delete("/v1/assignments/shop-to-all").await.status, 204);
    let fleet = access(&mut reader, |fleet| fleet.assignments.iter().count() == 0).await;
    assert!(fleet.assignments.revision() > revision, "edges drop it, because its revision is higher");
    drop(reader);
    node.stop().await;
}

/// A dry run of a change, once the names from before the start are read.
async fn dry_run(operator: &Operator, change: &Value) -> Value {
    ask(operator, "/v1/fleet/agents").await;
    let effect = operator.send(Method::POST, "/v1/assignments/dry-run", &[], Some(change.clone())).await;
    assert_eq!(effect.status, 200, "{effect:?}");
    effect.body
}

fn row(agent: &str, state: Option<&str>, starts: &[&str], stops: &[&str]) -> Value {
    json!({ "agent": agent, "state": state, "starts": starts, "starts_total": starts.len(), "stops": stops,
        "stops_total": stops.len() })
}

#[tokio::test]
async fn a_dry_run_counts_the_agents_of_edges_and_warns_of_what_matches_nothing() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = empty_config(&home);
    let denied = home.file("denied");
    fs::write(&denied, "agent cluster-4\n").unwrap();
    config.access.deny = Some(denied);
    let node = home.start(config.clone()).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    let server = serve(&upstream);
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, 201);
    assert_eq!(operator.put("/v1/services/shop-a", json!({ "repository": "shop" })).await.status, 201);
    // `cluster-1` is a canary by its token, `cluster-2` by its entry, whatever its token says. `cluster-4` is denied.
    let labels = json!({ "labels": { "ring": "canary" } });
    assert_eq!(operator.put("/v1/agents/cluster-2", labels.clone()).await.status, 201);
    let mut canary = labels;
    (canary["name"], canary["services"]) = (json!("canaries"), json!(["shop-*"]));
    let change =
        json!({ "assignments": [canary, { "name": "vain", "agents": "prod-*", "services": ["shop-a", "shpo"] }] });
    let effect = dry_run(&operator, &change).await;
    assert_eq!(effect["agents"], json!([row("cluster-2", None, &["shop-a"], &[])]), "no edge has reported");

    let mut sent = message(1);
    let mut refused = sent["agents"][0].clone();
    refused["agent"] = json!("cluster-4");
    sent["agents"].as_array_mut().unwrap().push(refused);
    sent["more"] = json!(true);
    assert_eq!(report(&edge, sent).await.status, 204);
    let effect = dry_run(&operator, &change).await;
    let rows = [row("cluster-1", Some("live"), &["shop-a"], &[]), row("cluster-2", Some("silent"), &["shop-a"], &[])];
    assert_eq!(effect["agents"], json!(rows));
    assert_eq!(
        (&effect["known_agents"], &effect["agents_total"], &effect["agents_left_out"]),
        (&json!(3), &json!(2), &json!(0))
    );
    assert_eq!((&effect["incomplete"][0]["edge"], &effect["without_effect"]), (&json!("edge-1"), &json!(["vain"])));
    let warnings: Vec<String> = serde_json::from_value(effect["warnings"].clone()).unwrap();
    let [service, agents, idle] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(service.starts_with("assignment `vain`: no service matches `shpo`:"), "{service}");
    assert!(agents.starts_with("assignment `vain`: no known agent matches `prod-*`"), "{agents}");
    assert!(agents.contains("of these edges: `edge-1`") && idle.contains("`cluster-4`"), "{warnings:?}");
    let listed = operator.get("/v1/assignments").await.body;
    assert_eq!(listed["assignments"], json!([]), "a dry run changes nothing");

    // The change itself says the same, and is made though something of it matches nothing.
    let made = operator.put("/v1/assignments/vain", change["assignments"][1].clone()).await;
    assert_eq!((made.status.as_u16(), &made.body["warnings"]), (201, &json!(&warnings[..2])), "{made:?}");
    let made = operator.put("/v1/assignments/canaries", change["assignments"][0].clone()).await;
    assert_eq!((made.status.as_u16(), &made.body["warnings"]), (201, &json!([])), "{made:?}");
    let effect = dry_run(&operator, &json!({ "delete_assignments": ["canaries"] })).await;
    assert_eq!(effect["agents"][0], row("cluster-1", Some("live"), &[], &["shop-a"]));
    node.stop().await;

    // Names from before the start that cannot be read are missing in a dry run, which says so; the change does not wait.
    let records = home.data_dir().join("records").join("cluster");
    for file in fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("last-seen") {
            fs::write(file, "damaged").unwrap();
        }
    }
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let refused = operator.send(Method::POST, "/v1/assignments/dry-run", &[], Some(change.clone())).await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (503, "store-unavailable"), "{refused:?}");
    let made = operator.put("/v1/assignments/vain", change["assignments"][1].clone()).await;
    let warning = made.body["warnings"][1].as_str().unwrap();
    assert!(made.status == 200 && warning.contains("has just started"), "{made:?}");
    node.stop().await;
}

#[tokio::test]
async fn the_file_wins_over_documents_and_is_reloaded() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    assert_eq!(operator.put("/v1/agents/a", json!({ "labels": { "from": "api" } })).await.status, 201);
    let from = async || {
        let read = operator.get("/v1/agents/a").await;
        (read.body["defined_by"].clone(), read.body["labels"]["from"].clone())
    };
    let file = |text: &str| home.write_config(text);
    let path = file("[[agent]]\nname = \"a\"\nlabels = { from = \"file\" }\n");
    node.running.reload_file(&path).await.unwrap();
    assert_eq!(from().await, (json!("file"), json!("file")));
    for refused in [operator.delete("/v1/agents/a").await, operator.put("/v1/agents/a", json!({})).await] {
        assert_eq!(refused.problem().0, "defined-by-file");
    }
    assert_eq!(operator.put("/v1/agents/b", json!({})).await.status, 201);
    let agents = operator.get("/v1/agents?limit=1").await.body;
    assert_eq!((&agents["agents"][0]["name"], agents["next_page"].is_string()), (&json!("a"), true));

    file("[[assignment]]\nname = \"none\"\nservices = [\"*\"]\n");
    let error = format!("{:#}", node.running.reload_file(&path).await.unwrap_err());
    assert!(error.contains("assignment `none` names no agents"), "{error}");
    assert_eq!(from().await, (json!("file"), json!("file")), "nothing was taken over");
    file("");
    node.running.reload_file(&path).await.unwrap();
    assert_eq!(from().await, (json!("api"), json!("api")), "it is back");
    node.stop().await;
}

#[tokio::test]
async fn damaged_records_empty_no_list() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    assert_eq!(operator.put("/v1/agents/a", json!({})).await.status, 201);
    node.stop().await;
    let records = home.data_dir().join("records").join("cluster");
    for file in fs::read_dir(&records).unwrap().map(|entry| entry.unwrap().path()) {
        if file.file_name().unwrap().to_str().unwrap().starts_with("agents") {
            fs::write(file, "damaged").unwrap();
        }
    }
    let (node, operator) = operated(&home).await;
    let mut reader = Reader::of(&home.client("edge-client"), &node, "").await;
    let fleet = access(&mut reader, |_| true).await;
    assert_eq!(fleet.agents.revision(), 0, "nothing is known, which replaces nothing");
    assert_eq!(node.metric("weir_origin_fleet_readable").await, 0.0);
    let refused = operator.put("/v1/agents/b", json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.problem().0), (503, "store-unavailable"), "{refused:?}");
    assert_eq!(operator.put("/v1/assignments/a", json!({ "agents": "*", "services": ["*"] })).await.status, 201);
    drop(reader);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_origin_of_a_cluster_announces_what_any_was_told() {
    let Some(server) = TestServer::moto() else { return };
    let pair = Box::pin(Pair::start(6, &server)).await;
    let mut readers = Vec::new();
    for node in &pair.nodes {
        readers.push(Reader::of(&pair.home.client("edge-client"), node, "").await);
    }
    let rule = |services: &str| json!({ "agents": "*", "services": [services] });
    // Both at once: neither change is lost.
    let [one, two] = &pair.operators;
    let (first, second) =
        tokio::join!(one.put("/v1/assignments/a", rule("a")), two.put("/v1/assignments/b", rule("b")));
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201), "{first:?} {second:?}");
    for operator in &pair.operators {
        assert_eq!(operator.get("/v1/assignments").await.body["assignments"].as_array().unwrap().len(), 2);
    }
    let mut clusters = Vec::new();
    for reader in &mut readers {
        let fleet = access(reader, |fleet| fleet.assignments.iter().count() == 2).await;
        assert_eq!(follows(&fleet, "agent", &["a", "b"]), ["a", "b"]);
        clusters.push(fleet.assignments.cluster().cloned());
    }
    assert!(clusters[0].is_some() && clusters[0] == clusters[1], "{clusters:?}");
    assert_eq!(two.delete("/v1/assignments/a").await.status, 204);
    for reader in &mut readers {
        let fleet = access(reader, |fleet| fleet.assignments.iter().count() == 1).await;
        assert_eq!(follows(&fleet, "agent", &["a", "b"]), ["b"]);
    }
    drop(readers);
    for node in pair.nodes {
        node.stop().await;
    }
}
