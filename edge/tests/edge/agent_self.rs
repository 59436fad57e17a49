//! What an agent asks about itself: the batch poll and its events.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use weir_edge::config::{AuthMode, CertificateRule, Config};
use weir_protocol::access_list::{AccessList, Entries, Fleet};
use weir_protocol::agent_event::{AgentEvent, AgentEventKind};
use weir_protocol::assignment::Assignment;
use weir_protocol::batch_poll::{BatchPoll, RowState};
use weir_protocol::event::{EventKind, RevisionSeen, Upstream};

use crate::client::{Download, Reply};
use crate::site::Site;
use crate::test_origin::{Tarball, TestOrigin};

pub(crate) const SERVICES: &str = "/v1/agents/self/services";
pub(crate) const EVENTS: &str = "/v1/agents/self/events";

/// The list of an origin that assigns services to all agents.
fn assigning(revision: u64, services: &[&str]) -> EventKind {
    access_event(assignments(revision, "all", services))
}

/// Services assigned to all agents; none to delete the assignment.
fn assignments(revision: u64, name: &str, services: &[&str]) -> Fleet {
    let patterns = services.iter().map(|glob| glob.parse().unwrap()).collect();
    let everyone = Some("*".parse().unwrap());
    let assignment = (!services.is_empty())
        .then(|| Assignment::new(name.parse().unwrap(), everyone, Default::default(), patterns).unwrap());
    Fleet { assignments: Entries::new(revision, assignment, []).unwrap(), ..Fleet::default() }
}

pub(crate) fn access_event(fleet: Fleet) -> EventKind {
    let mut list = AccessList::default();
    list.set_fleet(fleet);
    EventKind::Access(list.json().get().as_bytes().to_vec().into())
}

/// An edge whose agents have certificates that open all but `secret`, and follow `shop*` and `secret`.
pub(crate) async fn assigned(change: impl FnOnce(&mut Config)) -> Site {
    let site = Site::following(
        |site| {
            for service in ["other", "secret", "shop-a", "shop-b"] {
                site.origin.publish(service, 7, 1, &Tarball::random(1, 1000));
            }
        },
        |config| {
            config.auth.mode = AuthMode::Required;
            let opened = ["other", "shop*"].iter().map(|glob| glob.parse().unwrap()).collect();
            config.auth.certificates = vec![CertificateRule { agents: "*".parse().unwrap(), services: opened }];
            config.auth.client_ca = Some(config.origins[0].ca.clone());
            change(config);
        },
    )
    .await;
    site.origin.send_event(assigning(1, &["shop-*", "secret"]));
    let mut client = site.client_as("agent", "h2").await;
    site.until("the assignments are known", async || {
        let reply = client.get(SERVICES, &[]).await;
        reply.status == 200 && names(&reply) == ["shop-a", "shop-b"]
    })
    .await;
    site
}

fn rows(reply: &Reply) -> BatchPoll {
    BatchPoll::parse(reply.bytes()).unwrap()
}

fn names(reply: &Reply) -> Vec<String> {
    rows(reply).services().iter().map(|row| row.service.to_string()).collect()
}

/// The next event that is no heartbeat.
pub(crate) async fn next(stream: &mut Download) -> AgentEvent {
    loop {
        let part = tokio::time::timeout(crate::site::PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
        let event = AgentEvent::parse(part.strip_suffix(b"\n").unwrap()).unwrap().unwrap();
        if event.kind != AgentEventKind::Heartbeat {
            return event;
        }
    }
}

#[tokio::test]
async fn a_batch_poll_has_all_assigned_services_that_may_be_read_in_every_version_of_http() {
    let site = assigned(|_| {}).await;
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client_as("agent", version).await;
        let reply = client.get(SERVICES, &[]).await;
        assert_eq!((reply.status, reply.header("cache-control")), (200, "private, no-cache"), "{version}");
        assert_eq!(reply.header("age"), "0");
        let descriptor = client.get("/v1/services/shop-a", &[]).await;
        let current = rows(&reply).services()[0].clone();
        assert_eq!((current.state, current.generation), (RowState::Current, Some(7)));
        assert_eq!(current.digest, Some(Tarball::random(1, 1000).digest()));
        assert!(descriptor.header("etag").starts_with(current.etag.as_ref().unwrap().trim_end_matches('"')));
        let etag = reply.header("etag");
        for method in ["GET", "HEAD"] {
            let unchanged = client.send(method, SERVICES, &[("if-none-match", etag)]).await;
            assert_eq!((unchanged.status, unchanged.header("etag")), (304, etag));
        }
        let head = client.head(SERVICES, &[]).await;
        assert_eq!((head.status, head.header("etag")), (200, etag));
        site.origin.push(
            "shop-b",
            8 + u64::from(version == "h2") + 2 * u64::from(version == "h3"),
            1,
            &Tarball::random(2, 999),
        );
        site.until("the change is seen", async || client.get(SERVICES, &[("if-none-match", etag)]).await.status == 200)
            .await;
    }
    let mut stranger = site.client("h2").await;
    assert_eq!(stranger.get(SERVICES, &[]).await.status, 401);
    let mut client = site.client_as("agent", "h2").await;
    let named = client.get(&format!("{SERVICES}?services=o*,secret,shop-z"), &[]).await;
    assert_eq!(names(&named), ["other", "shop-z"], "without an assignment, and never what it may not read");
    assert_eq!(rows(&named).services()[1].state, RowState::NotPublished);
    assert_eq!(client.get(&format!("{SERVICES}?services=A"), &[]).await.status, 400);
    let wrong = client.post(SERVICES, &[], "{}").await;
    assert_eq!((wrong.status, wrong.header("allow")), (405, "GET, HEAD"));
}

