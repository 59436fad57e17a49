//! `weir up`: serves a repository from this process.

mod compose;
mod progress;
mod report;
mod root;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use weir_runtime::config::duration;
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{shutdown, telemetry};

use crate::repository;
use compose::Roles;
use progress::Progress;
use report::Report;
use root::Root;

/// The deadline of the drain after Ctrl-C.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);

/// The examples of `--help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  weir up
      Serves the checkout around the current folder, and follows its commits.
  weir up --repo https://git.example/acme/shop.git --ref main --folder deploy/prod
      Serves one folder of one branch of a remote repository.
  weir up --repo https://git.example/acme/shop.git --username ci --password-file token
      The same for a private repository.
  weir up --once --exec 'make -C . check'
      Ends when the newest release is unpacked and the command has run in it.
  weir up --port-base 20400
      Origin on 20400, edge on 20443, /metrics and /status on 20490, 20491 and 20492.

Standard output has a line for each publication and each switch. The log goes to standard error, as text:
WEIR_LOG=info logs more, WEIR_LOG_FORMAT=json logs JSON.";

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// The repository: a URL or a folder [default: the checkout, or bare repository, around the current folder]
    #[arg(long, value_name = "URL")]
    repo: Option<String>,
    /// The branch, tag or full commit id to follow [default: the repository's default branch]
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<String>,
    /// The folder of the repository to publish [default: all of it]
    #[arg(long, value_name = "PATH")]
    folder: Option<String>,
    /// Where certificates, the mirror, the caches and the agent's releases go
    #[arg(long, value_name = "DIR", default_value = "./weir-data")]
    root: PathBuf,
    /// Exit when the newest release is unpacked and --exec has succeeded: 0, or 1 with the reason
    #[arg(long)]
    once: bool,
    /// A command that the agent runs by `sh -c` in each new release
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// How often the repository is polled [default: 2s on this machine (and as refs move), 30s elsewhere]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    poll_interval: Option<Duration>,
    /// The origin's port; operators: +1, edge: +43, /metrics: +90 to +92 [default: 7400, or free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=compose::MAX_PORT_BASE))]
    port_base: Option<u16>,
    /// The user name for the repository, with --password-file
    #[arg(long, value_name = "NAME", requires = "password_file")]
    username: Option<String>,
    /// The file that holds the password or token for the repository
    #[arg(long, value_name = "FILE", requires = "username")]
    password_file: Option<PathBuf>,
    /// A PEM file with the repository's private certificate authority
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Runs until Ctrl-C, or with `--once` until the newest release is current. When standard output is closed it drains as on
/// Ctrl-C.
///
/// # Errors
/// A role cannot start; with `--once` also why the newest release is not current.
pub(crate) fn run(arguments: UpArguments) -> anyhow::Result<()> {
    // Publications and switches are on standard output, so the log has only failures and the output of --exec. An empty store,
    // and an agent that polls before the first publication, are not worth a line.
    telemetry::init_logs(
        "error,weir_origin::reconcile=warn,weir_source::service=warn,weir_agent::hook=info",
        LogFormat::Text,
    )?;
    tokio::runtime::Runtime::new()?.block_on(serve(arguments))
}

async fn serve(arguments: UpArguments) -> anyhow::Result<()> {
    let here = std::env::current_dir().context("there is no current folder")?;
    let repository = repository::choose(arguments.repo.as_deref(), &here)?;
    let root = Root::take(&arguments.root)?;
    let once = arguments.once;
    let progress = Progress::new();
    // The start waits for the first poll, which may be a long clone.
    let roles = tokio::select! {
        roles = Roles::start(&arguments, &repository, &root.path, &progress) => roles?,
        interrupted = shutdown::requested() => {
            interrupted?;
            if !once {
                return Ok(());
            }
            anyhow::bail!("interrupted before the newest release was current");
        }
    };
    root.say_addresses(&roles)?;
    let report = Report::new(&repository, &roles, &arguments.root, &progress);
    let end = watch(&report, once).await;
    if !once {
        // Standard output may be closed.
        let _ = report.print("\nweir: draining …");
    }
    roles.drain(DRAIN_DEADLINE).await;
    match end {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        end => end,
    }
}

/// Whether standard output is closed, as by `weir up | head -1`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Reports publications and switches until Ctrl-C, or until `--once` is done.
async fn watch(report: &Report<'_>, once: bool) -> anyhow::Result<()> {
    report.introduction()?;
    tokio::select! {
        interrupted = shutdown::requested() => {
            interrupted?;
            anyhow::ensure!(!once, "interrupted before the newest release was current");
            Ok(())
        }
        end = report.follow(once) => end,
    }
}
