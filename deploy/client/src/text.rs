//! Values as people read them.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// What stands for what is not there.
pub(crate) const NONE: &str = "-";

/// The digits of a commit or digest.
const DIGITS: usize = 12;

/// Shows times: how long ago they were, or as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    now: SystemTime,
    utc: bool,
}

impl Clock {
    pub(crate) fn new(utc: bool) -> Self {
        Self { now: SystemTime::now(), utc }
    }

    /// A time of the API (RFC 3339).
    pub(crate) fn time(&self, value: &Value) -> String {
        let Some(text) = value.as_str() else { return NONE.to_owned() };
        match humantime::parse_rfc3339(text) {
            Ok(_) if self.utc => text.to_owned(),
            Ok(at) => self.age(at),
            Err(_) => text.to_owned(),
        }
    }

    /// The same within a sentence.
    pub(crate) fn ago(&self, value: &Value) -> String {
        let time = self.time(value);
        let is_age = value.is_string() && !self.utc && !time.starts_with("in ");
        if is_age { format!("{time} ago") } else { time }
    }

    /// For how long something has been so.
    pub(crate) fn since(&self, value: &Value) -> String {
        let time = self.time(value);
        if value.is_string() && !self.utc { format!("for {time}") } else { format!("since {time}") }
    }

    /// The time of a generation, in Unix milliseconds.
    pub(crate) fn generation(&self, value: &Value) -> String {
        let Some(milliseconds) = value.as_u64() else { return NONE.to_owned() };
        let Some(at) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)) else {
            return milliseconds.to_string();
        };
        if self.utc { humantime::format_rfc3339_seconds(at).to_string() } else { self.age(at) }
    }

    fn age(&self, at: SystemTime) -> String {
        match self.now.duration_since(at) {
            Ok(age) => short(age),
            Err(ahead) => format!("in {}", short(ahead.duration())),
        }
    }
}

/// A duration with at most two units.
pub(crate) fn short(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => format!("{minutes}m{}s", seconds % 60),
        600..10_800 => format!("{minutes}m"),
        10_800..172_800 => format!("{hours}h{}m", minutes % 60),
        172_800..864_000 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

/// When an agent was heard. Of a live one its edge says no more than that it was, within this time.
pub(crate) fn heard(of: &Value, clock: Clock) -> String {
    if of["state"] == "live" { "<90s".to_owned() } else { clock.time(&of["heard_at"]) }
}

/// A number of things: `1 row`, `2 rows`.
pub(crate) fn count(number: u64, one: &str) -> String {
    match (number, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        (_, None) => format!("{number} {one}s"),
    }
}

/// The same of a number of the API.
pub(crate) fn counted(number: &Value, one: &str) -> String {
    count(number.as_u64().unwrap_or_default(), one)
}

/// A text, or what stands for none.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) if text.is_empty() => NONE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => NONE.to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(pairs) if pairs.is_empty() => NONE.to_owned(),
        Value::Object(pairs) => {
            pairs.iter().map(|(key, value)| format!("{key}={}", text(value))).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

/// A commit, digest or revision id, short.
pub(crate) fn shortened(text: &str) -> String {
    let (prefix, digits) = text.split_once(['-', ':']).unwrap_or(("", text));
    let is_hash = digits.len() > DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match (is_hash, prefix) {
        (false, _) => text.to_owned(),
        (true, "b3") => format!("b3-{}", &digits[..DIGITS]),
        (true, _) => digits[..DIGITS].to_owned(),
    }
}

/// The revision of a publication or release: its version, its commit, or its revision id.
pub(crate) fn revision(of: &Value) -> String {
    let found = ["version", "commit", "revision_id", "digest"].into_iter().find_map(|key| of[key].as_str());
    found.map_or_else(|| NONE.to_owned(), shortened)
}

/// What a service follows.
pub(crate) fn followed(service: &Value) -> String {
    if let Some(parts) = service["parts"].as_array().filter(|parts| !parts.is_empty()) {
        let part = |part: &Value| part["service"].as_str().or(part["repository"].as_str()).unwrap_or(NONE).to_owned();
        return parts.iter().map(part).collect::<Vec<_>>().join(" + ");
    }
    let (what, folder) = (service["chart"].as_str().or(service["ref"].as_str()), service["folder"].as_str());
    let folder = folder.filter(|folder| !folder.is_empty() && *folder != ".");
    [what, folder].into_iter().flatten().collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_have_two_units_at_most() {
        let at = |seconds| short(Duration::from_secs(seconds));
        assert_eq!([at(0), at(119), at(130), at(3_000)], ["0s", "119s", "2m10s", "50m"]);
        assert_eq!([at(11_000), at(200_000), at(5_000_000)], ["3h3m", "2d7h", "57d"]);
    }

    #[test]
    fn only_hashes_are_shortened() {
        let hash = "4f2a9c1d".repeat(5);
        assert_eq!(shortened(&hash), "4f2a9c1d4f2a");
        assert_eq!(shortened(&format!("b3-{hash}")), "b3-4f2a9c1d4f2a");
        assert_eq!(shortened(&format!("sha1:{hash}")), "4f2a9c1d4f2a");
        assert_eq!(
            [shortened("1.2.0-rc.1"), shortened("feature-with-a-long-name")],
            ["1.2.0-rc.1", "feature-with-a-long-name"]
        );
        assert_eq!(revision(&json!({"version": null, "commit": hash, "digest": "b3-1"})), "4f2a9c1d4f2a");
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([count(0, "row"), count(1, "row"), count(2, "row")], ["0 rows", "1 row", "2 rows"]);
        assert_eq!([count(1, "repository"), counted(&json!(3), "entry")], ["1 repository", "3 entries"]);
    }

    #[test]
    fn of_a_live_agent_no_age_is_claimed() {
        let (clock, at) = (Clock::new(true), "2026-01-02T03:04:05Z");
        assert_eq!(heard(&json!({"state": "live", "heard_at": at}), clock), "<90s");
        assert_eq!(heard(&json!({"state": "silent", "heard_at": at}), clock), at);
    }

    #[test]
    fn times_are_ages_unless_utc_is_wanted() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let clock = |utc| Clock { now, utc };
        assert_eq!(clock(false).time(&json!("1970-01-01T00:01:00Z")), "40s");
        let ago = |utc| clock(utc).ago(&json!("1970-01-01T00:01:00Z"));
        assert_eq!([ago(false), ago(true), clock(false).ago(&json!(null))], ["40s ago", "1970-01-01T00:01:00Z", "-"]);
        let since = |utc| clock(utc).since(&json!("1970-01-01T00:01:00Z"));
        assert_eq!([since(false), since(true)], ["for 40s", "since 1970-01-01T00:01:00Z"]);
        assert_eq!(clock(true).time(&json!("1970-01-01T00:01:00Z")), "1970-01-01T00:01:00Z");
        assert_eq!(clock(false).generation(&json!(110_000)), "in 10s");
        assert_eq!(
            [clock(true).time(&json!(null)), clock(true).generation(&json!(1_000))],
            ["-", "1970-01-01T00:00:01Z"]
        );
    }
}
