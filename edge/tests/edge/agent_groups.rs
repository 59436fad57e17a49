//! What event streams of many agents are told: only what changes their rows.

use weir_protocol::access_list::{Entries, Fleet};
use weir_protocol::agent_event::{AgentEvent, AgentEventKind};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::batch_poll::BatchPoll;
use weir_protocol::labels::Labels;
use weir_protocol::token::{Claims, SigningKey};

use crate::access::{claims, trust};
use crate::agent_self::{EVENTS, SERVICES, access_event, assigned, next};
use crate::client::Download;
use crate::test_origin::Tarball;

/// The next event, also a heartbeat.
async fn any(stream: &mut Download) -> AgentEventKind {
    let part = tokio::time::timeout(crate::site::PATIENCE, stream.next()).await.unwrap().unwrap().unwrap();
    AgentEvent::parse(part.strip_suffix(b"\n").unwrap()).unwrap().unwrap().kind
}

#[tokio::test]
async fn a_snapshot_that_changes_nothing_tells_agents_nothing() {
    let site = assigned(|_| {}).await;
    let mut client = site.client_as("agent", "h2").await;
    let mut stream = client.begin("GET", EVENTS, &[]).await;
    assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
    // The origin starts again.
    site.origin.forget_cursors();
    site.origin.cut_streams();
    let resynced = || site.metric("weir_edge_resyncs_total", &[("reason", "cursor_unknown")]);
    site.until("its snapshot begins", async || resynced() == 1.0).await;
    site.in_step().await;
    site.origin.heartbeat();
    site.origin.push("shop-b", 8, 1, &Tarball::random(2, 1000));
    let event = next(&mut stream).await;
    let is_changed = matches!(&event.kind, AgentEventKind::Changed(row) if row.service.as_str() == "shop-b");
    assert!(is_changed, "{event:?}");
    // What has changed meanwhile is said.
    site.origin.publish("shop-a", 8, 1, &Tarball::random(3, 1000));
    site.origin.forget_cursors();
    site.origin.cut_streams();
    let event = next(&mut stream).await;
    let is_changed = matches!(&event.kind, AgentEventKind::Changed(row) if row.service.as_str() == "shop-a");
    assert!(is_changed, "{event:?}");
}

#[tokio::test]
async fn agents_that_follow_the_same_are_told_the_same_and_an_edit_is_for_those_that_it_names() {
    let (key, _) = SigningKey::generate().unwrap();
    let site = assigned(|config| trust(config, &key)).await;
    let begun = async |number: u8| {
        let claims = Claims { subject: format!("cluster-{number}").parse().unwrap(), ..claims("one", &["shop*"]) };
        let bearer = format!("Bearer {}", key.issue(&claims).unwrap());
        let mut client = site.client("h2").await;
        let mut stream = client.begin("GET", EVENTS, &[("authorization", &bearer)]).await;
        assert_eq!(next(&mut stream).await.kind, AgentEventKind::Resync, "it has no cursor");
        (client, stream)
    };
    let (mut one, used) = (begun(1).await, site.in_use("agent_following_bytes"));
    let mut two = begun(2).await;
    assert_eq!(site.in_use("agent_following_bytes"), used, "they are one group");
    let mut told = async |expected: [&[&str]; 2]| {
        for (stream, expected) in [&mut one.1, &mut two.1].into_iter().zip(expected) {
            for expected in expected {
                let said = match next(stream).await.kind {
                    AgentEventKind::Changed(row) => format!("{} {}", row.service, row.generation.unwrap_or_default()),
                    AgentEventKind::Assigned(row) => format!("+{}", row.service),
                    AgentEventKind::Unassigned(service) => format!("-{service}"),
                    other => panic!("{other:?}"),
                };
                assert_eq!(said, *expected);
            }
        }
    };
    site.origin.push("shop-b", 8, 1, &Tarball::random(2, 1000));
    told([&["shop-b 8"], &["shop-b 8"]]).await;
    let of = |name: &str, agents: &str, services: &str| {
        let services = vec![services.parse().unwrap()];
        Assignment::new(name.parse().unwrap(), Some(agents.parse().unwrap()), Default::default(), services).unwrap()
    };
    let fleet = |revision, assignments: Vec<Assignment>| Fleet {
        assignments: Entries::new(revision, assignments, []).unwrap(),
        ..Fleet::default()
    };
    let second = of("second", "cluster-2", "shop-b");
    site.origin.send_event(access_event(fleet(2, vec![of("all", "*", "shop-a"), second.clone()])));
    told([&["-shop-b"], &[]]).await;
    site.origin.push("shop-b", 9, 1, &Tarball::random(3, 1000));
    told([&[], &["shop-b 9"]]).await;
    site.origin.push("shop-a", 9, 1, &Tarball::random(4, 1000));
    told([&["shop-a 9"], &["shop-a 9"]]).await;
    site.origin.send_event(access_event(fleet(3, vec![of("all", "*", "shop-*"), second])));
    told([&["+shop-b"], &[]]).await;
    site.origin.push("shop-b", 10, 1, &Tarball::random(5, 1000));
    told([&["shop-b 10"], &["shop-b 10"]]).await;
}

