//! Windows: at which times of a week stages begin.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_protocol::serde_as_text;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_OF_DAY: u64 = 24 * 60;
const MINUTES_OF_WEEK: u64 = 7 * MINUTES_OF_DAY;

/// 1970-01-01 was a Thursday.
const DAY_OF_EPOCH: u64 = 3;

/// The same hours on some days of each week, such as `mon-thu 08:00-16:00 UTC`. One over midnight belongs to the day on which
/// it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// As it was written.
    text: String,
    days: [bool; 7],
    /// Minutes of the day.
    begin: u64,
    /// After `begin`, and less than a day after it, or a whole day.
    length: u64,
}

/// The text is not a window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a window: {fault}: write days, hours and `UTC`, as in `mon-thu 08:00-16:00 UTC` or `sat,sun \
     22:00-04:00 UTC`"
)]
pub struct WindowError {
    text: String,
    fault: &'static str,
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let error = |fault| WindowError { text: text.chars().take(100).collect(), fault };
        if text.len() > 100 {
            return Err(error("it is too long"));
        }
        let mut parts = text.split_whitespace();
        let (Some(days), Some(hours), Some(zone), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error("it has not three parts"));
        };
        if zone != "UTC" {
            return Err(error("its hours are not in UTC"));
        }
        let days = parse_days(days).ok_or_else(|| error("its days are not `mon` to `sun`"))?;
        let hours = hours.split_once('-').and_then(|(from, to)| Some((parse_minute(from)?, parse_minute(to)?)));
        let (begin, end) = hours.ok_or_else(|| error("its hours are not `00:00` to `24:00`"))?;
        if begin == end || begin == MINUTES_OF_DAY {
            return Err(error("it ends where it begins, or begins at `24:00`"));
        }
        let length = if end > begin { end - begin } else { end + MINUTES_OF_DAY - begin };
        Ok(Self { text: text.to_owned(), days, begin, length })
    }
}

fn parse_days(text: &str) -> Option<[bool; 7]> {
    let position = |name: &str| DAYS.iter().position(|day| *day == name);
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (position(first)?, position(last)?);
        // `fri-mon` is four days.
        for day in 0..=(last + 7 - first) % 7 {
            days[(first + day) % 7] = true;
        }
    }
    Some(days)
}

/// `HH:MM`, up to `24:00`.
fn parse_minute(text: &str) -> Option<u64> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| text.parse().ok().filter(|_| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit()));
    let (hour, minute): (u64, u64) = (number(hour)?, number(minute)?);
    let minutes = hour * 60 + minute;
    (minute < 60 && minutes <= MINUTES_OF_DAY).then_some(minutes)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

serde_as_text!(Window);

impl Window {
    /// How many minutes after a minute of the week it is open: 0 if it is.
    fn opens_in(&self, minute: u64) -> u64 {
        let begins = (0..7).filter(|day| self.days[*day as usize]).map(|day| day * MINUTES_OF_DAY + self.begin);
        let opens = begins.map(|begin| {
            let since = (minute + MINUTES_OF_WEEK - begin) % MINUTES_OF_WEEK;
            if since < self.length { 0 } else { MINUTES_OF_WEEK - since }
        });
        opens.min().unwrap_or(MINUTES_OF_WEEK)
    }
}

/// When the first of some windows opens. `None`: one is open, or there are none.
pub(crate) fn opens_at(windows: &[Window], now: SystemTime) -> Option<SystemTime> {
    let minutes = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
    let minute = (minutes + DAY_OF_EPOCH * MINUTES_OF_DAY) % MINUTES_OF_WEEK;
    let opens_in = windows.iter().map(|window| window.opens_in(minute)).min()?;
    (opens_in > 0).then(|| UNIX_EPOCH + Duration::from_secs((minutes + opens_in) * 60))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SystemTime {
        humantime::parse_rfc3339(text).unwrap()
    }

    #[test]
    fn a_window_is_open_from_its_begin_until_before_its_end() {
        let windows = |text: &str| vec![text.parse::<Window>().unwrap()];
        // 2026-11-30 is a Monday.
        for (text, now, opens) in [
            ("mon-thu 08:00-16:00 UTC", "2026-11-30T08:00:00Z", None),
            ("mon-thu 08:00-16:00 UTC", "2026-12-03T15:59:59Z", None),
            ("mon-thu 08:00-16:00 UTC", "2026-12-03T16:00:00Z", Some("2026-12-07T08:00:00Z")),
            ("mon-thu 08:00-16:00 UTC", "2026-12-01T07:59:59Z", Some("2026-12-01T08:00:00Z")),
            ("fri 22:00-04:00 UTC", "2026-12-05T03:59:00Z", None),
            ("fri 22:00-04:00 UTC", "2026-12-05T04:00:00Z", Some("2026-12-11T22:00:00Z")),
            ("fri 22:00-04:00 UTC", "2026-12-04T03:00:00Z", Some("2026-12-04T22:00:00Z")),
            ("sun 22:00-04:00 UTC", "2026-11-30T03:00:00Z", None),
            ("sat-mon 00:00-24:00 UTC", "2026-11-30T23:59:59Z", None),
            ("sat-mon 00:00-24:00 UTC", "2026-12-01T00:00:00Z", Some("2026-12-05T00:00:00Z")),
            ("tue,thu 08:00-09:00 UTC", "2026-12-01T09:30:00Z", Some("2026-12-03T08:00:00Z")),
        ] {
            assert_eq!(opens_at(&windows(text), at(now)), opens.map(at), "{text} at {now}");
        }
        let two = ["mon 08:00-09:00 UTC", "tue 08:00-09:00 UTC"].map(|text| text.parse().unwrap());
        assert_eq!(opens_at(&two, at("2026-11-30T12:00:00Z")), Some(at("2026-12-01T08:00:00Z")));
        assert_eq!(opens_at(&[], at("2026-11-30T12:00:00Z")), None);
    }

    #[test]
    fn a_text_that_is_no_window_says_why() {
        for (text, fault) in [
            ("", "three parts"),
            ("mon 08:00-16:00", "three parts"),
            ("mon 08:00 - 16:00 UTC", "three parts"),
            ("mon 08:00-16:00 CET", "not in UTC"),
            ("Mon 08:00-16:00 UTC", "days are not"),
            ("mon-xyz 08:00-16:00 UTC", "days are not"),
            ("mon, 08:00-16:00 UTC", "days are not"),
            ("mon 8:00-16:00 UTC", "hours are not"),
            ("mon 08:00-24:01 UTC", "hours are not"),
            ("mon 08:60-16:00 UTC", "hours are not"),
            ("mon +8:00-16:00 UTC", "hours are not"),
            ("mon 08:00 UTC", "hours are not"),
            ("mon 08:00-08:00 UTC", "ends where it begins"),
            ("mon 24:00-08:00 UTC", "begins at `24:00`"),
            (&"mon,".repeat(100), "too long"),
        ] {
            let error = text.parse::<Window>().unwrap_err().to_string();
            assert!(error.contains(fault) && error.contains("as in `mon-thu"), "{text}: {error}");
        }
    }

    proptest! {
        /// The definition, minute by minute.
        #[test]
        fn it_opens_as_defined(
            first in 0_u64..7, last in 0_u64..7, begin in 0_u64..1440, end in 0_u64..=1440, minute in 0_u64..30_000,
        ) {
            prop_assume!(begin != end);
            let clock = |minute: u64| format!("{:02}:{:02}", minute / 60, minute % 60);
            let (from, to) = (DAYS[first as usize], DAYS[last as usize]);
            let window: Window = format!("{from}-{to} {}-{} UTC", clock(begin), clock(end)).parse().unwrap();
            let is_day = |day: u64| (day + 7 - first) % 7 <= (last + 7 - first) % 7;
            let is_open = |minute: u64| {
                let (today, time) = ((minute / 1440 + DAY_OF_EPOCH) % 7, minute % 1440);
                let of_yesterday = is_day((today + 6) % 7) && end < begin && time < end;
                of_yesterday || is_day(today) && time >= begin && (end < begin || time < end)
            };
            let moment = |minute: u64| UNIX_EPOCH + Duration::from_secs(minute * 60);
            match opens_at(&[window], moment(minute)) {
                None => prop_assert!(is_open(minute)),
                Some(opens) => {
                    let opens = opens.duration_since(UNIX_EPOCH).unwrap().as_secs() / 60;
                    prop_assert!(is_open(opens) && !(minute..opens).any(is_open), "{} to {}", minute, opens);
                }
            }
        }
    }
}
