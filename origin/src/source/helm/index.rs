//! Reads the index of a Helm repository as a stream. Charts that no service follows are skipped, and of the others only the
//! chosen versions are kept, so an index of any size takes little memory.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use serde_saphyr::{MessageFormatter, UserMessageFormatter};

use super::chart::Chart;
use super::choice::{Entry, Versions, Written};

/// The most events and nodes of an index. The library's own limits are below those of real ones.
const MAX_NODES: usize = 20_000_000;

/// The most events that aliases may repeat. `helm repo index` writes none.
const MAX_REPEATED: usize = 100_000;

/// The longest reason, in bytes: it may have text of the index.
const MAX_REASON_BYTES: usize = 300;

/// Reads an index. Returns what it has of each of the charts.
///
/// # Errors
/// It is not an index, or not complete: nothing of it may be used. The reason begins with the line.
pub(super) fn read(input: impl Read, charts: &[Chart], max_bytes: u64) -> Result<Vec<Versions>, String> {
    let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: MAX_NODES,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: max_bytes,
            max_recorded_anchor_events: MAX_REPEATED,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
        with_snippet: false,
    };
    let read = serde_saphyr::with_deserializer_from_reader_with_options(input, options, |deserializer| {
        Followed { charts }.deserialize(deserializer)
    });
    read.map_err(|error| describe(&error))
}

/// `line 7: the reason`.
fn describe(error: &serde_saphyr::Error) -> String {
    let text = UserMessageFormatter.format_message(error.without_snippet());
    let line = text.lines().next().unwrap_or_default();
    let line: String = line.chars().filter(|c| !c.is_control()).take(MAX_REASON_BYTES).collect();
    match error.location() {
        Some(location) => format!("line {}: {line}", location.line()),
        None => line,
    }
}

/// Reads the whole document.
struct Followed<'a> {
    charts: &'a [Chart],
}

impl<'de> DeserializeSeed<'de> for Followed<'_> {
    type Value = Vec<Versions>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Followed<'_> {
    type Value = Vec<Versions>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index of a Helm repository")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "entries" {
                found = Some(map.next_value_seed(Charts { charts: self.charts })?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        found.ok_or_else(|| A::Error::custom("it has no `entries`, so it is not the index of a Helm repository"))
    }
}

/// Reads `entries`: a list for each chart.
struct Charts<'a> {
    charts: &'a [Chart],
}

impl<'de> DeserializeSeed<'de> for Charts<'_> {
    type Value = Vec<Versions>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Charts<'_> {
    type Value = Vec<Versions>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of charts")
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(vec![Versions::default(); self.charts.len()])
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        self.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut versions = vec![Versions::default(); self.charts.len()];
        while let Some(name) = map.next_key::<String>()? {
            if self.charts.iter().any(|chart| *chart.name == *name) {
                map.next_value_seed(Entries { name: &name, charts: self.charts, versions: &mut versions })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(versions)
    }
}

/// Reads the versions of one followed chart.
struct Entries<'a> {
    name: &'a str,
    charts: &'a [Chart],
    versions: &'a mut [Versions],
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of versions")
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(entry) = entries.next_element::<Option<IndexEntry>>()? {
            let entry = entry.and_then(|entry| Entry::parse(entry.into()));
            for (chart, versions) in self.charts.iter().zip(&mut *self.versions) {
                if *chart.name == *self.name {
                    versions.add(chart, entry.as_ref());
                }
            }
        }
        Ok(())
    }
}

/// The keys of an entry that are read.
#[derive(Deserialize)]
struct IndexEntry {
    version: Option<String>,
    digest: Option<String>,
    created: Option<String>,
    urls: Option<FirstUrl>,
}

impl From<IndexEntry> for Written {
    fn from(entry: IndexEntry) -> Self {
        let IndexEntry { version, digest, created, urls } = entry;
        Self { version, digest, created, url: urls.and_then(|urls| urls.0) }
    }
}

/// The first of a list of URLs, which is the one that Helm and Flux use.
struct FirstUrl(Option<String>);

impl<'de> Deserialize<'de> for FirstUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct First;
        impl<'de> Visitor<'de> for First {
            type Value = FirstUrl;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of URLs")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut urls: A) -> Result<FirstUrl, A::Error> {
                let first = urls.next_element::<Option<String>>()?.flatten();
                while urls.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstUrl(first))
            }
        }
        deserializer.deserialize_seq(First)
    }
}

