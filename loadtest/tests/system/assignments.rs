//! Operators assign services; an agent that lists none begins and ends them, by events and the polls that they cause.

use std::fs;

use anyhow::Context;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{free_address, until};
use weir_loadtest::scrape;

use crate::access::token;
use crate::operators::{TOKEN, curl};
use crate::site::{Plan, Site, service};

const ASSIGNMENT: &str = "/v1/assignments/shop-to-canaries";

/// Publishes a version of all folders.
fn publish(upstream: &GitRepository, version: &str) -> anyhow::Result<()> {
    for folder in ["prod", "stage", "bank"] {
        upstream.write(format!("deploy/{folder}/version"), version)?;
    }
    upstream.commit_and_push(version).map(drop)
}

/// An origin with three services and an operators' listener, whose URL is returned too; and an agent that follows what is
/// assigned, polls once an hour, and writes down the services whose hooks run.
async fn site() -> anyhow::Result<(Site, String)> {
    let services = [("shop-prod", "prod"), ("shop-stage", "stage"), ("bank", "bank")];
    let services = services.map(|(name, folder)| service(name, "main", &format!("deploy/{folder}"))).concat();
    let plan = Plan {
        services: format!("{services}[operator_api]\noperator_token_file = \"operator-token\"\n"),
        follows: vec!["*"],
        exec: Some("echo $WEIR_SERVICE >> ../../../../hooks".to_owned()),
        auth: "mode = 'required'\nkeys = ['fleet.key.pub']",
        agent: "token_file = 'agent.token'\nservices = 'assigned'\nspread = '0s'\nunassign_after = '0s'",
        ..Plan::default()
    };
    let site = Site::new(|upstream| publish(upstream, "1"), plan).await?;
    let (dir, listen) = (site.path(""), free_address()?);
    let origin = fs::read_to_string(dir.join("origin.toml"))?;
    fs::write(dir.join("origin.toml"), format!("operator_listen = \"{listen}\"\n{origin}"))?;
    fs::write(dir.join("operator-token"), TOKEN)?;
    let agent = fs::read_to_string(dir.join("agent.toml"))?;
    fs::write(dir.join("agent.toml"), agent.replace("poll_interval = \"1s\"", "poll_interval = \"1h\""))?;
    token(&dir, "key --out fleet.key")?;
    token(&dir, "issue --key fleet.key --subject cluster-1 --service shop-* --id one --out agent.token")?;
    token(&dir, "issue --key fleet.key --subject cluster-2 --service docs-* --id two --out other.token")?;
    Ok((site, format!("https://{listen}")))
}

