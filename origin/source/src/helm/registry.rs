//! Charts in registries: a chart is a repository, and its versions are tags.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use reqwest::Url;
use weir_protocol::digest::Sha256;
use weir_upstream::{Address, Endpoint, OciAddress, UpstreamError, shown};

use super::super::oci::{
    Descriptor, Document, Failures, Named, OciName, Registry, RegistryError, Resolved, denied, is_reference,
    parse_digest,
};
use super::chart::Chart;
use super::tags;
use crate::LeftOutRef;

/// The media type of a chart's configuration. Images may be in the same repository.
pub(crate) const CONFIG: &str = weir_protocol::oci::CHART_CONFIG_TYPE;

/// The media types of the layers of a chart, in any order. Helm 3.6 and older wrote the second one.
pub(crate) const ARCHIVE: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
const LEGACY_ARCHIVE: &str = "application/tar+gzip";
pub(crate) const PROVENANCE: &str = "application/vnd.cncf.helm.chart.provenance.v1.prov";

/// The most characters of a media type in a message.
const MAX_SHOWN: usize = 100;

/// The charts of a registry, and what is known of them since the last poll.
#[derive(Default)]
pub(crate) struct ChartRegistry {
    /// The layers of manifests that are followed. A digest is requested once.
    known: Mutex<Manifests>,
}

type Manifests = HashMap<Sha256, Result<ChartLayers, String>>;

/// The layers of a chart, by their digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ChartLayers {
    pub(crate) archive: Sha256,
    /// Of the archive, in bytes.
    pub(crate) size: u64,
    /// What `helm push` found alongside the archive.
    pub(crate) provenance: Option<Sha256>,
}

/// The version of a chart that a service follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChartVersion {
    /// With `+`, as the chart has it.
    pub(crate) version: String,
    pub(crate) name: OciName,
    /// The digest of its manifest.
    pub(crate) manifest: Sha256,
    pub(crate) layers: ChartLayers,
    /// Tags that seem to be higher versions.
    pub(crate) passed_over: Vec<LeftOutRef>,
}

/// Why a service follows no version: the step and the reason.
pub(crate) type NoChart = (&'static str, String);

/// A version of a chart to which an index refers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ChartTag {
    pub(crate) registry: Url,
    pub(crate) name: OciName,
    /// A tag, or `sha256:` and a digest.
    pub(crate) tag: String,
    /// The digest in the index. Some servers write that of the manifest, others that of the archive.
    pub(crate) listed: Option<Sha256>,
}

impl ChartTag {
    /// Reads the URL of an entry of an index. Without a tag, it is that of the version.
    ///
    /// # Errors
    /// It is invalid, with the reason.
    pub(super) fn parse<'a>(url: &'a str, version: &'a str, listed: Option<Sha256>) -> Result<Self, &'static str> {
        let path = url.rfind('/').map_or(0, |slash| slash + 1);
        let split = |text: &'a str, separator: char| match text.get(path..).and_then(|end| end.find(separator)) {
            Some(at) => (&text[..path + at], Some(&text[path + at + 1..])),
            None => (text, None),
        };
        let (named, digest) = split(url, '@');
        let (repository, tag) = split(named, ':');
        // As helm reads it: of both, the digest counts, and a tag has no `+`.
        let tag = digest.map_or_else(|| tag.unwrap_or(version).replace('+', "_"), str::to_owned);
        if !is_reference(&tag) || digest.is_some_and(|digest| parse_digest(digest).is_none()) {
            return Err("it has neither a tag nor a digest of SHA-256");
        }
        let endpoint = Endpoint::parse(repository);
        let Address::Oci(address) = endpoint.address()? else { return Err("it is not in a registry") };
        Ok(Self { registry: address.registry(false).clone(), name: address.repository(None)?, tag, listed })
    }

    /// The layers that it has now.
    pub(crate) fn layers(&self, registry: &Registry<'_>) -> Result<ChartLayers, RegistryError> {
        let (digest, document) = match parse_digest(&self.tag) {
            Some(digest) => (digest, registry.manifest(&self.name, &digest)?),
            None => {
                let resolved = registry.manifest_by_tag(&self.name, &self.tag)?;
                (resolved.digest, resolved.document)
            }
        };
        let layers = document.and_then(|document| layers_of(&document)).map_err(RegistryError::Unusable)?;
        let archive = layers.archive;
        match self.listed.filter(|listed| ![archive, digest].contains(listed)) {
            None => Ok(layers),
            Some(listed) => Err(RegistryError::Unusable(format!(
                "has the digest `{archive}` in the registry, and its manifest `{digest}`, but the index says `{listed}`: \
                 publish it again, or repair the index"
            ))),
        }
    }
}