#[tokio::test]
async fn a_batch_poll_has_the_labels_of_its_agent_and_an_edit_of_them_lets_it_poll() {
    let (key, _) = SigningKey::generate().unwrap();
    let site = assigned(|config| trust(config, &key)).await;
    let labels = |json: &str| serde_json::from_str::<Labels>(json).unwrap();
    let bearer = |labels| {
        let claims = Claims { subject: "cluster-1".parse().unwrap(), labels, ..claims("one", &["shop*"]) };
        format!("Bearer {}", key.issue(&claims).unwrap())
    };
    let (own, none) = (bearer(labels(r#"{"ring":"all","region":"eu"}"#)), bearer(Labels::default()));
    let mut client = site.client("h2").await;
    let mut polled = async |bearer: &str| {
        let reply = client.get(SERVICES, &[("authorization", bearer)]).await;
        let (tag, labels) =
            (reply.header("etag").to_owned(), BatchPoll::parse(reply.bytes()).unwrap().labels().clone());
        let known = [("authorization", bearer), ("if-none-match", tag.as_str())];
        assert_eq!((client.get(SERVICES, &known).await.status, client.head(SERVICES, &known).await.status), (304, 304));
        (tag.trim_matches('"').to_owned(), labels)
    };
    let (bare, without) = polled(&none).await;
    let (tag, with) = polled(&own).await;
    assert_eq!((without, with), (Labels::default(), labels(r#"{"region":"eu","ring":"all"}"#)));
    assert_ne!(bare, tag);

    // The other tag is another state: it has no labels.
    let mut streams = Vec::new();
    for (since, expected) in [(&bare, AgentEventKind::Resync), (&tag, AgentEventKind::Heartbeat)] {
        let mut client = site.client("h2").await;
        let mut stream = client.begin("GET", &format!("{EVENTS}?since={since}"), &[("authorization", &own)]).await;
        assert_eq!(any(&mut stream).await, expected);
        streams.push((client, stream));
    }
    let of = |name: &str| Agent { name: name.parse().unwrap(), labels: labels(r#"{"ring":"canary"}"#) };
    let everything = || {
        let all = vec!["shop-*".parse().unwrap()];
        Assignment::new("all".parse().unwrap(), Some("*".parse().unwrap()), Labels::default(), all).unwrap()
    };
    let fleet = |revision, agents: Vec<Agent>| Fleet {
        agents: Entries::new(revision, agents, []).unwrap(),
        assignments: Entries::new(revision, vec![everything()], []).unwrap(),
        ..Fleet::default()
    };
    site.origin.send_event(access_event(fleet(2, vec![of("cluster-2")])));
    site.origin.send_event(access_event(fleet(3, vec![of("cluster-1"), of("cluster-2")])));
    for (_, stream) in &mut streams {
        assert_eq!(next(stream).await.kind, AgentEventKind::Resync, "once, for its own labels");
    }
    let (edited, now) = polled(&own).await;
    assert_eq!(now, labels(r#"{"region":"eu","ring":"canary"}"#));
    assert_ne!(edited, tag);
    site.origin.push("shop-b", 8, 1, &Tarball::random(2, 1000));
    for (_, stream) in &mut streams {
        assert!(matches!(next(stream).await.kind, AgentEventKind::Changed(_)));
    }
}
