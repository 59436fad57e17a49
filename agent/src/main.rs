//! `weir-agent`: follows services and keeps verified releases on a cluster's disk.

use std::process::ExitCode;

use clap::Parser;
use weir_agent::command_line::Args;
use weir_agent::config::Config;
use weir_shared::process::shutdown::DEFAULT_DRAIN_DEADLINE;
use weir_shared::process::{shutdown, telemetry};

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let (check, once) = (args.check_config, args.once.then_some(args.once_timeout));
    let config = match args.into_config() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("weir-agent: {error}");
            return ExitCode::from(2);
        }
    };
    if check {
        println!("configuration ok");
        return ExitCode::SUCCESS;
    }
    if let Err(error) = telemetry::init_logs("info") {
        eprintln!("weir-agent: {error:#}");
        return ExitCode::from(2);
    }
    let result = match once {
        Some(timeout) => weir_agent::once(config, timeout).await.map_err(anyhow::Error::from),
        None => run(config).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: Config) -> anyhow::Result<()> {
    let (name, root) = (config.name.clone(), config.root.clone());
    let running = weir_agent::start(config).await?;
    tracing::info!(
        agent = %name,
        root = %root.display(),
        admin = running.admin_address().map(tracing::field::display),
        services = running.services().count(),
        "the agent follows"
    );
    shutdown::requested().await?;
    tracing::info!("draining");
    running.drain(DEFAULT_DRAIN_DEADLINE).await;
    Ok(())
}
