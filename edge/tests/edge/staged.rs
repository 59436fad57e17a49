//! A staged version: some agents get it, and everybody else the version in force.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_edge::config::Config;
use weir_protocol::access_list::{Entries, Fleet};
use weir_protocol::agent_event::AgentEventKind;
use weir_protocol::assignment;
use weir_protocol::batch_poll::{BatchPoll, BatchRow};
use weir_protocol::descriptor::{Descriptor, DescriptorFields};
use weir_protocol::event::EventKind;
use weir_protocol::freshness::{Freshness, HeartbeatAnswer};
use weir_protocol::observed::Capability;
use weir_protocol::staged::Staged;
use weir_protocol::token::{Claims, SigningKey};

use crate::access::{claims, trust};
use crate::agent_self::{access_event, next};
use crate::client::{Client, Download, Reply};
use crate::heartbeats::{self, statement};
use crate::oci::code;
use crate::site::{Site, TARBALL, ZSTD, metric_of};
use crate::test_origin::Tarball;
use crate::tiers::{another, as_shield, shielding};

const SERVICE: &str = "/v1/services/shop";
const SERVICES: &str = "/v1/agents/self/services?services=shop";
const EVENTS: &str = "/v1/agents/self/events?services=shop";

/// An open edge that knows agents by tokens, and its origin, which has a version in force and a later one.
struct Rollout {
    site: Site,
    key: SigningKey,
    in_force: Tarball,
    later: Tarball,
}

impl Rollout {
    async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let rollout = Self::without_access_list(change).await;
        rollout.site.origin.send_event(access_event(Fleet::default()));
        rollout
    }

    /// Its origin has not said yet what operators say of agents.
    async fn without_access_list(change: impl FnOnce(&mut Config)) -> Self {
        let [in_force, later] = [1, 2].map(|seed| Tarball::random(seed, 50_000).and_oci());
        let (key, _) = SigningKey::generate().unwrap();
        let publish = |site: &Site| {
            site.origin.observe();
            site.origin.publish("shop", 8, 1, &later);
            site.origin.publish("shop", 7, 1, &in_force);
        };
        let site = Site::following(publish, |config| {
            trust(config, &key);
            change(config);
        })
        .await;
        Self { site, key, in_force, later }
    }

    fn agent(&self, name: &str, labels: Value) -> (String, String) {
        let labels = serde_json::from_value(labels).unwrap();
        let claims = Claims { subject: name.parse().unwrap(), labels, ..claims(name, &["*"]) };
        ("authorization".to_owned(), format!("Bearer {}", self.key.issue(&claims).unwrap()))
    }

    /// The later version is for this audience from now on.
    fn stage(&self, revision: u64, audience: Value) -> Descriptor {
        self.stage_as(&self.later.descriptor("shop", 8, 1), revision, audience)
    }

    fn stage_as(&self, later: &Descriptor, revision: u64, audience: Value) -> Descriptor {
        let staged = Staged {
            descriptor: serde_json::from_slice(later.bytes()).unwrap(),
            audience: serde_json::from_value(audience).unwrap(),
        };
        let fields = self.in_force.descriptor("shop", 7, revision).fields().clone();
        let descriptor = Descriptor::new(DescriptorFields { staged: Some(Box::new(staged)), ..fields });
        self.put(descriptor)
    }

    fn put(&self, descriptor: Descriptor) -> Descriptor {
        self.site.origin.put("shop", &self.in_force, descriptor.clone());
        self.site.origin.send_event(EventKind::Descriptor(descriptor.bytes().clone()));
        descriptor
    }

    async fn until_descriptor(&self, client: &mut Client, descriptor: &Descriptor) {
        let tag = descriptor.etag();
        let has =
            async || client.head(SERVICE, &[]).await.header("etag").trim_end_matches('"') == tag.trim_end_matches('"');
        self.site.until("the edge has the descriptor", has).await;
    }
}

fn of(agent: &(String, String)) -> (&str, &str) {
    (&agent.0, &agent.1)
}

/// The generation and digest of the only row.
fn row(reply: &Reply) -> (u64, String) {
    assert_eq!(reply.status, 200);
    let row = BatchPoll::parse(reply.bytes()).unwrap().services()[0].clone();
    (row.generation.unwrap(), row.digest.unwrap().to_string())
}

/// The row of the next event of one.
async fn changed(stream: &mut Download) -> BatchRow {
    loop {
        match next(stream).await.kind {
            AgentEventKind::Changed(row) => return row,
            // Labels come with the batch poll.
            AgentEventKind::Resync => {}
            other => panic!("{other:?}"),
        }
    }
}

