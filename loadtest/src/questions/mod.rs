//! What a fleet runs, asked at an origin: 10,000 agents with 50 services each behind three edges.
//!
//! It starts an origin and edges as processes and real agents in this one, speaks for the other agents, asks who lacks a commit, since
//! when and why, publishes, restarts the origin, and kills an edge and everything.

mod agents;
mod site;

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use weir_runtime::open_files;

use self::agents::{BEHIND, Change};
use self::site::{EDGES, Site, seconds};

/// How often each question is asked.
const ROUNDS: usize = 200;

/// How long the fleet may take to be complete again.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks a question often, and prints how long answers take.
async fn ask(site: &Site, what: &str, path: &str) -> anyhow::Result<Value> {
    let (mut times, mut answer) = (Vec::new(), Value::Null);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        answer = site.ask(path).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let (p50, p99, bytes) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100], answer.to_string().len());
    println!(
        "{what}: {} rows, {} unknown, {bytes} bytes: p50 {p50:.1?}, p99 {p99:.1?}",
        answer["total"], answer["unknown"]
    );
    Ok(answer)
}

/// The questions. `expected`: so many rows lack the commit.
async fn ask_all(site: &Site, commit: &str, expected: usize) -> anyhow::Result<()> {
    let lacks = format!("lacks={commit}");
    let answer = ask(site, "who lacks X, since when", &format!("/v1/fleet/rows?{lacks}&limit=100")).await?;
    ensure!(answer["incomplete"] == json!([]) && answer["unknown"] == 0, "{}", answer["incomplete"]);
    ensure!(answer["total"] == expected, "{} rows instead of {expected}", answer["total"]);
    for (what, query) in [
        ("a page of 1,000 of them", format!("rows?{lacks}&limit=1000")),
        ("and why", format!("summary?by=problem&{lacks}")),
        ("in which rings", format!("summary?by=label:ring&{lacks}")),
        ("which of one ring cannot", format!("rows?label=ring=3&problem=hook-failed&{lacks}")),
        ("which commits run", "summary?by=revision".to_owned()),
        ("one service", "rows?service=service-007".to_owned()),
        ("one agent", "rows?agent=cluster-00042".to_owned()),
        ("agents that nobody hears", "agents?state=silent".to_owned()),
    ] {
        ask(site, what, &format!("/v1/fleet/{query}")).await?;
    }
    Ok(())
}

/// Waits until an answer has all rows and names no edge, no agent is silent, and the edges hear all of them. Prints what answers
/// say meanwhile. One that lacks agents that were known says so.
async fn until_complete(site: &Site, agents: usize, rows: usize, were_known: bool) -> anyhow::Result<Duration> {
    let (began, mut said) = (Instant::now(), String::new());
    while began.elapsed() < PATIENCE {
        let of_rows = site.ask("/v1/fleet/rows?limit=1").await;
        let silent = site.ask("/v1/fleet/agents?state=silent&limit=1").await;
        if let (Ok(answer), Ok(silent)) = (of_rows, silent) {
            let (total, without) = (&answer["total"], &answer["agents_without_rows"]);
            let incomplete: Vec<&Value> = answer["incomplete"].as_array().into_iter().flatten().collect();
            let says_so = !incomplete.is_empty() || *without != 0;
            ensure!(*total == rows || says_so || !were_known, "it is short and does not say so: {answer}");
            let heard = site.heard().await.unwrap_or_default();
            let now = format!(
                "{total} rows, {} edges incomplete, {without} agents without rows, {} silent; edges hear {heard}",
                incomplete.len(),
                silent["total"]
            );
            if now != said {
                println!("  {}: {now}", seconds(began.elapsed()));
            }
            said = now;
            if !says_so && *total == rows && silent["total"] == 0 && heard >= agents {
                return Ok(began.elapsed());
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bail!("it is still incomplete")
}

fn memory(site: &Site, when: &str) -> anyhow::Result<()> {
    let (origin, edge) = site.memory()?;
    println!("memory {when}: origin {origin} MiB, one edge {edge} MiB");
    Ok(())
}

/// The fleet.
#[derive(Debug, Args)]
pub struct Plan {
    /// The number of agents.
    #[arg(long, default_value_t = 10_000)]
    agents: usize,
    /// The services of each.
    #[arg(long, default_value_t = 50)]
    services: usize,
    /// How many of the agents are real.
    #[arg(long, default_value_t = 300)]
    real: usize,
    /// Waits for a line on standard input after the questions, so that `loadtest/pages/first_row.mjs` can look at the pages.
    #[arg(long)]
    look: bool,
}

/// Starts the fleet, and asks.
///
/// # Errors
/// An answer was wrong or late.
pub async fn run(plan: &Plan) -> anyhow::Result<()> {
    open_files::raise_limit();
    let Plan { agents, services, real, look } = *plan;
    let all: Vec<usize> = (0..services).collect();
    let mut site = Site::start(services).await?;
    let (_, old) = site.publish("one", &all).await?;
    let (second, new) = site.publish("two", &all).await?;
    memory(&site, "without a fleet")?;

    let began = Instant::now();
    let _real = agents::start_real(&site, real, services).await?;
    println!("{real} real agents run {services} services each after {}", seconds(began.elapsed()));
    let before = site.observed_bytes().await?;
    let played = agents::play(&site, real..agents, &old, &new)?;
    let took = until_complete(&site, agents, agents * services, false).await?;
    let bytes = site.observed_bytes().await? - before;
    println!("{agents} agents are known after {}, from edges to the origin {:.0} kB", seconds(took), bytes / 1e3);
    memory(&site, "with them")?;
    let behind = (real..agents).filter(|number| number.is_multiple_of(BEHIND)).count();
    ask_all(&site, &second, behind * services).await?;
    if look {
        println!("look: node first_row.mjs {} {}", site.path().display(), site.operators());
        let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        read.await.context("the line is not read")??;
    }

    let (began, before) = (Instant::now(), site.observed_bytes().await?);
    let (third, newest) = site.publish("three", &[0]).await?;
    let newest = newest.first().context("it is published")?.clone();
    for edge in &played {
        edge.send(Change::Published(0, newest.clone())).await?;
    }
    let lacks = format!("/v1/fleet/rows?service=service-000&lacks={third}&limit=1");
    while site.ask(&lacks).await?["total"] != behind {
        ensure!(began.elapsed() < PATIENCE, "agents do not switch: {}", site.ask(&lacks).await?);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (took, bytes) = (began.elapsed(), site.observed_bytes().await? - before);
    println!(
        "a publication of one service is known of all agents {} after the push; {:.0} bytes an agent",
        seconds(took),
        bytes / agents as f64
    );

    let everything: Vec<usize> = (0..=EDGES).collect();
    for (what, killed) in [("an edge", &[1][..]), ("the origin", &[]), ("everything", &everything)] {
        println!("restarted: {what}");
        match killed {
            // It stores the names of all agents. Killed, it would know those that it heard ten minutes ago.
            [] => site.restart_origin().await?,
            killed => site.kill(killed).await?,
        }
        println!("  complete after {}", seconds(until_complete(&site, agents, agents * services, true).await?));
        memory(&site, "after it")?;
    }
    Ok(())
}
