//! `weir hub`: an origin and an edge in one process, as on each node of a management cluster.

use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use weir_runtime::config_watch::ConfigWatch;
use weir_runtime::output::print;
use weir_runtime::service_manager;
use weir_runtime::shutdown::{self, DEFAULT_DRAIN_DEADLINE};
use weir_runtime::telemetry;
use weir_runtime::telemetry::LogFormat;

/// The examples of `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  weir hub --origin origin.toml --edge edge.toml
  weir hub --origin origin.toml --edge edge.toml --check-config

SIGTERM hands the repositories over to other origins, then finishes requests in flight. SIGHUP reads both files
again: certificates, the repositories, services and operators of origin.toml, and the keys and deny files of edge.toml.
Logs: WEIR_LOG=debug or WEIR_LOG=info,weir=debug; WEIR_LOG_FORMAT=text or json.";

#[derive(Debug, Args)]
pub(crate) struct HubArguments {
    /// The configuration of the origin, as for weir-origin
    #[arg(long, env = "WEIR_ORIGIN_CONFIG", value_name = "FILE")]
    origin: PathBuf,
    /// The configuration of the edge, as for weir-edge; its first origin is that of this process
    #[arg(long, env = "WEIR_EDGE_CONFIG", value_name = "FILE")]
    edge: PathBuf,
    /// Check both files and the files that they name, and exit: 0 the hub can start, 2 every error is printed
    #[arg(long)]
    pub(crate) check_config: bool,
}

/// Prints all errors of both configurations.
///
/// # Errors
/// The runtime cannot start.
pub(crate) fn check(HubArguments { origin, edge, .. }: &HubArguments) -> anyhow::Result<ExitCode> {
    let origin = tokio::runtime::Runtime::new()?.block_on(weir_origin::check_config("weir: origin", origin));
    // Both are printed.
    if !weir_edge::check::config("weir: edge", edge) || !origin {
        return Ok(ExitCode::from(2));
    }
    print("configuration ok")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs both until SIGTERM or Ctrl-C.
///
/// # Errors
/// A configuration is invalid, or one of them cannot start.
pub(crate) fn run(arguments: &HubArguments) -> anyhow::Result<()> {
    telemetry::init_logs("info", LogFormat::of_role())?;
    tokio::runtime::Runtime::new()?.block_on(serve(arguments))
}

async fn serve(HubArguments { origin: file, edge: edge_file, .. }: &HubArguments) -> anyhow::Result<()> {
    // First, because without a handler the signal ends the process.
    let mut hangups = signal(SignalKind::hangup())?;
    let (watch, edge_watch) = (ConfigWatch::new(file), ConfigWatch::new(edge_file));
    let origin = weir_origin::config::Config::load(file)?;
    let edge = weir_edge::Config::load(edge_file)?;
    origin.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    weir_edge::check::warnings(&edge).iter().for_each(|warning| tracing::warn!("{warning}"));
    let (name, drain_deadline) = (edge.name(), edge.drain_deadline);
    let (mut watch, mut edge_watch) = (watch.when(origin.watch_config), edge_watch.when(edge.watch_config));
    let mut stop = pin!(shutdown::requested());
    // It may wait for the store.
    let origin = tokio::select! {
        started = weir_origin::start(origin) => started.context("the origin cannot start")?,
        requested = stop.as_mut() => return Ok(requested?),
    };
    let edge = match weir_edge::start(edge).await {
        Ok(edge) => edge,
        Err(error) => {
            origin.drain(DEFAULT_DRAIN_DEADLINE).await;
            return Err(error.context("the edge cannot start"));
        }
    };
    tracing::info!(%name, origin = %origin.address(), edge = %edge.address(), "the hub is running");
    service_manager::started();
    let edge_config = || weir_edge::Config::load(edge_file).map_err(Into::into);
    loop {
        tokio::select! {
            requested = stop.as_mut() => break requested?,
            // The results are logged.
            Some(()) = hangups.recv() => {
                tokio::join!(watch.was_read(), edge_watch.was_read());
                drop(tokio::join!(origin.reload_file(file), edge.reload(edge_config())));
            }
            () = watch.changed() => drop(origin.reload_changed_file(file).await),
            () = edge_watch.changed() => drop(edge.reload_changed(edge_config()).await),
        }
    }
    service_manager::stopping();
    tracing::info!(%name, "draining");
    // The edge serves until the other origins own what this one owned.
    origin.drain(DEFAULT_DRAIN_DEADLINE).await;
    edge.drain(drain_deadline).await;
    Ok(())
}