/// All that an agent is told of the service is about one version.
async fn gets(client: &mut Client, agent: &[(&str, &str)], tarball: &Tarball, descriptor: &Descriptor) {
    let generation = descriptor.publication().generation.to_string();
    let head = client.head(TARBALL, &[agent, &[ZSTD]].concat()).await;
    let digest = tarball.digest().to_string();
    assert_eq!((head.header("weir-generation"), head.header("weir-digest")), (&*generation, &*digest));
    let known = [agent, &[ZSTD, ("if-none-match", head.header("etag"))]].concat();
    let unchanged = client.get(TARBALL, &known).await;
    assert_eq!((unchanged.status, unchanged.header("weir-generation")), (304, &*generation));
    let body = client.get(TARBALL, &[agent, &[ZSTD]].concat()).await;
    assert_eq!((body.bytes(), body.header("etag")), (&tarball.zstd, head.header("etag")));
    let own = client.get(SERVICE, agent).await;
    assert_eq!((own.bytes(), own.header("etag")), (descriptor.bytes(), &*descriptor.etag()));
    if !agent.is_empty() {
        let poll = client.get(SERVICES, agent).await;
        assert_eq!(row(&poll), (descriptor.publication().generation, digest));
        let known = [agent, &[("if-none-match", poll.header("etag"))]].concat();
        assert_eq!(client.head(SERVICES, &known).await.status, 304);
    }
    for reply in [&head, &unchanged, &body, &own] {
        assert!(reply.header("cache-control").starts_with("private, max-age="), "{}", reply.header("cache-control"));
    }
}

#[tokio::test]
async fn agents_that_a_version_is_staged_for_get_it_and_everybody_else_the_one_in_force() {
    let rollout = Rollout::start(|_| {}).await;
    let mut client = rollout.site.client("h2").await;
    let before = client.get(TARBALL, &[ZSTD]).await;
    assert!(before.header("cache-control").starts_with("max-age="), "it is the same for all");
    let audience = json!({"for": [{"labels": {"ring": "canary"}}, {"agents": "eu-*"}], "percent": 10});
    let current = rollout.stage(2, audience);
    rollout.until_descriptor(&mut client, &current).await;
    let later = rollout.later.descriptor("shop", 8, 1);
    // Of `percent` us-4 has 5 and us-9 has 14.
    for version in ["h1", "h2", "h3"] {
        let mut client = rollout.site.client(version).await;
        for (name, labels) in [("us-1", json!({"ring": "canary"})), ("eu-1", json!({})), ("us-4", json!({}))] {
            let agent = rollout.agent(name, labels);
            gets(&mut client, &[of(&agent)], &rollout.later, &later).await;
        }
        let outside = rollout.agent("us-9", json!({"ring": "early"}));
        gets(&mut client, &[of(&outside)], &rollout.in_force, &current).await;
        gets(&mut client, &[], &rollout.in_force, &current).await;
        // Anybody gets it by its digest, as every version; and a client of registries gets what is in force.
        let by_digest = format!("/v1/services/shop/tarballs/{}", rollout.later.digest());
        assert_eq!(client.get(&by_digest, &[ZSTD]).await.bytes(), &rollout.later.zstd);
        let canary = rollout.agent("eu-1", json!({}));
        let manifest = client.get("/v2/weir/shop/manifests/latest", &[of(&canary)]).await;
        let sha256 = rollout.in_force.form().unwrap().sha256;
        assert_eq!(manifest.header("docker-content-digest"), format!("sha256:{sha256}"));
    }
    assert_eq!(rollout.site.origin.requests("version").len(), 0, "it is in the descriptor");
}

