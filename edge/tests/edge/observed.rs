//! What agents say that they run: what an edge accepts of it, shows, and tells its origins.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use serde_json::{Value, json};
use weir_edge::config::AuthMode;
use weir_protocol::agent_event::HEARTBEAT_SECONDS;
use weir_protocol::digest::TarballDigest;
use weir_protocol::observed::{EdgeObserved, Proved, Row};
use weir_protocol::token::SigningKey;

use crate::access::claims;
use crate::agent_self::assigned;
use crate::client::{Client, Reply};
use crate::cluster::cluster;
use crate::site::Site;
use crate::test_origin::TestOrigin;

pub(crate) const OBSERVED: &str = "/v1/agents/self/observed";

/// A message with rows of these services, whose problem has this text.
pub(crate) fn message(instance: &str, seq: u64, full: bool, services: &[&str], problem: &str) -> String {
    let digest = TarballDigest::of(b"one");
    let current = json!({
        "digest": digest, "generation": 7, "revision_id": "sha1:c2b3f1d5a7e94c0b8f6e2d1a3b4c5d6e7f8091a2",
        "since": "2026-01-01T00:00:00Z",
    });
    let problem = (!problem.is_empty())
        .then(|| json!({"kind": "hook-failed", "since": "2026-01-01T00:00:00Z", "tries": 1, "text": problem}));
    let row = |service: &&str| {
        json!({
            "service": service, "desired": {"digest": digest, "generation": 7}, "current": current, "phase": "hook",
            "hook": "failed", "problem": problem,
        })
    };
    let rows: Vec<_> = services.iter().map(row).collect();
    let (version, labels) = ("0.2.0", json!({"region": "eu"}));
    json!({"instance": instance, "seq": seq, "full": full, "version": version, "labels": labels, "rows": rows})
        .to_string()
}

async fn post(client: &mut Client, message: String) -> Reply {
    client.post(OBSERVED, &[], message).await
}

async fn shown(site: &Site, path: &str) -> Value {
    serde_json::from_str(&site.admin(path).await.1).unwrap()
}

#[tokio::test]
async fn the_last_row_of_a_service_is_shown() {
    let site = assigned(|_| {}).await;
    for (seq, version) in [(1, "h1"), (2, "h2"), (3, "h3")] {
        let mut client = site.client_as("agent", version).await;
        let services = ["secret", "shop-a", "shop-b"];
        let reply = post(&mut client, message("a1", seq, seq == 1, &services, &format!("by {version}"))).await;
        assert_eq!((reply.status, reply.bytes().len()), (204, 0), "{version}");
    }
    let mut client = site.client_as("agent", "h2").await;
    assert_eq!(post(&mut client, message("a1", 2, false, &["shop-a"], "")).await.status, 204, "an old one");
    let explained = shown(&site, "/v1/explain?service=shop-a").await;
    let agent = &explained["agents"][0];
    assert_eq!((&agent["problem"]["text"], &agent["hook"]), (&json!("by h3"), &json!("failed")));
    assert_eq!((&agent["agent"], &agent["own_labels"]), (&json!("cluster-1"), &json!({"region": "eu"})));
    assert_eq!((&agent["labels"], &explained["agents_total"]), (&json!({}), &json!(1)));
    let secret = shown(&site, "/v1/explain?service=secret").await;
    assert_eq!(secret["agents"], json!([]), "the agent may not read it");
    assert_eq!(site.metric("weir_edge_agent_observed_rows_dropped_total", &[]), 3.0);
    let status = shown(&site, "/status").await["agents"].clone();
    assert_eq!((&status["failing"], &status["failing_total"]), (&json!(["cluster-1"]), &json!(1)));

    let agents = shown(&site, "/v1/agents?agent=cluster-*&limit=1").await;
    let agent = &agents["agents"][0];
    assert_eq!((&agents["total"], &agents["cursor"], &agent["state"]), (&json!(1), &json!(null), &json!("connected")));
    assert_eq!((&agent["services"], &agent["problems"], &agent["rows"]), (&json!(2), &json!(2), &json!(null)));
    assert_eq!(shown(&site, "/v1/agents?agent=other-*").await["total"], 0);
    let agent = shown(&site, "/v1/agents/cluster-1").await;
    assert_eq!((&agent["rows"][1]["service"], &agent["duplicated"]), (&json!("shop-b"), &json!(false)));
    for (path, expected) in [("/v1/agents/cluster-9", 404), ("/v1/agents?limit=0", 400), ("/v1/agents?name=a", 400)] {
        assert_eq!(site.admin(path).await.0, expected, "{path}");
    }

    for (body, expected) in [("{}".to_owned(), 400), ("x".repeat((1 << 20) + 1), 413)] {
        assert_eq!(post(&mut client, body).await.status, expected);
    }
    assert_eq!(client.get(OBSERVED, &[]).await.header("allow"), "POST");
}

