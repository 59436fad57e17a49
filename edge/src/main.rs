//! `weir-edge`: reads the configuration, starts, announces its addresses, waits (SIGHUP: reads certificates again), drains.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use weir_edge::{Config, check};
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{failure, shutdown, telemetry};

/// A poll is a few dozen small allocations: with this allocator it costs a tenth less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The edge of Weir: cache tarballs between origins and the agents of a fleet
///
/// It answers polls from a durable catalog of services, serves tarballs from a bounded cache of verified objects, and requests
/// from its origins only what it does not hold, once for all who wait.
#[derive(Parser)]
#[command(version, after_long_help = EXAMPLES)]
struct Arguments {
    /// The configuration file (edge.toml); relative paths in it are relative to its folder
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and the files that it names, and exit
    ///
    /// 0: an edge starts with it, unless another program has its ports or its directory. 2: all that is wrong is told.
    #[arg(long)]
    check_config: bool,
}

const EXAMPLES: &str = "\
Examples:
  weir-edge --config edge.toml
  weir-edge --config edge.toml --check-config

SIGTERM drains: requests in flight are finished. SIGHUP reads certificates and keys again, and no connection is closed.
Logs: WEIR_LOG=debug or WEIR_LOG=info,weir_edge=debug; WEIR_LOG_FORMAT=text or json.";

const PROGRAM: &str = "weir-edge";

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { config: file, check_config } = Arguments::parse();
    if check_config {
        return check(&file);
    }
    let config = match Config::load(&file) {
        Ok(config) => config,
        Err(error) => {
            failure::report_in_log(PROGRAM, &error.into());
            return ExitCode::from(2);
        }
    };
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            failure::report_in_log(PROGRAM, &error);
            ExitCode::FAILURE
        }
    }
}

/// Says all that is wrong with a configuration and the files that it names.
fn check(file: &Path) -> ExitCode {
    let config = match Config::read(file) {
        Ok(config) => config,
        Err(error) => {
            failure::report(PROGRAM, &error.into());
            return ExitCode::from(2);
        }
    };
    let mut faults: Vec<String> = config.validate().err().iter().map(ToString::to_string).collect();
    faults.extend(check::faults(&config));
    faults.iter().for_each(|fault| eprintln!("{PROGRAM}: {fault}"));
    check::warnings(&config).iter().for_each(|warning| eprintln!("{PROGRAM}: warning: {warning}"));
    if !faults.is_empty() {
        return ExitCode::from(2);
    }
    println!("configuration ok");
    ExitCode::SUCCESS
}

async fn run(config: Config) -> anyhow::Result<()> {
    // What foyer tells of its regions at the start is for those who work on it.
    telemetry::init_logs("info,foyer=warn", LogFormat::of_role())?;
    // From the first moment on: without a handler the signal would end the process.
    let mut hangups = signal(SignalKind::hangup())?;
    check::warnings(&config).iter().for_each(|warning| tracing::warn!("{warning}"));
    let (name, drain_deadline) = (config.name.clone(), config.drain_deadline);
    let edge = weir_edge::start(config).await?;
    tracing::info!(
        %name, address = %edge.address(), admin = edge.admin_address().map(tracing::field::display),
        "the edge serves HTTP/1.1 and 2 over TCP, and HTTP/3 over UDP"
    );
    let mut stop = pin!(shutdown::requested());
    loop {
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            // How it went is logged and counted.
            Some(()) = hangups.recv() => drop(edge.reload().await),
        }
    }
    tracing::info!(%name, "the edge drains");
    let clean = edge.drain(drain_deadline).await;
    tracing::info!(%name, clean, "the edge has stopped");
    Ok(())
}
