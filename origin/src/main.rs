//! `weir-origin`: polls Git repositories and publishes their content to edges.

mod fsck_command;
mod keys_command;

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use weir_origin::config::Config;
use weir_shared::process::shutdown::{self, DEFAULT_DRAIN_DEADLINE};
use weir_shared::process::telemetry;

/// The origin of a Weir fleet: it alone asks Git. It mirrors repositories, turns a folder at a ref into a deterministic
/// tarball, and publishes each change to the edges.
///
/// Edges connect to `listen` by mutual TLS (a certificate with the URI `spiffe://weir/edge/<name>`); `/livez`, `/readyz`,
/// `/metrics` and `/status` are on `admin_listen`. SIGTERM finishes what is in flight; SIGHUP reads the
/// repositories and services of the configuration again. WEIR_LOG=debug logs more.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    /// The configuration, TOML; paths in it are relative to it.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Checks the configuration, and the certificates and password files that it names where they are there, and exits:
    /// 0 when it can be used, 2 with the reason when not.
    #[arg(long)]
    check_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Fsck(fsck_command::FsckArguments),
    Keys(keys_command::KeysArguments),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Fsck(arguments)) => return Ok(fsck_command::run(&arguments)),
        Some(Command::Keys(arguments)) => {
            keys_command::run(arguments)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let file = arguments.config.unwrap_or_default();
    let config = match Config::load(&file) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(2));
        }
    };
    if arguments.check_config {
        let missing = config.missing_files();
        for path in &missing {
            eprintln!("{} is not there (yet): the origin will need it", path.display());
        }
        if missing.is_empty()
            && let Err(error) = config.check_files()
        {
            eprintln!("{error}");
            return Ok(ExitCode::from(2));
        }
        println!("configuration ok");
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init_logs("info")?;
    // From the first moment on: without a handler the signal would end the process.
    let mut hangups = signal(SignalKind::hangup())?;
    let name = config.name.clone();
    let running = weir_origin::start(config).await?;
    let admin = running.admin_address().map_or("none".to_owned(), |address| address.to_string());
    let operators = running.operator_address().map_or("none".to_owned(), |address| address.to_string());
    tracing::info!(%name, listen = %running.address(), admin, operators, "the origin runs");
    let mut stop = pin!(shutdown::requested());
    loop {
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            // How it went is logged.
            Some(()) = hangups.recv() => drop(running.reload_file(&file).await),
        }
    }
    tracing::info!("draining");
    running.drain(DEFAULT_DRAIN_DEADLINE).await;
    Ok(ExitCode::SUCCESS)
}
