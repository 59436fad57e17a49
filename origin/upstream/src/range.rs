//! `semver:…`: ranges of versions, as the `ref` of a service of any kind.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use semver::{BuildMetadata, Comparator, Op, Prerelease, Version, VersionReq};

/// The prefix of a range in a `ref`. No version, and no name of a ref of Git, contains a colon.
pub const SEMVER: &str = "semver:";

/// The characters that may end a prefix.
const PREFIX_ENDS: [char; 4] = ['/', '-', '_', '@'];

/// Characters of ranges besides versions. No prefix contains them.
const RANGE_SIGNS: [char; 8] = ['<', '>', '=', '^', '~', '|', ',', ' '];

/// A range of versions, and the prefix of the tags to which it applies.
///
/// The syntax is that of Flux and Argo CD: `1.2.x`, `v1.*`, `^1.2`, `~1.2.3`, `>=1.0 <2`, `1.2.3` for this version
/// only, and `||` between alternatives. A `v` before a version is ignored, in ranges and in tags. Pre-releases match
/// only alternatives that name one (`>=1.0.0-0`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VersionRange {
    prefix: String,
    alternatives: Vec<VersionReq>,
    text: String,
}

/// The text is not a range of versions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a range of versions ({reason}): write it like `^1.2`, `1.2.x`, `>=1.0 <2`, or with a prefix of the \
     tags `api/1.x`"
)]
pub struct VersionRangeError {
    text: String,
    reason: String,
}

impl FromStr for VersionRange {
    type Err = VersionRangeError;

    /// The prefix is the shortest one with which the rest is a range.
    fn from_str(text: &str) -> Result<Self, VersionRangeError> {
        let error = |reason: String| VersionRangeError { text: text.chars().take(120).collect(), reason };
        let ends = text.match_indices(PREFIX_ENDS).map(|(at, end)| at + end.len());
        let mut first_error = None;
        for start in std::iter::once(0).chain(ends) {
            let (prefix, range) = text.split_at(start);
            if prefix.contains(RANGE_SIGNS) {
                break;
            }
            match alternatives(range) {
                Ok(alternatives) if is_prefix(prefix) => {
                    return Ok(Self { prefix: prefix.to_owned(), alternatives, text: text.to_owned() });
                }
                Ok(_) => return Err(error(format!("`{prefix}` is not a valid prefix of a tag"))),
                Err(reason) => _ = first_error.get_or_insert(reason),
            }
        }
        Err(error(first_error.unwrap_or_default()))
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl VersionRange {
    /// The prefix of its tags, below `refs/tags/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The version of a tag, if it is in the range. `tag` is the name below `refs/tags/`.
    pub fn version(&self, tag: &str) -> Option<Version> {
        parse_version(self.without_prefix(tag)?).filter(|version| self.contains(version))
    }

    /// What follows the prefix in a tag that has it.
    pub fn without_prefix<'a>(&self, tag: &'a str) -> Option<&'a str> {
        tag.strip_prefix(&self.prefix)
    }

    /// Whether a version is in the range, whatever the prefix.
    pub fn contains(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|range| contains(range, version))
    }

    /// The tag with the highest version in the range. Among equal versions the highest build metadata wins, then the
    /// name that sorts last: `v1.2.3` before `1.2.3`.
    pub fn highest<'a>(&self, tags: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let versions = tags.into_iter().filter_map(|tag| Some((self.version(tag)?, tag)));
        versions.max().map(|(_, tag)| tag)
    }
}

/// A version of three numbers, with or without `v`.
pub fn parse_version(text: &str) -> Option<Version> {
    Version::parse(text.strip_prefix(['v', 'V']).unwrap_or(text)).ok()
}

/// Whether tags can have this prefix.
fn is_prefix(prefix: &str) -> bool {
    gix_validate::reference::name(format!("refs/tags/{prefix}1.0.0").as_str().into()).is_ok()
}

fn alternatives(text: &str) -> Result<Vec<VersionReq>, String> {
    text.split("||").map(range).collect()
}

