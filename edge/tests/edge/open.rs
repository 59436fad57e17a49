//! An edge that everybody may read: a credential is checked where one is presented, and allows an agent the requests about
//! itself.

use std::fs;
use std::path::PathBuf;

use weir_edge::config::{AuthMode, Config};
use weir_protocol::access_list::{AccessList, key_line};
use weir_protocol::batch_poll::BatchPoll;
use weir_protocol::event::EventKind;
use weir_protocol::token::SigningKey;

use crate::access::claims;
use crate::client::Client;
use crate::site::{PATIENCE, Site};
use crate::test_origin::Tarball;

const SERVICES: &str = "/v1/agents/self/services?services=*";
const EVENTS: &str = "/v1/agents/self/events?services=*";
const TARBALL: &str = "/v1/services/shop/tarball";

fn access_event(list: &AccessList) -> EventKind {
    EventKind::Access(list.json().get().as_bytes().to_vec().into())
}

/// An open edge that follows an origin with the service `shop`, and has heard its access list.
async fn open(change: impl FnOnce(&mut Config)) -> Site {
    let publish = |site: &Site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)));
    let site = Site::following(publish, |config| {
        assert_eq!(config.auth.mode, AuthMode::Open);
        change(config);
    })
    .await;
    site.origin.send_event(access_event(&AccessList::default()));
    site
}

/// A key in a file beside the cache, and a token that it signs for another service.
fn key_and_token(config: &Config, name: &str) -> (PathBuf, String) {
    let (key, file) = (SigningKey::generate().unwrap().0, config.cache.dir.with_file_name(name));
    fs::write(&file, key_line(key.public()) + "\n").unwrap();
    (file, format!("Bearer {}", key.issue(&claims(name, &["other"])).unwrap()))
}

async fn status(client: &mut Client, path: &str, bearer: &str) -> u16 {
    client.get(path, &[("authorization", bearer)]).await.status
}

#[tokio::test]
async fn an_open_edge_checks_the_credentials_that_it_is_shown() {
    let site = open(|config| config.auth.client_ca = Some(config.origins[0].ca.clone())).await;
    let mut list = AccessList::default();
    for version in ["h1", "h2", "h3"] {
        let (mut agent, mut anybody) = (site.client_as("agent", version).await, site.client(version).await);
        site.until("the agent is known by its certificate", async || agent.get(SERVICES, &[]).await.status == 200)
            .await;
        let rows = BatchPoll::parse(agent.get(SERVICES, &[]).await.bytes()).unwrap();
        assert_eq!(rows.services().len(), 1, "it may read what everybody may");
        assert_eq!(anybody.get(SERVICES, &[]).await.status, 404, "nobody has no self");
        let forged = [("authorization", "Bearer a.b.c")];
        for (client, path) in [(&mut anybody, TARBALL), (&mut agent, SERVICES)] {
            assert_eq!(client.get(path, &[]).await.status, 200);
            assert_eq!(client.get(path, &forged).await.status, 401);
        }
    }
    let mut agent = site.client_as("agent", "h2").await;
    list.deny_agent("cluster-1".parse().unwrap()).unwrap();
    site.origin.send_event(access_event(&list));
    site.until("a denied agent gets nothing", async || agent.get(TARBALL, &[]).await.status == 401).await;
    assert_eq!(site.client("h2").await.get(TARBALL, &[]).await.status, 200);

    // Without anything to check them with, credentials say nothing.
    let (plain, _) = Site::serving(1000).await;
    let forged = plain.client("h2").await.get(TARBALL, &[("authorization", "Bearer a.b.c")]).await;
    assert_eq!(forged.status, 200);
}

#[tokio::test]
async fn a_token_opens_what_an_agent_asks_about_itself_until_it_is_denied() {
    let (mut good, mut denied) = (String::new(), PathBuf::new());
    let site = open(|config| {
        let (key, token) = key_and_token(config, "good");
        denied = config.cache.dir.with_file_name("denied");
        fs::write(&denied, "").unwrap();
        (config.auth.keys, config.auth.deny, good) = (vec![key], Some(denied.clone()), token);
    })
    .await;
    let (_, stranger) = key_and_token(&site.config, "stranger");
    let mut streams = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        site.until("the token counts", async || status(&mut client, SERVICES, &good).await == 200).await;
        let rows = client.get(SERVICES, &[("authorization", &good)]).await;
        let rows = BatchPoll::parse(rows.bytes()).unwrap();
        assert_eq!(rows.services().len(), 1, "an open edge: what its token does not open too");
        assert_eq!(status(&mut client, TARBALL, &good).await, 200);
        for path in [TARBALL, SERVICES] {
            assert_eq!(status(&mut client, path, &stranger).await, 401, "{version} {path}");
        }
        let mut reader = site.client(version).await;
        let mut stream = reader.begin("GET", EVENTS, &[("authorization", &good)]).await;
        assert_eq!(stream.status, 200);
        assert!(stream.next().await.unwrap().is_ok());
        streams.push((reader, stream));
    }
    fs::write(&denied, "token good\n").unwrap();
    for (_, stream) in &mut streams {
        let end = async { while stream.next().await.expect("no clean end").is_ok() {} };
        tokio::time::timeout(PATIENCE, end).await.expect("the denial ends the stream");
    }
    let ended = [("reason", "credential")];
    assert_eq!(site.metric("weir_edge_agent_streams_ended_total", &ended), 3.0);
    let mut client = site.client("h2").await;
    for path in [TARBALL, SERVICES] {
        assert_eq!(status(&mut client, path, &good).await, 401, "{path}");
    }
    assert_eq!(client.get(TARBALL, &[]).await.status, 200, "everybody may read");
}

