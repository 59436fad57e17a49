//! What a fleet runs, asked at an origin: 10,000 agents with 50 services each behind three edges, which this program plays.
//!
//! `cargo run --release -p weir-loadtest --example fleet_questions -- target/release/weir-origin [AGENTS [SERVICES]]` starts the
//! origin, reports everything, asks who lacks a commit, since when and why, publishes, kills the origin and starts it again.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use futures_util::future::try_join_all;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use weir_loadtest::git_repository::GitRepository;
use weir_protocol::observed::{MAX_MESSAGE_BYTES, Phase};
use weir_runtime::certificates;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

const EDGES: usize = 3;
/// How often each question is asked.
const ROUNDS: usize = 200;

type Client = Http2Client<Full<Bytes>>;

/// The origin, as a process of its own.
struct Origin {
    process: Child,
    program: PathBuf,
    home: PathBuf,
    edge_url: String,
    operator_url: String,
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

impl Origin {
    fn start(program: &Path, home: &Path, repository: &GitRepository, services: usize) -> anyhow::Result<Self> {
        let free = || -> anyhow::Result<u16> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()) };
        let (edges, operators) = (free()?, free()?);
        let mut config = format!(
            "name = \"origin-1\"\nlisten = \"127.0.0.1:{edges}\"\noperator_listen = \"127.0.0.1:{operators}\"\ndata_dir = \"data\"\n\
             tls = {{ certificate = \"origin.pem\", key = \"origin.key\", client_ca = \"ca.pem\" }}\n\
             [[repository]]\nname = \"shop\"\nurl = \"{}\"\npoll_interval = \"2s\"\nmin_poll_interval = \"1s\"\n",
            repository.bare().display()
        );
        for service in 0..services {
            writeln!(
                config,
                "[[service]]\nname = \"{}\"\nrepository = \"shop\"\nref = \"main\"\nfolder = \"{service}\"",
                name(service)
            )?;
        }
        std::fs::write(home.join("origin.toml"), config)?;
        let (edge_url, operator_url) = (format!("https://127.0.0.1:{edges}"), format!("https://127.0.0.1:{operators}"));
        let process = run(program, home)?;
        Ok(Self { process, program: program.to_owned(), home: home.to_owned(), edge_url, operator_url })
    }

    /// Kills it, and starts it again.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = run(&self.program, &self.home)?;
        Ok(())
    }

    fn resident_mib(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? >> 10)
    }
}

fn run(program: &Path, home: &Path) -> anyhow::Result<Child> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(home.join("origin.log"))?;
    Ok(Command::new(program)
        .arg("--config")
        .arg("origin.toml")
        .current_dir(home)
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?)
}

fn name(service: usize) -> String {
    format!("service-{service:03}")
}