impl ChartRegistry {
    /// The version that each of the charts stands for. For each chart the pages of its tags and one request more.
    ///
    /// # Errors
    /// The registry cannot be used: nothing is known of any chart.
    pub(crate) fn list(
        &self,
        registry: &Registry<'_>,
        address: &OciAddress,
        charts: &[Chart],
    ) -> Result<Vec<Result<ChartVersion, NoChart>>, UpstreamError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (current, failures) = (HashMap::new(), Failures::default());
        let mut listing = Listing { registry, known: &known, current, tags: HashMap::new(), failures };
        let found = charts.iter().map(|chart| listing.find(address, chart));
        let found = found.collect::<Result<Vec<_>, UpstreamError>>()?;
        if let Some(Err((_, reason))) = found.first()
            && found.iter().all(|each| matches!(each, Err(("authenticate", _))))
        {
            return Err(UpstreamError::Authenticate(reason.clone()));
        }
        if found.iter().all(Result::is_err)
            && let Some(error) = listing.failures.first()
        {
            return Err(error);
        }
        *known = listing.current;
        Ok(found)
    }
}

/// One listing.
struct Listing<'a> {
    registry: &'a Registry<'a>,
    known: &'a Manifests,
    current: Manifests,
    /// Several services may follow one chart.
    tags: HashMap<OciName, Rc<Result<Vec<String>, NoChart>>>,
    failures: Failures,
}

impl Listing<'_> {
    fn find(&mut self, address: &OciAddress, chart: &Chart) -> Result<Result<ChartVersion, NoChart>, UpstreamError> {
        let of = |reason: String| Ok(Err(("resolve", reason)));
        let name = match address.repository(Some(&chart.name)) {
            Ok(name) => name,
            Err(reason) => return of(format!("chart `{}` cannot be in a registry: {reason}", chart.name)),
        };
        let listed = self.tags(&name)?;
        let (tags, passed_over) = match listed.as_ref().as_ref().map(|tags| tags::choose(chart, tags)) {
            Ok(Ok(chosen)) => chosen,
            Ok(Err(reason)) => return of(reason),
            Err(no_chart) => return Ok(Err(no_chart.clone())),
        };
        let mut not_a_chart = None;
        for (version, tag) in tags {
            let label = format!("chart `{}` {version}", chart.name);
            let named = self.registry.resolve(&name, tag);
            match named.and_then(|named| self.layers(&name, tag, named)) {
                Ok((manifest, Ok(layers))) => {
                    return Ok(Ok(ChartVersion { version, name, manifest, layers, passed_over }));
                }
                Ok((_, Err(reason))) => _ = not_a_chart.get_or_insert(format!("{label} {reason}")),
                Err(error) => return Ok(Err(self.no_chart(error, &label)?)),
            }
        }
        let reason = not_a_chart.unwrap_or_default();
        Ok(Err(("select", format!("{reason}: exclude it in `ref`, or keep what is not a chart in another repository"))))
    }

    fn tags(&mut self, name: &OciName) -> Result<Rc<Result<Vec<String>, NoChart>>, UpstreamError> {
        if let Some(tags) = self.tags.get(name) {
            return Ok(tags.clone());
        }
        let tags = match self.registry.tags(name) {
            Ok(tags) => Ok(tags),
            Err(error) => Err(self.no_chart(error, &format!("`{name}`"))?),
        };
        let tags = Rc::new(tags);
        self.tags.insert(name.clone(), tags.clone());
        Ok(tags)
    }

    fn no_chart(&mut self, error: RegistryError, what: &str) -> Result<NoChart, UpstreamError> {
        self.failures.of_one(error, what).or_else(|error| no_chart(error, what))
    }

    /// The digest and the layers of a manifest, or why it is not a chart.
    fn layers(
        &mut self,
        name: &OciName,
        tag: &str,
        named: Named,
    ) -> Result<(Sha256, Result<ChartLayers, String>), RegistryError> {
        let (digest, layers) = match self.known.get(&named.0).or_else(|| self.current.get(&named.0)) {
            Some(layers) => (named.0, layers.clone()),
            None => {
                let Resolved { digest, document } = self.registry.manifest_of(name, Some(tag), named)?;
                (digest, document.and_then(|document| layers_of(&document)))
            }
        };
        self.current.insert(digest, layers.clone());
        Ok((digest, layers))
    }
}

