//! `weir token issue`.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use weir_client::token::{Wanted, issue, label};
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::TokenId;
use weir_runtime::config::duration;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// Issues a token: which services its bearer may read, and until when.
///
/// The token goes to a new file that only its owner can read, or to standard output if that is not a terminal. It is a bearer
/// token: treat it as a password. The deny line that revokes it goes to standard error.
#[derive(Debug, Clone, Args)]
pub(crate) struct IssueArguments {
    /// The private key that `weir token key` made
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The name of the agent, for people and logs.
    #[arg(long, value_name = "NAME")]
    subject: NodeName,
    /// A service that it grants: a name, or a pattern in which `*` matches any characters; takes several.
    #[arg(long = "service", value_name = "GLOB", required = true)]
    services: Vec<NameGlob>,
    /// A label that it asserts of the agent, such as `ring=canary`; takes several.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// How long it is valid, such as 12h or 90d.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse)]
    expires: Duration,
    /// The id that a deny file revokes it by [default: 128 random bits].
    #[arg(long, value_name = "ID")]
    id: Option<TokenId>,
    /// The new file for the token [default: standard output, unless that is a terminal]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(arguments: &IssueArguments) -> anyhow::Result<()> {
    if arguments.out.is_none() && io::stdout().is_terminal() {
        bail!("a token is a secret, and standard output is a terminal: name a file with `--out FILE`, or use a pipe");
    }
    let IssueArguments { key, subject, services, labels, expires, id, out } = arguments.clone();
    let issued = issue(&key, &Wanted { subject, services, labels, expires, id })?;
    match &out {
        Some(path) => key_pair::create(path, 0o600, &format!("{}\n", issued.token))?,
        None => print(&issued.token)?,
    }
    eprintln!("{}", issued.advice);
    Ok(())
}