#[tokio::test]
async fn polls_of_one_agent_at_a_time_and_the_memory_of_what_it_asks_for_are_bounded() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let used = || site.in_use("agent_following_bytes");
    let before = used();
    for list in 0..10 {
        let patterns: Vec<_> = (0..200).map(|n| format!("no-service-{list}-{n}-*")).collect();
        let reply = client.get(&format!("{SERVICES}?services={}", patterns.join(",")), &[]).await;
        assert_eq!((reply.status, rows(&reply).services().len()), (200, 0));
    }
    assert!(used() - before > 10.0 * 200.0 * 20.0, "{} bytes do not have room for the patterns", used() - before);

    let gate = site.origin.hold_descriptors();
    let mut polls = futures_util::stream::FuturesUnordered::new();
    for _ in 0..9 {
        let mut client = site.client_as("agent", "h2").await;
        polls.push(async move { client.get(&format!("{SERVICES}?services=shop-z"), &[]).await });
    }
    let refused = polls.next().await.unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (429, "5"), "one more than is allowed");
    assert_eq!(refused.problem()["type"], json!("urn:weir:problem:too-many-polls"));
    gate.add_permits(1000);
    while let Some(reply) = polls.next().await {
        assert_eq!(reply.status, 200);
    }
}

#[tokio::test]
async fn a_service_that_the_catalog_has_no_room_for_stays_assigned() {
    let site = assigned(|config| config.cache.services = 2).await;
    assert!(site.metric("weir_edge_catalog_evictions_total", &[("reason", "capacity")]) > 0.0);
    let mut client = site.client_as("agent", "h2").await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync);
    let mut poller = site.client_as("agent", "h2").await;
    for generation in 8..=12 {
        for service in ["other", "secret", "shop-a", "shop-b"] {
            site.origin.push(service, generation, 1, &Tarball::random(generation, 1000));
        }
        site.until("the agent gets the new versions", async || {
            let polled = poller.get(SERVICES, &[]).await;
            assert_eq!(names(&polled), ["shop-a", "shop-b"]);
            // Where the catalog has no row, the origin is asked.
            rows(&polled).services().iter().all(|row| row.generation == Some(generation))
        })
        .await;
    }
    site.origin.send_event(assigning(2, &["shop-*", "other"]));
    loop {
        match next(&mut stream).await.kind {
            AgentEventKind::Unassigned(service) => panic!("{service} is assigned"),
            AgentEventKind::Assigned(row) if row.service.as_str() == "other" => break,
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_batch_poll_asks_the_origin_about_a_service_that_is_not_fresh_any_more() {
    let site = assigned(|config| {
        let token = config.origins[0].ca.with_file_name("operator-token");
        std::fs::write(&token, "an-operators-token").unwrap();
        config.admin.operator_token_file = Some(token);
    })
    .await;
    let queries = || site.metric("weir_edge_origin_requests_total", &[("kind", "service")]);
    let mut client = site.client_as("agent", "h2").await;
    let tag = client.get(SERVICES, &[]).await.header("etag").to_owned();
    let before = queries();
    for _ in 0..3 {
        assert_eq!(client.head(SERVICES, &[("if-none-match", &tag)]).await.status, 304);
    }
    assert_eq!(queries(), before);
    let (status, _) =
        site.admin_request("POST", "/v1/purge", Some("an-operators-token"), r#"{"service": "shop-b"}"#).await;
    assert_eq!(status, 200);
    assert_eq!(client.head(SERVICES, &[("if-none-match", &tag)]).await.status, 304);
    assert_eq!(queries(), before + 1.0);
}

#[tokio::test]
async fn an_anonymous_reader_has_no_self() {
    let (site, _) = Site::serving(1000).await;
    let mut client = site.client("h2").await;
    for path in [SERVICES, EVENTS] {
        let reply = client.get(path, &[]).await;
        assert_eq!((reply.status, &reply.problem()["type"]), (404, &json!("urn:weir:problem:no-self")), "{path}");
    }
}

#[tokio::test]
async fn what_operators_of_several_clusters_assign_adds_up() {
    let mut site = Site::prepare().await;
    let second = site.second_origin().await;
    site.config.auth.mode = AuthMode::Required;
    let opened = vec!["*".parse().unwrap()];
    site.config.auth.certificates = vec![CertificateRule { agents: "*".parse().unwrap(), services: opened }];
    site.config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    [&site.origin, &second].iter().for_each(|origin| origin.serve_events());
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000));
    second.publish("docs", 7, 1, &Tarball::random(1, 1000));
    site.start_edge().await;
    site.until("both are followed", async || site.metric("weir_edge_stream_up", &[]) == 2.0).await;
    let mut client = site.client_as("agent", "h2").await;
    let mut follows = async |expected: &[&str]| {
        site.until("the agent follows these", async || {
            let reply = client.get(SERVICES, &[]).await;
            reply.status == 200 && names(&reply) == expected
        })
        .await;
    };
    let send = |origin: &TestOrigin, cluster: &str, fleet: Fleet| {
        origin.send_event(access_event(fleet.of_cluster(&cluster.parse().unwrap())));
    };
    send(&site.origin, "a", assignments(20, "all", &["shop"]));
    send(&second, "b", assignments(7, "docs", &["docs"]));
    follows(&["docs", "shop"]).await;
    send(&second, "b", assignments(8, "docs", &[]));
    follows(&["shop"]).await;
    // Both have the name: that of the first cluster counts until it is deleted there.
    send(&second, "b", assignments(9, "all", &["docs"]));
    site.until("it shows", async || site.metric("weir_edge_access_fleet_conflicts", &[]) == 1.0).await;
    follows(&["shop"]).await;
    send(&site.origin, "a", assignments(21, "all", &[]));
    follows(&["docs"]).await;
    assert_eq!(site.metric("weir_edge_access_fleet_conflicts", &[]), 0.0);
}

#[tokio::test]
async fn an_edge_without_assignments_says_so_instead_of_an_empty_list() {
    let site = Site::with(|config| {
        config.auth.mode = AuthMode::Required;
        let opened = vec!["*".parse().unwrap()];
        config.auth.certificates = vec![CertificateRule { agents: "*".parse().unwrap(), services: opened }];
        config.auth.client_ca = Some(config.origins[0].ca.clone());
    })
    .await;
    let mut client = site.client_as("agent", "h2").await;
    let reply = client.get(SERVICES, &[]).await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, "5"));
    assert_eq!(client.get(&format!("{SERVICES}?services=shop"), &[]).await.status, 200);
}

