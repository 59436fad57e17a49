//! What a commit costs behind Git: what the origin writes and makes durable, what it sends to an edge, and what that writes.
//!
//! `cargo run --release -p weir-loadtest --example commit_cost -- services [NUMBER]`: a repository with a folder for each of
//! 1,000 services. `… -- synthetic DIR`: the repository that the example `synthetic_repository` made, as one service. The
//! binaries of the same build are used. One commit touches one file, a second one touches none. Calls of fsync are counted
//! by `strace`. The temporary folder must be on a disk: the kernel does not count what is written to memory.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use weir_loadtest::git_repository::{GitRepository, git_command};
use weir_loadtest::processes::{Node, free_address};
use weir_loadtest::relay::Relay;
use weir_loadtest::scrape::Metrics;
use weir_shared::process::certificates;
use weir_shared::process::http_client::{Http2Client, http2_client};
use weir_shared::process::tls;

/// How long anything may take: a repository of 50,000 files is cloned and built.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long nothing may have been written until everything is: edges write behind, by a second at the most.
const QUIET: Duration = Duration::from_secs(3);

/// What origins and edges count, besides what the kernel does.
const COUNTED: [&str; 4] = [
    "weir_origin_publications_total",
    "weir_origin_record_writes_total",
    "weir_origin_object_written_bytes_total",
    "weir_edge_events_total",
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let upstream = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["services"] => Upstream::with_services(1000)?,
        ["services", number] => Upstream::with_services(number.parse()?)?,
        ["synthetic", dir] => Upstream::synthetic(Path::new(dir))?,
        _ => bail!("say `services [NUMBER]` or `synthetic DIR`"),
    };
    let mut site = Site::start(upstream).await?;
    let before = site.counts().await?;
    let first = site.fetch().await?;
    println!("the service that is touched: {} bytes of zstd", first.size);
    site.until_quiet(before.written()).await?;

    let change = site.measure("a commit that touches one file").await?;
    let commit = site.upstream.take_change()?;
    site.until("the edge serves it", async |site| Ok(site.seen().await? == commit)).await?;
    let second = site.fetch().await?;
    ensure!(first.digest != second.digest, "the content has not changed");
    site.report(change).await?;

    let change = site.measure("a commit that touches nothing").await?;
    let commit = site.upstream.repeat_tree()?;
    site.until("the edge knows of it", async |site| Ok(site.seen().await? == commit)).await?;
    site.report(change).await?;

    site.edge.terminate().await?;
    site.origin.terminate().await
}

/// A bare repository, and where its next commit comes from.
struct Upstream {
    dir: TempDir,
    bare: PathBuf,
    later: PathBuf,
    later_branch: &'static str,
    /// Names and folders of the services.
    services: Vec<(String, String)>,
    /// Which of them the next commit touches.
    touched: String,
}

impl Upstream {
    fn with_services(number: usize) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let repository = GitRepository::create(dir.path(), "shop")?;
        let services: Vec<_> = (0..number).map(|n| (format!("service-{n}"), format!("services/{n}"))).collect();
        for (name, folder) in &services {
            repository.write(Path::new(folder).join("version"), "1")?;
            repository.write(Path::new(folder).join("app.yaml"), format!("name: {name}\nreplicas: 3\n").repeat(50))?;
        }
        repository.commit_and_push("one")?;
        let (touched, folder) = services[number / 2].clone();
        repository.git(["checkout", "--quiet", "-b", "changed"])?;
        repository.write(Path::new(&folder).join("version"), "2")?;
        repository.git(["commit", "--quiet", "--all", "--message=two"])?;
        let (bare, later) = (repository.bare().to_owned(), repository.work().to_owned());
        Ok(Self { dir, bare, later, later_branch: "changed", services, touched })
    }

    fn synthetic(made: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (bare, later) = (dir.path().join("shop.git"), std::path::absolute(made)?);
        let from = later.to_str().context("the path is UTF-8")?;
        git(dir.path(), &["clone", "--quiet", "--bare", "--single-branch", "--branch=main", from, "shop.git"])?;
        let services = vec![("synthetic".to_owned(), String::new())];
        Ok(Self { dir, bare, later, later_branch: "one-file", services, touched: "synthetic".to_owned() })
    }

    /// Puts the commit that changes one file on `main`.
    fn take_change(&self) -> anyhow::Result<String> {
        let from = self.later.to_str().context("the path is UTF-8")?;
        git(&self.bare, &["fetch", "--quiet", from, &format!("+refs/heads/{}:refs/heads/main", self.later_branch)])?;
        git(&self.bare, &["rev-parse", "main"])
    }

    /// Puts a commit with the same tree on `main`.
    fn repeat_tree(&self) -> anyhow::Result<String> {
        let commit = git(&self.bare, &["commit-tree", "main^{tree}", "-p", "main", "-m", "the same"])?;
        git(&self.bare, &["update-ref", "refs/heads/main", &commit])?;
        Ok(commit)
    }
}

