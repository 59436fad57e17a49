//! `weir-loadtest`: loads a server on this machine and measures its processor time.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use weir_loadtest::poller::{self, Plan, Request, Version};
use weir_loadtest::processor;
use weir_runtime::config::duration;

/// Sends conditional HEAD requests, or GET requests, to a server, and prints its processor time for each
///
/// Processor time is steadier than wall time. Only loopback addresses are accepted.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Protocol {
    H1,
    H2,
    H3,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
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
        version: match arguments.http {
            Protocol::H1 => Version::Http1,
            Protocol::H2 => Version::Http2,
            Protocol::H3 => Version::Http3,
        },
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