/// One alternative: comparators, separated by blanks or commas, all of which must match.
fn range(text: &str) -> Result<VersionReq, String> {
    let mut comparators = Vec::new();
    let mut operator = String::new();
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        let version = word.trim_start_matches(['<', '>', '=', '^', '~']);
        operator.push_str(&word[..word.len() - version.len()]);
        if version.is_empty() {
            continue; // `>= 1.0`
        }
        let version = version.strip_prefix(['v', 'V']).unwrap_or(version);
        if version.contains('+') {
            return Err("build metadata has no meaning in a range".to_owned());
        }
        let is_any = matches!(version, "*" | "x" | "X");
        let comparator = match std::mem::take(&mut operator).as_str() {
            "" | "=" if is_any => VersionReq::STAR,
            // The library takes `1.2.3` for `^1.2.3`.
            "" => VersionReq::parse(&format!("={version}"))
                .or_else(|_| VersionReq::parse(version))
                .map_err(|error| error.to_string())?,
            operator => VersionReq::parse(&format!("{operator}{}", with_all_numbers(version)))
                .map_err(|error| error.to_string())?,
        };
        if comparator == VersionReq::STAR && !is_any {
            return Err(format!("`{word}` matches every version"));
        }
        comparators.push(comparator);
    }
    if comparators.is_empty() || !operator.is_empty() {
        return Err("a version is missing".to_owned());
    }
    Ok(VersionReq { comparators: comparators.into_iter().flat_map(|range| range.comparators).collect() })
}

/// Completes `1.0-rc` to `1.0.0-rc`, as Flux and Argo CD do after an operator. Without an operator this would be
/// ambiguous: `2024-1` may be a prefix and a range.
fn with_all_numbers(version: &str) -> Cow<'_, str> {
    match version.split_once('-') {
        Some((numbers, pre)) if numbers.matches('.').count() < 2 => {
            let missing = ".0".repeat(2 - numbers.matches('.').count());
            format!("{numbers}{missing}-{pre}").into()
        }
        _ => version.into(),
    }
}

/// Whether all comparators match. The library's `matches` accepts pre-releases of the named version only; here
/// `>=1.0.0-0` accepts those of every version in the range.
fn contains(range: &VersionReq, version: &Version) -> bool {
    let asks_for_pre_releases = range.comparators.iter().any(|comparator| !comparator.pre.is_empty());
    (version.pre.is_empty() || asks_for_pre_releases)
        && range.comparators.iter().all(|comparator| holds(comparator, version))
}

fn holds(comparator: &Comparator, version: &Version) -> bool {
    let Comparator { op, major, minor, patch, pre } = comparator;
    let lowest = Version { pre: pre.clone(), ..Version::new(*major, minor.unwrap_or(0), patch.unwrap_or(0)) };
    // The end of the named range: after one version, one minor or one major version.
    let next = match (minor, patch) {
        (Some(minor), Some(_)) => below(*major, Some(*minor), *patch),
        (Some(minor), None) => below(*major, minor.checked_add(1), Some(0)),
        (None, _) => below_major(*major),
    };
    let named_fully = patch.is_some();
    match op {
        Op::Exact if named_fully => precedence(version, &lowest).is_eq(),
        Op::Exact | Op::Wildcard => at_least(version, &lowest) && is_below(version, next.as_ref()),
        Op::Greater if named_fully => precedence(version, &lowest).is_gt(),
        Op::Greater => !is_below(version, next.as_ref()) && version.pre.is_empty(),
        Op::GreaterEq => at_least(version, &lowest),
        // `<2` excludes the pre-releases of 2, unless it names one itself.
        Op::Less if !pre.is_empty() => precedence(version, &lowest).is_lt(),
        Op::Less => is_below(version, below(*major, Some(minor.unwrap_or(0)), Some(patch.unwrap_or(0))).as_ref()),
        Op::LessEq if named_fully => precedence(version, &lowest).is_le(),
        Op::LessEq => is_below(version, next.as_ref()),
        Op::Tilde => {
            let end = if minor.is_some() {
                below(*major, minor.unwrap_or(0).checked_add(1), Some(0))
            } else {
                below_major(*major)
            };
            at_least(version, &lowest) && is_below(version, end.as_ref())
        }
        Op::Caret => {
            let end = match (major, minor, patch) {
                (0, Some(0), Some(patch)) => below(0, Some(0), patch.checked_add(1)),
                (0, Some(minor), _) => below(0, minor.checked_add(1), Some(0)),
                _ => below_major(*major),
            };
            at_least(version, &lowest) && is_below(version, end.as_ref())
        }
        _ => false,
    }
}