fn git(dir: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = git_command(dir).args(arguments).output()?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// An origin and an edge as processes, with a relay between them that counts.
struct Site {
    upstream: Upstream,
    origin: Node,
    edge: Node,
    relay: Relay,
    client: Http2Client,
    url: String,
}

struct Fetched {
    digest: String,
    size: usize,
}

impl Site {
    async fn start(upstream: Upstream) -> anyhow::Result<Self> {
        let dir = upstream.dir.path();
        certificates::write(dir, &[])?;
        let [listen, origin_admin, edge_listen, edge_admin] =
            [free_address()?, free_address()?, free_address()?, free_address()?];
        let mut origin = Node::new(dir, "origin", origin_admin, &origin_config(&upstream, listen, origin_admin))?;
        origin.start().await?;
        let relay = Relay::start(listen).await?;
        let mut edge = Node::new(dir, "edge", edge_admin, &edge_config(&relay, edge_listen, edge_admin))?;
        edge.start().await?;
        let client = http2_client(tls::client_config(&dir.join("ca.pem"), None)?);
        let url = format!("https://{edge_listen}/v1/services/{}", upstream.touched);
        let count = upstream.services.len() as f64;
        let site = Self { upstream, origin, edge, relay, client, url };
        site.until("everything is published", async |site| {
            let metrics = Metrics::read(site.origin.admin()).await?;
            Ok(metrics.sum("weir_origin_publications_total", &[]) >= count)
        })
        .await?;
        site.until("the edge serves the service", async |site| Ok(site.fetch().await.is_ok())).await?;
        Ok(site)
    }

    async fn get(&self, path: &str) -> anyhow::Result<(http::response::Parts, Bytes)> {
        let request = Request::get(format!("{}{path}", self.url)).header("accept-encoding", "zstd");
        let (head, body) = self.client.request(request.body(Empty::<Bytes>::new())?).await?.into_parts();
        ensure!(head.status.is_success(), "answered {}", head.status);
        Ok((head, body.collect().await?.to_bytes()))
    }

    async fn fetch(&self) -> anyhow::Result<Fetched> {
        let (head, body) = self.get("/tarball").await?;
        Ok(Fetched { digest: head.headers["weir-digest"].to_str()?.to_owned(), size: body.len() })
    }

    /// The commit up to which the edge says that the service is right.
    async fn seen(&self) -> anyhow::Result<String> {
        let descriptor: serde_json::Value = serde_json::from_slice(&self.get("").await?.1)?;
        let revision_id = descriptor["seen"]["revision_id"].as_str().unwrap_or_default();
        Ok(revision_id.split_once(':').map(|(_, commit)| commit.to_owned()).unwrap_or_default())
    }

    async fn until(
        &self,
        what: &str,
        mut condition: impl AsyncFnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self).await? {
            ensure!(
                Instant::now() < deadline,
                "waited in vain until {what}:\n{}\n{}",
                self.origin.log(),
                self.edge.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits until neither has written anything for a while.
    async fn until_quiet(&self, mut written: [u64; 2]) -> anyhow::Result<()> {
        let mut since = Instant::now();
        while since.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.counts().await?.written();
            if now != written {
                (written, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    async fn counts(&self) -> anyhow::Result<Counts> {
        let mut counted = Vec::new();
        for node in [&self.origin, &self.edge] {
            let metrics = Metrics::read(node.admin()).await?;
            for name in COUNTED {
                let series = metrics.series(name).filter(|(labels, _)| !labels.contains("heartbeat"));
                counted.extend(series.map(|(labels, value)| (format!("{name}{{{labels}}}"), value)));
            }
        }
        let io = |node: &Node| written_bytes(node.pid().context("it runs")?);
        Ok(Counts { origin: io(&self.origin)?, edge: io(&self.edge)?, sent: self.relay.passed(), counted })
    }

    /// What there is before a commit.
    async fn measure(&self, title: &'static str) -> anyhow::Result<Change> {
        let syncs = self.upstream.dir.path().join("syncs");
        let tracer = trace_syncs(self.origin.pid().context("the origin runs")?, &syncs)?;
        Ok(Change { title, before: self.counts().await?, tracer, syncs })
    }

    /// Says what became different with a commit.
    async fn report(&self, change: Change) -> anyhow::Result<()> {
        let Change { title, before, mut tracer, syncs } = change;
        self.until_quiet(before.written()).await?;
        let after = self.counts().await?;
        kill_process(Pid::from_child(&tracer), Signal::INT)?;
        tracer.wait()?;
        let syncs = fs::read_to_string(syncs)?.lines().filter(|line| line.contains("sync")).count();
        println!("{title}:");
        println!("  origin: {} bytes written, {syncs} calls of fsync", after.origin - before.origin);
        println!("  edge: {} bytes received, {} bytes written", after.sent - before.sent, after.edge - before.edge);
        for (name, value) in &after.counted {
            let earlier = before.counted.iter().find(|(other, _)| other == name).map_or(0.0, |(_, value)| *value);
            if *value > earlier {
                println!("  {name} +{}", value - earlier);
            }
        }
        Ok(())
    }
}

struct Change {
    title: &'static str,
    before: Counts,
    tracer: Child,
    syncs: PathBuf,
}

/// Bytes that were written to a disk or sent, and what the roles count.
struct Counts {
    origin: u64,
    edge: u64,
    sent: u64,
    counted: Vec<(String, f64)>,
}

impl Counts {
    fn written(&self) -> [u64; 2] {
        [self.origin, self.edge]
    }
}

/// What a process and its children have written to disks, in whole pages.
fn written_bytes(pid: u32) -> anyhow::Result<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("the kernel counts it")?;
    Ok(line.parse()?)
}

/// Has all calls that make files durable written to a file, from now on.
fn trace_syncs(pid: u32, to: &Path) -> anyhow::Result<Child> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-e", "trace=fsync,fdatasync,syncfs,sync_file_range", "-o"]).arg(to);
    let mut strace =
        strace.args(["-p", &pid.to_string()]).stderr(Stdio::piped()).spawn().context("strace is needed")?;
    // It says when it has attached itself.
    let mut said = [0; 1];
    std::io::Read::read_exact(strace.stderr.as_mut().context("it is piped")?, &mut said)?;
    Ok(strace)
}

fn origin_config(upstream: &Upstream, listen: SocketAddr, admin: SocketAddr) -> String {
    let services = upstream.services.iter().map(|(name, folder)| {
        format!("[[service]]\nname = \"{name}\"\nrepository = \"shop\"\nref = \"main\"\nfolder = \"{folder}\"\n")
    });
    format!(
        r#"
name = "origin-1"
listen = "{listen}"
admin_listen = "{admin}"
data_dir = "origin-data"
tls = {{ certificate = "origin.pem", key = "origin.key", client_ca = "ca.pem" }}
[[repository]]
name = "shop"
url = "{}"
poll_interval = "1s"
{}"#,
        upstream.bare.display(),
        services.collect::<String>()
    )
}

fn edge_config(relay: &Relay, listen: SocketAddr, admin: SocketAddr) -> String {
    format!(
        r#"
name = "edge-1"
listen = "{listen}"
admin_listen = "{admin}"
tls = {{ certificate = "edge.pem", key = "edge.key" }}
auth = {{ mode = "open" }}
cache = {{ dir = "edge-cache" }}
freshness = {{ fresh = "1h" }}
push = {{ warm_within = "0s" }}
origin = [{{ url = "https://{}", ca = "ca.pem", client_certificate = "edge-client.pem", client_key = "edge-client.key" }}]
"#,
        relay.address()
    )
}
