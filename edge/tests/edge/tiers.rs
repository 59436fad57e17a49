//! Edges before edges: what a shield answers, and where its edges fetch from.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use weir_edge::Running;
use weir_edge::config::{AuthMode, CertificateRule, Config, OriginConfig};
use weir_protocol::access_list::AccessList;
use weir_protocol::digest::{ObjectDigest, TarballDigest};
use weir_protocol::event::{Event, EventKind, Lines, RelayedHeartbeat};
use weir_protocol::freshness::{HeartbeatAnswer, SignedFreshness};
use weir_protocol::observed::{EDGE_PATH, EdgeObserved};
use weir_protocol::versions::Versions;

use crate::client::{Client, Download};
use crate::cluster::{all, cluster, followed, released};
use crate::heartbeats;
use crate::observed::{self, OBSERVED, rows_at};
use crate::site::{PATIENCE, Site, TARBALL, ZSTD, metric_of};
use crate::test_origin::{Tarball, TestOrigin};

const SERVICE: &str = "/v1/services/shop";

pub(crate) fn shielding(config: &mut Config) {
    config.peers.ca = Some(config.origins[0].ca.clone());
}

fn object(digest: &ObjectDigest) -> String {
    format!("/v1/objects/shop/{digest}")
}

/// The configuration of another edge of the site.
pub(crate) fn another(site: &Site, name: &str, shields: &[SocketAddr]) -> Config {
    let mut config = site.config.clone();
    config.name = Some(name.parse().unwrap());
    config.cache.dir = site.pki().join(format!("{name}-cache"));
    config.shields = shields.iter().map(|shield| as_shield(site, *shield)).collect();
    config
}

pub(crate) fn as_shield(site: &Site, address: SocketAddr) -> OriginConfig {
    OriginConfig { url: format!("https://{address}"), ..site.config.origins[0].clone() }
}

async fn start(config: Config) -> Running {
    weir_edge::start(config).await.unwrap()
}

async fn client_of(site: &Site, edge: &Running) -> Client {
    Client::connect("h2", edge.address(), site.pki()).await
}

/// An address that is free for TCP and UDP, below those that the system gives by itself.
fn free_address() -> SocketAddr {
    loop {
        let address = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(20_000..32_000)));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// An event stream of an edge.
pub(crate) struct Stream {
    download: Download,
    lines: Lines,
    events: VecDeque<EventKind>,
}

impl Stream {
    /// Opens a stream as soon as the edge has a heartbeat of each origin.
    async fn open(site: &Site, client: &mut Client) -> Self {
        Self::open_with(site, client, "").await
    }

    /// The same with a query.
    pub(crate) async fn open_with(site: &Site, client: &mut Client, query: &str) -> Self {
        site.until("all origins are followed", async || client.head("/v1/events", &[]).await.status == 200).await;
        let download = client.begin("GET", &format!("/v1/events{query}"), &[]).await;
        assert_eq!(download.status, 200);
        Self { download, lines: Lines::default(), events: VecDeque::new() }
    }

    /// The next event. An error: the stream was cut.
    pub(crate) async fn next(&mut self) -> Result<EventKind, String> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let part = tokio::time::timeout(PATIENCE, self.download.next()).await.expect("an event or an end");
            self.lines.push(&part.ok_or("a clean end")??);
            while let Some(line) = self.lines.next_line().unwrap() {
                self.events.extend(Event::parse(&line).unwrap().map(|event| event.kind));
            }
        }
    }

    /// The next event that is no heartbeat.
    async fn next_change(&mut self) -> EventKind {
        loop {
            match self.next().await.unwrap() {
                EventKind::RelayedHeartbeat(_) => {}
                change => return change,
            }
        }
    }
}