#[tokio::test]
async fn the_tag_staged_is_the_staged_version_for_all_readers_and_otherwise_that_in_force() {
    let rollout = Rollout::start(|_| {}).await;
    let readers = ["eu-1", "us-1"].map(|name| rollout.agent(name, json!({})));
    let readers = [&[][..], &[of(&readers[0])], &[of(&readers[1])]];
    let manifest = async |client: &mut Client, tag, reader: &[_]| {
        client.get(&format!("/v2/weir/shop/manifests/{tag}"), reader).await
    };
    let [in_force, later] = [&rollout.in_force, &rollout.later].map(|tarball| tarball.form().unwrap());
    let mut client = rollout.site.client("h2").await;
    assert_eq!(manifest(&mut client, "staged", &[]).await.bytes(), in_force.manifest.as_bytes(), "nothing is staged");
    // It is signed, and there is no statement of it: that is for agents.
    let signed = rollout.later.descriptor("shop", 8, 1).fields().clone();
    let signed = Descriptor::signed(signed, &[heartbeats::key()], false);
    let audience = json!({"for": [{"agents": "eu-*"}]});
    rollout.until_descriptor(&mut client, &rollout.stage_as(&signed, 2, audience.clone())).await;
    for version in ["h1", "h2", "h3"] {
        let mut client = rollout.site.client(version).await;
        for reader in readers {
            assert_eq!(manifest(&mut client, "latest", reader).await.bytes(), in_force.manifest.as_bytes());
            let staged = manifest(&mut client, "staged", reader).await;
            assert_eq!(staged.bytes(), later.manifest.as_bytes(), "{version}");
            assert!(staged.header("cache-control").starts_with("private, max-age="));
            let layer = format!("/v2/weir/shop/blobs/sha256:{}", later.blobs[0].sha256);
            assert_eq!(client.get(&layer, reader).await.bytes(), &rollout.later.layer());
        }
    }
    // One without an OCI form is not passed off as the version in force.
    let without = Tarball::random(3, 1000).descriptor("shop", 9, 1);
    rollout.until_descriptor(&mut client, &rollout.stage_as(&without, 3, audience)).await;
    let reply = manifest(&mut client, "staged", &[]).await;
    assert_eq!(code(&reply), "MANIFEST_UNKNOWN");
    assert!(str::from_utf8(reply.bytes()).unwrap().contains("The staged version of"), "{:?}", reply.bytes());
    assert_eq!(manifest(&mut client, "latest", &[]).await.status, 200);
    let aborted = rollout.put(rollout.in_force.descriptor("shop", 10, 1));
    rollout.until_descriptor(&mut client, &aborted).await;
    assert_eq!(manifest(&mut client, "staged", &[]).await.bytes(), in_force.manifest.as_bytes(), "it was aborted");
}

#[tokio::test]
async fn agents_are_told_when_a_stage_grows_and_when_it_ends() {
    let rollout = Rollout::start(|_| {}).await;
    let (canary, other) = (rollout.agent("eu-1", json!({})), rollout.agent("us-1", json!({})));
    let mut clients = [rollout.site.client("h2").await, rollout.site.client("h2").await];
    let mut streams = Vec::new();
    for (client, agent) in clients.iter_mut().zip([&canary, &other]) {
        let mut stream = client.begin("GET", EVENTS, &[of(agent)]).await;
        assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
        streams.push(stream);
    }
    rollout.stage(2, json!({"for": [{"agents": "eu-*"}]}));
    for (stream, expected) in streams.iter_mut().zip([8, 7]) {
        assert_eq!(changed(stream).await.generation, Some(expected));
    }
    // An operator's label, and no change of the service.
    let labelled = assignment::Agent {
        name: "us-1".parse().unwrap(),
        labels: serde_json::from_value(json!({"ring": "canary"})).unwrap(),
    };
    rollout.stage(3, json!({"for": [{"agents": "eu-*"}, {"labels": {"ring": "canary"}}]}));
    let row = changed(&mut streams[1]).await;
    assert_eq!((row.generation, row.etag.as_deref()), (Some(7), Some("\"7.3\"")), "the first has nothing new");
    let fleet =
        |agents: Vec<_>, revision| Fleet { agents: Entries::new(revision, agents, []).unwrap(), ..Fleet::default() };
    rollout.site.origin.send_event(access_event(fleet(vec![labelled], 1)));
    let row = changed(&mut streams[1]).await;
    assert_eq!(row.generation, Some(8));
    // The version in force is published again, above the staged one.
    rollout.put(rollout.in_force.descriptor("shop", 9, 1));
    for stream in &mut streams {
        let row = changed(stream).await;
        assert_eq!((row.generation, row.digest), (Some(9), Some(rollout.in_force.digest())));
    }
    let mut client = rollout.site.client("h2").await;
    for agent in [&canary, &other] {
        let reply = client.head(TARBALL, &[of(agent), ZSTD]).await;
        assert_eq!(reply.header("weir-generation"), "9");
        assert!(reply.header("cache-control").starts_with("max-age="), "{}", reply.header("cache-control"));
    }
}

