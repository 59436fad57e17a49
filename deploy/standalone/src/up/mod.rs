//! `weir up`: a repository, served from this process.

mod compose;
mod report;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use weir_runtime::config::duration;
use weir_runtime::{shutdown, telemetry};

use crate::repository;
use compose::Roles;
use report::Report;

/// How long what is in flight may take after Ctrl-C.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// The repository: a URL or a folder. Without it: the checkout, or the bare repository, around the current folder.
    #[arg(long, value_name = "URL")]
    repo: Option<String>,
    /// The branch, tag or full commit id to follow. Without it: the repository's default branch.
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<String>,
    /// The folder to publish. Without it: all of the repository.
    #[arg(long, value_name = "PATH")]
    folder: Option<String>,
    /// Where certificates, the mirror, the caches and the agent's releases go.
    #[arg(long, value_name = "DIR", default_value = "./weir-data")]
    root: PathBuf,
    /// Exits once the agent has the newest release, and --exec has ended well: 0, or 1 with the reason why not.
    #[arg(long)]
    once: bool,
    /// A command for the agent to run after each switch, by `sh -c`, in the new release.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// How often the origin asks the repository. Without it: 2s for one on this machine, 30s for one elsewhere.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_interval: Option<Duration>,
    /// The user name for the repository, with --password-file.
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// The file that holds the password or token for the repository.
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// A PEM file with the repository's private certificate authority.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Runs until Ctrl-C, or with `--once` until the newest release is in force. When nobody reads standard output any more it
/// ends as on Ctrl-C.
///
/// # Errors
/// Something cannot start; with `--once` also why the release is not in force.
pub(crate) fn run(arguments: UpArguments) -> anyhow::Result<()> {
    // What a person wants to know stands on standard output; the log speaks up only when something is wrong, and for
    // --exec. No news are a store that is new, and an agent that is told to come back before the first publication.
    telemetry::init_logs("error,weir_origin::reconcile=warn,weir_origin::service=warn,weir_agent::hook=info")?;
    tokio::runtime::Runtime::new()?.block_on(serve(arguments))
}

async fn serve(arguments: UpArguments) -> anyhow::Result<()> {
    let here = std::env::current_dir().context("there is no current folder")?;
    let repository = repository::choose(arguments.repo.as_deref(), &here)?;
    let once = arguments.once;
    let roles = Roles::start(&arguments, &repository).await?;
    let report = Report::new(&repository, &roles, &arguments.root);
    let end = watch(&report, once).await;
    if !once {
        // Nobody may be left to read it.
        let _ = report.say("\nweir: finishing what is in flight …");
    }
    roles.drain(DRAIN_DEADLINE).await;
    match end {
        Err(error) if is_unread(&error) => Ok(()),
        end => end,
    }
}

/// Whether whoever read standard output has gone: `weir up | head -1`.
fn is_unread(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Tells what happens until it is time to end.
async fn watch(report: &Report<'_>, once: bool) -> anyhow::Result<()> {
    report.introduction()?;
    tokio::select! {
        interrupted = shutdown::requested() => {
            interrupted?;
            anyhow::ensure!(!once, "interrupted before the newest release was in force");
            Ok(())
        }
        end = report.follow(once) => end,
    }
}
