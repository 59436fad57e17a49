//! What agents run: reported by edges, asked for by operators.

use weir_protocol::observed::EdgeObserved;
use weir_store::testing::TestServer;

use crate::prelude::*;
use crate::several_operators::Pair;

/// A message of `edge-1` about two agents.
pub(crate) fn message(seq: u64) -> Value {
    let golden = include_str!("../../../shared/protocol/golden/edge/observed.json");
    let mut message: Value = serde_json::from_str(golden).unwrap();
    message["seq"] = json!(seq);
    message["full"] = json!(seq == 1);
    message["more"] = json!(false);
    message["version"] = json!("0.3.0");
    let mut other = message["agents"][0].clone();
    other["agent"] = json!("cluster-2");
    (other["labels"], other["heard_ago"]) = (json!({ "ring": "all" }), json!(100));
    message["agents"].as_array_mut().unwrap().push(other);
    EdgeObserved::parse(message.to_string().as_bytes()).unwrap();
    message
}

pub(crate) async fn report(edge: &Operator, message: Value) -> crate::operator::Reply {
    edge.send(Method::POST, "/v1/observed", &[], Some(message)).await
}

/// Asks until the names from before the start are read.
pub(crate) async fn ask(operator: &Operator, path: &str) -> Value {
    let mut reply = operator.get(path).await;
    until(async || {
        if reply.status == 503 {
            reply = operator.get(path).await;
        }
        reply.status != 503
    })
    .await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.body
}

#[tokio::test]
async fn operators_ask_what_edges_report() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let edge = Operator::as_edge(&home, &node);
    assert_eq!(ask(&operator, "/v1/fleet/rows").await["total"], 0);
    let reply = report(&edge, message(2)).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (409, "resync"));
    assert_eq!(ask(&operator, "/v1/fleet/rows").await["incomplete"][0]["edge"], "edge-1");
    assert_eq!(report(&edge, message(1)).await.status, 204);
    let edges = ask(&operator, "/v1/edges").await;
    let listed = &edges["edges"][0];
    assert_eq!(edges["edges"].as_array().unwrap().len(), 1);
    assert_eq!(
        [&listed["name"], &listed["state"], &listed["version"]],
        [&json!("edge-1"), &json!("live"), &json!("0.3.0")]
    );
    assert_eq!([&listed["agents"], &listed["rows"], &listed["via"]], [&json!(2), &json!(4), &Value::Null]);
    assert_eq!(operator.get("/v1/edges?limit=1").await.status, 400);

    let rows = ask(&operator, "/v1/fleet/rows?service=shop-*&label=ring=canary").await;
    let keys: Vec<&String> = rows.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "as_of",
            "incomplete",
            "total",
            "unknown",
            "unknown_gone",
            "unknown_pinned",
            "agents_without_rows",
            "agents_without_rows_gone",
            "rows",
            "cursor"
        ]
    );
    assert_eq!((&rows["incomplete"], &rows["total"], &rows["cursor"]), (&json!([]), &json!(1), &Value::Null));
    let row = &rows["rows"][0];
    assert_eq!((&row["agent"], &row["edge"], &row["state"]), (&json!("cluster-1"), &json!("edge-1"), &json!("live")));
    let sent = &message(1)["agents"][0]["rows"][1];
    for key in ["service", "desired", "current", "phase", "hook", "problem", "transfer"] {
        assert_eq!(row[key], sent[key], "{key}");
    }
    let rows = ask(&operator, "/v1/fleet/rows?problem=not-found&limit=1").await;
    assert_eq!((&rows["total"], &rows["rows"][0]["agent"]), (&json!(2), &json!("cluster-1")));
    let next = format!("/v1/fleet/rows?problem=not-found&cursor={}", rows["cursor"].as_str().unwrap());
    assert_eq!(ask(&operator, &next).await["rows"][0]["agent"], "cluster-2");
    assert_eq!(ask(&operator, "/v1/fleet/rows?repository=*").await["total"], 0, "no service is defined here");
    for label in ["ring=canary", "ring%3Dcanary"] {
        assert_eq!(ask(&operator, &format!("/v1/fleet/rows?label={label}")).await["total"], 2, "{label}");
    }
    let agents = ask(&operator, "/v1/fleet/agents?state=live").await;
    assert_eq!((&agents["total"], &agents["agents"][0]["problems"]), (&json!(1), &json!(1)), "cluster-2 is unheard");
    let refused = ask(&operator, "/v1/fleet/agents?state=refused").await;
    let refused = &refused["agents"][0];
    assert_eq!(
        (&refused["agent"], &refused["reason"], &refused["proved"]),
        (&json!("cluster-3"), &json!("expired"), &Value::Null)
    );
    let summary = ask(&operator, "/v1/fleet/summary?by=problem").await;
    assert_eq!(
        summary["groups"][1],
        json!({ "key": "not-found", "rows": 2, "agents": 2, "since": "2026-11-20T09:30:00Z" })
    );

    for (path, detail) in [
        ("/v1/fleet/rows?state=live", "`state`, which is unknown"),
        ("/v1/fleet/agents?phase=hook", "`phase`, which is unknown"),
        ("/v1/fleet/summary?by=commit", "`by` is one of"),
        ("/v1/fleet/summary?cursor=x", "`cursor`"),
        ("/v1/fleet/rows?cursor=x", "`cursor` is no `cursor`"),
        ("/v1/fleet/rows?label=ring%3dcanary&agent=%2g", "`agent`: `%` must be followed by"),
        ("/v1/services?page=after.%20", "`page`"),
    ] {
        let reply = operator.get(path).await;
        assert!(reply.status == 400 && reply.problem().1.contains(detail), "{path}: {reply:?}");
    }
    node.stop().await;
}