#[tokio::test]
async fn heartbeats_of_a_shield_validate_as_of_their_origin() {
    let mut site = Site::prepare().await;
    site.origin.serve_events();
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    site.config.freshness.fresh = Duration::from_secs(3600);
    site.start_edge().await;
    site.in_step().await;
    let age = async || site.client("h2").await.head(TARBALL, &[]).await.header("age").parse::<u64>().unwrap();
    site.until("the version ages", async || age().await >= 3).await;
    let heartbeat = |age| {
        let (origin, age) = ("origin-1:7400".to_owned(), Duration::from_secs(age));
        EventKind::RelayedHeartbeat(RelayedHeartbeat { origin, age })
    };
    site.origin.send_event(heartbeat(1000));
    site.origin.push("docs", 7, 1, &Tarball::random(2, 1000));
    let docs = async || site.client("h2").await.head("/v1/services/docs/tarball", &[]).await.header("age") == "0";
    site.until("the heartbeat has come", docs).await;
    assert!(age().await >= 3, "it was about another time");
    let is_younger = async || {
        site.origin.send_event(heartbeat(0));
        age().await < 3
    };
    site.until("a later heartbeat validates it", is_younger).await;
}

#[tokio::test]
async fn a_shield_answers_edges_as_an_origin_does() {
    let tarball = Tarball::random(1, 3 << 20);
    let site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &tarball)), shielding).await;
    let descriptor = tarball.descriptor("shop", 7, 1);
    let mut edge = site.client_as("edge-client", "h2").await;

    let reply = edge.get(SERVICE, &[]).await;
    assert_eq!(
        (reply.status, reply.bytes(), reply.header("etag")),
        (200, descriptor.bytes(), "\"7.1\""),
        "byte for byte"
    );
    assert_eq!((reply.header("age"), reply.header("cache-status")), ("0", "edge-1; hit"));
    assert_eq!(edge.get(SERVICE, &[("if-none-match", "\"7.1\"")]).await.status, 304);
    let reply = edge.get(&format!("{SERVICE}/versions/{}", tarball.digest()), &[]).await;
    assert_eq!((reply.status, reply.bytes()), (200, descriptor.bytes()));
    let list = edge.get(&format!("{SERVICE}/versions"), &[]).await;
    let listed = Versions::parse(list.bytes()).unwrap();
    assert_eq!((listed.len(), listed[0].0.bytes(), listed[0].1), (1, descriptor.bytes(), true));
    assert_eq!(list.header("age"), "0");
    let other = format!("{SERVICE}/versions/{}", TarballDigest::of(b"other"));
    assert_eq!(edge.get(&other, &[]).await.problem()["type"], "urn:weir:problem:no-such-version");
    assert_eq!(edge.get("/v1/services/other", &[]).await.problem()["type"], "urn:weir:problem:no-such-service");

    let frame = tarball.frames()[1];
    for expected in ["edge-1; fwd=miss; fwd-status=200; stored", "edge-1; hit"] {
        let reply = edge.get(&object(&frame), &[]).await;
        assert_eq!((reply.status, ObjectDigest::of(reply.bytes())), (200, frame));
        assert_eq!(reply.header("cache-status"), expected);
    }
    let length = edge.head(&object(&frame), &[]).await.header("content-length").to_owned();
    assert!(length.parse::<usize>().unwrap() >= 1 << 20, "{length}");
    assert_eq!(edge.get(&object(&frame), &[("if-none-match", &format!("\"{frame}\""))]).await.status, 304);
    assert_eq!(site.origin.requests("object").len(), 1);
    let missing = edge.get(&object(&ObjectDigest::of(b"missing")), &[]).await;
    assert_eq!((missing.status, &missing.problem()["type"]), (404, &"urn:weir:problem:no-such-object".into()));
    assert_eq!(edge.send("POST", &object(&frame), &[]).await.status, 405);
    // What was reserved for the largest object is free again.
    site.settled().await;
    assert!(site.in_use("in_flight_bytes") < (8 << 20) as f64);

    // Its certificate opens these paths alone, and nobody else's opens them.
    assert_eq!(edge.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd);
    for version in ["h1", "h2", "h3"] {
        let mut agent = site.client(version).await;
        assert_eq!(agent.get(TARBALL, &[ZSTD]).await.bytes(), &tarball.zstd, "{version}");
        assert!(agent.get(SERVICE, &[]).await.bytes().ends_with(descriptor.bytes().split_first().unwrap().1));
        for path in [object(&frame), "/v1/events".to_owned()] {
            assert_eq!(agent.get(&path, &[]).await.problem()["type"], "urn:weir:problem:no-such-path", "{version}");
        }
    }
    assert_eq!(site.client_as("agent", "h2").await.get(&object(&frame), &[]).await.status, 404);
}

