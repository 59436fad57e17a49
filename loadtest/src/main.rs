//! `weir-loadtest`: loads a server on this machine, and measures its processor time.

use std::fs;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_loadtest::poller::{self, Plan, Request, Version};
use weir_loadtest::{frames, processor, questions, streams};
use weir_protocol::access_list::key_line;
use weir_protocol::token::SigningKey;
use weir_runtime::config::duration;
use weir_runtime::open_files;

/// Loads a server on this machine
///
/// Processor time is steadier than wall time. Only loopback addresses are accepted.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send conditional HEAD requests, or GET requests, and print the server's processor time for each
    Poll(PollArguments),
    /// Open event streams of many agents at an edge, and count what they are told
    ///
    /// It writes the public key of their tokens to --key-file, for `auth.keys` of the edge, and waits for a line of input. Then it opens
    /// the streams. From then on it prints the lines that have come, by the kind of event, for each line of input.
    Streams(StreamsArguments),
    /// Let many agents of one large service update after one push, without their disks
    ///
    /// It says when all are connected, and goes on after a line of input.
    Frames(frames::Plan),
    /// Ask an origin what a fleet runs: 10,000 agents with 50 services each behind three edges
    ///
    /// It starts the origin and the edges, of which the binaries are beside this one, and some real agents; it speaks for the others. It
    /// asks, publishes, restarts the origin, and kills an edge and everything. It fails if an answer was short without saying so.
    Questions(questions::Plan),
}

#[derive(Debug, Args)]
struct PollArguments {
    /// The address of the server.
    #[arg(long)]
    server: SocketAddr,
    /// The path to request.
    #[arg(long)]
    path: String,
    /// Fetch the body with GET instead of polling with HEAD.
    #[arg(long)]
    fetch: bool,
    /// PEM file of the authority of the server's certificate.
    #[arg(long)]
    ca: PathBuf,
    /// File with a bearer token, which `weir token issue` writes.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// The version of HTTP.
    #[arg(long, value_enum, default_value_t = Protocol::H2)]
    http: Protocol,
    /// The number of connections.
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Concurrent requests of each connection (always one over HTTP/1.1).
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// The duration; at most a minute.
    #[arg(long, default_value = "2s", value_parser = duration::parse)]
    duration: Duration,
    /// A process whose processor time is measured; takes several.
    #[arg(long = "pid")]
    pids: Vec<u32>,
}

#[derive(Debug, Args)]
struct StreamsArguments {
    /// The address of the edge.
    #[arg(long)]
    server: SocketAddr,
    /// PEM file of the authority of its certificate.
    #[arg(long)]
    ca: PathBuf,
    /// Where to write the public key of the tokens.
    #[arg(long)]
    key_file: PathBuf,
    /// The version of HTTP.
    #[arg(long, value_enum, default_value_t = Protocol::H2)]
    http: Protocol,
    /// The number of agents.
    #[arg(long, default_value_t = 1000)]
    agents: usize,
    /// Agents have one of so many labels `group=<number>`, in turn.
    #[arg(long, default_value_t = 5)]
    groups: usize,
    /// No two agents may read the same.
    #[arg(long)]
    own_scopes: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Protocol {
    H1,
    H2,
    H3,
}

impl Protocol {
    fn version(self) -> Version {
        match self {
            Protocol::H1 => Version::Http1,
            Protocol::H2 => Version::Http2,
            Protocol::H3 => Version::Http3,
        }
    }
}

fn main() -> anyhow::Result<()> {
    let command = Arguments::parse().command;
    // What shares the machine with the server that is measured takes one thread.
    let mut runtime = match command {
        Command::Poll(_) | Command::Streams(_) => tokio::runtime::Builder::new_current_thread(),
        Command::Frames(_) | Command::Questions(_) => tokio::runtime::Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
        match command {
            Command::Poll(arguments) => poll(arguments).await,
            Command::Streams(arguments) => follow(arguments).await,
            Command::Frames(plan) => frames::run(plan).await,
            Command::Questions(plan) => questions::run(&plan).await,
        }
    })
}

async fn follow(arguments: StreamsArguments) -> anyhow::Result<()> {
    let StreamsArguments { server, ca, key_file, http, agents, groups, own_scopes } = arguments;
    ensure!(server.ip().is_loopback(), "{server} is not a loopback address");
    ensure!(groups > 0, "--groups is at least 1");
    open_files::raise_limit();
    let (key, _) = SigningKey::generate()?;
    fs::write(&key_file, key_line(key.public()) + "\n")
        .with_context(|| format!("cannot write {}", key_file.display()))?;
    let next_line = async || tokio::task::spawn_blocking(|| io::stdin().lock().read_line(&mut String::new())).await?;
    let print = |line: String| writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    print("ready".to_owned())?;
    if next_line().await.is_ok_and(|bytes| bytes == 0) {
        return Ok(());
    }
    let plan = streams::Plan { server, version: http.version(), agents, groups, own_scopes };
    let streams = streams::Streams::open(&plan, &ca, &key).await?;
    print("open".to_owned())?;
    while next_line().await.is_ok_and(|bytes| bytes > 0) {
        print(serde_json::to_string(&streams.counts())?)?;
    }
    Ok(())
}

async fn poll(arguments: PollArguments) -> anyhow::Result<()> {
    ensure!(arguments.server.ip().is_loopback(), "{} is not a loopback address", arguments.server);
    ensure!(arguments.duration <= Duration::from_secs(60), "--duration is at most a minute");
    let token = match &arguments.token_file {
        Some(file) => Some(fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?),
        None => None,
    };
    let plan = Plan {
        authorization: token.map(|token| format!("Bearer {}", token.trim()).try_into()).transpose()?,
        server: arguments.server,
        path: arguments.path,
        request: if arguments.fetch { Request::Fetch } else { Request::Poll },
        version: arguments.http.version(),
        connections: arguments.connections,
        streams: arguments.streams,
        duration: arguments.duration,
    };
    let used = || arguments.pids.iter().map(|pid| processor::time(*pid)).sum::<anyhow::Result<Duration>>();
    let before = used()?;
    let outcome = poller::run(&plan, &arguments.ca).await?;
    let seconds = (used()? - before).as_secs_f64();
    let (requests, bytes) = (outcome.requests as f64, outcome.bytes as f64);
    let cost = match plan.request {
        Request::Poll => format!("server_cpu_us_per_request {:.2}", seconds * 1e6 / requests),
        Request::Fetch => format!("bytes {bytes} server_cpu_us_per_MB {:.1}", seconds * 1e12 / bytes),
    };
    println!("{:?} requests {requests} per_second {:.0} {cost}", plan.version, requests / outcome.took.as_secs_f64());
    Ok(())
}
