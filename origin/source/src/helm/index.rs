//! Reads the index of a Helm repository as a stream. Charts that no service follows are skipped, and of the others only the
//! chosen versions are kept, so an index of any size takes little memory.

use std::io::Read;

use jiff::Timestamp;

use super::chart::Chart;
use super::choice::{Entry, Unusable, Versions, Written};
use super::yaml::{Node, Yaml};

/// The most versions of the followed charts together.
const MAX_ENTRIES: u64 = 1_000_000;

/// Reads an index. Returns what it has of each of the charts, and when it was made, if it says so. An entry that cannot be used stops no other one.
///
/// # Errors
/// It is not an index, or not complete: nothing of it may be used. The reason begins with the line.
pub(super) fn read(input: impl Read, charts: &[Chart]) -> Result<(Vec<Versions>, Option<Timestamp>), String> {
    let charts = charts.iter().map(|chart| (chart, None)).collect();
    let mut reader = Reader { yaml: Yaml::open(input)?, charts, entries: 0, generated: None };
    reader.document()?;
    let Reader { mut yaml, charts, generated, .. } = reader;
    // helm reads no more than the first document either.
    yaml.finish_document()?;
    Ok((charts.into_iter().map(|(_, versions)| versions.unwrap_or_default()).collect(), generated))
}

struct Reader<'a, R: Read> {
    yaml: Yaml<R>,
    /// The followed charts, with what the index has of them. Several services may follow one chart.
    charts: Vec<(&'a Chart, Option<Versions>)>,
    entries: u64,
    generated: Option<Timestamp>,
}

impl<R: Read> Reader<'_, R> {
    fn document(&mut self) -> Result<(), String> {
        let mut is_found = false;
        if self.yaml.node()? == Node::Map {
            while let Some(key) = self.key()? {
                let value = self.yaml.node()?;
                if key.as_deref() != Some("entries") {
                    if let (Some("generated"), Node::Text(text)) = (key.as_deref(), &value) {
                        self.generated = text.parse().ok();
                    }
                    self.yaml.skip(&value)?;
                } else if std::mem::replace(&mut is_found, true) {
                    return Err(self.yaml.wrong("it has `entries` twice"));
                } else {
                    self.entries(&value)?;
                }
            }
        }
        let missing = "it has no `entries`, so it is not the index of a Helm repository";
        if is_found { Ok(()) } else { Err(self.yaml.wrong(missing)) }
    }

    /// Reads `entries`: a list for each chart.
    fn entries(&mut self, value: &Node) -> Result<(), String> {
        match value {
            Node::Null => return Ok(()),
            Node::Map => {}
            _ => return Err(self.yaml.wrong("`entries` is not a map of charts")),
        }
        while let Some(key) = self.key()? {
            let value = self.yaml.node()?;
            let Some(name) = key.filter(|key| self.charts.iter().any(|(chart, _)| *chart.name == **key)) else {
                self.yaml.skip(&value)?;
                continue;
            };
            for (_, versions) in self.charts.iter_mut().filter(|(chart, _)| *chart.name == *name) {
                if versions.replace(Versions::default()).is_some() {
                    return Err(self.yaml.wrong(&format!("it has the chart `{name}` twice")));
                }
            }
            self.versions(&name, &value)?;
        }
        Ok(())
    }

    /// Reads the versions of one followed chart.
    fn versions(&mut self, name: &str, value: &Node) -> Result<(), String> {
        match value {
            Node::Null => return Ok(()),
            Node::List => {}
            other => {
                self.yaml.skip(other)?;
                return self.add(name, &Err(Unusable::default()));
            }
        }
        loop {
            let entry = match self.yaml.node()? {
                Node::End => return Ok(()),
                Node::Map => Entry::parse(self.entry()?),
                other => {
                    self.yaml.skip(&other)?;
                    Err(Unusable::default())
                }
            };
            self.add(name, &entry)?;
        }
    }

    fn add(&mut self, name: &str, entry: &Result<Entry, Unusable>) -> Result<(), String> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(self.yaml.wrong(&format!("it has more than {MAX_ENTRIES} versions of the followed charts")));
        }
        for (chart, versions) in self.charts.iter_mut().filter(|(chart, _)| *chart.name == *name) {
            versions.get_or_insert_default().add(chart, entry);
        }
        Ok(())
    }

    /// Reads a version.
    fn entry(&mut self) -> Result<Written, String> {
        let mut written = Written::default();
        while let Some(key) = self.key()? {
            let value = self.yaml.node()?;
            let field = match key.as_deref() {
                Some("version") => &mut written.version,
                Some("digest") => &mut written.digest,
                Some("created") => &mut written.created,
                Some("urls") => &mut written.url,
                _ => {
                    self.yaml.skip(&value)?;
                    continue;
                }
            };
            let is_urls = key.as_deref() == Some("urls");
            let text = match value {
                // The first URL is the one that Helm and Flux use.
                Node::List if is_urls => {
                    let first = self.yaml.node()?;
                    self.yaml.skip(&first)?;
                    if first != Node::End {
                        self.yaml.skip(&Node::List)?;
                    }
                    text(first)
                }
                Node::Text(text) if !is_urls => Some(text),
                other => {
                    self.yaml.skip(&other)?;
                    None
                }
            };
            let is_twice = text.is_some() && field.is_some();
            *field = text;
            written.is_unclear |= is_twice;
        }
        Ok(written)
    }

    /// The next key of a map; inside, `None` if it is not text. `None`: the map ends.
    #[expect(clippy::option_option, reason = "a key that is not text has a value to skip")]
    fn key(&mut self) -> Result<Option<Option<String>>, String> {
        let node = self.yaml.node()?;
        if node == Node::End {
            return Ok(None);
        }
        self.yaml.skip(&node)?;
        Ok(Some(text(node)))
    }
}