/// The services of the agent, by its own word.
fn followed(status: &Value) -> Vec<&str> {
    status["services"].as_object().map(|services| services.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn assigned_services_begin_and_end_with_the_events_of_their_origin() -> anyhow::Result<()> {
    let (mut site, base) = site().await?;
    site.start().await?;
    let dir = site.path("");
    let ca = dir.join("ca.pem");
    let send = async |method: &str, path: &str, document: Value| {
        curl(&ca, method, format!("{base}{path}"), Some(document).filter(|document| !document.is_null())).await
    };
    // What a change would do, for the one agent that there is.
    let dry_run = async |change: Value, starts: &[&str], stops: &[&str]| {
        let expected = json!([{ "agent": "cluster-1", "state": "live", "starts": starts, "starts_total": starts.len(),
            "stops": stops, "stops_total": stops.len() }]);
        let is_expected = async || {
            let answer = send("POST", "/v1/assignments/dry-run", change.clone()).await;
            answer.is_ok_and(|(status, effect)| status == 200 && effect["agents"] == expected)
        };
        until("a dry run says what starts and stops", is_expected).await
    };
    let rule =
        |services: &[&str]| json!({ "agents": "cluster-*", "labels": { "ring": "canary" }, "services": services });
    let named = |services: &[&str]| {
        let mut rule = rule(services);
        rule["name"] = json!("shop-to-canaries");
        json!({ "assignments": [rule] })
    };
    let version = |service: &str| fs::read_to_string(dir.join("agent-data").join(service).join("current/version")).ok();
    let hooks = || fs::read_to_string(dir.join("hooks")).unwrap_or_default();
    site.until_counter(&site.agent, "weir_agent_event_stream_connected", &[], 0.0).await?;
    let (_, ready) = scrape::get(site.agent.admin(), "/readyz").await?;
    assert_eq!(followed(&scrape::status(site.agent.admin()).await?), [""; 0], "{ready}");

    // The agent has no entry yet, and is known by its edge.
    let all = json!({ "assignments": [{ "name": "all", "agents": "cluster-*", "services": ["shop-prod"] }] });
    dry_run(all, &["shop-prod"], &[]).await.with_context(|| site.logs())?;
    assert_eq!(send("PUT", "/v1/agents/cluster-1", json!({ "labels": { "ring": "canary" } })).await?.0, 201);
    dry_run(named(&["shop-prod", "bank"]), &["bank", "shop-prod"], &[]).await?;
    assert_eq!(send("PUT", ASSIGNMENT, rule(&["shop-prod", "bank"])).await?.0, 201);
    site.until_released("shop-prod", "version", "1").await?;

    // One ends, another one begins.
    dry_run(named(&["shop-stage", "bank"]), &["shop-stage"], &["shop-prod"]).await?;
    assert_eq!(send("PUT", ASSIGNMENT, rule(&["shop-stage", "bank"])).await?.0, 200);
    site.until_released("shop-stage", "version", "1").await?;
    site.until_status(&site.agent, "one has ended", |status| followed(status) == ["shop-stage"]).await?;
    publish(&site.upstream, "2")?;
    site.until_released("shop-stage", "version", "2").await?;
    site.until_counter(&site.agent, "weir_agent_hook_runs_total", &["result=\"success\""], 2.0).await?;
    assert_eq!(hooks(), "shop-prod\nshop-stage\nshop-stage\n");
    assert_eq!(version("shop-prod").as_deref(), Some("1"), "its directory stays as it was");
    assert!(site.path("agent-data/shop-prod/unassigned-since").exists());

    // The origin knows what the agent runs, by its edge, and no longer what has ended.
    let runs = async || {
        let (_, answer) = send("GET", "/v1/fleet/rows?agent=cluster-1", Value::Null).await.ok()?;
        let [row] = answer["rows"].as_array()?.as_slice() else { return None };
        let is_complete = answer["incomplete"] == json!([]) && row["labels"] == json!({ "ring": "canary" });
        Some(is_complete && row["service"] == "shop-stage" && row["phase"] == "current" && row["hook"] == "succeeded")
    };
    until("the origin knows what runs there", async || runs().await.unwrap_or_default())
        .await
        .with_context(|| site.logs())?;

    // What the credential does not open is nothing, however often it is assigned.
    assert!(!site.path("agent-data/bank").exists(), "{}", site.logs());
    let client = site.client()?;
    for (file, services) in [("agent.token", json!(["shop-stage"])), ("other.token", json!([]))] {
        let bearer = format!("Bearer {}", fs::read_to_string(site.path(file))?.trim());
        let answer = client.send("GET", "/v1/agents/self/services", &[("authorization", &bearer)]).await?;
        let rows: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        let names: Value =
            rows["services"].as_array().into_iter().flatten().map(|row| row["service"].clone()).collect();
        assert_eq!(names, services, "{file}");
    }

    // An edge that comes back while the origin is away has taken nothing from anybody.
    site.origin.terminate().await?;
    site.edge.terminate().await?;
    site.edge.start().await?;
    let connected = site.until_counter(&site.agent, "weir_agent_event_stream_connected", &[], 0.0);
    connected.await?;
    assert_eq!(followed(&scrape::status(site.agent.admin()).await?), ["shop-stage"]);
    site.origin.start().await?;

    // The list of the owner without any entry ends all.
    dry_run(json!({ "delete_assignments": ["shop-to-canaries"] }), &[], &["bank", "shop-stage"]).await?;
    assert_eq!(send("DELETE", ASSIGNMENT, Value::Null).await?.0, 204);
    site.until_status(&site.agent, "all have ended", |status| followed(status).is_empty()).await?;
    assert_eq!(version("shop-stage").as_deref(), Some("2"));
    assert_eq!(hooks().lines().count(), 3);
    Ok(())
}
