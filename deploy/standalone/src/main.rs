//! `weir`: all roles in one process, and the tools around them.

mod hub;
#[cfg(test)]
mod reference;
mod repository;
#[cfg(test)]
mod structure;
mod token;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use weir_protocol::name::NodeName;
use weir_runtime::identity::Role;
use weir_runtime::output::print;
use weir_runtime::telemetry::LogFormat;
use weir_runtime::{certificates, failure, telemetry};

const EXAMPLES: &str = "\
Start here: `weir up` in a Git checkout. Operators: `weir context add`, then `weir status`. Roles alone: weir-origin, weir-edge, weir-agent.";

/// A content delivery network for Git, Helm and OCI: one poll of each repository, however many clusters follow it.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a repository from this process: origin, edge and agent on loopback
    ///
    /// It serves commits, not uncommitted changes. It creates its own certificate authority below the root, and drains on
    /// Ctrl-C.
    #[command(after_long_help = up::EXAMPLES)]
    Up(up::UpArguments),

    /// Run an origin and an edge in one process: a node of a cluster
    ///
    /// Agents send requests to the edge. The edge requests repositories that this node owns from the origin of the same
    /// process, and all others from the other members of the cluster. Each role has its own configuration file and its own
    /// admin listener.
    #[command(after_long_help = hub::EXAMPLES)]
    Hub(hub::HubArguments),

    /// Write a certificate authority and a certificate for each role, to try the three processes
    ///
    /// The files have the names in the example configurations: ca.pem, origin, edge, edge-client, agent and operator (each .pem
    /// and .key). A second run keeps the authority and the host names. With names of nodes it writes only their certificates; without any
    /// it adds the given host names and renews every certificate.
    #[command(after_long_help = CERTIFICATES_EXAMPLES)]
    Certificates(CertificatesArguments),

    /// The operators' commands.
    #[command(flatten)]
    Client(weir_client::ClientCommand),

    /// Make keys and tokens for the readers of edges
    #[command(after_long_help = token::EXAMPLES, after_help = token::EXAMPLES)]
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },

    /// Print the completions of a shell
    ///
    /// bash: `weir completion bash >/etc/bash_completion.d/weir`; zsh: into a folder of `fpath`, as `_weir`; fish:
    /// `weir completion fish >~/.config/fish/completions/weir.fish`.
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

const CERTIFICATES_EXAMPLES: &str = "\
Examples:
  weir certificates --out trial
      For three processes on this machine.
  weir certificates --out trial --host edge.example --host 10.0.0.7
      For an edge on another machine. A second run adds names to the existing certificates.
  weir certificates --out trial --agent cluster-a --agent cluster-b
      Also writes agent-cluster-a.pem and agent-cluster-b.pem with their keys: an identity for each agent.
  weir certificates --out trial --edge paris --host paris.example
      A further edge: edge-paris.pem is for its listener and for its requests to origins.";

#[derive(Debug, Args)]
struct CertificatesArguments {
    /// The folder to write to
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A DNS name or an IP address of origins and edges, in addition to localhost; takes several
    #[arg(long, value_name = "NAME", num_args = 1..)]
    host: Vec<String>,
    /// An agent that gets a certificate of its own, agent-NAME; takes several
    #[arg(long, value_name = "NAME", num_args = 1..)]
    agent: Vec<NodeName>,
    /// An edge that gets a certificate of its own, edge-NAME; takes several
    #[arg(long, value_name = "NAME", num_args = 1..)]
    edge: Vec<NodeName>,
    /// An origin that gets a certificate of its own, origin-NAME; takes several
    #[arg(long, value_name = "NAME", num_args = 1..)]
    origin: Vec<NodeName>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Client(command) => {
            return weir_client::run(command).unwrap_or_else(|error| failure::exit_code("weir", Err(error)));
        }
        Command::Up(arguments) => up::run(arguments),
        Command::Hub(arguments) if arguments.check_config => {
            return hub::check(&arguments).unwrap_or_else(|error| failure::exit_code("weir", Err(error)));
        }
        Command::Hub(arguments) => hub::run(&arguments),
        Command::Certificates(arguments) => write_certificates(&arguments),
        Command::Token { command } => token::run(command),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "weir", &mut script);
            print(String::from_utf8_lossy(&script).trim_end()).map_err(Into::into)
        }
    };
    failure::exit_code("weir", result)
}

fn write_certificates(arguments: &CertificatesArguments) -> anyhow::Result<()> {
    telemetry::init_logs("warn", LogFormat::Text)?;
    let CertificatesArguments { out, host, agent, edge, origin } = arguments;
    let nodes = [(Role::Origin, origin), (Role::Edge, edge), (Role::Agent, agent)];
    let nodes: Vec<_> = nodes.iter().flat_map(|(role, names)| names.iter().map(|name| (*role, name.clone()))).collect();
    let written = certificates::write_for(out, host, &nodes)?;
    print(format_args!("{}: {}", out.display(), written.join(" ")))?;
    print("Keep ca.key away from the nodes: it can issue a certificate for any of them.")?;
    Ok(())
}
