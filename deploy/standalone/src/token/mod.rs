//! `weir token`: keys, and what is issued with them.

mod issue;
mod key;

use clap::Subcommand;

/// The steps, in the order in which they are needed.
pub(crate) const EXAMPLES: &str = "\
How an edge comes to know its readers:
  weir token key --out fleet.key
      Makes a key pair: fleet.key stays with you, fleet.key.pub goes to the edges.
      edge.toml: [auth] mode = \"required\", keys = [\"fleet.key.pub\"], deny = \"denied\"
  weir token issue --key fleet.key --subject cluster-1 --service 'shop-*' --expires 90d --id lost --out cluster-1.token
      A token for one agent. agent.toml: token_file = \"cluster-1.token\"
  echo 'token lost' >>denied
      Revokes it. Edges read the file again within a second or two; nothing is restarted.
  To change keys: make a second pair, put both public keys on the edges, issue new tokens, and when the agents have
  them take the old public key away, or revoke it: the line `key ID`, whose ID is the first word of its public key.";

/// What can be done with tokens. They are JSON Web Tokens: any program for those shows what one says.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a key pair: the private key, which issues tokens, and the public one, which verifies them.
    Key(key::KeyArguments),
    /// Issues a token: who may read which services, and until when.
    Issue(issue::IssueArguments),
}

/// Runs one. What it makes goes to standard output, what it says about it to standard error.
pub(crate) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Key(arguments) => key::run(&arguments),
        TokenCommand::Issue(arguments) => issue::run(&arguments),
    }
}