#[tokio::test]
async fn labels_choose_nothing_until_the_edge_knows_those_of_operators() {
    let rollout = Rollout::without_access_list(|_| {}).await;
    let mut clients = [rollout.site.client("h2").await, rollout.site.client("h2").await];
    let current = rollout.stage(2, json!({"for": [{"labels": {"ring": "canary"}}, {"agents": "eu-*"}]}));
    rollout.until_descriptor(&mut clients[0], &current).await;
    let by_name = rollout.agent("eu-1", json!({}));
    let later = rollout.later.descriptor("shop", 8, 1);
    gets(&mut clients[0], &[of(&by_name)], &rollout.later, &later).await;
    let by_label = rollout.agent("us-1", json!({"ring": "canary"}));
    gets(&mut clients[0], &[of(&by_label)], &rollout.in_force, &current).await;
    let mut stream = clients[1].begin("GET", EVENTS, &[of(&by_label)]).await;
    assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
    // No operator has said anything of it.
    rollout.site.origin.send_event(access_event(Fleet::default()));
    assert_eq!(changed(&mut stream).await.generation, Some(8));
    gets(&mut clients[0], &[of(&by_label)], &rollout.later, &later).await;
}

#[tokio::test]
async fn an_edge_fetches_a_staged_version_ahead_and_has_it_after_a_restart_without_an_origin() {
    let mut rollout = Rollout::start(|_| {}).await;
    let canary = rollout.agent("eu-1", json!({}));
    let mut client = rollout.site.client("h2").await;
    client.get(TARBALL, &[of(&canary), ZSTD]).await;
    let current = rollout.stage(2, json!({"for": [{"agents": "eu-*"}]}));
    let fetched = async || rollout.site.metric("weir_edge_fills_total", &[("result", "ok")]) == 2.0;
    rollout.site.until("both are fetched", fetched).await;
    rollout.site.origin.go_down().await;
    let later = rollout.later.descriptor("shop", 8, 1);
    let reply = client.get(TARBALL, &[of(&canary), ZSTD]).await;
    assert_eq!((reply.bytes(), reply.header("weir-generation")), (&rollout.later.zstd, "8"));
    rollout.site.stop_edge().await;
    rollout.site.start_edge().await;
    let mut client = rollout.site.client("h2").await;
    gets(&mut client, &[of(&canary)], &rollout.later, &later).await;
    gets(&mut client, &[], &rollout.in_force, &current).await;
}

#[tokio::test]
async fn a_shield_passes_a_staged_version_on_and_both_edges_say_that_they_know_it() {
    let rollout = Rollout::start(shielding).await;
    let current = rollout.stage(2, json!({"for": [{"agents": "eu-*"}]}));
    rollout.until_descriptor(&mut rollout.site.client("h2").await, &current).await;
    let mut config = another(&rollout.site, "edge-2", &[]);
    config.origins = vec![as_shield(&rollout.site, rollout.site.edge().address())];
    let edge = weir_edge::start(config).await.unwrap();
    let up = async || metric_of(&edge, "weir_edge_stream_up", &[]) == 1.0;
    rollout.site.until("the edge follows the shield", up).await;
    let mut client = Client::connect("h2", edge.address(), rollout.site.pki()).await;
    let canary = rollout.agent("eu-1", json!({}));
    gets(&mut client, &[of(&canary)], &rollout.later, &rollout.later.descriptor("shop", 8, 1)).await;
    gets(&mut client, &[], &rollout.in_force, &current).await;
    let report = async || rollout.site.origin.observed_paths().into_iter().collect::<BTreeSet<_>>().len() == 2;
    rollout.site.until("both report", report).await;
    let observed = rollout.site.origin.observed();
    assert!(observed.iter().all(|message| message.capabilities == [Capability::Staged].into()), "{observed:?}");
    edge.cut().await;
}