#[tokio::test]
async fn certificates_of_edges_open_a_guarded_edge_and_those_of_agents_what_their_rules_say() {
    let tarball = Tarball::random(1, 1000);
    let prepare = |site: &Site| drop(site.origin.publish("shop", 7, 1, &tarball));
    let site = Site::following(prepare, |config| {
        shielding(config);
        config.auth.mode = AuthMode::Required;
        config.auth.client_ca = config.peers.ca.clone();
        let (agents, services) = ("*".parse().unwrap(), vec!["other".parse().unwrap()]);
        config.auth.certificates = vec![CertificateRule { agents, services }];
    })
    .await;
    let mut edge = site.client_as("edge-client", "h2").await;
    assert_eq!(edge.get(SERVICE, &[]).await.status, 200);
    assert_eq!(edge.get(TARBALL, &[]).await.status, 401, "edges have no use for tarballs");
    assert_eq!(edge.get("/v1/services", &[]).await.status, 404, "a probe finds that the shield is up");
    assert_eq!(edge.get("/v1/objects/shop/x", &[]).await.status, 400);
    let mut agent = site.client_as("agent", "h2").await;
    assert_eq!((agent.get(SERVICE, &[]).await.status, agent.get("/v1/events", &[]).await.status), (404, 404));
    assert_eq!(site.client("h2").await.get("/v1/events", &[]).await.status, 401);
}

#[tokio::test]
async fn the_events_of_the_origin_are_passed_on_in_order() {
    let first = Tarball::random(1, 1000);
    let site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &first)), shielding).await;
    let mut denied = AccessList::default();
    denied.deny_token("t1".parse().unwrap(), None).unwrap();
    let denied = EventKind::Access(denied.json().get().to_owned().into());
    let mut edge = site.client_as("edge-client", "h2").await;
    let mut stream = Stream::open(&site, &mut edge).await;
    let shop = |generation, tarball: &Tarball| {
        EventKind::Descriptor(tarball.descriptor("shop", generation, 1).bytes().clone())
    };
    for expected in [EventKind::Resync, shop(7, &first), EventKind::SnapshotEnd] {
        assert_eq!(stream.next().await.unwrap(), expected);
    }
    let origin = site.origin.url().replace("https://", "");
    let assert_heartbeat = |event: EventKind| {
        let EventKind::RelayedHeartbeat(heartbeat) = event else { panic!("{event:?}") };
        assert_eq!(heartbeat.origin, origin);
        assert!(heartbeat.age < PATIENCE, "{heartbeat:?}");
    };
    assert_heartbeat(stream.next().await.unwrap());

    let second = Tarball::random(2, 1000);
    site.origin.push("shop", 8, 1, &second);
    site.origin.send_event(denied.clone());
    site.origin.heartbeat();
    let mut events = [stream.next().await.unwrap(), stream.next().await.unwrap()];
    // A revocation waits for no descriptor.
    events.sort_by_key(|event| matches!(event, EventKind::Access(_)));
    assert_eq!(events, [shop(8, &second), denied.clone()]);
    assert_heartbeat(stream.next().await.unwrap());
    site.origin.send_event(EventKind::Tombstone { service: "shop".parse().unwrap(), generation: 8 });
    site.origin.heartbeat();
    let gone = EventKind::Tombstone { service: "shop".parse().unwrap(), generation: 8 };
    assert_eq!(stream.next().await.unwrap(), gone);
    assert_heartbeat(stream.next().await.unwrap());

    // What an origin says anew is not vouched for before: the readers begin again.
    site.origin.forget_cursors();
    site.origin.cut_streams();
    assert!(stream.next().await.unwrap_err() != "a clean end");
    let mut stream = Stream::open(&site, &mut edge).await;
    assert_eq!(stream.next().await.unwrap(), EventKind::Resync);
    assert_eq!(stream.next().await.unwrap(), denied, "before any descriptor");
}

