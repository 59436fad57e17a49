//! `weir-agent`: follows services and keeps verified releases on a cluster's disk.

use std::pin::pin;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use weir_agent::check;
use weir_agent::command_line::{Args, Command, DoctorArgs, StatusArgs};
use weir_agent::config::Config;
use weir_agent::doctor::doctor;
use weir_agent::pin_command::{rollback, unpin};
use weir_runtime::arenas::limit_arenas;
use weir_runtime::config_watch::ConfigWatch;
use weir_runtime::shutdown::DEFAULT_DRAIN_DEADLINE;
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{failure, service_manager, shutdown, status_command, telemetry};

const PROGRAM: &str = "weir-agent";

/// How it says why it ends, unless the format of the log was chosen: with `--once` a person or a pipeline reads it.
const FATAL: LogFormat = LogFormat::Text;

/// One thread is enough for the polls of many services, and two keep them going while a download is decrypted. More would
/// cost memory on machines with many processors: each has a stack, and an arena of the allocator.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::of_process();
    match args.command {
        Some(Command::Doctor(args)) => return examine(args).await,
        Some(Command::Rollback(args)) => return report(rollback(args)),
        Some(Command::Unpin(args)) => return report(unpin(args)),
        Some(Command::Status(args)) => return status(args).await,
        None => {}
    }
    if args.check_config {
        return check(args);
    }
    limit_arenas();
    let watch = ConfigWatch::new(args.settings.config.clone().unwrap_or_default());
    let config = match args.clone().into_config() {
        Ok(config) => config,
        Err(error) => return failure::invalid_in_log(PROGRAM, FATAL, error),
    };
    if let Err(error) = telemetry::init_logs("info", LogFormat::of_role()) {
        return failure::invalid_in_log(PROGRAM, FATAL, error);
    }
    check::warnings(&config).iter().for_each(|warning| tracing::warn!("{warning}"));
    let result = match args.once {
        true => weir_agent::once(config, args.once_timeout).await.map_err(anyhow::Error::from),
        false => run(config, &args, watch).await,
    };
    failure::exit_code_in_log(PROGRAM, FATAL, result)
}

/// Prints every error of a configuration and of the files that it names.
fn check(args: Args) -> ExitCode {
    let config = match args.settings.merged() {
        Ok(config) => config,
        Err(error) => return failure::invalid(PROGRAM, error),
    };
    if !check::files(&config).report(PROGRAM, config.validate().err()) {
        return ExitCode::from(2);
    }
    println!("configuration ok");
    ExitCode::SUCCESS
}

async fn status(args: StatusArgs) -> ExitCode {
    match args.settings.merged() {
        Ok(config) => status_command::run(PROGRAM, &config.status_socket(), args.json).await,
        Err(error) => failure::invalid(PROGRAM, error),
    }
}

/// 0: no check failed. 1: one did. 2: the configuration is invalid.
async fn examine(args: DoctorArgs) -> ExitCode {
    let config = match args.settings.into_config() {
        Ok(config) => config,
        Err(error) => return failure::invalid(PROGRAM, error),
    };
    doctor(&config).await.print(args.json)
}

/// Prints what a command did.
fn report(result: anyhow::Result<String>) -> ExitCode {
    failure::exit_code(PROGRAM, result.map(|done| println!("{done}")))
}

async fn run(config: Config, args: &Args, watch: ConfigWatch) -> anyhow::Result<()> {
    // First, because without a handler the signal ends the process.
    let mut hangups = signal(SignalKind::hangup())?;
    let (name, root) = (config.name.clone(), config.root.clone());
    let mut watch = watch.when(config.watch_config);
    let running = weir_agent::start(config).await?;
    tracing::info!(
        agent = %name,
        root = %root.display(),
        admin = running.admin_address().map(tracing::field::display),
        services = running.services().len(),
        "the agent is running"
    );
    service_manager::started();
    let mut stop = pin!(shutdown::requested());
    loop {
        let read = || args.clone().into_config().map_err(Into::into);
        // The result is logged and counted.
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            Some(()) = hangups.recv() => {
                watch.was_read().await;
                drop(running.reload(read()).await);
            }
            () = watch.changed() => drop(running.reload_changed(read()).await),
        }
    }
    service_manager::stopping();
    tracing::info!("draining");
    let clean = running.drain(DEFAULT_DRAIN_DEADLINE).await;
    tracing::info!(agent = %name, clean, "the agent has stopped");
    Ok(())
}
