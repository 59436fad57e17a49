//! What a cluster asks of its bucket while nothing happens, and with ten pushes a minute.

use std::time::{Duration, Instant};

use anyhow::ensure;
use weir_loadtest::processes::nightly;
use weir_loadtest::scrape::Metrics;

use super::engine::EngineKind;
use super::network::{Part, isolated};
use super::recorder::{Pushing, Recorder};
use super::scaling::until_stored;
use super::site::{Plan, Site};
use super::{on_machines, until_settled};

/// How long requests are counted, in each state.
const WINDOW: Duration = Duration::from_secs(300);

/// How often an origin lists all repositories, and reads the records that have changed.
const LISTING: Duration = Duration::from_secs(600);

/// The most of what the simulator counts, for puts, gets and lists: a window is short. The simulator does not count reads
/// of the own record and of the fleet, by edges' requests and by garbage collection.
const MAX_RATIO: [f64; 3] = [1.5, 3.0, 1.5];

/// What the simulator counts in an hour for three origins, 100 repositories and a session of 30 s (docs/performance.md):
/// puts, gets and lists of records.
const IDLE: [f64; 3] = [1078.0, 2158.0, 2175.0];
const PUSHES: [f64; 3] = [1679.0, 2601.0, 2175.0];

#[test]
fn a_cluster_costs_what_the_simulator_says() -> anyhow::Result<()> {
    if !nightly() {
        eprintln!("SKIPPED: this counts requests for ten minutes; WEIR_NIGHTLY=1 runs it");
        return Ok(());
    }
    let parts: [Part<'_>; 1] = [("three origins and 100 repositories", || on_machines(count()))];
    isolated("cluster::cost::a_cluster_costs_what_the_simulator_says", &parts)
}

async fn count() -> anyhow::Result<()> {
    let plan = Plan {
        engine: EngineKind::Bucket,
        origins: 3,
        edges: 1,
        repositories: 100,
        composed: 0,
        ttl: Duration::from_secs(30),
        poll_interval: Duration::from_secs(120),
        fresh: Duration::from_secs(15),
    };
    let Some(mut site) = Site::start(&plan).await? else { return Ok(()) };
    until_settled(&site).await?;
    site.agent.node.start().await?;
    until_stored(&site).await?;
    // What follows a start is over: the first listing reads all repositories, which have changed since.
    tokio::time::sleep(LISTING).await;
    println!("| | PUT | GET | LIST | objects: put, get, list | processor, s |\n|---|---|---|---|---|---|");
    let idle = measured(&site, "idle").await?;
    let pushing = Pushing::start(&Recorder::idle(), std::mem::take(&mut site.upstreams), Duration::from_secs(6));
    let pushes = measured(&site, "10 pushes a minute").await;
    site.upstreams = pushing.stop().await?;
    for (state, counted, expected) in [("idle", idle, IDLE), ("with pushes", pushes?, PUSHES)] {
        let mut limits = expected.iter().zip(MAX_RATIO).map(|(expected, ratio)| expected * ratio);
        let is_as_expected = counted.iter().all(|counted| limits.next().is_some_and(|limit| *counted <= limit));
        ensure!(is_as_expected, "{state}: {counted:.0?} an hour, where the simulator counts {expected:.0?}");
    }
    Ok(())
}

/// Prints what all origins together did in a window, and returns the requests for records in an hour.
async fn measured(site: &Site, state: &str) -> anyhow::Result<[f64; 3]> {
    let begun = Instant::now();
    let before = totals(site).await?;
    tokio::time::sleep(WINDOW).await;
    let after = totals(site).await?;
    let per_hour = 3600.0 / begun.elapsed().as_secs_f64();
    let [put, get, list, objects_put, objects_get, objects_list, cpu] =
        std::array::from_fn(|index| (after[index] - before[index]) * per_hour);
    println!(
        "| {state}, an hour | {put:.0} | {get:.0} | {list:.0} | {objects_put:.0}, {objects_get:.0}, {objects_list:.0} | {cpu:.0} |"
    );
    Ok([put, get, list])
}

async fn totals(site: &Site) -> anyhow::Result<[f64; 7]> {
    let mut totals = [0.0; 7];
    for origin in &site.origins[..3] {
        let metrics = Metrics::read(origin.node.admin()).await?;
        let records = |operation| metrics.sum("weir_origin_record_requests_total", &[operation]);
        let objects = |operation| metrics.sum("weir_origin_store_requests_total", &[operation]);
        let own = [
            records("operation=\"put\""),
            records("operation=\"get\""),
            records("operation=\"list\""),
            objects("operation=\"put\""),
            objects("operation=\"get\"") + objects("operation=\"exists\""),
            objects("operation=\"list\""),
            metrics.sum("process_cpu_seconds_total", &[]),
        ];
        totals.iter_mut().zip(own).for_each(|(total, own)| *total += own);
    }
    Ok(totals)
}