#[tokio::test]
async fn a_hand_over_between_origins_is_passed_on() {
    let (mut site, others) = cluster(1).await;
    let tarball = Tarball::random(1, 1000);
    let descriptor = EventKind::Descriptor(site.origin.publish("shop", 7, 1, &tarball).bytes().clone());
    others[0].store("shop", 7, 1, &tarball);
    shielding(&mut site.config);
    site.start_edge().await;
    followed(&site, 2).await;
    let mut edge = site.client_as("edge-client", "h2").await;
    let mut stream = Stream::open(&site, &mut edge).await;
    for expected in [EventKind::Resync, descriptor.clone(), EventKind::SnapshotEnd] {
        assert_eq!(stream.next().await.unwrap(), expected);
    }
    site.origin.send_event(released());
    assert_eq!(stream.next_change().await, released());
    // The new owner announces what the shield knows, and the reader does not count on any longer.
    others[0].push("shop", 7, 1, &tarball);
    assert_eq!(stream.next_change().await, descriptor);
    [&site.origin, &others[0]].iter().for_each(|origin| origin.heartbeat());
    let EventKind::RelayedHeartbeat(heartbeat) = stream.next().await.unwrap() else { panic!("a heartbeat") };
    assert!(all(&site, &others).any(|origin| origin.url().ends_with(&heartbeat.origin)), "{heartbeat:?}");
}

#[tokio::test]
async fn a_shield_that_follows_no_stream_vouches_for_nothing() {
    let site = Site::with(shielding).await;
    let mut edge = site.client_as("edge-client", "h2").await;
    let reply = edge.get("/v1/events", &[]).await;
    assert_eq!((reply.status, &reply.problem()["type"]), (503, &"urn:weir:problem:not-following".into()));
    assert_eq!(reply.header("retry-after"), "5");
}

#[tokio::test]
async fn streams_to_edges_are_bounded() {
    let site = Site::following(
        |_| {},
        |config| {
            shielding(config);
            config.peers.streams = 1;
        },
    )
    .await;
    let mut edge = site.client_as("edge-client", "h2").await;
    let stream = Stream::open(&site, &mut edge).await;
    let reply = edge.get("/v1/events", &[]).await;
    assert_eq!((reply.status, &reply.problem()["type"]), (429, &"urn:weir:problem:too-many-streams".into()));
    assert_eq!((site.in_use("peer_streams"), site.limit("peer_streams")), (1.0, 1.0));
    drop(stream);
    site.until("the stream has ended", async || site.in_use("peer_streams") == 0.0).await;
}

#[tokio::test]
async fn edges_that_are_shields_of_one_another_refuse_the_loop() {
    let mut site = Site::prepare().await;
    let tarball = Tarball::random(1, 1000);
    site.origin.publish("shop", 7, 1, &tarball);
    shielding(&mut site.config);
    let (a, b) = (free_address(), free_address());
    let edge = |name, own, other| {
        let mut config = another(&site, name, &[other]);
        config.listen = own;
        start(config)
    };
    let (edge_a, edge_b) = (edge("edge-a", a, b).await, edge("edge-b", b, a).await);
    let is_up = |edge: &Running, shield: SocketAddr| {
        metric_of(edge, "weir_edge_origin_up", &[("origin", &shield.to_string())]) == 1.0
    };
    site.until("they see each other", async || is_up(&edge_a, b) && is_up(&edge_b, a)).await;

    let mut client = client_of(&site, &edge_a).await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    let miss = "fwd=miss; fwd-status=200; stored";
    assert_eq!(reply.header("cache-status"), format!("edge-b; {miss}, edge-a; {miss}"));
    let refused = [("kind", "shield"), ("status", "508")];
    assert_eq!(metric_of(&edge_b, "weir_edge_origin_requests_total", &refused), 1.0, "edge-a has refused it");
    assert_eq!(metric_of(&edge_a, "weir_edge_origin_requests_total", &refused), 0.0);
    assert_eq!(site.origin.requests("object").len(), 1);

    let reply = client.get(TARBALL, &[("cdn-loop", "other.example, weir;id=edge-a")]).await;
    assert_eq!((reply.status, &reply.problem()["type"]), (508, &"urn:weir:problem:loop-detected".into()));
    assert_eq!(client.get(TARBALL, &[("cdn-loop", "weir;id=edge-b")]).await.status, 200);
}