#[tokio::test]
async fn messages_that_cannot_count_are_refused() {
    let home = Home::new();
    let mut config = empty_config(&home);
    (config.limits.observed_agents, config.limits.observed_rows) = (1, 3);
    let node = home.start(config).await;
    let edge = Operator::as_edge(&home, &node);
    let mut of_another = message(1);
    of_another["edge"] = json!("edge-2");
    let reply = report(&edge, of_another).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (403, "not-this-edge"));
    let reply = report(&edge, json!({ "edge": "edge-1" })).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (400, "malformed-request"));
    let reply = edge.get("/v1/observed").await;
    assert_eq!((reply.status.as_u16(), reply.allow.as_str()), (405, "POST"));
    let mut long = message(1);
    long["agents"][0]["version"] = json!("0".repeat(1 << 20));
    let reply = report(&edge, long.clone()).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (413, "too-large"));
    let reply = edge.send(Method::POST, "/v1/heartbeats", &[], Some(long)).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (413, "too-large"));
    let mut both_live = message(1);
    both_live["unheard"] = json!([]);
    assert_eq!(report(&edge, both_live).await.status, 204);
    let rows = ask(&Operator::of(&home, &node), "/v1/fleet/rows").await;
    assert_eq!(
        (&rows["total"], &rows["incomplete"][0]["edge"]),
        (&json!(2), &json!("edge-1")),
        "one agent has no room"
    );
    for (result, count) in [("accepted", 0.0), ("refused", 3.0), ("limited", 1.0)] {
        let series = format!("weir_origin_observed_messages_total{{result=\"{result}\"}}");
        assert_eq!(node.metric(&series).await, count, "{result}");
    }
    assert_eq!(node.metric("weir_bound_in_use{bound=\"observed_rows\"}").await, 2.0);
    node.stop().await;
}

