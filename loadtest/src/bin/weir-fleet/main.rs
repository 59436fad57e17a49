//! `weir-fleet`: agents in this process follow the services of a real origin over QUIC and two real edges, through commits
//! and restarts of the edges. Checks what they have on disk, and prints delays, herds, bytes and costs.

mod content;
mod directories;
mod fleet;
mod site;
mod traffic;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use weir_loadtest::processor;
use weir_runtime::config::duration;
use weir_runtime::open_files;

use crate::content::Content;
use crate::directories::Directories;
use crate::fleet::{Delay, Fleet, Plan, What};
use crate::site::{Edge, Site};
use crate::traffic::Traffic;

/// Lets a fleet of agents in one process follow services through commits, and restarts its edges meanwhile
///
/// One origin and two edges are processes of the binaries beside this one. Exits with 1 if a directory was wrong or an agent
/// did not arrive at the last commit.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[arg(long, default_value_t = 1000)]
    agents: usize,
    #[arg(long, default_value_t = 20)]
    services: usize,
    /// Commits that change each service. A commit changes one service.
    #[arg(long, default_value_t = 50)]
    commits: usize,
    /// The time between two commits.
    #[arg(long, default_value = "500ms", value_parser = duration::parse)]
    pace: Duration,
    /// Files of a service.
    #[arg(long, default_value_t = 3)]
    files: usize,
    /// Lines of a file, of 60 bytes.
    #[arg(long, default_value_t = 10)]
    lines: usize,
    /// A commit changes one of the files of its service instead of all.
    #[arg(long)]
    one_file: bool,
    /// Restarts of edges, in turn and evenly between the commits: every third with SIGKILL, others with SIGTERM.
    #[arg(long, default_value_t = 3)]
    restarts: usize,
    /// The agents' `spread`.
    #[arg(long, default_value = "0s", value_parser = duration::parse)]
    spread: Duration,
    /// The largest tarball of which the origin makes deltas.
    #[arg(long, default_value = "8MiB")]
    max_delta_tarball: String,
    /// How long nothing happens before the first commit.
    #[arg(long, default_value = "60s", value_parser = duration::parse)]
    steady: Duration,
    /// Directories that are read in a second.
    #[arg(long, default_value_t = 200)]
    samples: u32,
    /// Where the roots of the agents are made.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// A file for the counts of each second.
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// How long after the restart of an edge commits count as made during it.
const RESTART: Duration = Duration::from_secs(30);

/// How long agents may take for their first releases, and to arrive at the last commits.
const PATIENCE: Duration = Duration::from_secs(180);

/// Seconds of a histogram.
const SHOWN: usize = 45;