#[tokio::test]
async fn when_a_shield_dies_objects_come_from_the_origins_and_polls_go_on() {
    let tarball = Tarball::random(1, 3 << 20);
    let mut site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &tarball)), shielding).await;
    let shield = site.edge().address();
    let edge = start(another(&site, "edge-2", &[shield])).await;
    let mut client = client_of(&site, &edge).await;
    let reply = client.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    assert!(reply.header("cache-status").starts_with("edge-1; "), "{}", reply.header("cache-status"));
    let by_kind =
        |kind, status| metric_of(&edge, "weir_edge_origin_requests_total", &[("kind", kind), ("status", status)]);
    assert_eq!((by_kind("shield", "200"), by_kind("object", "200")), (4.0, 0.0), "a manifest and its frames");
    assert_eq!(site.metric("weir_edge_peer_requests_total", &[("route", "object"), ("status", "200")]), 4.0);

    site.cut_edge().await;
    let second = Tarball::random(2, 3 << 20);
    site.origin.push("shop", 8, 1, &second);
    let is_new = async || client.clone().head(TARBALL, &[]).await.header("weir-generation") == "8";
    site.until("the poll finds the new version", is_new).await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &second.zstd);
    assert_eq!(by_kind("object", "200"), 4.0);
    assert!(edge.drain(Duration::from_secs(5)).await);
}

#[tokio::test]
async fn corrupt_bytes_of_a_shield_are_fetched_from_the_origin() {
    let tarball = Tarball::random(1, 1000);
    let mut site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &tarball)), |_| {}).await;
    // An origin that lies takes the place of the shield.
    let liar = site.second_origin().await;
    liar.publish("shop", 7, 1, &tarball);
    liar.fault_of(tarball.named(), crate::test_origin::Fault::Flip);
    let mut config = another(&site, "edge-2", &[]);
    config.shields = vec![config.origins.pop().unwrap()];
    let edge = start(config).await;
    let reply = client_of(&site, &edge).await.get(TARBALL, &[ZSTD]).await;
    assert_eq!(reply.bytes(), &tarball.zstd);
    assert_eq!((liar.requests("object").len(), site.origin.requests("object").len()), (1, 1));
    assert_eq!(metric_of(&edge, "weir_edge_verify_failures_total", &[("tier", "origin")]), 1.0);
}

#[tokio::test]
async fn a_shield_that_hangs_is_not_waited_for_again() {
    let (first, second) = (Tarball::random(1, 1000), Tarball::random(2, 1000));
    let site = Site::following(|site| drop(site.origin.publish("shop", 7, 1, &first)), |_| {}).await;
    // Nobody accepts: the system does, as for a process that is stopped.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let shield = hung.local_addr().unwrap();
    let edge = start(another(&site, "edge-2", &[shield])).await;
    let failed =
        || metric_of(&edge, "weir_edge_origin_requests_total", &[("kind", "shield"), ("status", "unreachable")]);
    let mut client = client_of(&site, &edge).await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &first.zstd);
    assert_eq!((failed(), site.origin.requests("object").len()), (1.0, 1));

    let name = shield.to_string();
    let opened = || metric_of(&edge, "weir_edge_origin_circuit_opened_total", &[("origin", &name)]);
    site.until("its circuit is open", async || opened() > 0.0).await;
    site.origin.push("shop", 8, 1, &second);
    let is_new = async || client.clone().head(TARBALL, &[]).await.header("weir-generation") == "8";
    site.until("the poll finds the new version", is_new).await;
    assert_eq!(client.get(TARBALL, &[ZSTD]).await.bytes(), &second.zstd);
    assert_eq!((failed(), site.origin.requests("object").len()), (1.0, 2), "it is not asked");
}