#[tokio::test]
async fn after_a_restart_silent_agents_are_known_and_missing_edges_are_named() {
    let home = Home::new();
    let config = empty_config(&home);
    let node = home.start(config.clone()).await;
    ask(&Operator::of(&home, &node), "/v1/fleet/rows").await;
    assert_eq!(report(&Operator::as_edge(&home, &node), message(1)).await.status, 204);
    node.stop().await;

    let node = home.start(config.clone()).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    let agents = ask(&operator, "/v1/fleet/agents").await;
    assert_eq!((&agents["total"], &agents["agents"][1]["state"]), (&json!(2), &json!("unknown")));
    assert_eq!(agents["incomplete"][0]["edge"], "edge-1");
    let mut first = message(1);
    first["more"] = json!(true);
    assert_eq!(report(&edge, first).await.status, 204);
    assert_eq!(ask(&operator, "/v1/fleet/rows").await["incomplete"][0]["edge"], "edge-1");
    assert_eq!(report(&edge, message(2)).await.status, 204);
    let rows = ask(&operator, "/v1/fleet/rows").await;
    assert_eq!((&rows["incomplete"], &rows["total"]), (&json!([]), &json!(4)));

    assert_eq!(operator.delete("/v1/fleet/agents/cluster-2").await.status, 204);
    assert_eq!(operator.delete("/v1/edges/edge-1").await.status, 204);
    for (path, kind) in [("/v1/fleet/agents/cluster-2", "no-such-agent"), ("/v1/edges/edge-9", "no-such-edge")] {
        let reply = operator.delete(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().0), (404, kind));
    }
    let agents = ask(&operator, "/v1/fleet/agents").await;
    assert_eq!((&agents["total"], &agents["incomplete"]), (&json!(2), &json!([])));
    node.stop().await;
    let node = home.start(config).await;
    let agents = ask(&Operator::of(&home, &node), "/v1/fleet/agents").await;
    assert_eq!((&agents["total"], &agents["incomplete"]), (&json!(1), &json!([])), "what was deleted stays deleted");
    node.stop().await;
}

#[tokio::test]
async fn edges_with_one_certificate_report_by_their_names() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let edge = Operator::as_edge(&home, &node);
    let of = |name: &str, instance: &str, mut message: Value| {
        (message["name"], message["instance"]) = (json!(name), json!(instance));
        message
    };
    assert_eq!(report(&edge, of("node-1", "a", message(1))).await.status, 204);
    let mut other = message(1);
    other["agents"].as_array_mut().unwrap().drain(1..);
    (other["agents"][0]["agent"], other["unheard"], other["refused"]) = (json!("cluster-9"), json!([]), json!([]));
    assert_eq!(report(&edge, of("node-2", "b", other)).await.status, 204);
    let agents = ask(&operator, "/v1/fleet/agents?edge=edge-1~*-2").await;
    assert_eq!((&agents["total"], &agents["agents"][0]["edge"]), (&json!(1), &json!("edge-1~node-2")));
    assert_eq!(agents["incomplete"], json!([]));
    let groups = ask(&operator, "/v1/fleet/summary?by=edge").await;
    assert_eq!((&groups["groups"][0]["key"], &groups["groups"][1]["rows"]), (&json!("edge-1~node-1"), &json!(2)));

    // A third one has the name of the first, which lives.
    assert_eq!(report(&edge, of("node-1", "c", message(1))).await.status, 204);
    let reply = report(&edge, of("node-1", "a", message(2))).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (429, "name-twice"));
    assert_eq!(ask(&operator, "/v1/fleet/agents").await["incomplete"][0]["edge"], "edge-1~node-1");
    assert_eq!(report(&edge, of("node-1", "c", message(2))).await.status, 204);

    assert_eq!(operator.delete("/v1/edges/edge-1~node-1").await.status, 204);
    assert_eq!(ask(&operator, "/v1/fleet/agents").await["incomplete"], json!([]));
    assert_eq!(operator.delete("/v1/edges/edge-1~").await.status, 400);
    node.stop().await;
}

