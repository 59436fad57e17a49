//! Which tag of a chart in a registry is followed. Pure.

use semver::Version;
use weir_upstream::parse_version;

use super::chart::{Chart, MAX_VERSION_BYTES};

/// The tags of the followed version, each with the version as the chart has it: the highest one, with the highest build.
/// Images may have the same version, mostly with `v`, so tags without come first.
///
/// # Errors
/// There is none, with the reason for operators.
pub(super) fn choose<'a>(chart: &Chart, tags: &'a [String]) -> Result<Vec<(String, &'a str)>, String> {
    let mut followed: Vec<(Version, String, &str)> = Vec::new();
    let mut highest = None;
    for tag in tags {
        // A tag has no `+`, so helm writes `_`.
        let text = tag.replace('_', "+");
        let Some(version) = parse_version(&text).filter(|_| text.len() <= MAX_VERSION_BYTES) else { continue };
        // A list may name a tag twice, and each costs a request.
        let is_listed = followed.iter().any(|(.., known)| known == tag);
        if chart.contains(&version) && !is_listed && followed.first().is_none_or(|(best, ..)| *best <= version) {
            followed.retain(|(best, ..)| *best == version);
            followed.push((version.clone(), text, tag));
        }
        highest = highest.max(Some(version));
    }
    if followed.is_empty() {
        let (name, tags) =
            (&chart.name, if tags.len() == 1 { "1 tag".to_owned() } else { format!("{} tags", tags.len()) });
        let highest = highest.map(|version| format!("; highest version `{version}`")).unwrap_or_default();
        return Err(format!("no version of chart `{name}` in `{chart}`: {tags}{highest}"));
    }
    followed.sort_by_key(|(_, text, _)| text.starts_with(['v', 'V']));
    Ok(followed.into_iter().map(|(_, text, tag)| (text, tag)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_underscore_is_a_plus_and_the_highest_build_is_chosen() {
        let tags =
            ["1.0.0", "1.0.0_up1.0.2", "1.0.0_up1.0.10", "v2.0.0-rc.1", "1_0_0", "1.0", "sha256-ab.sig", "v1.0.0"];
        let tags: Vec<String> = tags.map(str::to_owned).into();
        let choose = |wanted: &str| {
            let chosen = choose(&Chart::parse("shop".parse().unwrap(), wanted).unwrap(), &tags)?;
            Ok::<_, String>(chosen.into_iter().map(|(version, tag)| format!("{version} {tag}")).collect::<Vec<_>>())
        };
        for wanted in ["HEAD", "1.0.0", "semver:^1", "1.0.0+up1.0.10"] {
            assert_eq!(choose(wanted).unwrap(), ["1.0.0+up1.0.10 1.0.0_up1.0.10"], "{wanted}");
        }
        assert_eq!(choose("1.0.0+up1.0.2").unwrap(), ["1.0.0+up1.0.2 1.0.0_up1.0.2"]);
        assert_eq!(choose("semver:>=1.0.0-0").unwrap(), ["v2.0.0-rc.1 v2.0.0-rc.1"]);
        let none = choose("semver:^3").unwrap_err();
        assert_eq!(none, "no version of chart `shop` in `semver:^3`: 8 tags; highest version `2.0.0-rc.1`");
    }

    #[test]
    fn a_tag_that_is_listed_twice_counts_once() {
        let tags: Vec<String> = ["1.0.0", "1.0.0", "v1.0.0", "1.0.0"].map(str::to_owned).into();
        let chart = Chart::parse("shop".parse().unwrap(), "HEAD").unwrap();
        let chosen: Vec<_> = choose(&chart, &tags).unwrap().into_iter().map(|(_, tag)| tag).collect();
        assert_eq!(chosen, ["1.0.0", "v1.0.0"]);
    }

    #[test]
    fn of_equal_versions_the_one_without_v_comes_first() {
        let tags: Vec<String> = ["v1.5.1", "1.5.0", "1.5.1"].map(str::to_owned).into();
        let chart = Chart::parse("shop".parse().unwrap(), "HEAD").unwrap();
        let chosen = choose(&chart, &tags).unwrap();
        assert_eq!(chosen.iter().map(|(_, tag)| *tag).collect::<Vec<_>>(), ["1.5.1", "v1.5.1"]);
    }
}