#[tokio::test]
async fn agents_behind_an_edge_that_reaches_a_shield_alone_get_statements_of_freshness() {
    let site = Site::following(
        |site| {
            for service in ["shop", "shop-mute"] {
                site.origin.publish(service, 7, 1, &Tarball::random(1, 1000));
            }
        },
        shielding,
    )
    .await;
    let signed = heartbeats::statement("shop", 7).sign(&[heartbeats::key()]);
    site.origin.state_freshness("shop", signed.clone());
    let shield = site.edge().address();
    let mut edges = Vec::new();
    for name in ["edge-2", "edge-3"] {
        let mut config = another(&site, name, &[]);
        config.origins = vec![as_shield(&site, shield)];
        let bearer = heartbeats::guard(&mut config, site.pki());
        let edge = start(config).await;
        let (mut agent, authorization) = (client_of(&site, &edge).await, [("authorization", bearer.as_str())]);
        let names = ["shop", "shop-mute", "shop-none"];
        for name in names {
            agent.get(&format!("/v1/services/{name}"), &authorization).await;
        }
        let reply = agent.post(heartbeats::PATH, &authorization, heartbeats::request(&names)).await;
        let answer = HeartbeatAnswer::parse(reply.bytes()).unwrap();
        let unchanged = SignedFreshness { service: "shop".parse().unwrap(), envelope: signed.clone(), staged: None };
        assert_eq!(answer.services, [unchanged], "{name}");
        edges.push(edge);
    }
    assert_eq!(site.origin.requests("heartbeats").len(), 1, "the shield has asked once for both");
    let answered = [("route", "heartbeats"), ("status", "200")];
    assert_eq!(site.metric("weir_edge_peer_requests_total", &answered), 2.0);
    // For edges alone, and as the protocol has it.
    let request = || heartbeats::request(&["shop"]);
    assert_eq!(site.client("h2").await.post("/v1/heartbeats", &[], request()).await.status, 404);
    let mut edge = site.client_as("edge-client", "h2").await;
    assert_eq!(edge.get("/v1/heartbeats", &[]).await.status, 405);
    assert_eq!(edge.post("/v1/heartbeats", &[], b"{".to_vec()).await.status, 400);
    let loops = [("cdn-loop", "weir;id=edge-1")];
    assert_eq!(edge.post("/v1/heartbeats", &loops, request()).await.status, 508);
}

#[tokio::test]
async fn what_agents_of_an_edge_that_reaches_a_shield_alone_run_is_passed_on_to_all_origins() {
    let (mut site, others) = cluster(1).await;
    shielding(&mut site.config);
    all(&site, &others).for_each(TestOrigin::observe);
    site.start_edge().await;
    followed(&site, 2).await;
    let mut config = another(&site, "edge-2", &[]);
    config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    config.origins = vec![as_shield(&site, site.edge().address())];
    let edge = start(config).await;
    let mut agent = Client::connect_as(Some("agent"), "h2", edge.address(), site.pki()).await;
    let message = observed::message("a1", 1, true, &["shop-a", "shop-b"], "503");
    assert_eq!(agent.post(OBSERVED, &[], message).await.status, 204);
    for origin in all(&site, &others) {
        site.until("it has the rows", async || rows_at(origin, "cluster-1").len() == 2).await;
        let (messages, paths) = (origin.observed(), origin.observed_paths());
        // Its own ones have its name, and all others that of the edge.
        let as_expected = |(message, path): (&EdgeObserved, &String)| match path.as_str() {
            EDGE_PATH => message.sender().as_str() == "edge-1" && message.agents.is_empty(),
            path => path == "/v1/observed/via/edge-1" && message.sender().as_str() == "edge-1~edge-2",
        };
        assert!(messages.iter().zip(&paths).all(as_expected), "{messages:?} {paths:?}");
    }
    let sent = |result: &str| metric_of(&edge, "weir_edge_observed_messages_total", &[("result", result)]);
    assert!(sent("accepted") >= 1.0 && sent("error") == 0.0);
    assert!(site.metric("weir_edge_peer_requests_total", &[("route", "observed"), ("status", "204")]) >= 1.0);

    // Nothing that another edge would say, and nothing that came through a shield.
    let mut other = site.client_as("edge-client", "h2").await;
    let of_another = r#"{"edge":"edge-9","instance":"e","seq":1,"connected":0}"#;
    assert_eq!(other.get(EDGE_PATH, &[]).await.header("allow"), "POST");
    for (path, message, status) in [(EDGE_PATH, of_another, 403), (EDGE_PATH, "{", 400)] {
        assert_eq!(other.post(path, &[], message).await.status, status);
    }
    let through = other.post("/v1/observed/via/edge-3", &[], of_another.replace("edge-9", "edge-1")).await;
    assert_eq!(through.status, 405);
    edge.cut().await;
}
