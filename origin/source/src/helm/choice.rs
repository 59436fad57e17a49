//! Which version of a chart is followed. Pure.

use jiff::Timestamp;
use reqwest::Url;
use semver::Version;
use weir_protocol::digest::Sha256;
use weir_upstream::{is_canonical, loose_version};

use super::chart::{Chart, MAX_VERSION_BYTES};
use super::registry::ChartTag;
use crate::LeftOutRef;
use crate::passed_over::PassedOver;

/// The longest URL of a chart, in bytes.
const MAX_URL_BYTES: usize = 4096;

/// An entry of an index as it is written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) version: Option<String>,
    pub(super) digest: Option<String>,
    pub(super) created: Option<String>,
    /// The first of its URLs.
    pub(super) url: Option<String>,
    /// Whether one of these is there twice.
    pub(super) is_unclear: bool,
}

/// An entry that cannot be followed.
#[derive(Debug, Default)]
pub(super) struct Unusable {
    version: Option<String>,
    /// The end of a sentence.
    reason: &'static str,
}

/// The version of a chart that a service follows, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Release {
    /// As the index writes it.
    pub(crate) version: String,
    /// The digest, if the index has one.
    pub(crate) sha256: Option<Sha256>,
    pub(crate) at: Place,
    /// What seems to be a higher version.
    pub(crate) passed_over: Vec<LeftOutRef>,
}

/// Where an archive is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Url(Url),
    Registry(ChartTag),
}

/// What an index has of a followed chart: the best version so far, and what explains that there is none.
#[derive(Debug, Clone, Default)]
pub(super) struct Versions {
    entries: u64,
    unusable: u64,
    passed_over: PassedOver,
    highest: Option<Version>,
    best: Option<Entry>,
    /// Whether the version of the best entry is there with another digest, too.
    is_ambiguous: bool,
}

/// An entry with a version. What else is wrong with it counts only if it is chosen: no lower version takes its place.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    version: Version,
    text: String,
    digest: Digest,
    created: Option<Timestamp>,
    url: Option<String>,
}

/// The digest of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digest {
    /// Some servers write none, or an empty one.
    None,
    Sha256(Sha256),
    Unusable,
}

impl Digest {
    fn parse(written: Option<&str>) -> Self {
        let Some(text) = written.filter(|text| !text.is_empty()) else { return Self::None };
        let hex = text.strip_prefix("sha256:").unwrap_or(text);
        hex.to_ascii_lowercase().parse().map_or(Self::Unusable, Self::Sha256)
    }
}

impl Entry {
    /// Reads an entry. Without a version it cannot be used.
    pub(super) fn parse(written: Written) -> Result<Self, Unusable> {
        let Written { version: Some(text), digest, created, url, is_unclear } = written else {
            return Err(Unusable::default());
        };
        let unusable = |text, reason| Err(Unusable { version: Some(text), reason });
        if is_unclear {
            return unusable(text, "has a key twice in the index");
        }
        if text.len() > MAX_VERSION_BYTES {
            return unusable(text, "is longer than 120 bytes");
        }
        let Some(version) = loose_version(&text) else { return unusable(text, "is not a version as helm reads it") };
        let url = url.filter(|url| (1..=MAX_URL_BYTES).contains(&url.len()));
        let created = created.and_then(|time| time.parse().ok());
        Ok(Self { version, text, digest: Digest::parse(digest.as_deref()), created, url })
    }

    /// Whether it is followed rather than `other`. Of equal versions `created` decides only last: `helm repo index` changes
    /// it for all entries. Then a version of three numbers without `v` wins, and then the one that comes first.
    fn precedes(&self, other: &Self) -> bool {
        let key = |entry: &Self| (entry.created, is_canonical(&entry.text));
        self.version.cmp(&other.version).then_with(|| key(self).cmp(&key(other))).is_gt()
    }
}

impl Versions {
    /// Takes the next entry of the chart.
    pub(super) fn add(&mut self, chart: &Chart, entry: &Result<Entry, Unusable>) {
        self.entries += 1;
        let entry = match entry {
            Ok(entry) => entry,
            Err(Unusable { version, reason }) => {
                self.unusable += 1;
                self.passed_over.add(version.as_deref().unwrap_or_default(), reason, |version| chart.contains(version));
                return;
            }
        };
        if self.highest.as_ref().is_none_or(|highest| *highest < entry.version) {
            self.highest = Some(entry.version.clone());
        }
        if !chart.contains(&entry.version) {
            return;
        }
        let same = self.best.as_ref().filter(|best| best.version == entry.version);
        let differs = same.is_some_and(|best| best.digest != entry.digest);
        if self.best.as_ref().is_none_or(|best| entry.precedes(best)) {
            self.is_ambiguous &= same.is_some();
            self.best = Some(entry.clone());
        }
        self.is_ambiguous |= differs;
    }