#[expect(clippy::too_many_lines, reason = "a run in order")]
#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.agents > 0 && arguments.services > 0 && arguments.files > 0, "there must be one of each");
    ensure!(arguments.samples > 0 && !arguments.pace.is_zero(), "--samples and --pace must be more than 0");
    open_files::raise_limit();
    let content = Content { files: arguments.files, one_file: arguments.one_file, lines: arguments.lines };
    let roots = tempfile::tempdir_in(&arguments.dir)?;
    let (site, edges) = Site::start(arguments.services, content, &arguments.max_delta_tarball).await?;
    let own = std::process::id();
    let (memory, begun) = (processor::anonymous_memory(own)?, Instant::now());
    let plan =
        Plan { agents: arguments.agents, services: arguments.services, spread: arguments.spread, dir: roots.path() };
    let fleet = Fleet::start(plan, &site, &edges).await?;
    fleet.until_released(PATIENCE).await?;
    println!("{arguments:?}");
    println!("first releases of all agents: {:.1?} after the start of the first", begun.elapsed());
    let directories =
        Directories { dir: roots.path().to_owned(), agents: arguments.agents, services: arguments.services, content };
    let ended = Arc::new(AtomicBool::new(false));
    let watching = directories.clone().watch(arguments.samples, ended.clone());
    let traffic = Traffic::follow(edges.iter().map(|edge| edge.node.admin()).collect());

    let before = Costs::of(&site, &edges)?;
    tokio::time::sleep(arguments.steady).await;
    let steady = 2..traffic.now();
    println!(
        "\nsteady state, {:.0?}: processor time {}",
        arguments.steady,
        Costs::of(&site, &edges)?.since(&before, arguments.steady)
    );
    let busiest = |of: fn(&traffic::Counts) -> f64| traffic.seconds(steady.clone()).iter().map(of).fold(0.0, f64::max);
    let sum = traffic.sum(steady.clone());
    let mean = |sum: f64| sum / (steady.len().max(1)) as f64;
    println!(
        "batch polls in a second: {:.1} on average, {} at most",
        mean(sum.batch_polls),
        busiest(|second| second.batch_polls)
    );
    println!(
        "connections in a second: {:.1} on average, {} at most",
        mean(sum.handshakes),
        busiest(|second| second.handshakes)
    );
    println!(
        "memory: {:.0} kB for each agent",
        (processor::anonymous_memory(own)? - memory) as f64 / 1e3 / arguments.agents as f64
    );

    let (before, begun, from) = (Costs::of(&site, &edges)?, Instant::now(), traffic.now() + 1);
    let (restart, restarts) = restarter(edges, arguments.services, traffic.clone());
    let last = commit(&arguments, content, &site, &fleet, restart).await?;
    let arrived = fleet.until_at(&last, PATIENCE).await;
    let (edges, restarted) = restarts.await??;
    let took = begun.elapsed();
    tokio::time::sleep(Duration::from_secs(2)).await;
    ended.store(true, Ordering::Relaxed);
    let seen = watching.join().map_err(|_| anyhow::anyhow!("the reader of directories panicked"))?;
    println!(
        "\n{} commits in {took:.0?}: processor time {}",
        arguments.commits * arguments.services,
        Costs::of(&site, &edges)?.since(&before, took)
    );
    for (second, kill) in &restarted {
        println!("\nan edge was restarted with {} in second 5:", if *kill { "SIGKILL" } else { "SIGTERM" });
        print!("{}", traffic.histogram(second.saturating_sub(5)..second + SHOWN));
    }
    print_delays(&fleet.log.delays(), arguments.agents * arguments.commits * arguments.services);
    let sent = traffic.sum(from..usize::MAX);
    println!(
        "\nsent by the edges after the first releases: {:.0} bytes of deltas, {:.0} of whole tarballs",
        sent.delta_bytes, sent.whole_bytes
    );
    for (what, counter, value) in [
        ("switches", "weir_agent_switches_total", None),
        ("events `changed`", "weir_agent_events_total", Some("changed")),
        ("events `resync`", "weir_agent_events_total", Some("resync")),
        ("deltas applied", "weir_agent_deltas_total", Some("applied")),
        ("deltas refused", "weir_agent_deltas_total", Some("refused")),
        ("failed attempts", "weir_agent_errors_total", None),
        ("refused generations", "weir_agent_generation_regressions_total", None),
        ("tarballs that failed to verify", "weir_agent_verify_failures_total", None),
    ] {
        println!("{what} at the agents: {}", fleet.count(counter, value));
    }
    if let Some(csv) = &arguments.csv {
        fs::write(csv, traffic.csv()).with_context(|| format!("cannot write {}", csv.display()))?;
    }
    let all = directories.all_at(arguments.commits);
    println!(
        "directories read meanwhile: {}, removed while being read: {}, wrong: {:?}",
        seen.samples, seen.gone, seen.wrong
    );
    println!("directories read at the end: {}, wrong: {:?}", all.samples, all.wrong);
    arrived?;
    ensure!(seen.wrong.is_empty() && all.wrong.is_empty(), "directories were wrong");
    ensure!(fleet.drain().await, "an agent had to be cut off");
    Ok(())
}