#[tokio::test]
async fn what_does_not_follow_is_requested_again_and_two_agents_of_a_name_are_flagged() {
    let mut site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let lost = post(&mut client, message("a1", 7, false, &["shop-a"], "")).await;
    assert_eq!((lost.status, lost.problem()["type"].clone()), (409, json!("urn:weir:problem:resync")));
    assert_eq!(post(&mut client, message("a1", 8, true, &["shop-a", "shop-b"], "")).await.status, 204);
    assert_eq!(post(&mut client, message("a1", 10, false, &[], "")).await.status, 409);
    // All that there is.
    assert_eq!(post(&mut client, message("a1", 11, true, &["shop-b"], "")).await.status, 204);
    let explained = shown(&site, "/v1/explain?service=shop-a").await;
    assert_eq!(explained["agents"], json!([]));
    // A second agent of the same name, while the first lives.
    assert_eq!(post(&mut client, message("b1", 1, true, &[], "")).await.status, 204);
    assert_eq!(post(&mut client, message("a1", 12, true, &[], "")).await.status, 204);
    let status = shown(&site, "/status").await["agents"].clone();
    assert_eq!((&status["duplicated"], &status["duplicated_total"]), (&json!(["cluster-1"]), &json!(1)));
    site.until("the metric says so", async || site.metric("weir_edge_agents_duplicated", &[]) == 1.0).await;

    site.cut_edge().await;
    site.start_edge().await;
    let mut client = site.client_as("agent", "h2").await;
    let forgotten = post(&mut client, message("a1", 13, false, &[], "")).await;
    assert_eq!(forgotten.status, 409, "another run of the edge has nothing");
}

/// This test waits for one.
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);

#[tokio::test]
async fn what_the_edge_sends_is_no_sign_of_life_of_an_agent() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    assert_eq!(post(&mut client, message("a1", 1, true, &["shop-a"], "")).await.status, 204);
    let mut stream = client.begin("GET", "/v1/agents/self/events", &[]).await;
    assert_eq!(stream.headers["x-accel-buffering"], "no");
    let silence = async || {
        let heard_at = shown(&site, "/v1/agents/cluster-1").await["heard_at"].as_str().unwrap().to_owned();
        SystemTime::now().duration_since(humantime::parse_rfc3339(&heard_at).unwrap()).unwrap()
    };
    let mut seen = String::new();
    while !seen.contains(r#""event":"heartbeat""#) {
        seen.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
    }
    let before = silence().await;
    assert!(before > HEARTBEAT / 2, "the system of an agent that is stopped takes heartbeats, too: {before:?}");
    assert_eq!(client.get("/v1/agents/self/services", &[]).await.status, 200);
    assert!(silence().await < before);
}

#[tokio::test]
async fn a_flood_of_messages_is_not_read_and_words_of_agents_are_plain() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let words = "\u{1b}[2Jall is well\u{202e}\n";
    assert_eq!(post(&mut client, message("a1", 1, true, &["shop-a"], words)).await.status, 204);
    let text = shown(&site, "/v1/agents/cluster-1").await["rows"][0]["problem"]["text"].clone();
    assert_eq!(text, r"\u{1b}[2Jall is well\u{202e} ");

    let limited = async |client: &mut Client| loop {
        // It was accepted before.
        let reply = post(client, message("a1", 1, false, &[], "")).await;
        if reply.status != 204 {
            return reply;
        }
    };
    let refused = limited(&mut client).await;
    let kind = refused.problem()["type"].clone();
    assert_eq!((refused.status, kind), (429, json!("urn:weir:problem:too-many-messages")));
    assert_eq!(refused.header("retry-after"), "5");
    let count = |result: &str| site.metric("weir_edge_agent_observed_messages_total", &[("result", result)]);
    assert!(count("too_many") == 1.0 && count("accepted") >= 60.0, "{} were accepted", count("accepted"));
    site.until("a later one is accepted", async || {
        post(&mut client, message("a1", 2, false, &[], "")).await.status == 204
    })
    .await;
}

