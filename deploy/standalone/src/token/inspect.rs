//! `weir token inspect`.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use weir_shared::process::output::print;
use weir_shared::token::{UnixSeconds, UnverifiedToken, unix_seconds};

use super::file;

/// Shows what a token says, and with --keys whether it verifies.
///
/// Without --keys nothing is verified: anybody could have written what is shown. With it the exit code is 0 when an edge
/// with these keys, and these deny files, would take the token now, and 1 with the reason when it would not.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// The token: a file that holds it, or `-` for standard input. (The token itself is taken too, and is then seen by
    /// whoever lists the processes of this machine.)
    #[arg(value_name = "TOKEN", default_value = "-")]
    token: String,
    /// A file of public keys to verify it with. May be given several times.
    #[arg(long, value_name = "FILE", num_args = 1)]
    keys: Vec<PathBuf>,
    /// A deny file to look the token and its key up in. May be given several times.
    #[arg(long, value_name = "FILE", num_args = 1, requires = "keys")]
    deny: Vec<PathBuf>,
}

pub(super) fn run(arguments: &InspectArguments) -> anyhow::Result<()> {
    let text = file::token(&arguments.token)?;
    let token = UnverifiedToken::parse(&text).with_context(|| format!("{} holds no token", arguments.token))?;
    let claims = token.claims()?;
    let now = unix_seconds(SystemTime::now());
    let services: Vec<&str> = claims.services.iter().map(|glob| glob.as_str()).collect();
    print(format_args!("subject   {}", claims.subject))?;
    print(format_args!("services  {}", services.join(" ")))?;
    print(format_args!("id        {}", claims.id))?;
    print(format_args!("key       {}", token.key_id()))?;
    if let Some(issued) = claims.issued_at {
        print(format_args!("issued    {}", moment(issued, now)))?;
    }
    if let Some(begins) = claims.not_before {
        print(format_args!("begins    {}", moment(begins, now)))?;
    }
    print(format_args!("ends      {}", moment(claims.expires, now)))?;
    if arguments.keys.is_empty() {
        return Ok(print("verified  no: give --keys to find out")?);
    }
    let mut keys = file::keys(&arguments.keys)?;
    for path in &arguments.deny {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        keys.add_deny_file(&text).with_context(|| format!("{} is no deny file", path.display()))?;
    }
    let Some(key) = keys.keys().find(|key| key.id() == token.key_id()) else {
        print("verified  no")?;
        bail!("none of these keys is {}", token.key_id());
    };
    let revoked = match () {
        () if keys.revoked_keys().any(|revoked| revoked == key.id()) => Some("its key is revoked"),
        () if keys.denied_tokens(now).any(|denied| *denied == claims.id) => Some("it is revoked"),
        () => None,
    };
    if let Some(revoked) = revoked {
        print("verified  no")?;
        bail!("{revoked}");
    }
    let checked = token.verify(key).map(|claims| claims.valid_at(now));
    print(format_args!("verified  {}", if checked.is_ok() { "yes" } else { "no" }))?;
    checked??;
    Ok(())
}

/// A moment, and how far away it is in words.
pub(super) fn moment(at: UnixSeconds, now: UnixSeconds) -> String {
    let apart = in_words(at.abs_diff(now));
    // RFC 3339 ends with the year 9999.
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(at)).filter(|_| at < 253_402_300_800);
    let time =
        time.map_or_else(|| format!("{at} s after 1970"), |time| humantime::format_rfc3339_seconds(time).to_string());
    match at {
        at if at > now => format!("{time}, in {apart}"),
        at if at == now => format!("{time}, now"),
        _ => format!("{time}, {apart} ago"),
    }
}

/// Whole days, hours or minutes: nobody plans by the second, and a month is no measure.
fn in_words(seconds: u64) -> String {
    let (unit, name) = match seconds {
        172_800.. => (86_400, "days"),
        7_200.. => (3_600, "hours"),
        120.. => (60, "minutes"),
        1 => (1, "second"),
        _ => (1, "seconds"),
    };
    format!("{} {name}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_words() {
        let now = 1_800_000_000;
        assert_eq!(moment(now + 10 * 86_400 + 5, now), "2027-01-25T08:00:05Z, in 10 days");
        assert_eq!(moment(now + 90 * 86_400 - 1, now), "2027-04-15T07:59:59Z, in 89 days");
        assert_eq!(moment(now - 3_700, now), "2027-01-15T06:58:20Z, 61 minutes ago");
        assert_eq!(moment(now + 5, now), "2027-01-15T08:00:05Z, in 5 seconds");
        assert_eq!(moment(now, now), "2027-01-15T08:00:00Z, now");
        assert!(moment(u64::MAX, now).starts_with("18446744073709551615 s after 1970"));
    }
}