#[tokio::test]
async fn what_a_shield_reports_of_an_edge_is_its_claim_and_shown_with_its_name() {
    let home = Home::new();
    let (node, operator) = operated(&home).await;
    let shield = Operator::as_edge(&home, &node);
    let of_edge = |seq| {
        let mut message = message(seq);
        message["edge"] = json!("edge-7");
        message
    };
    let path = "/v1/observed/via/node-1";
    assert_eq!(report(&shield, of_edge(1)).await.status, 403, "it says so itself");
    let reply = shield.send(Method::POST, path, &[], Some(of_edge(2))).await;
    assert_eq!((reply.status.as_u16(), reply.problem().0), (409, "resync"));
    let agents = ask(&operator, "/v1/fleet/agents").await;
    let missing = &agents["incomplete"][0];
    assert_eq!((&missing["edge"], &missing["via"]), (&json!("edge-7"), &json!("edge-1~node-1")));
    assert_eq!(shield.send(Method::POST, path, &[], Some(of_edge(1))).await.status, 204);
    let rows = ask(&operator, "/v1/fleet/rows?edge=edge-7").await;
    assert_eq!((&rows["total"], &rows["incomplete"]), (&json!(4), &json!([])));
    assert_eq!((&rows["rows"][0]["edge"], &rows["rows"][0]["via"]), (&json!("edge-7"), &json!("edge-1~node-1")));
    let agents = ask(&operator, "/v1/fleet/agents").await;
    assert_eq!(agents["agents"][2]["via"], "edge-1~node-1", "{agents}");
    assert_eq!(shield.get(path).await.allow, "POST");
    assert_eq!(operator.delete("/v1/edges/edge-7").await.status, 204);
    assert_eq!(ask(&operator, "/v1/fleet/agents").await["incomplete"], json!([]));
    node.stop().await;
}

/// Who lacks a revision of `shop-prod`, and of how many agents that is not known.
async fn who_lacks(operator: &Operator, revision: &str) -> (Vec<String>, u64) {
    let rows = ask(operator, &format!("/v1/fleet/rows?service=shop-prod&lacks={revision}")).await;
    let agents = rows["rows"].as_array().unwrap().iter().map(|row| row["agent"].as_str().unwrap().to_owned());
    (agents.collect(), rows["unknown"].as_u64().unwrap())
}

