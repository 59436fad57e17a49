//! `weir freeze`: of some services nothing new is published for a while.

use std::time::{Duration, SystemTime};

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use weir_protocol::name_glob::NameGlob;
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query};
use crate::kind::segment;
use crate::text::{Clock, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir freeze sale --service 'shop-*' --until 2h --reason CHG-7   for two hours
  weir freeze audit --service pay --service 'pay-*'               until `weir freeze audit --end`
  weir freeze sale --service 'shop-*' --until 2026-12-01T08:00:00Z

New commits wait. What is published stays, and what is staged too. Rollback, pin, stage, promote and abort work.";

/// What to freeze.
#[derive(Debug, Args)]
pub struct FreezeArguments {
    /// The name of the freeze. One of this name is replaced
    name: String,
    /// Of services whose names match; may be repeated
    #[arg(short, long, value_name = "PATTERN", required_unless_present = "end")]
    service: Vec<NameGlob>,
    /// How long, such as 2h or 3days, or until when (RFC 3339). Without it until `--end`
    #[arg(long, value_name = "TIME", value_parser = until)]
    until: Option<SystemTime>,
    /// Why, for those whose commits wait: at most 256 bytes
    #[arg(long)]
    reason: Option<String>,
    /// End the freeze of this name
    #[arg(long, conflicts_with_all = ["service", "until", "reason"])]
    end: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// The longest time of a freeze that has an end.
const MOST: Duration = Duration::from_hours(10 * 365 * 24);

fn until(written: &str) -> Result<SystemTime, String> {
    let at = |period| SystemTime::now().checked_add(period);
    let period = humantime::parse_duration(written).ok().and_then(at);
    let wrong = || format!("`{written}` is neither a time such as 2026-12-01T08:00:00Z nor a period such as 2h");
    let until = period.or_else(|| humantime::parse_rfc3339(written).ok()).ok_or_else(wrong)?;
    let most = SystemTime::now() + MOST;
    if until > most { Err("it is more than ten years away: leave it out".to_owned()) } else { Ok(until) }
}

pub(crate) async fn freeze(arguments: &FreezeArguments) -> anyhow::Result<()> {
    let FreezeArguments { name, service, until, reason, end, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let path = format!("/v1/freezes/{}", segment(name)?);
    if *end {
        client.send(Method::DELETE, &path, &Query::new(), None).await?;
        return Ok(print(format_args!(
            "{name} has ended: what waited is published or staged within seconds, unless another freeze keeps it."
        ))?);
    }
    let until = until.map(|until| humantime::format_rfc3339_seconds(until).to_string());
    let body = json!({ "services": service, "until": until, "reason": reason });
    let (_, document) = client.send(Method::PUT, &path, &Query::new(), Some(&body)).await?;
    let end = document["until"].as_str().map_or_else(|| format!("`weir freeze {name} --end`"), ToOwned::to_owned);
    Ok(print(format_args!("Nothing new of {} is published until {end}.", text(&document["services"])))?)
}

/// Of the status of a service: that nothing new of it is published, until when and why. `None`: it is not frozen.
pub(crate) fn frozen(status: &Value, clock: Clock) -> Option<String> {
    let frozen = &status["frozen"];
    let by = frozen.as_object()?["name"].as_str().map_or(String::new(), |name| format!(" by {name}"));
    let until = frozen["until"].is_string().then(|| format!(", it ends {}", clock.time(&frozen["until"])));
    let reason = frozen["reason"].as_str().map_or(String::new(), |reason| format!(": {reason}"));
    Some(format!("frozen{by}{}{reason}; new commits wait", until.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_freeze_ends_after_a_period_or_at_a_time() {
        let from = SystemTime::now();
        assert!(until("2h").unwrap() >= from + Duration::from_hours(2));
        assert_eq!(
            humantime::format_rfc3339(until("2026-12-01T08:00:00Z").unwrap()).to_string(),
            "2026-12-01T08:00:00Z"
        );
        assert!(until("tomorrow").unwrap_err().contains("such as 2h"));
        assert!(until("9000years").unwrap_err().contains("ten years"));
        let mut status = json!({ "frozen": { "name": "sale", "until": "2026-12-01T08:00:00Z", "reason": "CHG-7" } });
        let said = "frozen by sale, it ends 2026-12-01T08:00:00Z: CHG-7; new commits wait";
        assert_eq!(frozen(&status, Clock::new(true)).as_deref(), Some(said));
        status["frozen"] = Value::Null;
        assert_eq!(frozen(&status, Clock::new(true)), None);
    }
}