/// For the fuzzer: what is chosen of any index can be named, and is in its range.
#[cfg(feature = "fuzzing")]
pub fn fuzz_helm_index(bytes: &[u8]) {
    let name = |name: &str| name.parse().expect("a valid name");
    let charts = [("shop", "semver:^1"), ("shop", "HEAD"), ("redis", "18.1.6")];
    let charts = charts.map(|(chart, wanted)| Chart::parse(name(chart), wanted).expect("a valid ref"));
    let Ok(found) = read(bytes, &charts, 1 << 20) else { return };
    let index = reqwest::Url::parse("https://charts.example/index.yaml").expect("a valid URL");
    for (chart, versions) in charts.iter().zip(found) {
        let Ok(release) = versions.choose(chart, &index) else { continue };
        let version = super::super::range::parse_version(&release.version).expect("a chosen version");
        assert!(chart.contains(&version), "{version} is not in {chart}");
        let sha256 = release.sha256.unwrap_or(weir_protocol::digest::Sha256::of(b""));
        let id = format!("helm:{}+sha256:{sha256}", release.version);
        assert!(id.parse::<weir_protocol::revision_id::RevisionId>().is_ok(), "{id}");
        assert_eq!(release.url.scheme(), "https", "{}", release.url);
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::*;

    /// As `helm repo index` writes it.
    const INDEX: &str = r#"apiVersion: v1
entries:
  redis:
  - apiVersion: v2
    created: "2026-01-02T03:04:05.123456789+02:00"
    description: 'A chart: with a colon'
    digest: 0000000000000000000000000000000000000000000000000000000000000e10
    maintainers:
    - name: somebody
    name: redis
    urls:
    - https://charts.example/redis-18.1.6.tgz
    - https://mirror.example/redis-18.1.6.tgz
    version: 18.1.6
  shop:
  - name: shop
    urls: [shop-1.0.0.tgz]
    version: 1.0.0
  -
  - name: shop
    urls:
    version: 1.0
generated: "2026-01-02T03:04:05.123456789+02:00"
"#;

    fn charts(wanted: &[(&str, &str)]) -> Vec<Chart> {
        wanted.iter().map(|(name, wanted)| Chart::parse(name.parse().unwrap(), wanted).unwrap()).collect()
    }

    fn choose(text: &str, wanted: &[(&str, &str)]) -> Result<Vec<Result<String, String>>, String> {
        let (charts, index) = (charts(wanted), Url::parse("https://charts.example/index.yaml").unwrap());
        let found = read(text.as_bytes(), &charts, 1 << 20)?;
        let chosen = |(chart, versions): (&Chart, &Versions)| {
            let release = versions.choose(chart, &index)?;
            let digest = release.sha256.map(|sha256| format!(" {sha256}")).unwrap_or_default();
            Ok(format!("{} {}{digest}", release.version, release.url))
        };
        Ok(charts.iter().zip(&found).map(chosen).collect())
    }

    #[test]
    fn the_index_of_helm_is_read() {
        let chosen = choose(INDEX, &[("redis", "HEAD"), ("shop", "1.0.0"), ("shop", "semver:^2"), ("db", "HEAD")]);
        let digits = format!("{}e10", "0".repeat(61));
        let expected = vec![
            Ok(format!("18.1.6 https://charts.example/redis-18.1.6.tgz {digits}")),
            Ok("1.0.0 https://charts.example/shop-1.0.0.tgz".to_owned()),
            Err("no version of chart `shop` in `semver:^2`: 3 versions, of which 2 are unusable; highest `1.0.0`"
                .into()),
            Err("the index has no chart `db`: check `chart` of the service".into()),
        ];
        assert_eq!(chosen.unwrap(), expected);
    }

    #[test]
    fn an_index_may_be_json_or_empty() {
        let json = r#"{"apiVersion":"v1","entries":{"shop":[{"version":"1.0.0","urls":["https://x.example/a.tgz"]}],"db":null}}"#;
        let chosen = choose(json, &[("shop", "HEAD"), ("db", "HEAD")]).unwrap();
        assert_eq!(chosen[0].as_deref(), Ok("1.0.0 https://x.example/a.tgz"));
        for text in ["entries: {}", "entries:\n", "entries: {shop: []}", "\u{feff}entries: {}\n"] {
            assert!(
                choose(text, &[("shop", "HEAD")]).unwrap()[0].as_ref().unwrap_err().contains("no chart"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_is_no_complete_index_is_refused_as_a_whole() {
        let cut = &INDEX[..INDEX.len() - 60];
        let twice = INDEX.replace("  shop:\n", "  redis:\n");
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned()
            + &('b'..='j')
                .map(|c| format!("{c}: &{c} [{}]\n", vec![format!("*{}", (c as u8 - 1) as char); 9].join(",")))
                .collect::<String>()
            + "entries: {shop: *j}\n";
        let deep = format!("entries: {}", "[".repeat(5000));
        for (text, reason) in [
            ("<!DOCTYPE html>\n<html><body>Sign in</body></html>", ""),
            ("", ""),
            ("apiVersion: v1\n", "it has no `entries`"),
            ("{\"message\": \"Not found\"}", "it has no `entries`"),
            (&format!("{cut}  shop: [{{version: \"1.0"), "line "),
            (&twice, "line 15: duplicate mapping key `redis` is not allowed here"),
            (&bomb, "line "),
            (&deep, "line "),
            ("entries: {shop: 7}", "line 1: "),
            ("entries: {shop: [{version: [1]}]}", "line 1: "),
        ] {
            let error = choose(text, &[("shop", "HEAD")]).unwrap_err();
            assert!(error.contains(reason) && error.len() < 400, "{reason}: {error}");
        }
    }

    #[test]
    fn an_index_as_large_as_real_ones_is_read() {
        let entry = |n: u32| {
            format!("  - {{name: shop, version: 1.{n}.0, urls: [shop-{n}.tgz], keywords: [{}]}}\n", "a,".repeat(40))
        };
        let index = format!("entries:\n  shop:\n{}", (0..20_000).map(entry).collect::<String>());
        let found = read(index.as_bytes(), &charts(&[("shop", "HEAD")]), 50 << 20).unwrap();
        let index = Url::parse("https://charts.example/index.yaml").unwrap();
        assert_eq!(found[0].choose(&charts(&[("shop", "HEAD")])[0], &index).unwrap().version, "1.19999.0");
    }
}