#[tokio::test]
async fn an_edge_that_was_never_in_sync_gives_no_part_of_a_list() {
    let mut site = Site::with(|config| {
        config.auth.mode = AuthMode::Required;
        let opened = vec!["*".parse().unwrap()];
        config.auth.certificates = vec![CertificateRule { agents: "*".parse().unwrap(), services: opened }];
        config.auth.client_ca = Some(config.origins[0].ca.clone());
    })
    .await;
    let list = format!("{SERVICES}?services=shop-*");
    for service in ["shop-a", "shop-b"] {
        site.origin.publish(service, 7, 1, &Tarball::random(1, 1000));
    }
    // One service comes into the catalog by itself, and outlives a restart.
    assert_eq!(site.client_as("agent", "h2").await.get("/v1/services/shop-a", &[]).await.status, 200);
    site.stop_edge().await;
    site.start_edge().await;
    assert_eq!(site.client_as("agent", "h2").await.get(&list, &[]).await.status, 503);
    site.stop_edge().await;
    site.origin.serve_events();
    site.start_edge().await;
    site.in_step().await;
    assert_eq!(names(&site.client_as("agent", "h2").await.get(&list, &[]).await), ["shop-a", "shop-b"]);
    // From now on the catalog is complete without an origin, too: the rewrite after a start keeps that.
    for _ in 0..2 {
        site.stop_edge().await;
        site.origin.go_down().await;
        site.start_edge().await;
        assert_eq!(names(&site.client_as("agent", "h2").await.get(&list, &[]).await), ["shop-a", "shop-b"]);
    }
    // Another cluster was never heard.
    site.stop_edge().await;
    let _second = site.second_origin().await;
    site.start_edge().await;
    assert_eq!(site.client_as("agent", "h2").await.get(&list, &[]).await.status, 503);
}