fn text(node: Node) -> Option<String> {
    if let Node::Text(text) = node { Some(text) } else { None }
}

/// For the fuzzer: what is chosen of any index can be named, and is in its range.
#[cfg(feature = "fuzzing")]
pub fn fuzz_helm_index(bytes: &[u8]) {
    use super::choice::Place;
    use super::registry::ChartTag;

    if let Ok(config) = super::metadata::config(bytes) {
        assert!(serde_json::from_slice::<serde_json::Value>(&config).is_ok_and(|config| config.is_object()));
    }
    let name = |name: &str| name.parse().expect("a valid name");
    let charts = [("shop", "semver:^1"), ("shop", "HEAD"), ("redis", "18.1.6")];
    let charts = charts.map(|(chart, wanted)| Chart::parse(name(chart), wanted).expect("a valid ref"));
    let Ok((found, _)) = read(bytes, &charts) else { return };
    let index = reqwest::Url::parse("https://charts.example/index.yaml").expect("a valid URL");
    for (chart, versions) in charts.iter().zip(found) {
        let Ok(release) = versions.choose(chart, &index) else { continue };
        let version = weir_upstream::loose_version(&release.version).expect("a chosen version");
        assert!(chart.contains(&version), "{version} is not in {chart}");
        let sha256 = release.sha256.unwrap_or(weir_protocol::digest::Sha256::of(b""));
        let id = format!("helm:{}+sha256:{sha256}", release.version);
        assert!(id.parse::<weir_protocol::revision_id::RevisionId>().is_ok(), "{id}");
        match release.at {
            Place::Url(url) | Place::Registry(ChartTag { registry: url, .. }) => {
                assert_eq!(url.scheme(), "https", "{url}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::super::choice::Place;
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
        let (found, _) = read(text.as_bytes(), &charts)?;
        let chosen = |(chart, versions): (&Chart, &Versions)| {
            let release = versions.choose(chart, &index)?;
            let digest = release.sha256.map(|sha256| format!(" {sha256}")).unwrap_or_default();
            let Place::Url(url) = release.at else { panic!("{release:?}") };
            Ok(format!("{} {url}{digest}", release.version))
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
            Err("no version of chart `shop` in `semver:^2`: 3 versions, of which 1 are unusable; highest `1.0.0`"
                .into()),
            Err("the index has no chart `db`: check `chart` of the service".into()),
        ];
        assert_eq!(chosen.unwrap(), expected);
    }

    #[test]
    fn versions_that_helm_follows_are_followed() {
        for version in ["0.1", "1", "v1", "20240105", "2024.01.05", "01.2.3"] {
            let entries = format!("[{{version: 0.0.1, urls: [old.tgz]}}, {{version: {version}, urls: [new.tgz]}}]");
            let chosen = choose(&format!("entries: {{shop: {entries}}}"), &[("shop", "HEAD")]).unwrap();
            assert_eq!(chosen, [Ok(format!("{version} https://charts.example/new.tgz"))]);
        }
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
    fn only_the_first_document_counts_as_for_helm() {
        let index = "entries: {shop: [{version: 1.0.0, urls: [a.tgz]}]}\n";
        for end in ["---\n", "...\n", "---\nentries: {shop: [{version: 2.0.0, urls: [b.tgz]}]}\n", "---\n{ ]\n"] {
            let chosen = choose(&format!("---\n{index}{end}"), &[("shop", "HEAD")]).unwrap();
            assert_eq!(chosen[0].as_deref(), Ok("1.0.0 https://charts.example/a.tgz"), "{end}");
        }
    }

    #[test]
    fn what_is_no_complete_index_is_refused_as_a_whole() {
        let cut = &INDEX[..INDEX.len() - 60];
        let twice = INDEX.replace("  shop:\n", "  redis:\n");
        for (text, reason) in [
            ("<!DOCTYPE html>\n<html><body>Sign in</body></html>", "line "),
            ("", "it is empty"),
            ("apiVersion: v1\n", "it has no `entries`"),
            ("{\"message\": \"Not found\"}", "it has no `entries`"),
            (&format!("{cut}  shop: [{{version: \"1.0"), "line "),
            (&twice, "it has the chart `redis` twice"),
            ("entries: {}\nentries: {}\n", "line 2: it has `entries` twice"),
            ("entries: 7", "`entries` is not a map"),
            ("entries: {}\n}\n", "line "),
            ("--- \n---\nentries: {}\n", "it has no `entries`"),
        ] {
            let error = choose(text, &[("shop", "HEAD"), ("redis", "HEAD")]).unwrap_err();
            assert!(error.contains(reason) && error.len() < 400, "{reason}: {error}");
        }
    }

    #[test]
    fn an_entry_that_cannot_be_used_stops_no_other() {
        for unusable in [
            "7",
            "[]",
            "~",
            "*x",
            "{version: [1.1.0]}",
            "{version: {a: b}}",
            "{version: 1.1.0, version: 1.2.0, urls: [x.tgz]}",
            "{<<: *x}",
            "{? [complex, {key: 1}] : x}",
        ] {
            let text = format!(
                "appVersion: 12e4567\nx: &x {{a: [.inf, *y]}}\nentries:\n  db: [12e4567, {{? {{}} : [1]}}]\n  shop:\n  - \
                 {unusable}\n  - {{version: 1.0.0, urls: [shop.tgz, [other]], appVersion: 12e4567, created: {{}}}}\n"
            );
            let text = text.replace("*y", "y");
            let chosen = choose(&text, &[("shop", "HEAD"), ("shop", "semver:^9")]).unwrap();
            assert_eq!(chosen[0].as_deref(), Ok("1.0.0 https://charts.example/shop.tgz"), "{unusable}");
        }
        for list in ["7", "{}", "*x"] {
            let text = format!("x: &x []\nentries: {{shop: {list}, redis: [{{version: 1.0.0, urls: [a.tgz]}}]}}\n");
            let chosen = choose(&text, &[("shop", "HEAD"), ("redis", "HEAD")]).unwrap();
            assert!(chosen[0].as_ref().unwrap_err().contains("1 are unusable") && chosen[1].is_ok(), "{chosen:?}");
        }
    }

    #[test]
    fn an_index_as_large_as_real_ones_is_read() {
        let entry = |n: u32| {
            format!("  - {{name: shop, version: 1.{n}.0, urls: [shop-{n}.tgz], keywords: [{}]}}\n", "cache,".repeat(40))
        };
        let generated = "2026-05-01T10:00:00.123456789+02:00";
        let index = format!(
            "apiVersion: v1\ngenerated: {generated:?}\nentries:\n  shop:\n{}",
            (0..20_000).map(entry).collect::<String>()
        );
        let (found, made_at) = read(index.as_bytes(), &charts(&[("shop", "HEAD")])).unwrap();
        let index = Url::parse("https://charts.example/index.yaml").unwrap();
        assert_eq!(found[0].choose(&charts(&[("shop", "HEAD")])[0], &index).unwrap().version, "1.19999.0");
        assert_eq!(made_at.map(|at| at.to_string()).as_deref(), Some("2026-05-01T08:00:00.123456789Z"));
    }
}
