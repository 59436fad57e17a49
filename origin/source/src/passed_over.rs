//! Versions that cannot be followed, although they seem to be higher than the followed one. Pure.

use semver::{BuildMetadata, Prerelease, Version};
use weir_upstream::shown;

use crate::{LeftOutRef, PollFailure};

/// The most versions that are shown of what one service follows.
const MAX_PASSED_OVER: usize = 4;

/// The most characters of one in a message.
const MAX_SHOWN: usize = 60;

/// The highest versions that cannot be followed.
#[derive(Debug, Clone, Default)]
pub(crate) struct PassedOver(Vec<(Version, String, &'static str)>);

impl PassedOver {
    /// Adds a version that cannot be followed, if it seems to be in the range. `reason` is the end of a sentence.
    pub(crate) fn add(&mut self, text: &str, reason: &'static str, is_in_range: impl FnOnce(&Version) -> bool) {
        let Some(version) = apparent(text).filter(is_in_range) else { return };
        let at = self.0.partition_point(|(other, ..)| *other > version);
        if at < MAX_PASSED_OVER && self.0.get(at).is_none_or(|(other, ..)| *other != version) {
            self.0.insert(at, (version, shown(text, MAX_SHOWN), reason));
            self.0.truncate(MAX_PASSED_OVER);
        }
    }

    /// Those that seem to be higher than the followed version. `what`: "chart `shop`".
    pub(crate) fn above(&self, followed: &Version, what: &str) -> Vec<LeftOutRef> {
        let describe = |(_, text, reason): &(Version, String, &str)| {
            let name = format!("{what} `{text}`");
            let error = format!("{name} {reason}: a lower version is followed");
            let failure = PollFailure::new("list", "protocol", &error, false, None);
            LeftOutRef { name, is_followed: false, failure }
        };
        self.0.iter().take_while(|(version, ..)| version > followed).map(describe).collect()
    }
}

/// The version that a text seems to be: the two or three numbers at its start. With a fourth one it is higher, and with a `-`
/// it is a pre-release. One number alone may be anything.
fn apparent(text: &str) -> Option<Version> {
    let mut rest = text.strip_prefix(['v', 'V']).unwrap_or(text);
    let mut numbers = [0; 3];
    for (at, number) in numbers.iter_mut().enumerate() {
        let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
        match rest[..digits].parse() {
            Ok(parsed) => *number = parsed,
            Err(_) if digits > 0 => *number = u64::MAX,
            Err(_) if at == 0 => return None,
            Err(_) => break,
        }
        rest = &rest[digits..];
        match rest.strip_prefix('.') {
            Some(below) if at < 2 => rest = below,
            None if at == 0 => return None,
            _ => break,
        }
    }
    let [major, minor, patch] = numbers;
    let pre = if rest.starts_with('-') { Prerelease::new("0").ok()? } else { Prerelease::EMPTY };
    let build = if rest.starts_with('.') { BuildMetadata::new("0").ok()? } else { BuildMetadata::EMPTY };
    Some(Version { major, minor, patch, pre, build })
}

#[cfg(test)]
mod tests {
    use weir_upstream::VersionRange;

    use super::*;

    #[test]
    fn the_highest_of_the_range_are_named_and_no_others() {
        let named = |range: &str, followed: &str, texts: &[&str]| {
            let (range, followed): (VersionRange, Version) = (range.parse().unwrap(), followed.parse().unwrap());
            let mut passed_over = PassedOver::default();
            texts.iter().for_each(|text| passed_over.add(text, "is odd", |version| range.contains(version)));
            passed_over.above(&followed, "chart `shop`").into_iter().map(|each| each.name).collect::<Vec<_>>()
        };
        let of = |texts: &[&str]| texts.iter().map(|text| format!("chart `shop` `{text}`")).collect::<Vec<_>>();
        let long = format!("{}.1.2.3", "9".repeat(500));
        let odd = [
            "1.2.3.4", "latest", "4711815", "5f3a.1", "1.9.0.1", "v2.0.0.1", "1.8.7.9", "1.9.1_x", "1.9.1_y",
            "2.0.0-01", "", "v",
        ];
        assert_eq!(named("^1", "1.9.0", &odd), of(&["1.9.1_x", "1.9.0.1"]));
        assert_eq!(named("*", "1.9.1", &odd), of(&["v2.0.0.1"]));
        assert_eq!(named("^1", "1.9.1", &odd), of(&[]));
        assert_eq!(named(">=1.9.2-0", "1.9.2", &odd), of(&["v2.0.0.1", "2.0.0-01"]));
        let many: Vec<String> = (1..9).map(|number| format!("{number}.0.0.1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(named("*", "0.1.0", &many), of(&["8.0.0.1", "7.0.0.1", "6.0.0.1", "5.0.0.1"]));
        assert!(named("*", "0.1.0", &[&long])[0].len() < 200);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text in "v?[0-9.+-]{0,12}\\PC{0,4}") {
            let _ = apparent(&text);
        }
    }
}
