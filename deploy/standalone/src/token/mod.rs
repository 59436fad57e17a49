//! `weir token`: makes keys and issues tokens.

mod inspect;
mod issue;
mod key;

use clap::Subcommand;

/// The steps in order.
pub(crate) const EXAMPLES: &str = "\
Examples: set up tokens for an edge
  weir token key --out fleet.key
      Makes a key pair. Keep fleet.key private; copy fleet.key.pub to the edges.
      edge.toml: [auth] mode = \"required\", keys = [\"fleet.key.pub\"], deny = \"denied\"
  weir token issue --key fleet.key --subject cluster-1 --service 'shop-*' --expires 90d --id lost --out cluster-1.token
      A token for one agent. agent.toml: token_file = \"cluster-1.token\"
  weir token inspect cluster-1.token --key fleet.key.pub
      What it opens, until when, and whether this key signed it.
  echo 'token lost' >>denied
      Revokes it. Edges reload the file within two seconds, without a restart.
  To rotate keys: make a second pair, install both public keys on the edges, and issue new tokens. When all agents have
  them, remove the old public key. To revoke it, add the line `key ID` to the deny file: ID is its line's first word.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a key pair: the private key, which issues tokens, and the public one, which verifies them.
    Key(key::KeyArguments),
    /// Issues a token: which services its bearer may read, and until when.
    Issue(issue::IssueArguments),
    /// Shows what a token claims, and whether it is valid.
    Inspect(inspect::InspectArguments),
}

/// Runs a command. Keys and tokens go to standard output, explanations to standard error.
pub(crate) fn run(command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Key(arguments) => key::run(&arguments),
        TokenCommand::Issue(arguments) => issue::run(&arguments),
        TokenCommand::Inspect(arguments) => inspect::run(&arguments),
    }
}
