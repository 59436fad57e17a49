//! What a service follows in a Helm repository: a chart, and a range of its versions or one version.

use std::fmt;
use std::str::FromStr;

use semver::Version;
use weir_upstream::{SEMVER, VersionRange, loose_version, parse_version};

/// The longest name of a chart, in bytes, as of `helm lint`.
const MAX_NAME_BYTES: usize = 250;

/// The longest version, in bytes: a revision id contains it.
pub(super) const MAX_VERSION_BYTES: usize = 120;

/// The `ref` of a service that names none.
const DEFAULT_REF: &str = "HEAD";

/// The name of a chart; in a registry, a path below the URL of the repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChartName(Box<str>);

/// The text is not the name of a chart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not the name of a chart: it has 1 to {MAX_NAME_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`, and no `.` or `-` \
     at its start; in a registry it may be a path of such names"
)]
pub struct ChartNameError(String);

impl FromStr for ChartName {
    type Err = ChartNameError;

    fn from_str(text: &str) -> Result<Self, ChartNameError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let is_name = |part: &str| !part.is_empty() && !part.starts_with(['.', '-']) && part.bytes().all(plain);
        if text.len() <= MAX_NAME_BYTES && text.split('/').all(is_name) {
            Ok(Self(text.into()))
        } else {
            Err(ChartNameError(text.chars().take(120).collect()))
        }
    }
}

impl fmt::Display for ChartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::ops::Deref for ChartName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

weir_protocol::serde_as_text!(ChartName);

/// A chart, and which of its versions is followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Chart {
    pub(crate) name: ChartName,
    wanted: Wanted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Wanted {
    Range(VersionRange),
    Exact(Version),
}

impl Chart {
    /// Reads the `ref` of a service. Without one, it follows the highest release.
    ///
    /// # Errors
    /// It is neither a range nor a version, with the reason for whoever wrote it.
    pub(crate) fn parse(name: ChartName, text: &str) -> Result<Self, String> {
        let any = if text == DEFAULT_REF { Some("*") } else { text.strip_prefix(SEMVER) };
        if let Some(range) = any {
            let range: VersionRange = range.trim().parse().map_err(|error| format!("ref = `semver:…`: {error}"))?;
            if !range.prefix().is_empty() {
                let prefix = range.prefix();
                return Err(format!("ref = `{text}`: versions of charts have no prefix: remove `{prefix}`"));
            }
            return Ok(Self { name, wanted: Wanted::Range(range) });
        }
        if parse_version(text).is_none() && text.parse::<VersionRange>().is_ok() {
            return Err(format!(
                "ref = `{text}` is not a version of a chart: write a range of versions as `semver:{text}`"
            ));
        }
        match loose_version(text) {
            Some(version) => Ok(Self { name, wanted: Wanted::Exact(version) }),
            None => Err(format!(
                "ref = `{text}` is not a version of a chart: write one such as `18.1.6`, or `semver:` with a range of versions"
            )),
        }
    }

    /// Whether a version is followed. A version without build metadata stands for all of its builds.
    pub(super) fn contains(&self, version: &Version) -> bool {
        match &self.wanted {
            Wanted::Range(range) => range.contains(version),
            Wanted::Exact(exact) if exact.build.is_empty() => exact.cmp_precedence(version).is_eq(),
            Wanted::Exact(exact) => exact == version,
        }
    }
}

/// As a `ref`, without the chart.
impl fmt::Display for Chart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Wanted::Range(range) => write!(f, "{SEMVER}{range}"),
            Wanted::Exact(version) => version.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_plain_name() {
        for name in ["redis", "kube-prometheus-stack", "a_b.c", "R2", "team/shop", &"x".repeat(250)] {
            assert_eq!(name.parse::<ChartName>().unwrap().to_string(), name);
        }
        for name in ["", ".", "..", "-x", "a//b", "/a", "a/", "a/../b", "a b", "ä", "a\n", "a@b", &"x".repeat(251)] {
            assert!(name.parse::<ChartName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_ref_is_a_range_or_a_version_or_the_highest_release() {
        let chart = |text: &str| Chart::parse("redis".parse().unwrap(), text);
        for (text, shown, inside, outside) in [
            ("HEAD", "semver:*", "18.1.6", "19.0.0-rc.1"),
            ("semver: ^18.1", "semver:^18.1", "18.2.0", "19.0.0"),
            ("semver:>=1.0.0-0", "semver:>=1.0.0-0", "2.0.0-rc.1", "0.9.0"),
            ("18.1.6", "18.1.6", "18.1.6+build", "18.1.7"),
            ("v18.1.6", "18.1.6", "18.1.6", "18.1.6-rc.1"),
            ("1.0.0+2", "1.0.0+2", "1.0.0+2", "1.0.0+3"),
            ("2024.01.05", "2024.1.5", "2024.1.5", "2024.1.6"),
        ] {
            let chart = chart(text).unwrap();
            assert_eq!(chart.to_string(), shown);
            assert_eq!(Chart::parse(chart.name.clone(), shown).unwrap(), chart);
            assert!(chart.contains(&inside.parse().unwrap()) && !chart.contains(&outside.parse().unwrap()), "{text}");
        }
        for (text, reason) in [
            ("^18.1", "write a range of versions as `semver:^18.1`"),
            ("18.1", "write a range of versions as `semver:18.1`"),
            ("main", "is not a version of a chart: write one such as"),
            ("semver:", "is not a range of versions"),
            ("semver:api/^1", "have no prefix: remove `api/`"),
        ] {
            assert!(chart(text).unwrap_err().contains(reason), "{text}: {}", chart(text).unwrap_err());
        }
    }
}
