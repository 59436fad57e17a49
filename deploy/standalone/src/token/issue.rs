//! `weir token issue`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::Args;
use weir_protocol::access_list::DenyLine;
use weir_protocol::name::NodeName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};
use weir_runtime::config::duration;
use weir_runtime::key_pair;
use weir_runtime::output::print;

/// The longest life of a token that is issued: beyond it is a slip of the pen.
const MAX_LIFE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// Issues a token: who may read which services, and until when.
///
/// The token goes to standard output, or into a new file that its owner alone can read. Whoever holds it may read what it
/// opens: treat it as a password. The line of a deny file that revokes it goes to standard error.
#[derive(Debug, Args)]
pub(crate) struct IssueArguments {
    /// The private key that `weir token key` made
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// The agent it is for: for people and logs.
    #[arg(long, value_name = "NAME")]
    subject: NodeName,
    /// The services it opens: a name, or a pattern with `*` for any run of characters. May be given several times.
    #[arg(long = "service", value_name = "GLOB", required = true)]
    services: Vec<NameGlob>,
    /// How long it is valid, such as 12h or 90d.
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = duration::parse)]
    expires: Duration,
    /// What a deny list will call it; 128 random bits by default.
    #[arg(long, value_name = "ID")]
    id: Option<TokenId>,
    /// Where the token goes instead of standard output. Never over a file that is there.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn run(arguments: &IssueArguments) -> anyhow::Result<()> {
    if arguments.expires < Duration::from_secs(1) || arguments.expires > MAX_LIFE {
        bail!("--expires must be from a second to ten years, such as 90d");
    }
    let pem = fs::read(&arguments.key).with_context(|| format!("cannot read {}", arguments.key.display()))?;
    let key = SigningKey::from_pem(&pem).with_context(|| format!("{} is no key", arguments.key.display()))?;
    let now = unix_seconds(SystemTime::now());
    let claims = Claims {
        subject: arguments.subject.clone(),
        id: arguments.id.clone().map_or_else(TokenId::random, Ok)?,
        services: arguments.services.clone(),
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
        "a token of {}, signed with the key {}; until its end a deny file revokes it with the line",
        claims.subject,
        key.public().id()
    );
    eprintln!("{}", DenyLine::Token(claims.id, Some(claims.expires)));
    Ok(())
}