#[tokio::test]
async fn events_say_what_changed_what_is_assigned_and_whether_the_upstream_answers() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h3").await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    let first = next(&mut stream).await;
    assert_eq!(first.kind, AgentEventKind::Resync, "it has no cursor");
    let etag = client.get(SERVICES, &[]).await.header("etag").to_owned();
    assert_eq!(format!("\"{}\"", first.cursor), etag, "the cursor is the tag of the rows");

    site.origin.push("other", 8, 1, &Tarball::random(3, 1000));
    site.origin.push("shop-b", 8, 1, &Tarball::random(2, 1000));
    let changed = next(&mut stream).await;
    let AgentEventKind::Changed(row) = &changed.kind else { panic!("{changed:?}") };
    assert_eq!((row.service.as_str(), row.generation), ("shop-b", Some(8)), "what it does not follow is not said");

    site.origin.push("shop-c", 1, 1, &Tarball::random(4, 1000));
    let assigned = next(&mut stream).await;
    assert!(
        matches!(&assigned.kind, AgentEventKind::Assigned(row) if row.service.as_str() == "shop-c"),
        "{assigned:?}"
    );
    site.origin.send_event(assigning(2, &["shop-c", "other"]));
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(match next(&mut stream).await.kind {
            AgentEventKind::Assigned(row) => format!("+{}", row.service),
            AgentEventKind::Unassigned(service) => format!("-{service}"),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(kinds, ["-shop-a", "-shop-b", "+other"]);
    // An origin that lost its documents empties nothing.
    site.origin.send_event(assigning(0, &[]));
    let descriptor = site.origin.publish("shop-c", 2, 1, &Tarball::random(5, 1000));
    let down = Upstream { reachable: false, since: std::time::UNIX_EPOCH + Duration::from_secs(1_800_000_000) };
    let publication = descriptor.publication();
    site.origin.send_event(EventKind::Revision(RevisionSeen {
        repository: publication.repository.clone(),
        followed_ref: descriptor.followed_ref().to_owned(),
        revision_id: publication.revision_id.clone(),
        seen_at: std::time::UNIX_EPOCH,
        upstream: down,
    }));
    let mut event = next(&mut stream).await;
    if matches!(&event.kind, AgentEventKind::Changed(_)) {
        event = next(&mut stream).await;
    }
    let AgentEventKind::Upstream { services, upstream } = &event.kind else { panic!("{event:?}") };
    assert_eq!(
        (services.iter().map(|name| name.as_str()).collect::<Vec<_>>(), *upstream),
        (vec!["other", "shop-c"], down)
    );

    // Another stream goes on where this one is, without `resync`.
    let mut resumed = client.begin("GET", &format!("{EVENTS}?since={}", event.cursor), &[]).await;
    assert!(matches!(next(&mut resumed).await.kind, AgentEventKind::Upstream { .. }));
}

#[tokio::test]
async fn a_generation_that_goes_back_resyncs_no_stream() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
    for revision in [1, 2] {
        site.origin.push("shop-b", 6, revision, &Tarball::random(2, 1000));
        let refused = || site.metric("weir_edge_push_refused_total", &[("reason", "regressed")]);
        site.until("it is refused", async || refused() == revision as f64).await;
    }
    site.origin.push("shop-a", 8, 1, &Tarball::random(3, 1000));
    let event = next(&mut stream).await;
    let is_of_a = matches!(&event.kind, AgentEventKind::Changed(row) if row.service.as_str() == "shop-a");
    assert!(is_of_a, "{event:?}");
}

