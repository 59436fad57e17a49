//! `weir-origin new-catalog`: begins anew after what operators defined was lost.

use std::path::PathBuf;

use clap::Args;
use weir_origin::config::Config;

/// Makes an empty `catalog.redb` for a stopped origin that lost its own and has no copy of it.
///
/// What operators defined before is withdrawn from the agents when the origin starts. One that is there is never touched.
#[derive(Debug, Args)]
pub(crate) struct NewCatalogArguments {
    /// The configuration of the origin: it says where the directory is.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Runs it.
///
/// # Errors
/// An origin runs on the directory, a catalogue is there, or it cannot be written.
pub(crate) fn run(arguments: &NewCatalogArguments) -> anyhow::Result<()> {
    weir_origin::begin_anew(&Config::load(&arguments.config)?.data_dir)?;
    eprintln!("an empty catalog.redb was made: what operators defined is withdrawn when the origin starts.");
    Ok(())
}
