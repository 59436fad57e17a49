//! Agents that are killed, and agents that are stopped, are known to be silent; idle ones are not.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use weir_loadtest::processes::{Node, free_address, nightly, until};
use weir_loadtest::scrape;

use crate::access::token;
use crate::operators::{TOKEN, curl};
use crate::site::{Plan, Site};

/// The longest time until an edge knows, and what a busy machine takes.
const AT_EDGE: Duration = Duration::from_secs(90 + 5);

/// The same for an origin.
const AT_ORIGIN: Duration = Duration::from_secs(90 + 15 + 5);

/// The end of an agent, and whether it polls more often than it must.
const AGENTS: [(&str, &str); 6] = [
    ("h2-killed", "30s"),
    ("h2-stopped", "1h"),
    ("h2-idle", "1h"),
    ("h3-killed", "1h"),
    ("h3-stopped", "30s"),
    ("h3-idle", "1h"),
];

/// The names in this state.
fn names(document: &Value, state: &str) -> Vec<String> {
    let agents = document["agents"].as_array().into_iter().flatten();
    let of_state = agents.filter(|agent| agent["state"] == state);
    of_state.filter_map(|agent| agent["agent"].as_str().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_agents_are_silent_and_idle_ones_live() -> anyhow::Result<()> {
    if !nightly() {
        eprintln!("SKIPPED: an agent is silent after 90 seconds; WEIR_NIGHTLY=1 runs it");
        return Ok(());
    }
    let plan = Plan { auth: "mode = 'required'\nkeys = ['fleet.key.pub']", ..Plan::default() };
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, plan).await?;
    let (dir, listen) = (site.path(""), free_address()?);
    let origin = fs::read_to_string(dir.join("origin.toml"))?;
    let operator = "[operator_api]\noperator_token_file = 'operator-token'\n";
    fs::write(dir.join("origin.toml"), format!("operator_listen = \"{listen}\"\n{origin}\n{operator}"))?;
    fs::write(dir.join("operator-token"), TOKEN)?;
    token(&dir, "key --out fleet.key")?;
    site.origin.start().await?;
    site.edge.start().await?;
    let mut agents = Vec::new();
    for (name, poll_interval) in AGENTS {
        token(&dir, &format!("issue --key fleet.key --subject {name} --service * --id {name} --out {name}.token"))?;
        let (admin, http) = (free_address()?, &name[..2]);
        let config = format!(
            "name = '{name}'\nadmin_listen = '{admin}'\nedges = ['https://{}']\nca = 'ca.pem'\nroot = '{name}'\n\
             token_file = '{name}.token'\nhttp = '{http}'\npoll_interval = '{poll_interval}'\n[[service]]\nname = 'shop-*'\n",
            site.edge_address
        );
        let mut agent = Node::new(&dir, &format!("agent_{name}"), admin, &config)?;
        agent.start().await?;
        site.until_counter(&agent, "weir_agent_event_stream_connected", &[], 0.0).await?;
        agents.push(agent);
    }
    let at_edge = async || {
        let answer = scrape::get(site.edge.admin(), "/v1/agents").await;
        answer.ok().and_then(|(_, body)| serde_json::from_str::<Value>(&body).ok()).unwrap_or_default()
    };
    let ca = dir.join("ca.pem");
    let at_origin = async || {
        let answer = curl(&ca, "GET", format!("https://{listen}/v1/fleet/agents"), None).await;
        answer.map_or(Value::Null, |(_, answer)| answer)
    };
    let all = |document: &Value, state| names(document, state).len() == AGENTS.len();
    until("all are known", async || all(&at_edge().await, "connected") && all(&at_origin().await, "live"))
        .await
        .with_context(|| site.logs())?;

    let ended = Instant::now();
    for (agent, (name, _)) in agents.iter_mut().zip(AGENTS) {
        match &name[3..] {
            "killed" => agent.kill()?,
            "stopped" => agent.pause(true)?,
            _ => {}
        }
    }
    let idle = ["h2-idle", "h3-idle"];
    let dead = ["h2-killed", "h2-stopped", "h3-killed", "h3-stopped"];
    until("the edge knows who is silent", async || {
        let shown = at_edge().await;
        let connected = names(&shown, "connected");
        assert!(idle.iter().all(|name| connected.iter().any(|one| one == name)), "{connected:?}");
        names(&shown, "unheard") == dead
    })
    .await?;
    ensure!(ended.elapsed() < AT_EDGE, "the edge took {:?}", ended.elapsed());
    until("the origin knows, too", async || names(&at_origin().await, "silent") == dead).await?;
    ensure!(ended.elapsed() < AT_ORIGIN, "the origin took {:?}", ended.elapsed());
    let living = names(&at_origin().await, "live");
    ensure!(living == idle, "{living:?} live");
    for (agent, _) in agents.iter().zip(AGENTS).filter(|(_, (name, _))| name.ends_with("stopped")) {
        agent.pause(false)?;
    }
    until("those that go on are back", async || names(&at_origin().await, "live").len() == 4).await
}
