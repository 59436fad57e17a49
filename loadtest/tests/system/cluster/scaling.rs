//! Origins come, go and are restarted: few repositories move, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::ensure;
use weir_loadtest::processes::{nightly, until};
use weir_loadtest::scrape::Metrics;

use super::engine::EngineKind;
use super::judge::Rules;
use super::network::{Part, isolated};
use super::recorder::Pushing;
use super::site::{Plan, Site, until_ready};
use super::upstream::Upstream;
use super::{TTL, conclude, on_machines, until_published, until_settled};

/// The most that a change of members may move, in percent.
const MAX_MOVED: usize = 30;

/// On a busy machine sessions this short end by themselves, perhaps before the first bundle of a mirror is stored. At full
/// size they are as long as by default: three origins that start with hundreds of repositories ask the bucket for more than
/// it answers, and a renewal takes seconds.
fn ttl() -> Duration {
    if nightly() { Duration::from_secs(30) } else { TTL * 2 }
}

/// The longest time in which everything has moved.
const PATIENCE: Duration = Duration::from_secs(600);

fn plan(repositories: usize) -> Plan {
    // Edges that ask for many services each second leave no processor for the origins and their bucket: they ask as by default.
    let (poll_interval, fresh) = if repositories > 100 { (30, 15) } else { (5, 1) };
    let (poll_interval, fresh) = (Duration::from_secs(poll_interval), Duration::from_secs(fresh));
    Plan {
        engine: EngineKind::Bucket,
        origins: 3,
        edges: 1,
        repositories,
        composed: 0,
        ttl: ttl(),
        poll_interval,
        fresh,
    }
}

fn rules() -> Rules {
    Rules { ttl: ttl(), margin: ttl() / 10, takeover: None, one_clone: nightly() }
}

#[test]
fn origins_come_and_go() -> anyhow::Result<()> {
    let parts: [Part<'_>; 2] = [
        ("a member more or less moves few repositories", || on_machines(one_more_and_less())),
        ("a rolling restart and a death lose no push", || on_machines(rolling_restart())),
    ];
    isolated("cluster::scaling::origins_come_and_go", &parts)
}

async fn one_more_and_less() -> anyhow::Result<()> {
    let Some(mut site) = Site::start(&plan(if nightly() { 300 } else { 30 })).await? else { return Ok(()) };
    let looking = until_published(&mut site).await?;
    let moved = more_and_less(&mut site).await;
    conclude(site, &looking, &rules(), moved).await
}

async fn more_and_less(site: &mut Site) -> anyhow::Result<()> {
    let repositories = site.upstreams.len();
    let three = until_quiet(site, repositories, 3).await?;
    site.origins[3].node.start().await?;
    let four = until_quiet(site, repositories, 4).await?;
    ensure_few("3 → 4", &three, &four)?;
    site.origins[3].node.terminate().await?;
    let less = until_quiet(site, repositories, 3).await?;
    ensure_few("4 → 3", &four, &less)
}

