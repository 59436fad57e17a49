//! `weir-origin check`: proves that an engine can hold the records of several origins.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use weir_origin::config::Config;
use weir_origin::proof::{Proof, ProofError, prove};
use weir_runtime::failure;
use weir_runtime::output::print;

/// Checks that the engine of `[cluster]` can hold the records of several origins.
///
/// Writers race to create and to replace the same records. Each race must have one winner, whose record is read back. Some
/// servers check conditions only while requests come one by one, and let several writers win: origins would overwrite each
/// other's publications there.
///
/// The records of the check are deleted at the end. Nothing else is read or written, and origins may be running.
///
/// Exit codes: 0 the engine can be used; 1 it must not be used, or could not be checked; 2 the configuration is invalid.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The configuration of an origin.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command. What was found goes to standard output.
pub(crate) async fn run(arguments: &CheckArguments) -> ExitCode {
    let config = match Config::load(&arguments.config) {
        Ok(config) => config,
        Err(error) => return failed(&error.into(), 2),
    };
    let engine = config.cluster.as_ref().map(|cluster| format!("[cluster] engine = \"{}\"", cluster.engine));
    let engine = engine.unwrap_or_default();
    match Box::pin(prove(&config)).await {
        Ok(Proof { races, writers, records }) => {
            let found = format!(
                "{engine}: {races} races of {writers} writers for {records} records had one winner each: it can hold the \
                 records of several origins"
            );
            match print(found) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => failed(&error.into(), 1),
            }
        }
        Err(error @ ProofError::Config(_)) => failed(&error.into(), 2),
        Err(error) => failed(&anyhow::Error::from(error).context(engine), 1),
    }
}

fn failed(error: &anyhow::Error, code: u8) -> ExitCode {
    failure::report(crate::PROGRAM, error);
    ExitCode::from(code)
}
