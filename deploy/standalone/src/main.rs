//! `weir`: all roles in one process, and the tools around them.

#[cfg(test)]
mod reference;
mod repository;
mod token;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir_runtime::output::print;
use weir_runtime::{certificates, failure, telemetry};

/// A Git-aware content delivery network: Git is asked once, however many clusters follow it.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a repository from this process: origin, edge and agent on loopback.
    ///
    /// Without arguments it serves the checkout it stands in: what is committed, not what is merely saved. It makes
    /// its own certificate authority below the root, and ends cleanly on Ctrl-C.
    Up(up::UpArguments),

    /// Writes a certificate authority, and a certificate for each role, for trying the three processes by hand.
    ///
    /// The files are those that the example configurations name: ca.pem, origin, edge, edge-client, agent and operator
    /// (each .pem and .key). An authority that is there already is kept and signs anew: all certificates are new, and
    /// have the names that are given now.
    Certificates {
        /// The folder to write to.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// A DNS name or an IP address that origin and edge are reached at, besides localhost. May be given several
        /// times, and takes several.
        #[arg(long, value_name = "NAME", num_args = 1..)]
        host: Vec<String>,
    },

    /// Makes keys and tokens for the readers of edges.
    #[command(after_long_help = token::EXAMPLES, after_help = token::EXAMPLES)]
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Up(arguments) => up::run(arguments),
        Command::Certificates { out, host } => write_certificates(&out, &host),
        Command::Token { command } => token::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            failure::tell("weir", &error);
            ExitCode::FAILURE
        }
    }
}

fn write_certificates(out: &std::path::Path, hosts: &[String]) -> anyhow::Result<()> {
    telemetry::init_logs("warn")?;
    let written = certificates::write(out, hosts)?;
    print(format_args!("{}: {}", out.display(), written.join(" ")))?;
    print("Keep ca.key away from the nodes: whoever has it can be any of them.")?;
    Ok(())
}