/// The lowest pre-release of a version. None if a number would overflow.
fn below(major: u64, minor: Option<u64>, patch: Option<u64>) -> Option<Version> {
    let pre = Prerelease::new("0").ok()?;
    Some(Version { major, minor: minor?, patch: patch?, pre, build: BuildMetadata::EMPTY })
}

fn below_major(major: u64) -> Option<Version> {
    below(major.checked_add(1)?, Some(0), Some(0))
}

fn at_least(version: &Version, lowest: &Version) -> bool {
    precedence(version, lowest).is_ge()
}

fn is_below(version: &Version, end: Option<&Version>) -> bool {
    end.is_none_or(|end| precedence(version, end).is_lt())
}

fn precedence(one: &Version, other: &Version) -> Ordering {
    one.cmp_precedence(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> VersionRange {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn ranges_match_as_in_flux_and_argo_cd() {
        let table: &[(&str, &[&str], &[&str])] = &[
            ("1.2.3", &["1.2.3", "v1.2.3", "1.2.3+b"], &["1.2.4", "1.3.0", "1.2.3-rc.1"]),
            ("1.2", &["1.2.0", "1.2.9"], &["1.3.0", "1.1.9", "1.2.1-rc.1"]),
            ("v1.2.x", &["1.2.0", "v1.2.9"], &["1.3.0"]),
            ("v1.*", &["1.0.0", "1.99.0"], &["2.0.0", "0.9.0", "2.0.0-rc.1"]),
            ("*", &["0.0.1", "99.0.0"], &["1.0.0-rc.1"]),
            ("x", &["0.0.1"], &["main", "1.2", "1"]),
            ("^1.2", &["1.2.0", "1.9.0"], &["2.0.0", "1.1.9"]),
            ("^0.2.3", &["0.2.3", "0.2.9"], &["0.3.0", "0.2.2"]),
            ("^0.0.3", &["0.0.3"], &["0.0.4"]),
            ("~1.2.3", &["1.2.3", "1.2.9"], &["1.3.0", "1.2.2"]),
            ("~1", &["1.0.0", "1.9.9"], &["2.0.0"]),
            (">=1.0 <2", &["1.0.0", "1.9.9"], &["2.0.0", "0.9.9", "2.0.0-rc.1"]),
            (">= 1.0, < 2", &["1.0.0"], &["2.0.0"]),
            (">1.2", &["1.3.0"], &["1.2.9"]),
            (">1.2.3", &["1.2.4"], &["1.2.3"]),
            ("<=1.2", &["1.2.9"], &["1.3.0"]),
            ("<=1.2.3", &["1.2.3"], &["1.2.4"]),
            ("1.x || 3.x", &["1.5.0", "3.5.0"], &["2.5.0"]),
            (">=1.0.0-0 <2", &["1.0.0-alpha", "1.5.0-rc.1", "1.5.0"], &["2.0.0-rc.1", "2.0.0"]),
            (">=1.0-0", &["1.0.0-alpha", "1.0.0", "2.5.0-rc.1"], &["0.9.9", "0.9.9-rc.1"]),
            (">=1-0 <2-0", &["1.0.0-alpha", "1.9.9"], &["2.0.0-alpha", "2.0.0"]),
            (">= 1.2-rc.1, < v2", &["1.2.0-rc.1", "1.2.0"], &["1.2.0-beta", "2.0.0-rc.1"]),
            ("^1.2-0", &["1.2.0-rc.1", "1.9.0"], &["2.0.0-rc.1"]),
            ("<1.0-0 || >=3.0-0", &["0.9.0", "3.0.0-rc.1"], &["1.0.0-rc.1", "2.0.0"]),
            ("^1.2.0-rc.1", &["1.2.0-rc.2", "1.3.0-rc.1", "1.2.0"], &["1.2.0-beta", "2.0.0-rc.1"]),
            ("<2.0.0-rc.2 >=1.0.0", &["2.0.0-rc.1", "1.0.0"], &["2.0.0-rc.2", "1.0.0-rc.1"]),
            ("18446744073709551615.x", &["18446744073709551615.1.0"], &["1.0.0"]),
        ];
        for (range, inside, outside) in table {
            let range = parse(range);
            for tag in *inside {
                assert!(range.version(tag).is_some(), "{tag} is in {range}");
            }
            for tag in *outside {
                assert!(range.version(tag).is_none(), "{tag} is not in {range}");
            }
        }
    }

    #[test]
    fn a_prefix_selects_tags() {
        for (text, prefix) in [
            ("api/v1.*", "api/"),
            ("api-v1.*", "api-"),
            ("api_^1.2", "api_"),
            ("@acme/ui@>=1 <2", "@acme/ui@"),
            ("release-2024-1.x", "release-2024-"),
            ("1.2.3-rc.1", ""),
            ("k8s/*", "k8s/"),
            (">=1.0-0", ""),
            (">= 1.0-0 <2-0", ""),
            ("api/>=1.0-0", "api/"),
            ("2024-1.x", "2024-"),
        ] {
            assert_eq!(parse(text).prefix(), prefix, "{text}");
            assert_eq!(parse(text).to_string(), text);
        }
        let api = parse("api/v1.*");
        assert!(api.version("api/v1.2.3").is_some() && api.version("api/1.2.3").is_some());
        assert!(api.version("v1.2.3").is_none() && api.version("web/v1.2.3").is_none());
    }

    #[test]
    fn the_highest_tag_is_selected() {
        let highest = |range: &str, tags: &[&'static str]| parse(range).highest(tags.iter().copied());
        assert_eq!(highest("^1", &["v1.9.0", "v1.10.0", "v2.0.0", "v1.11.0-rc.1", "latest"]), Some("v1.10.0"));
        assert_eq!(highest("1.x", &["v1.2.3", "1.2.3"]), Some("v1.2.3"));
        assert_eq!(highest("1.x", &["v1.2.3+2", "v1.2.3+10", "v1.2.3"]), Some("v1.2.3+10"));
        assert_eq!(highest("1.x", &["v2.0.0", "main"]), None);
    }

    #[test]
    fn an_invalid_range_is_refused() {
        for text in [
            "",
            "main",
            "api/",
            ">=",
            ">=1 <",
            "1.2.3.4",
            "!=1.2",
            "1.2 - 2.0",
            "^1.2+b",
            "=>1",
            "a b/1.x",
            "a..b/1.x",
            "1.x ||",
            "|| 1",
            "latest",
            "~>1.2",
            "^*",
            ">=1.0- 2",
            "a>1-2",
            "1.x,-2",
            ">=x-0",
            ">=1.x-0",
            "=-1",
        ] {
            let error = text.parse::<VersionRange>().expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    proptest! {
        #[test]
        fn ranges_without_pre_releases_agree_with_the_library(
            op in prop::sample::select(vec!["=", ">", ">=", "<", "<=", "~", "^"]),
            named in (0u64..4, prop::option::of((0u64..4, prop::option::of(0u64..4)))),
            version in (0u64..5, 0u64..5, 0u64..5),
        ) {
            let named = match named {
                (major, None) => major.to_string(),
                (major, Some((minor, None))) => format!("{major}.{minor}"),
                (major, Some((minor, Some(patch)))) => format!("{major}.{minor}.{patch}"),
            };
            let range = format!("{op}{named}");
            let version = Version::new(version.0, version.1, version.2);
            let expected = VersionReq::parse(&range).unwrap().matches(&version);
            prop_assert_eq!(parse(&range).version(&version.to_string()).is_some(), expected, "{} in {}", version, range);
        }

        #[test]
        fn no_text_panics(range in "[ -~]{0,30}", tag in "[ -~]{0,30}") {
            if let Ok(range) = range.parse::<VersionRange>() {
                let _ = range.version(&tag);
                prop_assert_eq!(range.to_string().parse::<VersionRange>(), Ok(range));
            }
        }
    }
}
