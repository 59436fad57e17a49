//! `weir-agent`: follows services and keeps verified releases on a cluster's disk.

use std::pin::pin;
use std::process::ExitCode;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use weir_agent::check;
use weir_agent::command_line::Args;
use weir_agent::config::Config;
use weir_runtime::shutdown::DEFAULT_DRAIN_DEADLINE;
use weir_runtime::{failure, shutdown, telemetry};

const PROGRAM: &str = "weir-agent";

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let config = match args.clone().into_config() {
        Ok(config) => config,
        Err(error) => {
            let tell = if args.check_config { failure::tell } else { failure::tell_log };
            tell(PROGRAM, &error.into());
            return ExitCode::from(2);
        }
    };
    if args.check_config {
        return check(&config);
    }
    if let Err(error) = telemetry::init_logs("info") {
        failure::tell_log(PROGRAM, &error);
        return ExitCode::from(2);
    }
    let result = match args.once {
        true => weir_agent::once(config, args.once_timeout).await.map_err(anyhow::Error::from),
        false => run(config, &args).await,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            failure::tell_log(PROGRAM, &error);
            ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with the files that a configuration names.
fn check(config: &Config) -> ExitCode {
    let found = check::files(config);
    found.missing.iter().chain(&found.faults).for_each(|what| eprintln!("weir-agent: {what}"));
    if !found.faults.is_empty() {
        return ExitCode::from(2);
    }
    println!("configuration ok");
    ExitCode::SUCCESS
}

async fn run(config: Config, args: &Args) -> anyhow::Result<()> {
    // From the first moment on: without a handler the signal would end the process.
    let mut hangups = signal(SignalKind::hangup())?;
    let (name, root) = (config.name.clone(), config.root.clone());
    let running = weir_agent::start(config).await?;
    tracing::info!(
        agent = %name,
        root = %root.display(),
        admin = running.admin_address().map(tracing::field::display),
        services = running.services().count(),
        "the agent follows"
    );
    let mut stop = pin!(shutdown::requested());
    loop {
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            // How it went is logged and counted.
            Some(()) = hangups.recv() => drop(running.reload(args.clone().into_config().map_err(Into::into)).await),
        }
    }
    tracing::info!("draining");
    let clean = running.drain(DEFAULT_DRAIN_DEADLINE).await;
    tracing::info!(agent = %name, clean, "the agent has stopped");
    Ok(())
}