/// The reason for which a service has no chart. A chart that is hidden stops no other one.
fn no_chart(error: RegistryError, what: &str) -> Result<NoChart, UpstreamError> {
    match error {
        RegistryError::Denied { name, report, .. } => Ok(("authenticate", denied(&name, &report))),
        // Each chart is a repository: the token service may refuse one, and only its list of tags may be too long.
        RegistryError::Upstream(UpstreamError::Authenticate(reason)) => Ok(("authenticate", reason)),
        RegistryError::Upstream(error @ (UpstreamError::TooManyTags(_) | UpstreamError::InvalidList { .. })) => {
            Ok(("resolve", format!("{what}: {error}")))
        }
        other => Ok(("resolve", other.of_one(what)?)),
    }
}

/// The layers of a chart, by their media types.
///
/// # Errors
/// It is not a chart: the end of a sentence that begins with its name.
fn layers_of(document: &Document) -> Result<ChartLayers, String> {
    let manifest = match document {
        Document::Manifest(manifest) => manifest,
        Document::Index(index) => {
            return Err(format!("is an index of {} manifests, not a chart", index.manifests.len()));
        }
    };
    let config = manifest.config.as_ref().map_or("", |config| &config.media_type);
    if config != CONFIG {
        return Err(format!("is not a chart: the media type of its configuration is `{}`", shown(config, MAX_SHOWN)));
    }
    let mut archives = manifest.layers.iter().filter(|layer| [ARCHIVE, LEGACY_ARCHIVE].contains(&&*layer.media_type));
    match (archives.next(), archives.next()) {
        (Some(archive), None) => {
            let provenance = manifest.layers.iter().find(|layer| layer.media_type == PROVENANCE);
            let sha256 = |layer: &Descriptor| layer.sha256().map_err(|digest| format!("has a layer with {digest}"));
            let (size, provenance) = (archive.size, provenance.map(sha256).transpose()?);
            Ok(ChartLayers { archive: sha256(archive)?, size, provenance })
        }
        (None, _) => {
            let types: Vec<_> =
                manifest.layers.iter().take(8).map(|layer| shown(&layer.media_type, MAX_SHOWN)).collect();
            Err(format!("has no layer of the media type `{ARCHIVE}`, but these: {}", types.join(", ")))
        }
        (Some(_), Some(_)) => Err("has several archives".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use prometheus::IntCounter;
    use weir_upstream::Upstream;
    use weir_upstream::http::test_server::{response, server, with_client};

    use super::super::super::oci::Tokens;
    use super::*;

    const IMAGE: &str = "application/vnd.oci.image.config.v1+json";
    fn hex(byte: u8) -> String {
        format!("{byte:02x}").repeat(32)
    }

    /// A manifest with layers as media type and digest.
    fn manifest(config: &str, layers: &[(&str, u8)]) -> String {
        let layer = |(media_type, byte): &(&str, u8)| serde_json::json!({ "mediaType": media_type, "digest": format!("sha256:{}", hex(*byte)), "size": 1 });
        let layers: Vec<_> = layers.iter().map(layer).collect();
        let config = serde_json::json!({ "mediaType": config, "digest": format!("sha256:{}", hex(0)), "size": 1 });
        serde_json::json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string()
    }

    fn ok(body: &str) -> String {
        response("200 OK", "", body)
    }

    fn head(manifest: &str) -> String {
        response("200 OK", &format!("docker-content-digest: sha256:{}\r\n", Sha256::of(manifest.as_bytes())), "")
    }

    /// Lists so often, with a registry that sends these responses. Returns the results, and the lines of the requests.
    fn list(wanted: &[(&str, &str)], times: usize, responses: Vec<String>) -> (Vec<Vec<String>>, Vec<String>) {
        let charts: Vec<Chart> =
            wanted.iter().map(|(name, wanted)| Chart::parse(name.parse().unwrap(), wanted).unwrap()).collect();
        let (url, requests) = server(responses);
        let tokens = Tokens::new(IntCounter::new("tokens", "tokens").unwrap());
        let endpoint = Endpoint::parse("oci://registry.example/charts");
        let Ok(Address::Oci(address)) = endpoint.address() else { panic!() };
        let known = ChartRegistry::default();
        let results = with_client(&Upstream::new(url.as_str()), |client| {
            let registry = Registry::new(client, &tokens, url.join("/").unwrap());
            let shown = |found: Result<ChartVersion, NoChart>| match found {
                Ok(ChartVersion { version, name, layers: ChartLayers { archive, provenance, .. }, .. }) => {
                    let signed = if provenance.is_some() { " signed" } else { "" };
                    format!("{name} {version} {}{signed}", &archive.to_string()[..2])
                }
                Err((step, reason)) => format!("[{step}] {reason}"),
            };
            let once = |_| match known.list(&registry, address, &charts) {
                Ok(found) => found.into_iter().map(shown).collect(),
                Err(error) => vec![format!("poll [{}] {error}", error.step())],
            };
            (0..times).map(once).collect()
        });
        (results, requests.try_iter().map(|request| request.lines().next().unwrap().to_owned()).collect())
    }

    #[test]
    fn a_chart_is_found_by_its_tags_and_its_manifest_is_read_once() {
        let tags = ok(r#"{"tags":["1.0.0","1.0.0_up1.2","1.0.0_up1.10","v0.9.0","sha256-ab.sig","latest"]}"#);
        let chart = manifest(CONFIG, &[(PROVENANCE, 1), (ARCHIVE, 2)]);
        let script = vec![tags.clone(), head(&chart), ok(&chart), tags, head(&chart)];
        let (results, requests) = list(&[("shop", "1.0.0")], 2, script);
        assert_eq!(results, [["charts/shop 1.0.0+up1.10 02 signed"], ["charts/shop 1.0.0+up1.10 02 signed"]]);
        let tags_line = "get /v2/charts/shop/tags/list?n=1000 http/1.1".to_owned();
        let head_line = "head /v2/charts/shop/manifests/1.0.0_up1.10 http/1.1".to_owned();
        let digest = Sha256::of(chart.as_bytes());
        let get_line = format!("get /v2/charts/shop/manifests/sha256:{digest} http/1.1");
        assert_eq!(requests, [tags_line.clone(), head_line.clone(), get_line, tags_line, head_line]);
    }

    #[test]
    fn a_digest_that_a_registry_names_and_does_not_have_is_that_of_its_tag() {
        let chart = manifest(CONFIG, &[(ARCHIVE, 2)]);
        let script = vec![ok(r#"{"tags":["1.0.0"]}"#), head("another"), response("404 x", "", ""), ok(&chart)];
        let (results, requests) = list(&[("shop", "HEAD")], 1, script);
        assert_eq!(results, [["charts/shop 1.0.0 02"]]);
        assert_eq!(requests[3], "get /v2/charts/shop/manifests/1.0.0 http/1.1");
    }

    #[test]
    fn of_equal_versions_the_chart_is_followed_and_nothing_else_is_one() {
        let tags = ok(r#"{"tags":["v1.5.1","1.5.1"]}"#);
        let (chart, image) = (manifest(CONFIG, &[(ARCHIVE, 7)]), manifest(IMAGE, &[("layer", 1)]));
        let script = |first: &str, second: &str| vec![tags.clone(), head(first), ok(first), head(second), ok(second)];
        let (results, requests) = list(&[("shop", "HEAD")], 1, script(&image, &chart));
        assert_eq!(results, [["charts/shop v1.5.1 07"]]);
        assert!(requests[1].contains("/manifests/1.5.1 "), "without `v` first: {requests:?}");
        let other = manifest(CONFIG, &[("application/vnd.oci.image.layer.v1.tar+gzip", 1)]);
        let twice = manifest(CONFIG, &[(ARCHIVE, 1), (ARCHIVE, 2)]);
        let index = r#"{"manifests":[]}"#.to_owned();
        for (document, reason) in [
            (
                image,
                "is not a chart: the media type of its configuration is `application/vnd.oci.image.config.v1+json`",
            ),
            (
                other,
                "has no layer of the media type `application/vnd.cncf.helm.chart.content.v1.tar+gzip`, but these: app",
            ),
            (twice, "has several archives"),
            (index, "is an index of 0 manifests, not a chart"),
        ] {
            let (results, _) = list(&[("shop", "HEAD")], 1, script(&document, &document));
            assert!(results[0][0].starts_with(&format!("[select] chart `shop` 1.5.1 {reason}")), "{results:?}");
        }
    }

    #[test]
    fn what_a_registry_writes_is_cut_in_messages() {
        let hostile = format!("\u{1b}[31m{}", "x".repeat(1000));
        for document in [manifest(&hostile, &[]), manifest(CONFIG, &[(&hostile, 1)])] {
            let script = vec![ok(r#"{"tags":["1.0.0"]}"#), head(&document), ok(&document)];
            let reason = list(&[("shop", "HEAD")], 1, script).0.remove(0).remove(0);
            assert!(reason.contains("[31mxxx") && reason.len() < 500 && !reason.contains('\u{1b}'), "{reason}");
        }
    }

    #[test]
    fn the_layer_of_an_old_helm_is_a_chart() {
        let chart = manifest(CONFIG, &[(PROVENANCE, 1), ("application/tar+gzip", 2)]);
        let (results, _) = list(&[("shop", "HEAD")], 1, vec![ok(r#"{"tags":["1.0.0"]}"#), head(&chart), ok(&chart)]);
        assert_eq!(results, [["charts/shop 1.0.0 02 signed"]]);
    }

    #[test]
    fn an_index_names_the_manifest_or_the_archive() {
        let chart = manifest(CONFIG, &[(ARCHIVE, 2)]);
        let (archive, digest) = (Sha256::from_bytes([2; 32]), Sha256::of(chart.as_bytes()));
        let (url, requests) = server(vec![ok(&chart); 4]);
        let tokens = Tokens::new(IntCounter::new("tokens", "tokens").unwrap());
        with_client(&Upstream::new(url.as_str()), |client| {
            let registry = Registry::new(client, &tokens, url.join("/").unwrap());
            let find = |listed| {
                ChartTag::parse("oci://registry.example/charts/shop", "1.0.0+up1", listed).unwrap().layers(&registry)
            };
            for listed in [None, Some(archive), Some(digest)] {
                assert_eq!(find(listed).unwrap(), ChartLayers { archive, size: 1, provenance: None });
                assert!(requests.recv().unwrap().starts_with("get /v2/charts/shop/manifests/1.0.0_up1 http"));
            }
            let other = Sha256::from_bytes([9; 32]);
            let Err(RegistryError::Unusable(reason)) = find(Some(other)) else { panic!() };
            assert!([archive, digest, other].iter().all(|digest| reason.contains(&digest.to_string())), "{reason}");
        });
    }

    #[test]
    fn one_chart_stops_no_other_one_unless_the_registry_does() {
        let (tags, chart) = (ok(r#"{"tags":["1.0.0"]}"#), manifest(CONFIG, &[(ARCHIVE, 3)]));
        let refused = || response("403 x", "", "");
        let script =
            vec![refused(), response("404 x", "", ""), ok(r#"{"tags":["0.1.0"]}"#), tags, head(&chart), ok(&chart)];
        let wanted = [("hidden", "HEAD"), ("none", "HEAD"), ("old", "semver:^1"), ("shop", "HEAD"), ("Upper", "HEAD")];
        let (results, _) = list(&wanted, 1, script);
        let [hidden, none, old, shop, upper] = &results[0][..] else { panic!("{results:?}") };
        assert!(hidden.starts_with("[authenticate] the registry refuses access to `charts/hidden`"), "{hidden}");
        assert_eq!(none, "[resolve] `charts/none` is not in the registry, or is hidden without the right credentials");
        assert_eq!(old, "[resolve] no version of chart `old` in `semver:^1`: 1 tag; highest version `0.1.0`");
        assert_eq!(shop, "charts/shop 1.0.0 03");
        assert!(upper.starts_with("[resolve] chart `Upper` cannot be in a registry: its path"), "{upper}");
        let (results, _) = list(&wanted[..2], 1, vec![refused(), refused()]);
        assert!(results[0][0].starts_with("poll [authenticate] the upstream denies access: "), "{results:?}");
        let pause = response("429 x", "retry-after: 60\r\n", "");
        let (results, _) = list(&wanted[..2], 1, vec![pause]);
        assert!(results[0][0].starts_with("poll [list] the upstream answered 429"), "{results:?}");
    }
}