#[tokio::test]
async fn a_run_whose_rows_another_one_replaced_is_asked_for_them_by_the_name_of_the_instance() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let instance = async |client: &mut Client| {
        client.get("/v1/agents/self/services", &[]).await.header("weir-edge-instance").to_owned()
    };
    let before = instance(&mut client).await;
    let first = post(&mut client, message("a1", 1, true, &["shop-a"], "")).await;
    assert_eq!(
        (first.header("weir-edge-instance").to_owned(), instance(&mut client).await),
        (before.clone(), before.clone())
    );
    // The second run reads in the answer what it will read.
    let second =
        post(&mut client, message("b1", 1, true, &["shop-b"], "")).await.header("weir-edge-instance").to_owned();
    assert_ne!(second, before, "the first run sees that its rows are gone");
    assert_eq!(instance(&mut client).await, second);
    let again =
        post(&mut client, message("a1", 2, true, &["shop-a"], "")).await.header("weir-edge-instance").to_owned();
    assert_eq!(again, second, "two runs that go on do not send each other's rows away");
    let explained = shown(&site, "/v1/explain?service=shop-a").await;
    assert_eq!(explained["agents_total"], 1);
    assert_eq!(post(&mut client, message("a1", 3, false, &["shop-b"], "")).await.header("weir-edge-instance"), second);
}

#[tokio::test]
async fn ten_thousand_services_arrive_in_parts_and_memory_is_bounded() {
    let all: Vec<String> = (0..10_000).map(|n| format!("shop-{n:0>50}")).collect();
    let parts: Vec<Vec<&str>> = all.chunks(1_000).map(|part| part.iter().map(String::as_str).collect()).collect();
    let send = async |site: &Site, seq: u64| {
        let mut client = site.client_as("agent", "h2").await;
        for (number, part) in parts.iter().enumerate() {
            let mut message: Value =
                serde_json::from_str(&message("a1", seq + number as u64, number == 0, part, "")).unwrap();
            message["more"] = json!(number + 1 < parts.len());
            let reply = post(&mut client, message.to_string()).await;
            if reply.status != 204 {
                return reply;
            }
        }
        post(&mut client, message("a1", seq + parts.len() as u64, false, &[], "")).await
    };
    let site = assigned(|_| {}).await;
    assert_eq!(send(&site, 1).await.status, 204);
    let last = all.last().unwrap();
    assert_eq!(shown(&site, &format!("/v1/explain?service={last}")).await["agents_total"], 1);
    let used = site.metric("weir_bound_in_use", &[("bound", "agent_observed_bytes")]);
    assert!((3e6..8e6).contains(&used), "{used} bytes for 10,000 rows");

    let site = assigned(|config| config.agents.observed_bytes = ByteSize::mib(1)).await;
    let refused = send(&site, 1).await;
    assert_eq!((refused.status, refused.problem()["type"].clone()), (429, json!("urn:weir:problem:no-room")));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(site.metric("weir_edge_agent_observed_messages_total", &[("result", "no_room")]), 1.0);
    assert_eq!(
        shown(&site, &format!("/v1/explain?service={}", all[0])).await["agents_total"],
        1,
        "what has room stays"
    );
}

/// The rows that an origin has of an agent, by the messages that it accepted.
pub(crate) fn rows_at(origin: &TestOrigin, agent: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for stated in origin.observed().into_iter().flat_map(|message| message.agents) {
        if stated.agent.as_str() == agent {
            if stated.full {
                rows.clear();
            }
            stated.removed.iter().for_each(|service| drop(rows.remove(service.as_str())));
            rows.extend(stated.rows.into_iter().map(|row| (row.service.to_string(), row)));
        }
    }
    rows
}

