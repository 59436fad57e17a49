//! `weir-edge`: reads the configuration, starts, announces its addresses, waits, drains.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use weir_edge::Config;
use weir_shared::process::{shutdown, telemetry};

/// The edge of Weir: caches tarballs between origins and the agents of a fleet.
///
/// It answers polls from a durable table of services, serves tarballs from a bounded cache of verified files, and asks
/// its origins only for what it does not hold, once, whoever asks. SIGTERM drains it: nothing in flight is cut.
/// Logs are chosen with WEIR_LOG, for example WEIR_LOG=info,weir_edge=debug.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file (edge.toml). Relative paths in it are relative to its folder.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Checks the configuration and exits: 0 when it is right, 2 when it is not.
    #[arg(long)]
    check_config: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    if arguments.check_config {
        println!("configuration ok");
        return ExitCode::SUCCESS;
    }
    match run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    telemetry::init_logs("info")?;
    let (name, drain_deadline) = (config.name.clone(), config.drain_deadline);
    let edge = weir_edge::start(config).await?;
    tracing::info!(
        %name, address = %edge.address(), admin = edge.admin_address().map(tracing::field::display),
        "the edge serves HTTP/1.1 and 2 over TCP, and HTTP/3 over UDP"
    );
    shutdown::requested().await?;
    tracing::info!(%name, "the edge drains");
    edge.drain(drain_deadline).await;
    Ok(())
}
