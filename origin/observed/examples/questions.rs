//! Measures a table of 10,000 agents with 50 services each: its memory, and how long answers take.
//!
//! `cargo run --release -p weir-observed --example questions`

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_observed::{AgentFilter, Bounds, By, Now, PROBLEMS, ProblemFilter, Release, RowFilter, Table, Verdict};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::EdgeObserved;

const AGENTS: u64 = 10_000;
const SERVICES: u64 = 50;
const EDGES: u64 = 3;
const ROUNDS: usize = 200;

fn row(agent: u64, service: u64) -> Value {
    // One agent in ten is a generation behind, one row in a hundred has a problem.
    let generation = 1_795_164_249_650 + service - u64::from(agent.is_multiple_of(10));
    let digest = TarballDigest::of(format!("{service} {generation}").as_bytes());
    let time = "2026-11-20T09:30:00Z";
    let problem = (agent + service).is_multiple_of(100).then(|| {
        json!({"kind": "hook-failed", "since": time, "tries": 3, "text": "exit status 1: the deployment has not become ready"})
    });
    json!({
        "service": format!("service-{service:03}"), "desired": {"digest": digest, "generation": generation},
        "current": {"digest": digest, "generation": generation, "revision_id": format!("sha1:{generation:040x}"), "since": time},
        "phase": "current", "hook": "succeeded", "problem": problem,
        "transfer": {"kind": "delta", "received_bytes": 301_000, "tarball_bytes": 417_000_000},
    })
}

fn agent(agent: u64) -> Value {
    let rows: Vec<Value> = (0..SERVICES).map(|service| row(agent, service)).collect();
    json!({
        "agent": format!("cluster-{agent:05}"), "proved": "token", "labels": {"ring": (agent % 5).to_string(), "region": "eu"},
        "heard_ago": 1, "instance": format!("i-{agent}"), "seq": 1, "version": "0.3.0", "full": true, "rows": rows,
    })
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or_default() << 10
}

fn measure(name: &str, mut query: impl FnMut() -> usize) {
    let mut times: Vec<Duration> = Vec::new();
    let mut found = 0;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        found = query();
        times.push(began.elapsed());
    }
    times.sort_unstable();
    println!("{name}: {found} found, p50 {:?}, p99 {:?}", times[ROUNDS / 2], times[ROUNDS * 99 / 100]);
}

fn main() {
    let before = resident();
    let mut table = Table::new(Bounds::default());
    let (mut applying, mut bytes) = (Duration::ZERO, 0);
    for edge in 0..EDGES {
        let agents: Vec<u64> = (0..AGENTS).filter(|agent| agent % EDGES == edge).collect();
        for (seq, some) in agents.chunks(35).enumerate() {
            let agents: Vec<Value> = some.iter().map(|number| agent(*number)).collect();
            let message = json!({
                "edge": format!("edge-{edge}"), "instance": "e", "seq": seq, "full": seq == 0, "connected": 0, "agents": agents,
            });
            let message = message.to_string();
            bytes += message.len();
            let began = Instant::now();
            let parsed = EdgeObserved::parse(message.as_bytes()).unwrap();
            table.apply(parsed, None, Now::of_clocks()).unwrap();
            applying += began.elapsed();
        }
    }
    let used = table.in_use();
    println!(
        "{} agents, {} rows, {} MB estimated, {} MB resident",
        used.agents,
        used.rows,
        used.bytes >> 20,
        (resident() - before) >> 20
    );
    println!("{} MB of messages read and applied in {applying:?}", bytes >> 20);
    let (all, now) = (RowFilter::default(), Now::of_clocks());
    let lacks = |service: &ServiceName, release: Option<&Release>| {
        let newest = 1_795_164_249_650 + service.as_str()[8..].parse::<u64>().unwrap();
        if release.is_none_or(|release| release.generation < newest) { Verdict::Lacks } else { Verdict::Has }
    };
    measure("rows", || table.rows(&all, None, (None, 100), now).total);
    measure("rows that lack a revision", || table.rows(&all, Some(&lacks), (None, 1000), now).total);
    let why = RowFilter {
        agents: AgentFilter { labels: vec![("ring".to_owned(), "3".to_owned())], ..AgentFilter::default() },
        service: Some("service-0*".parse().unwrap()),
        problem: Some(ProblemFilter::Kind(PROBLEMS[11].1)),
        ..RowFilter::default()
    };
    measure("rows with a problem, of a ring", || table.rows(&why, None, (None, 100), now).total);
    let agent = AgentFilter { agent: Some("*-0999*".parse().unwrap()), ..AgentFilter::default() };
    measure("agents by a pattern", || table.agents(&agent, (None, 100), now).total);
    let label = By::Label("ring".to_owned());
    let pairs = [(By::Service, Some(By::Revision)), (By::Since(5), None)];
    for by in [By::Service, By::Agent, By::Revision, By::Problem, label].map(|by| (by, None)).into_iter().chain(pairs) {
        let by = (&by.0, by.1.as_ref());
        measure(&format!("summary by {by:?}, lacks"), || table.summary(by, &all, Some(&lacks), (None, 100), now).total);
        measure(&format!("summary by {by:?}"), || table.summary(by, &all, None, (None, 100), now).total);
    }
}