#[tokio::test]
async fn a_signed_version_is_offered_once_there_is_a_freshness_statement_of_it() {
    let rollout = Rollout::start(|_| {}).await;
    let keys = [heartbeats::key()];
    let later = Descriptor::signed(rollout.later.descriptor("shop", 8, 1).fields().clone(), &keys, false);
    let origin = &rollout.site.origin;
    let (canary, other) = (rollout.agent("eu-1", json!({})), rollout.agent("us-1", json!({})));
    let mut client = rollout.site.client("h2").await;
    origin.state_freshness("shop", statement("shop", 7).sign(&keys));
    // It is about another version.
    origin.state_freshness_of_staged("shop", statement("shop", 8).sign(&keys));
    let current = rollout.stage_as(&later, 2, json!({"for": [{"agents": "eu-*"}]}));
    rollout.until_descriptor(&mut client, &current).await;
    rollout.site.until("the edge asked", async || !origin.requests("heartbeats").is_empty()).await;
    let wanted = || heartbeats::request(&["shop"]);
    let reply = client.post(heartbeats::PATH, &[of(&canary)], wanted()).await;
    assert!(HeartbeatAnswer::parse(reply.bytes()).unwrap().services[0].staged.is_some(), "it was answered");
    gets(&mut client, &[of(&canary)], &rollout.in_force, &current).await;
    // It asks again when it hears of the service.
    let of_staged = Freshness { digest: rollout.later.digest(), ..statement("shop", 8) }.sign(&keys);
    origin.state_freshness_of_staged("shop", of_staged.clone());
    rollout.stage_as(&later, 3, json!({"for": [{"agents": "eu-*"}], "percent": 1}));
    let generation = async |client: &mut Client, agent| {
        client.head(TARBALL, &[of(agent), ZSTD]).await.header("weir-generation").to_owned()
    };
    rollout.site.until("it is offered", async || generation(&mut client, &canary).await == "8").await;
    gets(&mut client, &[of(&canary)], &rollout.later, &later).await;
    let reply = client.post(heartbeats::PATH, &[of(&canary)], wanted()).await;
    assert_eq!(HeartbeatAnswer::parse(reply.bytes()).unwrap().services[0].staged, Some(of_staged));
    // Who has it is never offered less while the stage grows.
    let mut stream = client.begin("GET", EVENTS, &[of(&other)]).await;
    assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
    rollout.stage_as(&later, 4, json!({"for": [{"agents": "*"}]}));
    assert_eq!(changed(&mut stream).await.generation, Some(8), "and at once for others");
    assert_eq!(generation(&mut client, &canary).await, "8");
}

#[tokio::test]
async fn a_signed_version_that_was_offered_is_offered_after_a_restart_without_an_origin() {
    let mut rollout = Rollout::start(|_| {}).await;
    let (keys, canary) = ([heartbeats::key()], rollout.agent("eu-1", json!({})));
    let signed = |fields: DescriptorFields| Descriptor::signed(fields, &keys, false);
    let (later, audience) =
        (rollout.later.descriptor("shop", 8, 1).fields().clone(), json!({"for": [{"agents": "eu-*"}]}));
    let next = Tarball::random(3, 50_000).and_oci();
    let of_staged = Freshness { digest: rollout.later.digest(), ..statement("shop", 8) }.sign(&keys);
    rollout.site.origin.state_freshness("shop", statement("shop", 7).sign(&keys));
    rollout.site.origin.state_freshness_of_staged("shop", of_staged);
    let later = signed(later);
    rollout.stage_as(&later, 2, audience.clone());
    let mut client = rollout.site.client("h2").await;
    let is_offered = async || client.head(TARBALL, &[of(&canary), ZSTD]).await.header("weir-generation") == "8";
    rollout.site.until("it is offered", is_offered).await;
    gets(&mut client, &[of(&canary)], &rollout.later, &later).await;
    rollout.site.settled().await;
    rollout.site.origin.go_down().await;
    rollout.site.stop_edge().await;
    rollout.site.start_edge().await;
    let mut client = rollout.site.client("h2").await;
    gets(&mut client, &[of(&canary)], &rollout.later, &later).await;
    // Another version takes its place, of which there is no statement.
    rollout.site.origin.go_up().await;
    rollout.site.in_step().await;
    let current = rollout.stage_as(&signed(next.descriptor("shop", 9, 1).fields().clone()), 3, audience);
    rollout.until_descriptor(&mut client, &current).await;
    gets(&mut client, &[], &rollout.in_force, &current).await;
    rollout.site.settled().await;
    rollout.site.origin.go_down().await;
    rollout.site.stop_edge().await;
    rollout.site.start_edge().await;
    gets(&mut rollout.site.client("h2").await, &[of(&canary)], &rollout.in_force, &current).await;
}

#[tokio::test]
async fn a_version_that_was_offered_unsigned_and_is_signed_now_needs_a_statement() {
    let rollout = Rollout::start(|_| {}).await;
    let (keys, canary) = ([heartbeats::key()], rollout.agent("eu-1", json!({})));
    let (mut client, audience) = (rollout.site.client("h2").await, json!({"for": [{"agents": "eu-*"}]}));
    let current = rollout.stage(2, audience.clone());
    rollout.until_descriptor(&mut client, &current).await;
    let later = rollout.later.descriptor("shop", 8, 1);
    gets(&mut client, &[of(&canary)], &rollout.later, &later).await;
    let current = rollout.stage_as(&Descriptor::signed(later.fields().clone(), &keys, false), 3, audience);
    rollout.until_descriptor(&mut client, &current).await;
    gets(&mut client, &[of(&canary)], &rollout.in_force, &current).await;
}
