//! `weir-edge`: reads the configuration, starts, reloads it on SIGHUP, and drains on SIGTERM.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use weir_edge::doctor::doctor;
use weir_edge::{Config, check};
use weir_runtime::admin::STATUS_SOCKET;
use weir_runtime::config_watch::ConfigWatch;
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{failure, service_manager, shutdown, status_command, telemetry};

/// A poll is a few dozen small allocations: with this allocator it costs a tenth less.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The edge of Weir: cache tarballs between origins and the agents of a fleet
///
/// It answers polls from a durable catalog of services and serves tarballs from a bounded cache of verified objects. A missing
/// object is fetched from an origin once, however many clients wait for it.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_long_help = EXAMPLES)]
struct Arguments {
    /// The configuration file (edge.toml); relative paths in it are relative to its folder
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Check the configuration and the files that it names, and exit
    ///
    /// Exit code 0: an edge can start, unless another program uses its ports or its directory. 2: every error is printed.
    #[arg(long)]
    check_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Check names, ports, certificates, clocks and the disk
    ///
    /// It works beside a running edge and changes nothing. Exit code 0: no check failed. 1: one did. 2: the configuration is
    /// invalid.
    Doctor {
        /// The configuration file
        #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
        config: PathBuf,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Show what the running process says of itself
    ///
    /// It asks the process through a socket in the folder of its cache, so it needs no admin listener, no token and no other
    /// program: `kubectl exec POD -- weir-edge status`. Exit code 0: it is ready. 1: it is not. 2: no process answers.
    Status {
        /// The configuration of the process
        #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
        config: PathBuf,
        /// Print the document of /status as JSON
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "\
Examples:
  weir-edge --config edge.toml
  weir-edge --config edge.toml --check-config
  weir-edge doctor --config edge.toml
  weir-edge status --config edge.toml

SIGTERM drains: requests in flight are finished. Changed certificates and keys are reloaded within
seconds, on SIGHUP at once, without closing connections. SIGHUP also reads the configuration: keys and
deny of [auth] apply at once, and the log names the changed keys that need a restart.
Logs: WEIR_LOG=debug or WEIR_LOG=info,weir=debug; WEIR_LOG_FORMAT=text or json.";

const PROGRAM: &str = "weir-edge";

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { config: file, check_config, command } = Arguments::parse();
    match command {
        Some(Command::Doctor { config, json }) => {
            return match Config::load(&config) {
                Ok(config) => doctor(&config).await.print(json),
                Err(error) => failure::invalid(PROGRAM, error),
            };
        }
        Some(Command::Status { config, json }) => {
            return match Config::read(&config) {
                Ok(config) => status_command::run(PROGRAM, &config.cache.dir.join(STATUS_SOCKET), json).await,
                Err(error) => failure::invalid(PROGRAM, error),
            };
        }
        None => {}
    }
    let file = file.unwrap_or_default();
    if check_config {
        return check(&file);
    }
    let watch = ConfigWatch::new(&file);
    let config = match Config::load(&file) {
        Ok(config) => config,
        Err(error) => return failure::invalid_in_log(PROGRAM, LogFormat::of_role(), error),
    };
    failure::exit_code_in_log(PROGRAM, LogFormat::of_role(), run(config, &file, watch).await)
}

fn check(file: &Path) -> ExitCode {
    if !check::config(PROGRAM, file) {
        return ExitCode::from(2);
    }
    println!("configuration ok");
    ExitCode::SUCCESS
}

async fn run(config: Config, file: &Path, watch: ConfigWatch) -> anyhow::Result<()> {
    telemetry::init_logs("info", LogFormat::of_role())?;
    // First, because without a handler the signal ends the process.
    let mut hangups = signal(SignalKind::hangup())?;
    check::warnings(&config).iter().for_each(|warning| tracing::warn!("{warning}"));
    let (name, drain_deadline, memory) = (config.name(), config.drain_deadline, config.memory());
    let mut watch = watch.when(config.watch_config);
    let edge = weir_edge::start(config).await?;
    tracing::info!(
        %name, address = %edge.address(), admin = edge.admin_address().map(tracing::field::display),
        bounds_of_memory = %bytesize::ByteSize(memory), "the edge serves HTTP/1.1 and 2 over TCP, and HTTP/3 over UDP"
    );
    service_manager::started();
    let mut stop = pin!(shutdown::requested());
    loop {
        let read = || Config::load(file).map_err(Into::into);
        // The result is logged and counted.
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            Some(()) = hangups.recv() => {
                watch.was_read().await;
                drop(edge.reload(read()).await);
            }
            () = watch.changed() => drop(edge.reload_changed(read()).await),
        }
    }
    service_manager::stopping();
    tracing::info!(%name, "draining");
    let clean = edge.drain(drain_deadline).await;
    tracing::info!(%name, clean, "the edge has stopped");
    Ok(())
}
