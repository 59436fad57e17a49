//! Versions that are not quite those of SemVer, as helm reads them.

use semver::{BuildMetadata, Prerelease, Version};

/// A version of one to three numbers, which may begin with zeros, with or without `v`: `0.1` is `0.1.0`, and `2024.01.05` is
/// `2024.1.5`.
pub fn loose_version(text: &str) -> Option<Version> {
    let (numbers, pre, build) = split(text);
    let [major, minor, patch] = three_numbers(numbers)?;
    let pre = pre.map_or(Some(Prerelease::EMPTY), |pre| Prerelease::new(pre).ok().filter(|pre| !pre.is_empty()))?;
    let build = build
        .map_or(Some(BuildMetadata::EMPTY), |build| BuildMetadata::new(build).ok().filter(|build| !build.is_empty()))?;
    Some(Version { major, minor, patch, pre, build })
}

/// Whether a version is written as SemVer has it: with three numbers, and without `v`.
pub fn is_canonical(text: &str) -> bool {
    Version::parse(text).is_ok()
}

/// The numbers, the pre-release and the build.
fn split(text: &str) -> (&str, Option<&str>, Option<&str>) {
    let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (numbers, pre) = text.split_once('-').map_or((text, None), |(numbers, pre)| (numbers, Some(pre)));
    (numbers, pre, build)
}

fn three_numbers(text: &str) -> Option<[u64; 3]> {
    let mut numbers = [0; 3];
    for (at, digits) in text.split('.').enumerate() {
        // `parse` accepts a sign.
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        *numbers.get_mut(at)? = number?;
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_read_as_by_helm() {
        // helm 4.1 lists the entries of an index with these versions, but for the `V`, and skips those below.
        for (text, expected) in [
            ("0.1", "0.1.0"),
            ("1", "1.0.0"),
            ("v1", "1.0.0"),
            ("20240105", "20240105.0.0"),
            ("2024.01.05", "2024.1.5"),
            ("01.2.3", "1.2.3"),
            ("V1.1.10", "1.1.10"),
            ("1.2-rc.1+b-2", "1.2.0-rc.1+b-2"),
            ("2024-09-22", "2024.0.0-09-22"),
            ("1+up.01", "1.0.0+up.01"),
        ] {
            assert_eq!(loose_version(text).map(|version| version.to_string()).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "v",
            "latest",
            "1.2.3.4",
            "1..2",
            "1.",
            ".1",
            "+1",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-01",
            "1.2.3+a_b",
            "vv1",
            "1.-2",
            "99999999999999999999",
            "1 ",
            "١",
        ] {
            assert_eq!(loose_version(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_version_of_semver_is_read_as_it_is(text in "v?[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}(-[0-9a-z.-]{1,5})?(\\+[0-9a-z.-]{1,5})?") {
            if let Some(version) = crate::parse_version(&text) {
                prop_assert_eq!(loose_version(&text), Some(version));
            }
        }
    }
}