/// Waits until every repository has an owner, there are so many of them, and that did not change for a while.
async fn until_quiet(site: &Site, repositories: usize, members: usize) -> anyhow::Result<BTreeMap<String, String>> {
    let are_all = |owners: &BTreeMap<String, String>| owners.values().collect::<BTreeSet<_>>().len() == members;
    // Moves begin when the members have settled.
    let (deadline, quiet) = (Instant::now() + PATIENCE, ttl() * 3);
    let mut last = (None, Instant::now());
    loop {
        let now = site.owners(repositories).await.filter(are_all);
        if now != last.0 {
            last = (now, Instant::now());
        }
        if let (Some(owners), since) = &last
            && since.elapsed() > quiet
        {
            return Ok(owners.clone());
        }
        ensure!(Instant::now() < deadline, "ownership does not settle: {:?}", last.0);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

fn ensure_few(step: &str, before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let moved = before.iter().filter(|(repository, owner)| after.get(*repository) != Some(owner)).count();
    println!("{step}: {moved} of {} repositories moved", before.len());
    ensure!(moved * 100 <= before.len() * MAX_MOVED, "{step} moved {moved} of {} repositories", before.len());
    ensure!(moved > 0, "{step} moved nothing");
    Ok(())
}

async fn rolling_restart() -> anyhow::Result<()> {
    let Some(mut site) = Site::start(&plan(if nightly() { 100 } else { 10 })).await? else { return Ok(()) };
    let looking = until_published(&mut site).await?;
    if nightly() {
        until_stored(&site).await?;
    }
    let upstreams = std::mem::take(&mut site.upstreams);
    let repositories = upstreams.len();
    let pushing = Pushing::start(&looking.recorder, upstreams, Duration::from_secs(1));
    let restarted = match restart_all(&mut site, repositories).await {
        Ok(()) => kill_one(&mut site, repositories).await,
        Err(error) => Err(error),
    };
    site.upstreams = pushing.stop().await?;
    let settled = match restarted {
        Ok(()) => until_settled(&site).await,
        Err(error) => Err(error),
    };
    conclude(site, &looking, &rules(), settled).await
}

/// How many repositories [`a_death_among_many`] has.
const MANY: &str = "WEIR_REPOSITORIES";

#[test]
fn the_repositories_of_a_dead_owner_are_published_again() -> anyhow::Result<()> {
    if !nightly() {
        eprintln!(
            "SKIPPED: a thousand repositories are cloned; WEIR_NIGHTLY=1 runs it, {MANY}=10000 with more of them"
        );
        return Ok(());
    }
    let parts: [Part<'_>; 1] = [("an owner of many dies", || on_machines(a_death_among_many()))];
    isolated("cluster::scaling::the_repositories_of_a_dead_owner_are_published_again", &parts)
}

async fn a_death_among_many() -> anyhow::Result<()> {
    let repositories = std::env::var(MANY).ok().map_or(Ok(1_000), |many| many.parse())?;
    let ttl = Duration::from_secs(30);
    let plan = Plan { engine: EngineKind::Etcd, ttl, poll_interval: ttl * 4, fresh: ttl, ..plan(repositories) };
    let begun = Instant::now();
    let Some(mut site) = Site::start(&plan).await? else { return Ok(()) };
    until_settled(&site).await?;
    println!("{repositories} repositories: all published after {:.0} s", begun.elapsed().as_secs_f64());
    until_quiet(&site, repositories, 3).await?;
    let (before, begun, killed) = (processor_time(&site).await?, Instant::now(), site.origins[0].name.clone());
    site.origins[0].node.kill()?;
    until_others_own(&site, repositories, &killed).await?;
    let owned = begun.elapsed();
    // A push to each is published by whoever owns it now.
    site.upstreams.iter_mut().try_for_each(Upstream::push)?;
    until_settled(&site).await?;
    let (after, published) = (processor_time(&site).await?, begun.elapsed());
    println!(
        "its repositories have an owner after {:.0} s; a push to each of all is published after {:.0} s, with {:.0} s of the \
         processor at the two that are left",
        owned.as_secs_f64(),
        published.as_secs_f64(),
        after - before
    );
    Ok(())
}

/// That of the origins which stay, in seconds.
async fn processor_time(site: &Site) -> anyhow::Result<f64> {
    let mut all = 0.0;
    for origin in &site.origins[1..3] {
        all += Metrics::read(origin.node.admin()).await?.sum("process_cpu_seconds_total", &[]);
    }
    Ok(all)
}

/// Waits until the mirror of each repository is stored as a bundle.
pub(crate) async fn until_stored(site: &Site) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut stored = 0.0;
        for origin in &site.origins[..3] {
            let metrics = Metrics::read(origin.node.admin()).await?;
            stored += metrics.sum("weir_origin_bundles_total", &["result=\"full\""]);
        }
        if stored >= site.upstreams.len() as f64 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{stored} mirrors of {} are stored", site.upstreams.len());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn restart_all(site: &mut Site, repositories: usize) -> anyhow::Result<()> {
    for index in 0..3 {
        let name = site.origins[index].name.clone();
        println!("restarts {name}");
        site.origins[index].node.terminate().await?;
        // SIGTERM hands everything over.
        until("the others own everything", async || site.owners(repositories).await.is_some()).await?;
        site.origins[index].node.start().await?;
        until_ready(&site.origins[index].node).await?;
    }
    Ok(())
}

/// An owner dies without a word, and the others take what it had.
async fn kill_one(site: &mut Site, repositories: usize) -> anyhow::Result<()> {
    until_quiet(site, repositories, 3).await?;
    let killed = site.origins[0].name.clone();
    println!("kills {killed}");
    site.origins[0].node.kill()?;
    until_others_own(site, repositories, &killed).await
}

async fn until_others_own(site: &Site, repositories: usize, killed: &str) -> anyhow::Result<()> {
    let has_no_more = |owners: BTreeMap<String, String>| owners.values().all(|owner| *owner != killed);
    until("the others own everything", async || site.owners(repositories).await.is_some_and(has_no_more)).await
}