    /// The version to follow. URLs are relative to the index.
    ///
    /// # Errors
    /// There is none, with the reason for operators.
    pub(super) fn choose(&self, chart: &Chart, index: &Url) -> Result<Release, String> {
        let Some(best) = &self.best else { return Err(self.none(chart)) };
        let (name, version) = (&chart.name, &best.text);
        let wrong = |why: &str| format!("chart `{name}` {version} has a URL in the index that {why}");
        let sha256 = match best.digest {
            Digest::None => None,
            Digest::Sha256(sha256) => Some(sha256),
            Digest::Unusable => {
                return Err(format!(
                    "chart `{name}` {version} has a digest in the index that is not SHA-256: repair the index"
                ));
            }
        };
        let release = |at| {
            let passed_over = self.passed_over.above(&best.version, &format!("chart `{name}`"));
            Ok(Release { version: version.clone(), sha256, at, passed_over })
        };
        let Some(url) = &best.url else {
            let most = MAX_URL_BYTES;
            return Err(format!(
                "chart `{name}` {version} has no URL of 1 to {most} bytes in the index: repair the index"
            ));
        };
        if url.starts_with("oci://") {
            let tag =
                ChartTag::parse(url, version, sha256).map_err(|reason| wrong(&format!("is invalid: {reason}")))?;
            return release(Place::Registry(tag));
        }
        let url = index.join(url).map_err(|_| wrong("is invalid: repair the index"))?;
        match (index.scheme(), url.scheme()) {
            (_, "https") | ("http", "http") => {}
            (_, "http") => return Err(wrong("leads from https to http: repair the index")),
            _ => {
                return Err(wrong(
                    "begins neither with `https://` nor with `http://` nor with `oci://`: repair the index",
                ));
            }
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("contains a user name or a password: repair the index"));
        }
        release(Place::Url(url))
    }

    /// Whether the chosen version is in the index with several digests.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    pub(super) fn unusable(&self) -> u64 {
        self.unusable
    }

    fn none(&self, chart: &Chart) -> String {
        let Self { entries, unusable, .. } = self;
        let name = &chart.name;
        if *entries == 0 {
            return format!("the index has no chart `{name}`: check `chart` of the service");
        }
        let versions = if *entries == 1 { "1 version".to_owned() } else { format!("{entries} versions") };
        let unusable = if *unusable == 0 { String::new() } else { format!(", of which {unusable} are unusable") };
        let highest = self.highest.as_ref().map(|version| format!("; highest `{version}`")).unwrap_or_default();
        format!("no version of chart `{name}` in `{chart}`: {versions}{unusable}{highest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entries of an index: version, digest (one hex digit for all 64), time, URL.
    type Written4 = (&'static str, &'static str, &'static str, &'static str);

    fn entry((version, digest, created, url): Written4) -> Result<Entry, Unusable> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let digest = text(&if digest.len() == 1 { digest.repeat(64) } else { digest.to_owned() });
        let (version, created, url) = (text(version), text(created), text(url));
        Entry::parse(Written { version, digest, created, url, is_unclear: false })
    }

    fn versions(wanted: &str, entries: &[Written4]) -> (Chart, Versions) {
        let chart = Chart::parse("shop".parse().unwrap(), wanted).unwrap();
        let mut versions = Versions::default();
        entries.iter().for_each(|written| versions.add(&chart, &entry(*written)));
        (chart, versions)
    }

    /// The version, the first digit of its digest, and the URL; or why there is none.
    fn chosen(wanted: &str, entries: &[Written4]) -> Result<(String, Option<String>, String), String> {
        let (chart, versions) = versions(wanted, entries);
        let index = Url::parse("https://charts.example/stable/index.yaml").unwrap();
        let release = versions.choose(&chart, &index)?;
        let digest = release.sha256.map(|sha256| sha256.to_string()[..1].to_owned());
        let at = match release.at {
            Place::Url(url) => url.to_string(),
            Place::Registry(ChartTag { registry, name, tag, .. }) => format!("{registry} {name} {tag}"),
        };
        Ok((release.version, digest, at))
    }

    fn version(wanted: &str, entries: &[Written4]) -> String {
        chosen(wanted, entries).unwrap().0
    }

    const OLD: &str = "2026-01-02T03:04:05.123456789+02:00";
    const NEW: &str = "2026-01-02T02:04:06Z";

    #[test]
    fn the_highest_version_in_the_range_is_chosen() {
        let entries: [Written4; 4] =
            [("1.9.0", "a", "", "x"), ("1.10.0", "b", "", "x"), ("2.0.0", "c", "", "x"), ("1.11.0-rc.1", "d", "", "x")];
        for (wanted, expected) in
            [("semver:^1", "1.10.0"), ("HEAD", "2.0.0"), ("semver:^1-0", "1.11.0-rc.1"), ("1.9.0", "1.9.0")]
        {
            assert_eq!(version(wanted, &entries), expected, "{wanted}");
        }
    }

    #[test]
    fn builds_compare_as_numbers_and_a_version_without_one_takes_the_highest() {
        let entries: [Written4; 3] =
            [("1.0.0+up1.0.2", "a", NEW, "x"), ("1.0.0+up1.0.10", "b", OLD, "x"), ("1.0.0", "c", NEW, "x")];
        for wanted in ["semver:^1", "1.0.0"] {
            assert_eq!(version(wanted, &entries), "1.0.0+up1.0.10", "{wanted}");
        }
        assert_eq!(version("1.0.0+up1.0.2", &entries), "1.0.0+up1.0.2");
    }

    #[test]
    fn of_equal_versions_the_latest_created_wins_then_one_without_v_then_the_first() {
        for (entries, digest) in [
            ([("1.0.0", "a", OLD, "x"), ("1.0.0", "b", NEW, "x")], "b"),
            ([("1.0.0", "a", NEW, "x"), ("1.0.0", "b", OLD, "x")], "a"),
            ([("1.0.0", "a", "yesterday", "x"), ("1.0.0", "b", OLD, "x")], "b"),
            ([("v1.0.0", "a", OLD, "x"), ("1.0.0", "b", OLD, "x")], "b"),
            ([("1.0", "a", OLD, "x"), ("1.0.0", "b", OLD, "x")], "b"),
            ([("1.0.0", "a", "", "x"), ("1.0.0", "b", "", "x")], "a"),
        ] {
            assert_eq!(chosen("HEAD", &entries).unwrap().1.as_deref(), Some(digest), "{entries:?}");
            assert!(versions("HEAD", &entries).1.is_ambiguous());
        }
        // helm/chartmuseum#450: the same version thousands of times.
        let same = versions("HEAD", &[("1.0.0", "a", OLD, "x"); 3000]).1;
        assert!(!same.is_ambiguous() && same.entries == 3000);
        let below = [("1.0.0", "a", OLD, "x"), ("1.0.0", "b", OLD, "x"), ("1.1.0", "c", OLD, "x")];
        assert!(!versions("HEAD", &below).1.is_ambiguous(), "the chosen version has one digest");
    }

    #[test]
    fn times_alone_change_no_choice() {
        // helm/helm#7363: `helm repo index` writes all of them anew.
        let before = [("1.0.0", "a", OLD, "x"), ("1.1.0", "b", NEW, "x")];
        let after = [("1.0.0", "a", NEW, "x"), ("1.1.0", "b", OLD, "x")];
        assert_eq!(chosen("HEAD", &before), chosen("HEAD", &after));
    }

    #[test]
    fn urls_are_relative_to_the_index() {
        let by_digest =
            concat!("oci://docker.io/shop@sha256:", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
        let by_both = concat!(
            "oci://docker.io/shop:1.0.0+2@sha256:",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        );
        let docker_hub = concat!(
            "https://registry-1.docker.io/ library/shop sha256:",
            "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
        );
        for (url, expected) in [
            ("shop-1.0.0.tgz", "https://charts.example/stable/shop-1.0.0.tgz"),
            ("../a/shop.tgz?x=y", "https://charts.example/a/shop.tgz?x=y"),
            ("/shop.tgz", "https://charts.example/shop.tgz"),
            ("https://charts.example:443/shop.tgz", "https://charts.example/shop.tgz"),
            ("https://github.com/x.tgz", "https://github.com/x.tgz"),
            ("oci://r.example/charts/shop:v1", "https://r.example/ charts/shop v1"),
            ("oci://r.example:5000/shop", "https://r.example:5000/ shop 1.0.0_2"),
            ("oci://r.example/charts/shop:1.0.0+2", "https://r.example/ charts/shop 1.0.0_2"),
            (by_digest, docker_hub),
            (by_both, docker_hub),
        ] {
            assert_eq!(chosen("HEAD", &[("1.0.0+2", "a", "", url)]).unwrap().2, expected);
        }
        for (url, reason) in [
            ("http://charts.example/x.tgz", "leads from https to http"),
            ("file:///etc/passwd", "begins neither with"),
            ("oci://r.example/shop:1~2", "is invalid: it has neither a tag nor a digest"),
            ("oci://r.example/shop@v1", "is invalid: it has neither a tag nor a digest"),
            ("oci://r.example/shop:v1@sha256:ab", "is invalid: it has neither a tag nor a digest"),
            ("oci://r.example/Shop", "is invalid: its path is not the name"),
            ("oci://r.example", "is invalid: it names no repository"),
            ("oci://me:secret@r.example/shop", "is invalid: it"),
            ("oci://r.example/shop?token=secret", "is invalid: it"),
            ("https://me:secret@charts.example/x.tgz", "contains a user name"),
            ("https://[", "is invalid"),
        ] {
            let error = chosen("HEAD", &[("1.0.0", "a", "", url)]).unwrap_err();
            assert!(error.starts_with("chart `shop` 1.0.0 has a URL in the index that "), "{error}");
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn no_lower_version_takes_the_place_of_one_that_is_wrong() {
        let good = ("1.9.0", "a", "", "x");
        for (bad, reason) in [
            (("2.0.0", "short", "", "x"), "has a digest in the index that is not SHA-256"),
            (("2.0.0", "a", "", ""), "has no URL"),
        ] {
            let error = chosen("HEAD", &[good, bad]).unwrap_err();
            assert!(error.starts_with("chart `shop` 2.0.0 ") && error.contains(reason), "{error}");
            assert_eq!(version("semver:^1", &[good, bad]), "1.9.0");
        }
        let prefixed = format!("sha256:{}", "AB".repeat(32)).leak();
        assert_eq!(chosen("HEAD", &[("1.0.0", prefixed, "", "x")]).unwrap().1.as_deref(), Some("a"));
    }

    #[test]
    fn a_version_that_seems_to_be_higher_and_cannot_be_followed_is_named() {
        let long = format!("2.0.0+{}", "x".repeat(120)).leak();
        let odd = ["1.9.0.1", "1.8.0.1", "latest", "2.0.0-01", long];
        let mut entries: Vec<Written4> = odd.map(|version| (version, "a", "", "x")).into();
        entries.push(("1.9.0", "a", "", "x"));
        let (chart, mut versions) = versions("HEAD", &entries);
        let twice = Written { version: Some("3.0.0".to_owned()), is_unclear: true, ..Written::default() };
        versions.add(&chart, &Entry::parse(twice));
        let release = versions.choose(&chart, &Url::parse("https://charts.example").unwrap()).unwrap();
        assert_eq!(release.version, "1.9.0");
        let reasons: Vec<_> = release.passed_over.iter().map(|each| &*each.failure.reason).collect();
        let [twice, long, odd] = reasons[..] else { panic!("{reasons:?}") };
        assert_eq!(twice, "chart `shop` `3.0.0` has a key twice in the index: a lower version is followed");
        assert!(long.ends_with("` is longer than 120 bytes: a lower version is followed") && long.len() < 140);
        assert_eq!(odd, "chart `shop` `1.9.0.1` is not a version as helm reads it: a lower version is followed");
    }

    #[test]
    fn unusable_entries_are_counted_and_named_only_if_nothing_is_left() {
        let long = format!("1.0.0-{}", "x".repeat(120)).leak();
        let entries: [Written4; 6] = [
            ("", "a", "", "x"),
            ("1.0.0.0", "a", "", "x"),
            ("latest", "a", "", "x"),
            (long, "a", "", "x"),
            ("0.9.0", "A", "", "x"),
            ("0.8.0", "", "", "x"),
        ];
        assert_eq!(version("HEAD", &entries), "0.9.0");
        assert_eq!(chosen("0.8.0", &entries).unwrap().1, None, "an index without digests");
        let error = chosen("semver:^1", &entries).unwrap_err();
        let expected =
            "no version of chart `shop` in `semver:^1`: 6 versions, of which 4 are unusable; highest `0.9.0`";
        assert_eq!(error, expected);
        let one = chosen("2.0.0", &entries[4..5]).unwrap_err();
        assert_eq!(one, "no version of chart `shop` in `2.0.0`: 1 version; highest `0.9.0`");
        assert!(chosen("HEAD", &[]).unwrap_err().contains("the index has no chart `shop`"));
    }
}