async fn send(client: &Client, method: Method, url: &str, body: Vec<u8>) -> anyhow::Result<(StatusCode, Bytes)> {
    let request = Request::builder().method(method).uri(url).body(Full::new(Bytes::from(body)))?;
    let response = client.request(request).await?;
    let status = response.status();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// The publication of a service: digest, generation, revision.
#[derive(Clone, Default, PartialEq)]
struct Release {
    digest: String,
    generation: u64,
    revision: String,
}

/// The publications of all services, once they have this commit.
async fn published(client: &Client, origin: &Origin, services: usize, commit: &str) -> anyhow::Result<Vec<Release>> {
    let mut releases = Vec::new();
    for service in 0..services {
        loop {
            let url = format!("{}/v1/services/{}", origin.edge_url, name(service));
            if let Ok((StatusCode::OK, body)) = send(client, Method::GET, &url, Vec::new()).await {
                let document: Value = serde_json::from_slice(&body)?;
                let publication = &document["publication"];
                if publication["commit"] == commit {
                    let text = |key: &str| publication[key].as_str().unwrap_or_default().to_owned();
                    let generation = publication["generation"].as_u64().context("a generation")?;
                    releases.push(Release { digest: text("digest"), generation, revision: text("revision_id") });
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(releases)
}

/// What one of the edges has to report.
struct Edge {
    client: Client,
    name: String,
    url: String,
    seq: u64,
    agents: Vec<usize>,
    /// By agent, as `agents`: what it runs of each service.
    runs: Vec<Vec<Release>>,
    sent_bytes: usize,
}

impl Edge {
    fn row(&self, agent: usize, service: usize, desired: &[Release]) -> Value {
        let (runs, desired) = (&self.runs[agent][service], &desired[service]);
        let is_current = runs == desired;
        let phase = if is_current { Phase::Current } else { Phase::Waiting };
        let since = "2026-11-20T09:30:00Z";
        let problem = (!is_current && agent.is_multiple_of(10))
            .then(|| json!({ "kind": "hook-failed", "since": since, "tries": 8, "text": "exit status 1: the deployment is not ready" }));
        json!({
            "service": name(service), "desired": { "digest": desired.digest, "generation": desired.generation },
            "current": { "digest": runs.digest, "generation": runs.generation, "revision_id": runs.revision, "since": since },
            "phase": phase, "hook": "succeeded", "problem": problem,
            "transfer": { "kind": "delta", "received_bytes": 30_100, "tarball_bytes": 417_000 },
        })
    }

    /// The entry of an agent in a message, with these of its rows.
    fn entry(&self, agent: usize, is_full: bool, services: &[usize], desired: &[Release]) -> Value {
        let number = self.agents[agent];
        let rows: Vec<Value> = services.iter().map(|service| self.row(agent, *service, desired)).collect();
        json!({
            "agent": format!("cluster-{number:05}"), "proved": "token", "labels": { "ring": (number % 5).to_string(), "region": "eu" },
            "heard_ago": 1, "instance": format!("i-{number}"), "seq": self.seq + 1, "version": "0.3.0", "full": is_full, "rows": rows,
        })
    }

    /// Reports rows of all agents, in as many messages as they need. With `is_full` all rows that they have.
    async fn report(&mut self, is_full: bool, services: &[usize], desired: &[Release]) -> anyhow::Result<StatusCode> {
        let mut next = 0;
        while next < self.agents.len() {
            let (first, mut entries, mut bytes) = (next, Vec::new(), 1000);
            while next < self.agents.len() {
                let entry = serde_json::to_string(&self.entry(next, is_full, services, desired))?;
                bytes += entry.len() + 1;
                if bytes > MAX_MESSAGE_BYTES && !entries.is_empty() {
                    break;
                }
                entries.push(entry);
                next += 1;
            }
            self.seq += 1;
            let message = format!(
                r#"{{"edge":"{}","instance":"e","seq":{},"full":{},"more":{},"connected":{},"agents":[{}]}}"#,
                self.name,
                self.seq,
                is_full && first == 0,
                next < self.agents.len(),
                self.agents.len(),
                entries.join(","),
            );
            self.sent_bytes += message.len();
            let status = self.post(message.into_bytes()).await?;
            if status != StatusCode::NO_CONTENT {
                return Ok(status);
            }
        }
        Ok(StatusCode::NO_CONTENT)
    }

    async fn post(&self, message: Vec<u8>) -> anyhow::Result<StatusCode> {
        Ok(send(&self.client, Method::POST, &format!("{}/v1/observed", self.url), message).await?.0)
    }
}

/// Asks a question often, and prints how long answers take.
async fn ask(client: &Client, origin: &Origin, what: &str, path: &str) -> anyhow::Result<Value> {
    let (mut times, mut answer) = (Vec::new(), Value::Null);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let (status, body) = send(client, Method::GET, &format!("{}{path}", origin.operator_url), Vec::new()).await?;
        times.push(began.elapsed());
        ensure!(status == StatusCode::OK, "{path}: {status} {}", String::from_utf8_lossy(&body));
        answer = serde_json::from_slice(&body)?;
    }
    times.sort_unstable();
    let (p50, p99, total) = (times[ROUNDS / 2], times[ROUNDS * 99 / 100], &answer["total"]);
    println!(
        "{what}: {total} rows, {} unknown, {} bytes: p50 {p50:?}, p99 {p99:?}",
        answer["unknown"],
        answer.to_string().len()
    );
    Ok(answer)
}

async fn in_parallel(edges: &mut [Edge], is_full: bool, services: &[usize], desired: &[Release]) -> anyhow::Result<()> {
    let began = Instant::now();
    let before: usize = edges.iter().map(|edge| edge.sent_bytes).sum();
    let reports = try_join_all(edges.iter_mut().map(|edge| edge.report(is_full, services, desired))).await?;
    ensure!(reports.iter().all(|status| *status == StatusCode::NO_CONTENT), "{reports:?}");
    let bytes = edges.iter().map(|edge| edge.sent_bytes).sum::<usize>() - before;
    println!("reported {} services of each agent: {} KiB in {:?}", services.len(), bytes >> 10, began.elapsed());
    Ok(())
}

/// The questions. `expected`: so many rows lack the commit.
async fn ask_all(client: &Client, origin: &Origin, commit: &str, expected: usize) -> anyhow::Result<()> {
    let lacks = format!("lacks={commit}");
    let answer = ask(client, origin, "who lacks X, since when", &format!("/v1/fleet/rows?{lacks}&limit=100")).await?;
    ensure!(answer["incomplete"] == json!([]) && answer["unknown"] == 0, "{}", answer["incomplete"]);
    ensure!(answer["total"] == expected, "{}", answer["total"]);
    ask(client, origin, "a page of 1,000 of them", &format!("/v1/fleet/rows?{lacks}&limit=1000")).await?;
    ask(client, origin, "and why", &format!("/v1/fleet/summary?by=problem&{lacks}")).await?;
    ask(client, origin, "in which rings", &format!("/v1/fleet/summary?by=label:ring&{lacks}")).await?;
    ask(
        client,
        origin,
        "which of one ring cannot",
        &format!("/v1/fleet/rows?label=ring=3&problem=hook-failed&{lacks}"),
    )
    .await?;
    ask(client, origin, "which commits run", "/v1/fleet/summary?by=revision").await?;
    ask(client, origin, "one service", "/v1/fleet/rows?service=service-007").await?;
    ask(client, origin, "one agent", "/v1/fleet/rows?agent=cluster-00042").await?;
    Ok(())
}

/// Kills the origin, starts it again, and reports everything.
async fn restart(
    client: &Client,
    origin: &mut Origin,
    edges: &mut [Edge],
    all: &[usize],
    desired: &[Release],
) -> anyhow::Result<()> {
    origin.restart()?;
    let began = Instant::now();
    while send(client, Method::GET, &format!("{}/v1/fleet/rows?limit=1", origin.operator_url), Vec::new())
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let started = began.elapsed();
    let (_, body) =
        send(client, Method::GET, &format!("{}/v1/fleet/rows?limit=1", origin.operator_url), Vec::new()).await?;
    let answer: Value = serde_json::from_slice(&body)?;
    println!("killed; it answers after {started:?}: {} rows, incomplete: {}", answer["total"], answer["incomplete"]);
    // Each edge reports what it would within ten seconds, and is told to send everything.
    for edge in edges.iter_mut() {
        let status = edge.report(false, &[], desired).await?;
        ensure!(status == StatusCode::CONFLICT, "{status}");
    }
    in_parallel(edges, true, all, desired).await?;
    let (_, body) =
        send(client, Method::GET, &format!("{}/v1/fleet/rows?limit=1", origin.operator_url), Vec::new()).await?;
    let answer: Value = serde_json::from_slice(&body)?;
    println!("complete after {:?}: {} rows, incomplete: {}", began.elapsed(), answer["total"], answer["incomplete"]);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(program) = arguments.next() else { bail!("name the program of the origin: target/release/weir-origin") };
    let program = std::fs::canonicalize(program)?;
    let agents: usize = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let services: usize = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let home = tempfile::tempdir()?;
    certificates::write(home.path(), &[])?;
    let repository = GitRepository::create(home.path(), "shop")?;
    let push = |what: &str, services: &[usize]| {
        services.iter().try_for_each(|service| repository.write(format!("{service}/file"), what))?;
        repository.write("README", what)?;
        repository.commit_and_push(what)
    };
    let all: Vec<usize> = (0..services).collect();
    let client = |file: &str| -> anyhow::Result<Client> {
        let (pem, key) = (home.path().join(format!("{file}.pem")), home.path().join(format!("{file}.key")));
        Ok(http2_client(tls::client_config(&home.path().join("ca.pem"), Some((&pem, &key)))?))
    };
    let first = push("one", &all)?;
    let mut origin = Origin::start(&program, home.path(), &repository, services)?;
    let operator = client("operator")?;
    let mut edges = Vec::new();
    for number in 0..EDGES {
        let name = format!("edge-{}", number + 1);
        certificates::write_edge(home.path(), &name.parse()?)?;
        let agents: Vec<usize> = (0..agents).filter(|agent| agent % EDGES == number).collect();
        let (client, url) = (client(&format!("edge-{name}"))?, origin.edge_url.clone());
        edges.push(Edge { client, name, url, seq: 0, runs: Vec::new(), agents, sent_bytes: 0 });
    }
    let old = published(&edges[0].client, &origin, services, &first).await?;
    let second = push("two", &all)?;
    let new = published(&edges[0].client, &origin, services, &second).await?;
    println!("the origin without a fleet: {} MiB", origin.resident_mib()?);
    for edge in &mut edges {
        // One agent in seven has not come to the second commit.
        let runs = |agent: &usize| if agent.is_multiple_of(7) { old.clone() } else { new.clone() };
        edge.runs = edge.agents.iter().map(runs).collect();
    }
    in_parallel(&mut edges, true, &all, &new).await?;
    println!("with {agents} agents and {services} services: {} MiB", origin.resident_mib()?);

    ask_all(&operator, &origin, &second, agents.div_ceil(7) * services).await?;

    // A publication of one service, at all agents.
    let third = push("three", &[0])?;
    let newest = loop {
        let releases = published(&edges[0].client, &origin, 1, &third).await?;
        if let Some(release) = releases.into_iter().next() {
            break release;
        }
    };
    let mut desired = new.clone();
    desired[0] = newest.clone();
    edges.iter_mut().flat_map(|edge| &mut edge.runs).for_each(|runs| runs[0] = newest.clone());
    in_parallel(&mut edges, false, &[0], &desired).await?;
    println!("after it: {} MiB", origin.resident_mib()?);

    restart(&operator, &mut origin, &mut edges, &all, &desired).await
}
