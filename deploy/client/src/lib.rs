//! The operators' commands of `weir`: what a hub has, what every agent runs, and changes of both. Each is a client of the API of one
//! origin, which answers for all. Nothing here knows how that is done.

mod apply;
mod cluster;
mod connection;
mod contexts;
mod deliver;
mod describe;
mod doctor;
mod edge;
mod explain;
mod fleet;
mod freeze;
mod get;
mod history;
mod http;
mod kind;
mod not_known;
mod output;
mod patch;
mod pin;
mod rollout;
mod staged;
mod status;
mod table;
mod text;
pub mod token;
mod unheard;
mod version;
mod wait;

use std::process::ExitCode;

use clap::Subcommand;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Check whether this machine reaches a hub, and whether all of the hub takes part
    Doctor(doctor::DoctorArguments),

    /// Choose the hub that commands ask, and how they sign in
    #[command(after_long_help = contexts::EXAMPLES)]
    Context {
        /// What to do with contexts.
        #[command(subcommand)]
        command: contexts::ContextCommand,
    },

    /// Show the version of this program, and of the hub
    Version(version::VersionArguments),

    /// Is all well? What is not, and since when
    Status(status::StatusArguments),

    /// List services, repositories, rollouts, agents, assignments, issuers, freezes, edges or members
    #[command(after_long_help = get::EXAMPLES)]
    Get(get::GetArguments),

    /// Show one object with its state
    Describe(describe::DescribeArguments),

    /// Show what every agent runs of each service, and what stops it
    #[command(after_long_help = fleet::EXAMPLES)]
    Fleet(fleet::FleetArguments),

    /// Say why an agent has what it has of a service
    Explain(explain::ExplainArguments),

    /// Wait until every agent has a revision
    #[command(after_long_help = wait::EXAMPLES)]
    Wait(wait::WaitArguments),

    /// List what a service has published
    History(history::HistoryArguments),

    /// Show which files differ between two versions of a service
    Diff(history::DiffArguments),

    /// Publish an earlier version of a service to all clusters, and stay there
    #[command(after_long_help = deliver::ROLLBACK_EXAMPLES)]
    Rollback(deliver::RollbackArguments),

    /// Try a version on some agents, while all others keep what is published
    #[command(after_long_help = rollout::STAGE_EXAMPLES)]
    Stage(rollout::StageArguments),

    /// Show what is staged, and pause, resume, approve, promote or abort it
    Rollout {
        /// What to do.
        #[command(subcommand)]
        command: rollout::RolloutCommand,
    },

    /// Hold a service at the version that is published
    Pin(deliver::ServiceArguments),

    /// Let a service follow its ref again
    Unpin(deliver::ServiceArguments),

    /// Publish nothing new of some services for a while, or end that
    #[command(after_long_help = freeze::EXAMPLES)]
    Freeze(freeze::FreezeArguments),

    /// Poll the upstream of a repository now
    Refresh(deliver::RepositoryArguments),

    /// Let a repository publish again whose records were damaged
    #[command(after_long_help = deliver::CONFIRM_HELP)]
    Confirm(deliver::RepositoryArguments),

    /// Create or change objects from files
    #[command(after_long_help = apply::EXAMPLES)]
    Apply(apply::ApplyArguments),

    /// Delete an object
    Delete(apply::DeleteArguments),

    /// Forget an agent or an edge that is gone, so that no answer waits for it
    Forget(deliver::ForgetArguments),

    /// Add a cluster to a hub
    #[command(after_long_help = cluster::EXAMPLES)]
    Cluster {
        /// What to do.
        #[command(subcommand)]
        command: cluster::ClusterCommand,
    },
}

/// Runs a command. Its exit status: 0 done, 1 refused or failed, 2 wrong usage or, of `wait`, out of time.
///
/// # Errors
/// The command failed.
pub fn run(command: ClientCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            ClientCommand::Context { command } => contexts::run(command),
            ClientCommand::Doctor(arguments) => return doctor::run(&arguments).await,
            ClientCommand::Version(arguments) => version::run(&arguments).await,
            ClientCommand::Status(arguments) => return status::run(&arguments).await,
            ClientCommand::Get(arguments) => get::run(&arguments).await,
            ClientCommand::Describe(arguments) => describe::run(&arguments).await,
            ClientCommand::Fleet(arguments) => fleet::run(&arguments).await,
            ClientCommand::Explain(arguments) => explain::run(&arguments).await,
            ClientCommand::Wait(arguments) => return wait::run(&arguments).await,
            ClientCommand::History(arguments) => history::list(&arguments).await,
            ClientCommand::Diff(arguments) => history::diff(&arguments).await,
            ClientCommand::Rollback(arguments) => deliver::roll_back(&arguments).await,
            ClientCommand::Stage(arguments) => rollout::stage(&arguments).await,
            ClientCommand::Rollout { command } => rollout::run(&command).await,
            ClientCommand::Pin(arguments) => deliver::pin(&arguments).await,
            ClientCommand::Unpin(arguments) => deliver::unpin(&arguments).await,
            ClientCommand::Freeze(arguments) => freeze::freeze(&arguments).await,
            ClientCommand::Refresh(arguments) => deliver::refresh(&arguments).await,
            ClientCommand::Confirm(arguments) => deliver::confirm(&arguments).await,
            ClientCommand::Apply(arguments) => apply::apply(&arguments).await,
            ClientCommand::Delete(arguments) => apply::delete(&arguments).await,
            ClientCommand::Forget(arguments) => deliver::forget(&arguments).await,
            ClientCommand::Cluster { command } => cluster::run(&command).await,
        }
        .map(|()| ExitCode::SUCCESS)
    })
}
