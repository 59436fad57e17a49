//! `weir token issue`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use weir_protocol::access_list::DenyLine;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};
use weir_runtime::config::duration;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// The longest lifetime of a token; a longer one is probably a mistake.
const MAX_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Issues a token: which services its bearer may read, and until when.
///
/// The token goes to a new file that only its owner can read, or to standard output if that is not a terminal. It is a bearer
/// token: treat it as a password. The deny line that revokes it goes to standard error.
#[derive(Debug, Args)]
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

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected `KEY=VALUE`")?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(super) fn run(arguments: &IssueArguments) -> anyhow::Result<()> {
    if arguments.expires < Duration::from_secs(1) || arguments.expires > MAX_LIFE {
        bail!("--expires must be from a second to ten years, such as 90d");
    }
    if arguments.out.is_none() && io::stdout().is_terminal() {
        bail!("a token is a secret, and standard output is a terminal: name a file with `--out FILE`, or use a pipe");
    }
    let pem = fs::read(&arguments.key).with_context(|| format!("cannot read {}", arguments.key.display()))?;
    let key =
        SigningKey::from_pem(&pem).with_context(|| format!("{} is not a private key", arguments.key.display()))?;
    let now = unix_seconds(SystemTime::now());
    let id = arguments.id.clone().map_or_else(TokenId::random, Ok)?;
    let claims = Claims {
        subject: arguments.subject.clone(),
        id: Some(id.clone()),
        services: arguments.services.clone(),
        labels: Labels::try_from(arguments.labels.iter().cloned().collect::<BTreeMap<_, _>>())?,
        expires: now + arguments.expires.as_secs(),
        not_before: None,
        issued_at: Some(now),
    };
    let token = key.issue(&claims)?;
    match &arguments.out {
        Some(path) => key_pair::create(path, 0o600, &format!("{token}\n"))?,
        None => print(token)?,
    }
    eprintln!(
        "issued a token for {}, signed with the key {}. To revoke it, add this line to the deny file of the edges:",
        claims.subject,
        key.public().id()
    );
    eprintln!("{}", DenyLine::Token(id, Some(claims.expires)));
    Ok(())
}
