//! `weir token inspect`.

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use weir_protocol::access_list::AccessList;
use weir_protocol::plain_text::make_plain;
use weir_protocol::token::{MAX_TOKEN_BYTES, UnverifiedToken, unix_seconds};
use weir_runtime::output::print;

/// The year 9999.
const MAX_TIME: Duration = Duration::from_secs(253_402_300_799);

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
                bail!("no key of {} has the id of the key that signed the token", path.display());
            };
            token.verify(key)?;
            format!("verified with {}", path.display())
        }
    };
    say("key", &signed_with)?;
    say("signature", &proof)?;
    let time = |name: &str| claims.get(name).and_then(Value::as_u64);
    for (name, value) in &claims {
        let is_time = ["exp", "nbf", "iat"].contains(&name.as_str());
        let at =
            time(name).filter(|_| is_time).and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        // A year with five digits has no form in RFC 3339.
        let at = at.filter(|at| *at < UNIX_EPOCH + MAX_TIME);
        let shown = match (at, value) {
            (Some(at), _) => humantime::format_rfc3339_seconds(at).to_string(),
            (None, Value::String(text)) => text.clone(),
            (None, other) => other.to_string(),
        };
        say(meaning(name), &shown)?;
    }
    let (now, begins) = (unix_seconds(SystemTime::now()), time("nbf"));
    let words = |seconds: u64| match seconds / 86_400 {
        0 | 1 => humantime::format_duration(Duration::from_secs(seconds)).to_string(),
        days => format!("{days} days"),
    };
    match (claims.get("exp"), time("exp")) {
        (None, _) => bail!("it has no `exp`: edges refuse it"),
        (Some(_), None) => bail!("its `exp` is no whole number of seconds: edges refuse it"),
        (_, Some(expires)) if expires <= now => bail!("it expired {} ago", words(now - expires)),
        _ if begins.is_some_and(|begins| begins > now) => {
            bail!("it is valid in {}, and not before", words(begins.unwrap_or(now) - now))
        }
        (_, Some(expires)) => Ok(say("valid for", &words(expires - now))?),
    }
}

/// Prints a line. What a token says may be anything.
fn say(what: &str, value: &str) -> io::Result<()> {
    let [what, value] = [what, value].map(|text| {
        let mut text = text.to_owned();
        make_plain(&mut text, MAX_TOKEN_BYTES);
        text
    });
    print(format_args!("{what:11} {value}"))
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
