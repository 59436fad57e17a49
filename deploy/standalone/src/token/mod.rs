//! `weir token`: keys, and what is issued and revoked with them.

mod file;
mod inspect;
mod issue;
mod key;
mod revoke;

use clap::Subcommand;

/// The steps, in the order in which they are needed.
pub(crate) const EXAMPLES: &str = "\
How an edge comes to know its readers:
  weir token key --out fleet.key
      Makes a key pair: fleet.key stays with you, fleet.key.pub goes to the edges.
      edge.toml: [auth] mode = \"required\", keys = [\"fleet.key.pub\"], deny = \"denied\"
  weir token issue --key fleet.key --subject cluster-1 --service 'shop-*' --expires 90d --out cluster-1.token
      A token for one agent. agent.toml: token_file = \"cluster-1.token\"
  weir token inspect --keys fleet.key.pub cluster-1.token
      What a token says, until when, and whether the edges will take it.
  weir token revoke --deny denied --keys fleet.key.pub cluster-1.token
      Denies it. Edges read the file again within a second or two; nothing is restarted.
  To change keys: make a second pair, put both public keys on the edges, issue new tokens, and when the agents have
  them take the old public key away, or revoke it: weir token revoke --deny denied --key-id ID";

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a key pair: the private key, which issues tokens, and the public one, which verifies them.
    Key(key::KeyArguments),
    /// Issues a token: who may read which services, and until when.
    Issue(issue::IssueArguments),
    /// Shows what a token says, and with --keys whether it verifies.
    Inspect(inspect::InspectArguments),
    /// Denies tokens, or all tokens of a key: appends to a deny file that edges or origins read.
    Revoke(revoke::RevokeArguments),
}

/// Runs one. What it makes goes to standard output, what it says about it to standard error.
pub(crate) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Key(arguments) => key::run(&arguments),
        TokenCommand::Issue(arguments) => issue::run(&arguments),
        TokenCommand::Inspect(arguments) => inspect::run(&arguments),
        TokenCommand::Revoke(arguments) => revoke::run(&arguments),
    }
}