/// Makes the commits, and asks for restarts; returns the last commit of each service.
async fn commit(
    arguments: &Arguments,
    content: Content,
    site: &Site,
    fleet: &Fleet,
    restart: mpsc::Sender<bool>,
) -> anyhow::Result<Vec<String>> {
    let (services, all) = (arguments.services, arguments.commits * arguments.services);
    let mut last = vec![String::new(); services];
    let mut pace = tokio::time::interval(arguments.pace);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut restarts, mut restarted): (usize, Option<Instant>) = (0, None);
    for number in 0..all {
        pace.tick().await;
        if restarts < arguments.restarts && number * (arguments.restarts + 1) >= all * (restarts + 1) {
            restarts += 1;
            restarted = Some(Instant::now());
            restart.send(restarts % 3 == 0).await?;
        }
        let service = number % services;
        let commit = tokio::task::block_in_place(|| site.push(content, service, number / services + 1))?;
        fleet.log.announce(&commit, restarted.is_some_and(|at| at.elapsed() < RESTART))?;
        site.trigger().await?;
        last[service] = commit;
    }
    Ok(last)
}

/// The restarts that were made: in which second, and whether with SIGKILL.
type Restarted = (Vec<Edge>, Vec<(usize, bool)>);

/// Restarts the edges in turn when told to. `true`: with SIGKILL.
fn restarter(
    mut edges: Vec<Edge>,
    services: usize,
    traffic: Arc<Traffic>,
) -> (mpsc::Sender<bool>, JoinHandle<anyhow::Result<Restarted>>) {
    let (told, mut telling) = mpsc::channel(8);
    let task = tokio::spawn(async move {
        let mut restarted = Vec::new();
        while let Some(kill) = telling.recv().await {
            let turn = restarted.len() % edges.len();
            restarted.push((traffic.now(), kill));
            edges[turn].restart(kill, services).await?;
        }
        Ok((edges, restarted))
    });
    (told, task)
}

/// The processor time that the parts have used.
struct Costs([(&'static str, Duration); 3]);

impl Costs {
    fn of(site: &Site, edges: &[Edge]) -> anyhow::Result<Self> {
        let edges = edges.iter().map(Edge::processor_time).sum::<anyhow::Result<Duration>>()?;
        let origin = processor::time(site.origin.pid().context("the origin runs")?)?;
        Ok(Self([("origin", origin), ("edges", edges), ("agents", processor::time(std::process::id())?)]))
    }

    fn since(&self, before: &Self, took: Duration) -> String {
        let part = |((name, now), (_, before)): (&(&str, Duration), &(&str, Duration))| {
            let used = *now - *before;
            format!(
                "{name} {:.1} s ({:.0} % of a core)",
                used.as_secs_f64(),
                100.0 * used.as_secs_f64() / took.as_secs_f64()
            )
        };
        self.0.iter().zip(&before.0).map(part).collect::<Vec<_>>().join(", ")
    }
}

/// `expected`: how many there would be of each if every agent took every commit by itself.
fn print_delays(delays: &[Delay], expected: usize) {
    println!("\ndelay from the announcement, of {expected} commits at agents:");
    println!("                              p50 ms   p99 ms  p99.9 ms   max ms    count");
    for (what, title) in [(What::Event, "event"), (What::Switch, "switch")] {
        for (restarting, when) in [(false, "steady"), (true, "within 30 s of a restart")] {
            let of = delays.iter().filter(|delay| delay.what == what && delay.restarting == restarting);
            let mut sorted: Vec<f64> = of.map(|delay| delay.after.as_secs_f64() * 1e3).collect();
            if sorted.is_empty() {
                continue;
            }
            sorted.sort_by(f64::total_cmp);
            let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize];
            let title = format!("{title}, {when}");
            println!(
                "{title:28} {:8.1} {:8.1} {:9.1} {:8.1} {:8}",
                at(0.5),
                at(0.99),
                at(0.999),
                at(1.0),
                sorted.len()
            );
        }
    }
}
