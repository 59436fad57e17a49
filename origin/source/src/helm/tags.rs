//! Which tag of a chart in a registry is followed. Pure.

use std::collections::HashSet;

use semver::Version;
use weir_upstream::{is_canonical, parse_version};

use super::chart::{Chart, MAX_VERSION_BYTES};
use crate::LeftOutRef;
use crate::passed_over::PassedOver;

/// The followed tags, each with the version as the chart has it, and the tags that seem to be higher.
type Choice<'a> = (Vec<(String, &'a str)>, Vec<LeftOutRef>);

/// The tags of the followed version: the highest one, with the highest build. Images may have the same version, mostly with
/// `v`, so tags as `helm push` writes them come first.
///
/// # Errors
/// There is none, with the reason for operators.
pub(super) fn choose<'a>(chart: &Chart, tags: &'a [String]) -> Result<Choice<'a>, String> {
    let mut followed: Vec<(Version, String, &str)> = Vec::new();
    let (mut highest, mut passed_over) = (None, PassedOver::default());
    for tag in tags {
        // A tag has no `+`, so helm writes `_`.
        let text = tag.replace('_', "+");
        let Some(version) = parse_version(&text).filter(|_| text.len() <= MAX_VERSION_BYTES) else {
            passed_over.add(tag, "is not a version as helm reads it", |version| chart.contains(version));
            continue;
        };
        if chart.contains(&version) && followed.first().is_none_or(|(best, ..)| *best <= version) {
            if followed.first().is_some_and(|(best, ..)| *best < version) {
                followed.clear();
            }
            followed.push((version.clone(), text, tag));
        }
        highest = highest.max(Some(version));
    }
    let Some((best, ..)) = followed.first() else {
        let (name, tags) =
            (&chart.name, if tags.len() == 1 { "1 tag".to_owned() } else { format!("{} tags", tags.len()) });
        let highest = highest.map(|version| format!("; highest version `{version}`")).unwrap_or_default();
        return Err(format!("no version of chart `{name}` in `{chart}`: {tags}{highest}"));
    };
    let passed_over = passed_over.above(best, &format!("chart `{}`", chart.name));
    followed.sort_by_cached_key(|(_, text, _)| !is_canonical(text));
    let mut seen = HashSet::new();
    let once = followed.into_iter().filter(|(.., tag)| seen.insert(*tag));
    Ok((once.map(|(_, text, tag)| (text, tag)).collect(), passed_over))
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
            let (chosen, _) = choose(&Chart::parse("shop".parse().unwrap(), wanted).unwrap(), &tags)?;
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
        let chosen: Vec<_> = choose(&chart, &tags).unwrap().0.into_iter().map(|(_, tag)| tag).collect();
        assert_eq!(chosen, ["1.0.0", "v1.0.0"]);
    }

    #[test]
    fn of_equal_versions_the_one_without_v_comes_first() {
        let tags: Vec<String> = ["v1.5.1", "1.5.0", "1.5.1"].map(str::to_owned).into();
        let chart = Chart::parse("shop".parse().unwrap(), "HEAD").unwrap();
        let (chosen, _) = choose(&chart, &tags).unwrap();
        assert_eq!(chosen.iter().map(|(_, tag)| *tag).collect::<Vec<_>>(), ["1.5.1", "v1.5.1"]);
    }

    #[test]
    fn a_tag_of_three_numbers_is_a_version_and_others_are_named() {
        let tags: Vec<String> =
            ["0.0.1", "v0.1", "0.1", "2024.01", "4711815", "0.1.0.1", "latest"].map(str::to_owned).into();
        let chart = Chart::parse("shop".parse().unwrap(), "HEAD").unwrap();
        let (chosen, passed_over) = choose(&chart, &tags).unwrap();
        assert_eq!(chosen.iter().map(|(_, tag)| *tag).collect::<Vec<_>>(), ["0.0.1"]);
        let named = ["2024.01", "0.1.0.1", "v0.1"].map(|tag| format!("chart `shop` `{tag}`"));
        assert_eq!(passed_over.iter().map(|each| &*each.name).collect::<Vec<_>>(), named);
    }
}