#[tokio::test]
async fn agents_that_lack_a_commit_are_found() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let config = config(&home, &upstream);
    let node = home.start(config.clone()).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    let mut published = vec![node.published(|_| true).await];
    node.poll().await;
    let mut commits = vec![commit_of(&published[0]).to_owned()];
    for (file, is_deployed) in [("deploy/a", true), ("README", false), ("deploy/b", true)] {
        commits.push(upstream.push(file, file.as_bytes()));
        node.poll().await;
        if is_deployed {
            let commit = commits.last().unwrap();
            published.push(node.published(|descriptor| commit_of(descriptor) == commit).await);
        }
    }
    // Agents at each publication, one at a generation that nobody knows, and one without a release.
    let template = &message(1)["agents"][0];
    let at = |number: usize, generation: Option<u64>| {
        let (mut agent, mut row) = (template.clone(), template["rows"][1].clone());
        row["current"]["generation"] = json!(generation);
        if generation.is_none() {
            row["current"] = Value::Null;
        }
        (agent["agent"], agent["rows"]) = (json!(format!("at-{number}")), json!([row]));
        agent
    };
    let mut generations: Vec<Option<u64>> =
        published.iter().map(|descriptor| Some(descriptor.publication().generation)).collect();
    generations.extend([Some(generations[0].unwrap() + 1), None]);
    let everything = |generations: &[Option<u64>]| {
        let agents: Vec<Value> = generations.iter().enumerate().map(|(number, it)| at(number, *it)).collect();
        json!({ "edge": "edge-1", "instance": "e", "seq": 1, "full": true, "connected": agents.len(), "agents": agents })
    };
    assert_eq!(report(&edge, everything(&generations)).await.status, 204);

    // Another agent changes to the second publication, which took so long.
    let counted = "weir_origin_delivery_seconds_count{service=\"shop-prod\",stage=\"current\"}";
    let mut later = at(9, generations[0]);
    let news = |seq: u64, agent: &Value| json!({ "edge": "edge-1", "instance": "e", "seq": seq, "connected": 1, "agents": [agent] });
    assert_eq!(report(&edge, news(2, &later)).await.status, 204);
    (later["full"], later["seq"]) = (json!(false), json!(8));
    later["rows"][0]["current"]["generation"] = json!(generations[1]);
    later["rows"][0]["current"]["digest"] = json!(published[1].publication().digest);
    assert_eq!(report(&edge, news(3, &later)).await.status, 204);
    assert_eq!(node.metric(counted).await, 1.0);
    // That of a generation that was never published is no delivery.
    (later["seq"], later["rows"][0]["current"]["generation"]) = (json!(9), json!(generations[2].unwrap() + 1));
    later["rows"][0]["current"]["digest"] = json!(TarballDigest::of(b"unknown"));
    assert_eq!(report(&edge, news(4, &later)).await.status, 204);
    assert_eq!(node.metric(counted).await, 1.0);
    assert_eq!(operator.delete("/v1/fleet/agents/at-9").await.status, 204);

    // What changed nothing of the service is stored beside what edges are told.
    until(async || who_lacks(&operator, &commits[2]).await.1 == 1).await;
    let lacking = |numbers: &[usize]| (numbers.iter().map(|number| format!("at-{number}")).collect::<Vec<_>>(), 1);
    let expected = [lacking(&[4]), lacking(&[0, 4]), lacking(&[0, 4]), lacking(&[0, 1, 4])];
    for (commit, expected) in commits.iter().zip(&expected) {
        assert_eq!(who_lacks(&operator, commit).await, *expected, "{commit}");
        assert_eq!(who_lacks(&operator, &commit[..7]).await, *expected, "{commit}");
    }
    upstream.git(&["tag", "-a", "-m", "a release", "v1.0", &commits[1]]);
    upstream.git(&["tag", "2024", &commits[1]]);
    upstream.git(&["tag", "1.1.0+up.2", &commits[1]]);
    upstream.git(&["push", "--quiet", "origin", "v1.0", "2024", "1.1.0+up.2"]);
    upstream.git(&["switch", "--quiet", "--create", "aside"]);
    let of_nobody = upstream.push("README", b"a branch that no service follows");
    upstream.git(&["switch", "--quiet", "main"]);
    node.poll().await;
    until(async || who_lacks(&operator, "v1.0").await == expected[1]).await;
    assert_eq!(who_lacks(&operator, "2024").await, expected[1], "it may be short, as it is no prefix of a commit");
    let short = operator.get("/v1/fleet/rows?lacks=2025").await;
    assert!(short.status == 400 && short.problem().1.contains("at least 7 digits"), "{short:?}");
    for typed in ["1.1.0+up.2", "1.1.0%2Bup.2"] {
        assert_eq!(who_lacks(&operator, typed).await, expected[1], "{typed}");
    }
    for old in [&of_nobody, &of_nobody[..7]] {
        assert_eq!(who_lacks(&operator, old).await, (vec![], 5), "the mirror has it, and no service");
    }
    for path in ["lacks=0123456789", "lacks=v1.1", "lacks=v1.0&service=shopp", "lacks=v1.1&by=phase"] {
        let kind = if path.ends_with("phase") { "summary" } else { "rows" };
        let reply = operator.get(&format!("/v1/fleet/{kind}?{path}")).await;
        assert_eq!((reply.status.as_u16(), reply.problem().0), (404, "unknown-revision"), "{path}: {reply:?}");
    }
    let summary = ask(&operator, &format!("/v1/fleet/summary?by=service&lacks={}", commits[3])).await;
    assert_eq!((&summary["groups"][0]["key"], &summary["groups"][0]["rows"]), (&json!("shop-prod"), &json!(3)));

    let order = json!({ "digest": published[0].publication().digest });
    let back = operator.send(Method::POST, "/v1/services/shop-prod/rollback", &[], Some(order)).await;
    assert_eq!(back.status, 200, "{back:?}");
    let back = back.body["status"]["published"]["generation"].as_u64();
    generations[2] = back;
    node.stop().await;

    // The order outlives a restart; after the rollback the agent lacks what it had.
    let node = home.start(config).await;
    let (operator, edge) = (Operator::of(&home, &node), Operator::as_edge(&home, &node));
    assert_eq!(report(&edge, everything(&generations)).await.status, 204);
    let expected = [lacking(&[4]), lacking(&[0, 2, 4]), lacking(&[0, 2, 4]), lacking(&[0, 1, 2, 4])];
    for (commit, expected) in commits.iter().zip(&expected) {
        assert_eq!(who_lacks(&operator, commit).await, *expected, "{commit}");
    }
    // It is pinned there. What does not reach it for that says so.
    let pushed = upstream.push("deploy/c", b"while it is pinned");
    node.poll().await;
    for (revision, unknown) in [(&commits[0], None), (&commits[3], Some(0)), (&pushed, Some(5))] {
        let rows = ask(&operator, &format!("/v1/fleet/rows?service=shop-prod&lacks={revision}")).await;
        assert_eq!(rows["unknown_pinned"], unknown.unwrap_or_default(), "{rows}");
        let named = rows["pinned"].as_array().unwrap();
        assert_eq!(named.len(), usize::from(unknown.is_some()), "{rows}");
        for pin in named {
            assert_eq!((&pin["service"], &pin["pinned"]["by"]), (&json!("shop-prod"), &json!("token")));
            assert_eq!(pin["published"]["commit"], *commits[0]);
        }
    }
    assert!(ask(&operator, "/v1/fleet/rows").await.get("pinned").is_none(), "nothing is looked for");
    node.stop().await;
}

