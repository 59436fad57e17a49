//! Several edges with one certificate, as pods of Kubernetes have one secret, and edges behind shields: what an origin knows of
//! each.

use std::fs;
use std::net::SocketAddr;

use anyhow::Context;
use serde_json::{Value, json};
use weir_loadtest::processes::{Node, free_address, until};

use crate::operators::{TOKEN, curl};
use crate::site::{Plan, Site};

/// A site with an origin for operators, at this address, and an agent that its edge can name.
async fn site() -> anyhow::Result<(Site, SocketAddr)> {
    let plan = Plan {
        auth: "mode = 'open'\nclient_ca = 'ca.pem'",
        agent: "client_certificate = 'agent.pem'\nclient_key = 'agent.key'",
        ..Plan::default()
    };
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let (site, listen) = (Site::new(fill, plan).await?, free_address()?);
    let origin = fs::read_to_string(site.path("origin.toml"))?;
    let operator = "[operator_api]\noperator_token_file = 'operator-token'\n";
    fs::write(site.path("origin.toml"), format!("operator_listen = \"{listen}\"\n{origin}\n{operator}"))?;
    fs::write(site.path("operator-token"), TOKEN)?;
    Ok((site, listen))
}

/// Another edge, with the certificates of the first, and its address. `change`: of its configuration.
fn another(site: &Site, name: &str, change: impl FnOnce(String) -> String) -> anyhow::Result<(Node, SocketAddr)> {
    let (listen, admin) = (free_address()?, free_address()?);
    let config = fs::read_to_string(site.path("edge.toml"))?
        .replace(&site.edge_address.to_string(), &listen.to_string())
        .replace(&site.edge.admin().to_string(), &admin.to_string())
        .replace("name = \"edge-1\"", &format!("name = \"{name}\""))
        .replace("edge-cache", &format!("cache-{name}"));
    Ok((Node::new(&site.path(""), &format!("edge_{name}"), admin, &change(config))?, listen))
}

/// A page of the fleet, without its times.
async fn ask(site: &Site, listen: SocketAddr, page: &str) -> Option<Value> {
    let answer = curl(&site.path("ca.pem"), "GET", format!("https://{listen}/v1/fleet/{page}"), None).await;
    let (200, mut answer) = answer.ok()? else { return None };
    answer["as_of"].take();
    Some(answer)
}

/// Whether the only agent is at this edge, and all edges have reported.
async fn is_at(site: &Site, listen: SocketAddr, edge: &str) -> bool {
    let answer = ask(site, listen, "rows").await;
    answer.is_some_and(|answer| answer["rows"][0]["edge"] == edge && answer["incomplete"] == json!([]))
}

#[tokio::test(flavor = "multi_thread")]
async fn two_edges_with_one_certificate_are_told_apart_by_their_names() -> anyhow::Result<()> {
    let (mut site, listen) = site().await?;
    let (mut second, address) = another(&site, "node-2", |config| config)?;
    let agent = fs::read_to_string(site.path("agent.toml"))?;
    let both = format!("https://{}\", \"https://{address}", site.edge_address);
    let agent = agent.replace(&format!("https://{}", site.edge_address), &both) + "\n";
    fs::write(site.path("agent.toml"), format!("edge_order = \"listed\"\n{agent}"))?;
    site.origin.start().await?;
    second.start().await?;
    site.edge.start().await?;
    site.agent.start().await?;
    // Its certificate is that of `edge-1`, and so is the name of the first.
    until("the agent is at the first edge", async || is_at(&site, listen, "edge-1").await)
        .await
        .with_context(|| site.logs())?;

    site.edge.terminate().await?;
    until("the agent is at the second edge", async || is_at(&site, listen, "edge-1~node-2").await)
        .await
        .with_context(|| site.logs())?;

    // A third one has the name of the second.
    let (mut third, _) = another(&site, "node-3", |config| config.replace("name = \"node-3\"", "name = \"node-2\""))?;
    third.start().await?;
    site.until_counter(&second, "weir_edge_name_duplicated", &[], 0.0).await?;
    assert!(second.log().contains("two edges use the same name"), "{}", second.log());
    site.until_counter(&site.origin, "weir_origin_observed_duplicated_edges", &[], 0.0).await?;
    let answer = ask(&site, listen, "rows").await.context("the origin answers")?;
    assert_eq!(answer["incomplete"][0]["edge"], "edge-1~node-2", "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_behind_a_shield_is_known_as_without_it() -> anyhow::Result<()> {
    let (mut site, listen) = site().await?;
    let config = fs::read_to_string(site.path("edge.toml"))?;
    fs::write(site.path("edge.toml"), format!("{config}[peers]\nca = \"ca.pem\"\n"))?;
    let (mut edge, address) = another(&site, "edge-2", |config| config)?;
    let agent = fs::read_to_string(site.path("agent.toml"))?;
    fs::write(site.path("agent.toml"), agent.replace(&site.edge_address.to_string(), &address.to_string()))?;
    site.origin.start().await?;
    site.edge.start().await?;
    edge.start().await?;
    site.agent.start().await?;
    // Without times, and without what says that it came through the shield.
    let answers = async || {
        let mut all = Vec::new();
        for (page, entries) in [("rows", "rows"), ("agents", "agents"), ("summary?by=edge", "groups")] {
            let mut answer = ask(&site, listen, page).await?;
            for entry in answer[entries].as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
                entry.remove("heard_at");
                let via = entry.remove("via");
                all.push(via.unwrap_or_default());
            }
            all.push(answer);
        }
        Some(all)
    };
    let is_whole = |all: &[Value]| all.iter().filter(|it| it.is_object()).all(|it| it["incomplete"] == json!([]));
    let released =
        |all: &[Value]| all[1]["rows"][0]["phase"] == "current" && all[1]["rows"][0]["edge"] == "edge-1~edge-2";
    let is_known = async || answers().await.is_some_and(|all| is_whole(&all) && released(&all));
    until("the origin knows the agent", is_known).await.with_context(|| site.logs())?;
    let before = answers().await.context("the origin answers")?;
    assert_eq!(before[0], Value::Null, "it is no shield's claim");

    // The same edge, with the shield in place of the origin.
    edge.terminate().await?;
    let config = fs::read_to_string(site.path("edge_edge-2.toml"))?;
    let origin = config.split("[[origin]]").nth(1).and_then(|of| of.split('"').nth(1)).context("it has an origin")?;
    let shield = format!("https://{}", site.edge_address);
    fs::write(site.path("edge_edge-2.toml"), config.replace(origin, &shield))?;
    edge.start().await?;
    let is_through =
        async || answers().await.is_some_and(|all| is_whole(&all) && all[0] == "edge-1" && all[2] == "edge-1");
    until("it reports through the shield", is_through).await.with_context(|| site.logs() + &edge.log())?;
    let mut after = answers().await.context("the origin answers")?;
    assert_eq!((after[0].take(), after[2].take()), (json!("edge-1"), json!("edge-1")));
    assert_eq!(after, before);
    // It goes on with what changes.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    let generation = |all: &[Value]| all[1]["rows"][0]["current"]["generation"].as_u64();
    let is_newer = async || answers().await.is_some_and(|all| generation(&all) > generation(&before));
    until("the origin knows of the update", is_newer).await.with_context(|| site.logs())
}