#[tokio::test]
async fn a_reload_starts_and_stops_the_check_of_tokens() {
    let site = open(|_| {}).await;
    let ((key, good), (_, stranger)) = (key_and_token(&site.config, "good"), key_and_token(&site.config, "stranger"));
    let mut client = site.client("h2").await;
    let mut statuses = async || {
        let tarball = [status(&mut client, TARBALL, &good).await, status(&mut client, TARBALL, &stranger).await];
        (tarball, status(&mut client, SERVICES, &good).await)
    };
    assert_eq!(statuses().await, ([200, 200], 404), "nothing checks them");
    let mut config = site.config.clone();
    config.auth.keys = vec![key];
    site.edge().reload(Ok(config.clone())).await.unwrap();
    assert_eq!(statuses().await, ([200, 401], 200));
    config.auth.keys.clear();
    site.edge().reload(Ok(config)).await.unwrap();
    assert_eq!(statuses().await, ([200, 200], 404));
}

#[tokio::test]
async fn denials_outlive_a_restart_without_the_origin() {
    let mut site = open(|config| config.auth.client_ca = Some(config.origins[0].ca.clone())).await;
    let mut list = AccessList::default();
    list.deny_agent("cluster-1".parse().unwrap()).unwrap();
    site.origin.send_event(access_event(&list));
    assert_eq!(site.client("h2").await.get(TARBALL, &[]).await.status, 200);
    site.settled().await;
    let mut agent = site.client_as("agent", "h2").await;
    site.until("the denial arrives", async || agent.get(TARBALL, &[]).await.status == 401).await;
    site.stop_edge().await;
    site.origin.go_down().await;
    site.start_edge().await;
    for path in [TARBALL, SERVICES] {
        assert_eq!(site.client_as("agent", "h2").await.get(path, &[]).await.status, 401, "{path}");
    }
    assert_eq!(site.client("h2").await.get(TARBALL, &[]).await.status, 200);
}

#[tokio::test]
async fn an_open_edge_that_checks_credentials_is_ready_with_the_denials_of_its_origin() {
    let publish = |site: &Site| drop(site.origin.publish("shop", 7, 1, &Tarball::random(1, 1000)));
    let site = Site::following(publish, |config| config.auth.client_ca = Some(config.origins[0].ca.clone())).await;
    let unready = site.admin("/readyz").await;
    assert!(unready.0 == 503 && unready.1.contains("has not sent its access list yet"), "{}", unready.1);
    site.origin.send_event(access_event(&AccessList::default()));
    site.until("the list has arrived", async || site.admin("/readyz").await == (200, "ready\n".to_owned())).await;
    // Without credentials to check there is nothing to deny.
    let plain = Site::following(publish, |_| {}).await;
    assert_eq!(plain.admin("/readyz").await.0, 200);
}

#[tokio::test]
async fn certificates_of_edges_open_what_edges_ask_and_prove_no_agent() {
    for proves_agents in [false, true] {
        let site = open(|config| {
            config.peers.ca = Some(config.origins[0].ca.clone());
            config.auth.client_ca = proves_agents.then(|| config.origins[0].ca.clone());
        })
        .await;
        let mut edge = site.client_as("edge-client", "h2").await;
        site.until("it may follow", async || edge.begin("GET", "/v1/events", &[]).await.status == 200).await;
        assert_eq!(edge.get("/v1/services/shop", &[]).await.status, 200);
        assert_eq!((edge.get(TARBALL, &[]).await.status, edge.get(SERVICES, &[]).await.status), (200, 404));
        let mut anybody = site.client("h2").await;
        assert_eq!((anybody.get(TARBALL, &[]).await.status, anybody.get("/v1/events", &[]).await.status), (200, 404));
        let mut agent = site.client_as("agent", "h2").await;
        assert_eq!(agent.get("/v1/events", &[]).await.status, 404, "an agent is no edge");
        if proves_agents {
            site.until("the agent is known", async || agent.get(SERVICES, &[]).await.status == 200).await;
        } else {
            assert_eq!(agent.get(SERVICES, &[]).await.status, 404, "no authority for agents");
        }
    }
}