#[tokio::test]
async fn while_the_store_cannot_be_read_an_answer_names_it() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    let operator = Operator::of(&home, &node);
    ask(&operator, "/v1/fleet/rows").await;
    let (objects, away) = (home.data_dir().join("objects"), home.data_dir().join("away"));
    std::fs::rename(&objects, &away).unwrap();
    for path in ["/v1/fleet/rows?lacks=0123456789", "/v1/services/shop-prod/history"] {
        let reply = operator.get(path).await;
        let (kind, detail) = reply.problem();
        assert!(reply.status == 503 && kind == "store-unavailable", "{path}: {reply:?}");
        assert!(detail.contains("object store cannot be read") && detail.contains("`data_dir`"), "{path}: {detail}");
    }
    std::fs::rename(&away, &objects).unwrap();
    assert_eq!(operator.get("/v1/fleet/rows?lacks=0123456789").await.status, 404);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_knows_the_order_of_what_another_one_publishes() {
    let Some(server) = TestServer::moto() else { return };
    let (pair, upstream) = (Box::pin(Pair::start(11, &server)).await, Upstream::small());
    let git = serve(&upstream);
    let operator = &pair.operators[0];
    assert_eq!(operator.put("/v1/repositories/shop", repository_at(&git)).await.status, 201);
    let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
    assert_eq!(operator.put("/v1/services/shop-prod", document).await.status, 201);
    let other = 1 - pair.owner("shop").await;
    let (operator, edge) = (&pair.operators[other], Operator::as_edge(&pair.home, &pair.nodes[other]));
    let published = async |is: &(dyn Fn(&Value) -> bool + Sync)| {
        let mut status = Value::Null;
        until(async || {
            status = operator.get("/v1/services/shop-prod").await.body["status"]["published"].clone();
            status.is_object() && is(&status)
        })
        .await;
        status
    };
    let first = published(&|_| true).await;
    let commit = upstream.push("deploy/a", b"a");
    assert_eq!(operator.post("/v1/repositories/shop/refresh").await.status, 202);
    published(&|status| status["commit"] == commit.as_str()).await;
    let mut sent = message(1);
    let mut row = sent["agents"][0]["rows"][1].clone();
    row["current"]["generation"] = first["generation"].clone();
    sent["agents"][0]["rows"] = json!([row]);
    sent["agents"].as_array_mut().unwrap().truncate(1);
    assert_eq!(report(&edge, sent).await.status, 204);
    // Its copy of the owner's record is a second old at most.
    let expected = (vec!["cluster-1".to_owned()], 0);
    until(async || who_lacks(operator, &commit).await == expected).await;
    assert_eq!(who_lacks(operator, first["commit"].as_str().unwrap()).await, (vec![], 0));
}