#[tokio::test]
async fn streams_are_bounded_and_a_drain_ends_them_cleanly() {
    let mut site = assigned(|config| config.agents.streams = 1).await;
    let mut client = site.client_as("agent", "h2").await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    next(&mut stream).await;
    assert_eq!((site.in_use("agent_streams"), site.limit("agent_streams")), (1.0, 1.0));
    let refused = client.get(EVENTS, &[]).await;
    assert_eq!((refused.status, &refused.problem()["type"]), (429, &json!("urn:weir:problem:too-many-streams")));
    drop(stream);
    site.until("its place is free", async || site.in_use("agent_streams") == 0.0).await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    next(&mut stream).await;
    site.stop_edge().await;
    while let Some(part) = stream.next().await {
        assert!(part.is_ok(), "a drain ends it cleanly");
    }
}

#[tokio::test]
async fn the_streams_of_a_denied_agent_end() {
    let mut denied = std::path::PathBuf::new();
    let site = assigned(|config| {
        denied = config.cache.dir.with_file_name("denied");
        std::fs::write(&denied, "").unwrap();
        config.auth.deny = Some(denied.clone());
    })
    .await;
    let mut streams = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client_as("agent", version).await;
        let mut stream = client.begin("GET", EVENTS, &[]).await;
        next(&mut stream).await;
        streams.push((client, stream));
    }
    std::fs::write(&denied, "agent cluster-1\n").unwrap();
    for (_, stream) in &mut streams {
        let end = async {
            while let Some(part) = stream.next().await {
                if part.is_err() {
                    return;
                }
            }
            panic!("it ended as if nothing had been wrong");
        };
        tokio::time::timeout(crate::site::PATIENCE, end).await.unwrap();
    }
    site.until("all have ended", async || site.in_use("agent_streams") == 0.0).await;
    assert_eq!(site.metric("weir_edge_agent_streams_ended_total", &[("reason", "credential")]), 3.0);
}

#[tokio::test]
async fn a_denial_ends_a_stream_in_the_middle_of_a_burst() {
    const BURST: usize = 8000;
    let mut denied = std::path::PathBuf::new();
    let site = assigned(|config| {
        denied = config.cache.dir.with_file_name("denied");
        std::fs::write(&denied, "").unwrap();
        config.auth.deny = Some(denied.clone());
    })
    .await;
    let tarball = Tarball::random(1, 10);
    (0..BURST).for_each(|n| site.origin.push(&format!("shopping-{n}"), 7, 1, &tarball));
    let mut client = site.client_as("agent", "h3").await;
    let list = format!("{SERVICES}?services=shopping-*");
    site.until("they are known", async || names(&client.get(&list, &[]).await).len() == BURST).await;
    let mut reader = site.client_as("agent", "h3").await;
    let mut stream = reader.begin("GET", EVENTS, &[]).await;
    next(&mut stream).await;
    // From now on the agent reads nothing, and the burst does not fit into what it may be sent.
    site.origin.send_event(assigning(2, &["shopping-*"]));
    let sent = || site.metric("weir_edge_agent_events_total", &[("event", "assigned")]);
    site.until("the burst has begun", async || sent() > 100.0).await;
    std::fs::write(&denied, "agent cluster-1\n").unwrap();
    let ended = || site.metric("weir_edge_agent_streams_ended_total", &[("reason", "credential")]);
    site.until("the stream has ended", async || ended() == 1.0).await;
    assert!(sent() < BURST as f64, "it has not waited for the agent");
}

#[tokio::test]
async fn each_run_of_an_edge_has_a_name() {
    let mut site = assigned(|_| {}).await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut client = site.client_as("agent", "h2").await;
        site.until("the assignments are known", async || client.get(SERVICES, &[]).await.status == 200).await;
        let polled = client.get(SERVICES, &[]).await;
        let run = polled.header("weir-edge-instance").to_owned();
        let unchanged = client.get(SERVICES, &[("if-none-match", polled.header("etag"))]).await;
        assert_eq!((unchanged.status, unchanged.header("weir-edge-instance")), (304, &*run));
        let body = json!({"instance": "a", "seq": 1, "full": true, "version": "0.2.0", "rows": []}).to_string();
        assert_eq!(client.post("/v1/agents/self/observed", &[], body).await.header("weir-edge-instance"), run);
        runs.push(run);
        site.cut_edge().await;
        site.start_edge().await;
    }
    assert!(!runs[0].is_empty() && runs[0] != runs[1], "{runs:?}");
}
