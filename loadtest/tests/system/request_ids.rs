//! One request is followed through three tiers, by the logs that each writes.

use anyhow::{Context, ensure};
use serde_json::Value;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, until};
use weir_runtime::certificates;

use crate::site::{Plan, Site, noise};

const AUTH: &str = "mode = \"open\"\nclient_ca = \"ca.pem\"";
const CERTIFICATE: &str = "client_certificate = \"agent.pem\"\nclient_key = \"agent.key\"";

fn lines(node: &Node) -> Vec<Value> {
    node.log().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The id of the first line that says this about a service.
async fn logged_id(site: &Site, node: &Node, message: &str, service: &str) -> anyhow::Result<String> {
    let find = || {
        let said = lines(node).into_iter().find(|line| line["message"] == message && line["service"] == service)?;
        said["request_id"].as_str().map(str::to_owned)
    };
    until(&format!("{message}: {service}"), async || find().is_some()).await.with_context(|| site.logs())?;
    find().context("it was just there")
}

/// The first line of the access log for this request at this path.
async fn request(site: &Site, node: &Node, id: &str, route: &str) -> anyhow::Result<Value> {
    let is_it = |line: &Value| line["message"] == "request" && line["request_id"] == id && line["route"] == route;
    let find = || lines(node).into_iter().find(is_it);
    until(&format!("{id} at {route}"), async || find().is_some()).await.with_context(|| site.logs())?;
    find().context("it was just there")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_leads_from_the_agents_log_to_the_edges_and_the_origins() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/large", noise(64 << 10))?;
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let plan = Plan { auth: AUTH, agent: CERTIFICATE, log: "access = \"all\"", ..Plan::default() };
    let mut site = Site::new(fill, plan).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;

    let id = logged_id(&site, &site.agent, "fetched a tarball", "shop-prod").await?;
    let sent = request(&site, &site.edge, &id, "tarball").await?;
    let known = ["method", "service", "tier", "agent", "client"].map(|field| sent[field].as_str().unwrap_or_default());
    let certificate = format!("agent/{}", certificates::AGENT);
    ensure!(known == ["GET", "shop-prod", "origin", certificates::AGENT, &certificate], "{sent}");
    ensure!(sent["status"] == 200 && sent["complete"] == true && sent["bytes"].as_u64() > Some(64 << 10), "{sent}");
    let filled = request(&site, &site.origin, &id, "object").await?;
    ensure!(filled["client"] == "edge/edge-1" && filled["status"] == 200 && filled["bytes"].is_u64(), "{filled}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_that_fails_is_found_in_the_logs_of_all_tiers_by_default() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { follows: vec!["shop-prod", "shop-none"], ..Plan::default() }).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;

    let id = logged_id(&site, &site.agent, "a poll failed", "shop-none").await?;
    for (node, route) in [(&site.edge, "tarball"), (&site.origin, "service")] {
        let line = request(&site, node, &id, route).await?;
        ensure!(line["status"] == 404 && line["service"] == "shop-none", "{line}");
    }
    let succeeded = [&site.edge, &site.origin].map(lines).concat();
    let succeeded =
        succeeded.into_iter().find(|line| line["message"] == "request" && line["status"].as_u64() < Some(400));
    ensure!(succeeded.is_none(), "only errors are logged: {succeeded:?}");
    Ok(())
}
