//! `weir-origin`: polls Git repositories and publishes their content to edges.

mod check_command;
mod keys_command;
mod verify_command;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use weir_origin::config::Config;
use weir_runtime::admin::STATUS_SOCKET;
use weir_runtime::arenas::limit_arenas;
use weir_runtime::config_watch::ConfigWatch;
use weir_runtime::shutdown::{self, DEFAULT_DRAIN_DEADLINE};
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{failure, service_manager, status_command, telemetry};

/// The origin of Weir: follow Git, Helm and OCI repositories and publish their content to edges
///
/// Only the origin fetches from upstreams. It turns a folder at a ref into a deterministic tarball and publishes each change.
/// Edges connect to `listen` with a client certificate whose URI is `spiffe://<trust domain>/edge/<name>`.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_long_help = EXAMPLES)]
struct Arguments {
    /// The configuration file (origin.toml); relative paths in it are relative to its folder
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Check the configuration and the files that it names, and exit
    ///
    /// Exit code 0: the origin can start. 2: every error is printed. Files that each poll reads may be missing; they are
    /// listed. Stored documents of operators that this version would refuse are listed too, even while an origin runs: use it
    /// before an upgrade.
    #[arg(long)]
    check_config: bool,
    /// Lower generations of the far future to the current time
    ///
    /// For one start, after the clock was ahead by more than a day (docs/how-to/clock-ahead.md). Generations of more than a day
    /// ahead of the clock are lowered to it. Contents, pins, history and definitions stay.
    #[arg(long)]
    lower_generations: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Check(check_command::CheckArguments),
    Doctor(DoctorArguments),
    Keys(keys_command::KeysArguments),
    Status(StatusArguments),
    Verify(verify_command::VerifyArguments),
}

/// Shows what the running process says of itself.
///
/// It asks the process through a socket in `data_dir`, so it needs no admin listener, no token and no other program:
/// `kubectl exec POD -- weir-origin status`. Exit codes: 0 it is ready; 1 it is not; 2 no process answers.
#[derive(Debug, clap::Args)]
struct StatusArguments {
    /// The configuration of the process.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Prints the document of `/status` as JSON.
    #[arg(long)]
    json: bool,
}

/// Checks names, ports, certificates, the store and the disk.
///
/// It works beside a running origin and changes nothing. Of upstreams it checks that their hosts have addresses and accept
/// connections. Exit codes: 0 no check failed; 1 one did; 2 the configuration is invalid.
#[derive(Debug, clap::Args)]
struct DoctorArguments {
    /// The configuration of an origin.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Prints one JSON document.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  weir-origin --config origin.toml
  weir-origin --config origin.toml --check-config
  weir-origin check --config origin.toml
  weir-origin doctor --config origin.toml

SIGTERM drains: requests in flight are finished. SIGHUP reloads certificates, and the repositories and services of the
file. /livez, /readyz, /metrics and /status are on `admin_listen`.
Logs: WEIR_LOG=debug or WEIR_LOG=info,weir=debug; WEIR_LOG_FORMAT=text or json.";

const PROGRAM: &str = "weir-origin";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Check(arguments)) => return check_command::run(&arguments).await,
        Some(Command::Doctor(DoctorArguments { config, json })) => {
            return match Config::load(&config) {
                Ok(config) => weir_origin::doctor(&config).await.print(json),
                Err(error) => failure::invalid(PROGRAM, error),
            };
        }
        Some(Command::Keys(arguments)) => return failure::exit_code(PROGRAM, keys_command::run(arguments)),
        Some(Command::Status(StatusArguments { config, json })) => {
            return match Config::read(&config) {
                Ok(config) => status_command::run(PROGRAM, &config.data_dir.join(STATUS_SOCKET), json).await,
                Err(error) => failure::invalid(PROGRAM, error),
            };
        }
        Some(Command::Verify(arguments)) => return verify_command::run(&arguments).await,
        None => {}
    }
    let file = arguments.config.unwrap_or_default();
    if arguments.check_config {
        return check(&file).await;
    }
    limit_arenas();
    let watch = ConfigWatch::new(&file);
    let config = match Config::load(&file) {
        Ok(config) => Config { lower_generations: arguments.lower_generations, ..config },
        Err(error) => return failure::invalid_in_log(PROGRAM, LogFormat::of_role(), error),
    };
    failure::exit_code_in_log(PROGRAM, LogFormat::of_role(), run(config, &file, watch).await)
}

async fn check(file: &Path) -> ExitCode {
    if !weir_origin::check_config(PROGRAM, file).await {
        return ExitCode::from(2);
    }
    println!("configuration ok");
    ExitCode::SUCCESS
}

async fn run(config: Config, file: &Path, watch: ConfigWatch) -> anyhow::Result<()> {
    telemetry::init_logs("info", LogFormat::of_role())?;
    // First, because without a handler the signal ends the process.
    let mut hangups = signal(SignalKind::hangup())?;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let name = config.name.clone();
    let mut watch = watch.when(config.watch_config);
    let mut stop = pin!(shutdown::requested());
    // It may wait for the store.
    let running = tokio::select! {
        started = weir_origin::start(config) => started?,
        requested = stop.as_mut() => return Ok(requested?),
    };
    let admin = running.admin_address().map_or("none".to_owned(), |address| address.to_string());
    let operators = running.operator_address().map_or("none".to_owned(), |address| address.to_string());
    let webhooks = running.webhook_address().map(|address| address.to_string());
    tracing::info!(%name, listen = %running.address(), admin, operators, webhooks, "the origin is running");
    service_manager::started();
    loop {
        // The result is logged.
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            Some(()) = hangups.recv() => {
                watch.was_read().await;
                drop(running.reload_file(file).await);
            }
            () = watch.changed() => drop(running.reload_changed_file(file).await),
        }
    }
    service_manager::stopping();
    tracing::info!("draining");
    let clean = running.drain(DEFAULT_DRAIN_DEADLINE).await;
    tracing::info!(clean, "the origin has stopped");
    Ok(())
}