#[tokio::test]
async fn every_origin_of_a_cluster_gets_what_agents_run() {
    let (mut site, mut others) = cluster(1).await;
    site.config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    site.origin.observe();
    others[0].observe();
    site.start_edge().await;
    let mut client = site.client_as("agent", "h2").await;
    assert_eq!(post(&mut client, message("a1", 1, true, &["shop-a", "shop-b"], "503")).await.status, 204);
    for origin in [&site.origin, &others[0]] {
        site.until("it has the rows", async || rows_at(origin, "cluster-1").len() == 2).await;
        let first = &origin.observed()[0];
        assert_eq!((first.edge.as_str(), first.full), ("edge-1", true), "{first:?}");
        let agent = origin.observed().into_iter().flat_map(|message| message.agents).next().unwrap();
        assert_eq!((agent.proved, agent.full, agent.seq), (Some(Proved::Certificate), true, 1));
    }

    // One of them does not answer for a while, and lacks what came meanwhile.
    others[0].go_down().await;
    assert_eq!(post(&mut client, message("a1", 2, false, &["shop-a"], "")).await.status, 204);
    let is_well = |origin: &TestOrigin| rows_at(origin, "cluster-1")["shop-a"].problem.is_none();
    site.until("the other one has the change", async || is_well(&site.origin)).await;
    site.until("the edge knows", async || site.metric("weir_edge_observed_rows_behind", &[]) > 0.0).await;
    others[0].go_up().await;
    site.until("it has the change, too", async || is_well(&others[0])).await;
    let changes = others[0].observed().split_off(1);
    assert!(changes.iter().all(|message| !message.full), "{changes:?}");

    // It lost everything.
    others[0].answer_observed(409);
    let known = others[0].observed().len();
    let begins_again = async || {
        let later = others[0].observed().split_off(known);
        later.iter().any(|message| message.full && message.agents.iter().any(|agent| agent.rows.len() == 2))
    };
    site.until("it gets everything", begins_again).await;
    site.until("nothing is left", async || site.metric("weir_edge_observed_rows_behind", &[]) == 0.0).await;
    for origin in [&site.origin, &others[0]] {
        let messages = origin.observed();
        // The same number again: the answer was lost.
        let follows = |pair: &[EdgeObserved]| pair[1].full || (0..=1).contains(&(pair[1].seq - pair[0].seq));
        assert!(messages.windows(2).all(follows), "{messages:?}");
    }
}

#[tokio::test]
async fn origins_get_the_names_that_refused_credentials_claim() {
    let key = SigningKey::generate().unwrap().0;
    let site = Site::with(|config| {
        config.auth.mode = AuthMode::Required;
        config.auth.keys_from_origins = true;
    })
    .await;
    site.origin.observe();
    let authorization = format!("Bearer {}", key.issue(&claims("t1", &["*"])).unwrap());
    let mut client = site.client("h2").await;
    for _ in 0..2 {
        let refused = client.get("/v1/agents/self/services", &[("authorization", &authorization)]).await;
        assert_eq!(refused.status, 401);
    }
    let stated = || site.origin.observed().into_iter().flat_map(|message| message.refused).next_back();
    site.until("the origin has the name", async || stated().is_some()).await;
    let refused = stated().unwrap();
    assert_eq!((refused.name.as_str(), &*refused.reason), ("cluster-1", "unknown_key"));
}

#[tokio::test]
async fn an_edge_tells_its_name_and_that_it_drains_and_is_told_of_another_with_its_name() {
    let (mut site, _) = cluster(0).await;
    site.config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    site.config.name = Some("node-7".parse().unwrap());
    site.origin.observe();
    site.start_edge().await;
    let mut client = site.client_as("agent", "h2").await;
    assert_eq!(post(&mut client, message("a1", 1, true, &["shop-a"], "")).await.status, 204);
    site.until("the origin has the row", async || rows_at(&site.origin, "cluster-1").len() == 1).await;
    let is_named = |message: &EdgeObserved| message.sender().as_str() == "edge-1~node-7" && !message.draining;
    assert!(site.origin.observed().iter().all(is_named));

    site.origin.answer_observed(429);
    site.until("it is told so", async || site.metric("weir_edge_name_duplicated", &[]) == 1.0).await;
    assert_eq!(site.metric("weir_edge_observed_messages_total", &[("result", "name_twice")]), 1.0);
    let accepted = site.origin.observed().len();
    site.until("it has the name for itself", async || site.metric("weir_edge_name_duplicated", &[]) == 0.0).await;
    assert!(!site.origin.observed()[accepted].full, "it sends nothing again");

    // What the origin lacks when the drain begins is in the last message.
    assert_eq!(post(&mut client, message("a1", 2, false, &["shop-b"], "")).await.status, 204);
    drop(client);
    site.stop_edge().await;
    let messages = site.origin.observed();
    let last = messages.last().unwrap();
    assert!(last.draining && messages.iter().filter(|message| message.draining).count() == 1, "{messages:?}");
    assert_eq!(rows_at(&site.origin, "cluster-1").len(), 2);
}
