//! Several origins as one: processes on machines of their own, faults, and a judge of what was seen from outside.
//!
//! `WEIR_NEMESIS_SEED=n` makes the faults of one seed.

mod commands;
mod cost;
mod engine;
mod history;
mod judge;
mod nemesis;
mod network;
mod recorder;
mod scaling;
mod site;
mod upstream;

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use http::StatusCode;
use weir_loadtest::processes::{nightly, until};
use weir_loadtest::scrape::Metrics;

use self::engine::EngineKind;
use self::judge::Rules;
use self::network::{Part, isolated};
use self::recorder::{Looking, Pushing, Recorder};
use self::site::Site;
use crate::signing::descriptor;
use crate::site::{Client, header};

const SEED: &str = "WEIR_NEMESIS_SEED";

/// The shortest that origins allow.
const TTL: Duration = Duration::from_secs(3);

/// Each response of the Git server takes this long, so that fetches are met by faults.
const GIT_DELAY: Duration = Duration::from_millis(500);

#[test]
fn three_origins_hold_against_faults() -> anyhow::Result<()> {
    let parts: [Part<'_>; 2] = [
        ("on a bucket", || on_machines(faults(EngineKind::Bucket))),
        ("on etcd", || on_machines(faults(EngineKind::Etcd))),
    ];
    isolated("cluster::three_origins_hold_against_faults", &parts)
}

/// Runs a part of a test that is in namespaces of its own.
fn on_machines(body: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(body)
}

async fn faults(engine: EngineKind) -> anyhow::Result<()> {
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED} must be a number"))?,
        Err(_) => fastrand::u64(..1_000_000),
    };
    println!("replay the faults: {SEED}={seed}");
    let plan = site::Plan {
        engine,
        origins: 3,
        edges: 3,
        repositories: 6,
        composed: 6,
        ttl: TTL,
        poll_interval: Duration::from_secs(1),
        fresh: Duration::from_secs(1),
    };
    let steps = nemesis::steps(
        seed,
        &nemesis::Plan {
            engine,
            origins: 3,
            edges: 3,
            ttl: TTL,
            rounds: if nightly() { 2 } else { 1 },
            // In the nightly run a death is over before the next fault.
            pause: if nightly() { TTL + Duration::from_secs(12) } else { Duration::from_millis(500) },
            engine_away: Duration::from_secs(if nightly() { 60 } else { 10 }),
        },
    );
    let Some(mut site) = Site::start(&plan).await? else { return Ok(()) };
    let looking = until_published(&mut site).await?;
    site.git.delay(GIT_DELAY);
    let upstreams = std::mem::take(&mut site.upstreams);
    let pushing = Pushing::start(&looking.recorder, upstreams, Duration::from_secs(1));
    let ran = nemesis::run(&mut site, &looking.recorder, &steps).await;
    site.upstreams = pushing.stop().await?;
    let rules = Rules {
        ttl: TTL,
        margin: TTL / 10,
        takeover: nightly().then_some(TTL + Duration::from_secs(10)),
        one_clone: nightly(),
    };
    let settled = match ran {
        Ok(()) => until_settled(&site).await,
        Err(error) => Err(error),
    };
    let settled = match settled {
        Ok(()) => until_agent_has_parts(&site).await,
        Err(error) => Err(error),
    };
    conclude(site, &looking, &rules, settled).await.with_context(|| format!("seed {seed}"))
}

/// Waits until all edges answer for all services, then starts the agent and whatever records.
async fn until_published(site: &mut Site) -> anyhow::Result<Looking> {
    until_settled(site).await.with_context(|| site.last_words())?;
    let looking = Recorder::start(site)?;
    site.agent.node.start().await?;
    let followed = site.upstreams.len() + site.composed.len();
    until("the agent follows all services", async || {
        Metrics::read(site.agent.node.admin())
            .await
            .is_ok_and(|metrics| metrics.sum("weir_agent_polls_total", &["result=\"unchanged\""]) >= followed as f64)
    })
    .await?;
    Ok(looking)
}

/// Waits until every edge answers with the newest commit of every repository.
async fn until_settled(site: &Site) -> anyhow::Result<()> {
    for edge in &site.edges {
        let client = Client::new(&site.path("ca.pem"), edge.address)?;
        for upstream in &site.upstreams {
            let path = format!("/v1/services/{}/tarball", upstream.name);
            let newest = &upstream.newest;
            until(&format!("{} answers with {newest} of {}", edge.name, upstream.name), async || {
                let response = client.send("HEAD", &path, &[]).await;
                response.is_ok_and(|response| {
                    response.status() == StatusCode::OK && header(&response, "weir-commit") == newest.as_str()
                })
            })
            .await?;
        }
        for (number, name) in site.composed.iter().enumerate() {
            let parts = [0, 1].map(|next| &site.upstreams[(number + next) % site.upstreams.len()].newest);
            until(&format!("{} answers with {parts:?} of {name}", edge.name), async || {
                let current = descriptor(&client, name).await;
                current.is_ok_and(|current| {
                    let at = current.publication().parts.iter().map(|part| part.revision_id.as_str());
                    at.eq(parts.map(|commit| format!("sha1:{commit}")))
                })
            })
            .await?;
        }
    }
    Ok(())
}

/// Waits until the agent, which trusts signatures alone, has of composed services what it has of their parts.
async fn until_agent_has_parts(site: &Site) -> anyhow::Result<()> {
    let read = |service: &str, folder: &str| {
        let current = site.path("agent-data").join(service).join("current");
        fs::read_to_string(current.join(folder).join("version")).ok()
    };
    for (number, name) in site.composed.iter().enumerate() {
        let [one, other] = [0, 1].map(|next| &site.upstreams[(number + next) % site.upstreams.len()].name);
        until(&format!("the agent has the parts of {name}"), async || {
            let parts = [read(name, "one"), read(name, "other")];
            parts.iter().all(Option::is_some) && parts == [read(one, ""), read(other, "")]
        })
        .await?;
    }
    Ok(())
}

/// Judges what was recorded. When something is wrong, the folder with all logs stays.
async fn conclude(site: Site, looking: &Looking, rules: &Rules, settled: anyhow::Result<()>) -> anyhow::Result<()> {
    let recorder = &looking.recorder;
    recorder.add_fetches(&site);
    let failed = Metrics::read(site.agent.node.admin()).await?.sum("weir_agent_polls_total", &["result=\"error\""]);
    let mut history = recorder.edit();
    history.failed_polls = failed as u64;
    println!(
        "{} changes of owners, {} fetches, {} publications, {} polls, {} heartbeats, {} pushes",
        history.changes_of_owners(),
        history.fetches.len(),
        history.publications.len(),
        history.polls.len(),
        history.vouches.len(),
        history.pushes.len()
    );
    let violations = judge::violations(&history, rules);
    if settled.is_err() || !violations.is_empty() {
        recorder::save(&history, &site.path(""))?;
        let kept = site.keep();
        settled.with_context(|| format!("logs and history are in {}", kept.display()))?;
        ensure!(violations.is_empty(), "{violations:#?}\nlogs and history are in {}", kept.display());
    }
    Ok(())
}
