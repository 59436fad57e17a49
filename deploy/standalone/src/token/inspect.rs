//! `weir token inspect`.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use weir_protocol::access_list::AccessList;
use weir_protocol::token::{MAX_TOKEN_BYTES, UnverifiedToken, unix_seconds};
use weir_runtime::output::print;

/// Shows what a token claims, until when it is valid, and whether a key signed it.
///
/// It reads tokens of Weir's own and of other issuers, such as those that Kubernetes projects. The exit status is 1 for what is no
/// token, has expired, or is not signed by the given key.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The file with the token; `-` is standard input
    file: PathBuf,
    /// The public keys that `weir token key` wrote: one of them must have signed the token
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

pub(super) fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let InspectArguments { file, key } = arguments;
    let read = |reader: &mut dyn Read| {
        let mut text = String::new();
        reader.take(MAX_TOKEN_BYTES as u64 + 2).read_to_string(&mut text).map(|_| text)
    };
    let text = match file.to_str() {
        Some("-") => read(&mut io::stdin()),
        _ => fs::File::open(file).and_then(|mut file| read(&mut file)),
    };
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let token = UnverifiedToken::parse(text.trim()).context("this is no token that edges take")?;
    let claims = token.unverified_claims().as_object().cloned().unwrap_or_default();
    let signed_with = token.key_id().to_owned();
    let proof = match key {
        None => "not checked: name the public key with --key".to_owned(),
        Some(path) => {
            let keys = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let mut list = AccessList::default();
            list.add_key_file(&keys).with_context(|| format!("{} is no file of keys", path.display()))?;
            let Some(key) = list.keys().find(|key| key.id().as_str() == signed_with) else {
                bail!("no key of {} has the id {signed_with}", path.display());
            };
            token.verify(key)?;
            format!("verified with {}", path.display())
        }
    };
    print(format_args!("key         {signed_with}\nsignature   {proof}"))?;
    for (name, value) in &claims {
        let time = value.as_u64().filter(|_| ["exp", "nbf", "iat"].contains(&name.as_str())).and_then(time_of);
        let shown = match (time, value) {
            (Some(time), _) => humantime::format_rfc3339_seconds(time).to_string(),
            (None, Value::String(text)) => text.clone(),
            (None, other) => other.to_string(),
        };
        print(format_args!("{:11} {}", meaning(name), shown.replace(char::is_control, " ")))?;
    }
    let (now, expires) = (unix_seconds(SystemTime::now()), claims.get("exp").and_then(Value::as_u64));
    let for_another = |seconds| humantime::format_duration(Duration::from_secs(seconds / 60 * 60));
    match expires {
        None => bail!("it has no `exp`: edges refuse it"),
        Some(expires) if expires <= now => bail!("it expired {} ago", for_another(now - expires)),
        Some(expires) => Ok(print(format_args!("valid for   {}", for_another(expires - now)))?),
    }
}

fn time_of(seconds: u64) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.min(u64::from(u32::MAX))))
}

/// The claims of RFC 7519 in words.
fn meaning(claim: &str) -> &str {
    match claim {
        "sub" => "subject",
        "iss" => "issuer",
        "aud" => "audience",
        "exp" => "expires",
        "nbf" => "not before",
        "iat" => "issued",
        "jti" => "id",
        other => other,
    }
}
