//! Follows the index of a Helm repository: requests it if it changed, and remembers what it has of the followed charts.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use prometheus::IntCounter;
use reqwest::Url;
use reqwest::header::LAST_MODIFIED;
use weir_upstream::http::{Body, BodyError, Client, Validators};
use weir_upstream::{FetchProgress, UpstreamError};

use super::chart::Chart;
use super::choice::{Place, Release, Versions};
use super::index;
use super::registry::ChartTag;
use crate::encoding;
use crate::page::{PAGE, is_page};

/// The index at the end of its last poll.
pub(crate) struct HelmIndex {
    listed: Mutex<Option<Listed>>,
    /// Entries of followed charts that cannot be used.
    skipped: IntCounter,
}

struct Listed {
    validators: Validators,
    /// The final URL of the index, to which URLs are relative.
    url: Url,
    charts: Vec<(Chart, Versions)>,
    /// When it was made: by its own words, or otherwise by its server's.
    made_at: Option<SystemTime>,
}

impl HelmIndex {
    pub(crate) fn new(skipped: IntCounter) -> Self {
        Self { listed: Mutex::default(), skipped }
    }

    /// The release that each of the charts stands for, or why there is none. One conditional request; the whole index is
    /// read again if one of the charts is newly followed.
    ///
    /// # Errors
    /// The index cannot be read: nothing is known of any chart, and the state stays as it was.
    pub(crate) fn list(
        &self,
        client: &Client<'_>,
        charts: &[Chart],
        progress: &FetchProgress,
    ) -> Result<Vec<Result<Release, String>>, UpstreamError> {
        let mut state = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.as_ref().filter(|listed| charts.iter().all(|chart| listed.versions(chart).is_some()));
        let before = known.map(|listed| &listed.validators);
        if let Some((url, response)) = client.get_if_changed(index_url(&client.upstream_url), before)? {
            let (validators, is_page) = (Validators::of(&url, &response), is_page(&response));
            let encoding = encoding::unrequested(&response);
            let modified = response.headers().get(LAST_MODIFIED).and_then(|time| http_date(time.as_bytes()));
            let max_index = client.session().upstream.limits.max_index.as_u64();
            let mut body = Body::new(client, response, max_index);
            let mut shown = Shown { body: &mut body, progress };
            let read = index::read(&mut shown, charts);
            if read.is_ok() {
                // What follows the document is not used, but an answer that is cut off is not complete.
                let _ = io::copy(&mut shown, &mut io::sink());
            }
            body.finish().map_err(|error| failure(error, max_index))?;
            let (found, generated) = read.map_err(|cause| {
                let page = format!("{PAGE}: check `url`, and whether the server wants a sign-in");
                UpstreamError::InvalidList { name: "index.yaml", cause: if is_page { page } else { cause + &encoding } }
            })?;
            let charts = charts.iter().cloned().zip(found).collect();
            let made_at = generated.or(modified).map(SystemTime::from);
            let listed = state.insert(Listed { validators, url, charts, made_at });
            listed.warn(client.upstream_url.host_str().unwrap_or_default());
            self.skipped.inc_by(listed.unusable());
        }
        let Some(listed) = &*state else { return Ok(Vec::new()) };
        let none = Versions::default();
        let versions = |chart| listed.versions(chart).unwrap_or(&none);
        Ok(charts.iter().map(|chart| choose(client, chart, versions(chart), &listed.url)).collect())
    }

    /// When the index was made, as far as it is known.
    pub(crate) fn made_at(&self) -> Option<SystemTime> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.made_at
    }
}

/// A time in a header.
fn http_date(text: &[u8]) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(text).ok()
}

/// Shows the bytes that were received, so that a large index over a slow link has as long as its rate is fast enough.
struct Shown<'a, R> {
    body: &'a mut R,
    progress: &'a FetchProgress,
}

impl<R: Read> Read for Shown<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.body.read(buffer)?;
        self.progress.received(read);
        Ok(read)
    }
}

impl Listed {
    fn versions(&self, chart: &Chart) -> Option<&Versions> {
        self.charts.iter().find(|(known, _)| known == chart).map(|(_, versions)| versions)
    }

    /// The entries of the charts that cannot be used. Several services may follow one chart.
    fn unusable(&self) -> u64 {
        let of_charts: BTreeMap<_, _> =
            self.charts.iter().map(|(chart, versions)| (&chart.name, versions.unusable())).collect();
        of_charts.values().sum()
    }

    fn warn(&self, host: &str) {
        for (chart, versions) in &self.charts {
            let (name, followed) = (chart.name.to_string(), chart.to_string());
            if versions.is_ambiguous() {
                tracing::warn!(
                    host,
                    chart = name,
                    r#ref = followed,
                    "the index has the followed version several times, with different digests: using the latest"
                );
            }
            if versions.unusable() > 0 {
                tracing::debug!(
                    host,
                    chart = name,
                    entries = versions.unusable(),
                    "skipped unusable entries of the index"
                );
            }
        }
    }
}

/// The version to follow. `index`: the URL that sent it.
fn choose(client: &Client<'_>, chart: &Chart, versions: &Versions, index: &Url) -> Result<Release, String> {
    let release = versions.choose(chart, index)?;
    let (Place::Url(to) | Place::Registry(ChartTag { registry: to, .. })) = &release.at;
    if client.leads_back(index, to) {
        return Err(format!(
            "chart `{}` {} has a URL in the index that leads back to the upstream, which would receive the credentials: \
             the index is of another host",
            chart.name, release.version
        ));
    }
    Ok(release)
}

/// `<url>/index.yaml`.
fn index_url(repository: &Url) -> Url {
    let mut url = repository.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("index.yaml");
    }
    url
}

fn failure(error: BodyError, limit: u64) -> UpstreamError {
    match error {
        BodyError::Upstream(error) => error,
        BodyError::TooLarge => UpstreamError::ListTooLarge { list: "index", key: "[upstreams] max_index", limit },
        // Nothing is written.
        BodyError::Write(error) => UpstreamError::Protocol { step: "list", cause: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use bytesize::ByteSize;
    use weir_upstream::Upstream;
    use weir_upstream::http::test_server::{NOT_MODIFIED, response, server, with_client};

    use super::*;

    const ETAG: &str = "etag: \"1\"\r\n";

    fn charts(wanted: &[(&str, &str)]) -> Vec<Chart> {
        wanted.iter().map(|(name, wanted)| Chart::parse(name.parse().unwrap(), wanted).unwrap()).collect()
    }

    fn index(version: &str) -> String {
        let entry = |name: &str| format!("  {name}: [{{version: {version}, urls: [{name}.tgz]}}]\n");
        format!("apiVersion: v1\nentries:\n{}{}", entry("shop"), entry("redis"))
    }

    fn listing() -> HelmIndex {
        HelmIndex::new(IntCounter::new("skipped", "entries").unwrap())
    }

    fn moved(to: &str) -> String {
        response("302 Found", &format!("location: {to}\r\n"), "")
    }

    /// The versions, with their URLs without the server.
    fn shown(results: Vec<Result<Release, String>>) -> Vec<String> {
        let show = |release: Release| match release.at {
            Place::Url(url) => format!("{} {}", release.version, url.path()),
            Place::Registry(tag) => format!("{} {tag:?}", release.version),
        };
        results.into_iter().map(|result| result.map_or_else(|reason| reason, show)).collect()
    }

    #[test]
    fn the_time_of_a_header_is_read() {
        let time = http_date(b"Fri, 01 May 2026 08:00:00 GMT").unwrap();
        assert_eq!(time.to_string(), "2026-05-01T08:00:00Z");
        assert_eq!(http_date(b"yesterday"), None);
    }

    #[test]
    fn the_index_is_read_again_if_it_changed_or_another_chart_is_followed() {
        let (url, requests) = server(vec![
            moved("/moved/here/index.yaml"),
            response("200 OK", ETAG, &index("1.0.0")),
            moved("/moved/here/index.yaml"),
            NOT_MODIFIED.to_owned(),
            moved("/elsewhere/index.yaml"),
            response("200 OK", ETAG, &index("1.0.1")),
            response("200 OK", ETAG, &index("1.1.0")),
            NOT_MODIFIED.to_owned(),
        ]);
        let listing = listing();
        let (one, two) = (charts(&[("shop", "HEAD")]), charts(&[("redis", "semver:^1"), ("shop", "HEAD")]));
        with_client(&Upstream::new(url.as_str()), |client| {
            let list = |charts: &[Chart]| shown(listing.list(client, charts, &FetchProgress::default()).unwrap());
            let is_conditional = || requests.recv().unwrap().contains("if-none-match: \"1\"");
            assert_eq!(list(&one), ["1.0.0 /moved/here/shop.tgz"], "relative to the final URL");
            assert!(requests.recv().unwrap().starts_with("get /charts/index.yaml http"));
            requests.recv().unwrap();
            assert_eq!(list(&one), ["1.0.0 /moved/here/shop.tgz"]);
            assert_eq!([is_conditional(), is_conditional()], [false, true], "only the final URL has this document");
            assert_eq!(list(&one), ["1.0.1 /elsewhere/shop.tgz"]);
            assert_eq!([is_conditional(), is_conditional()], [false, false], "the final URL is another one now");
            assert_eq!(list(&two), ["1.1.0 /charts/redis.tgz", "1.1.0 /charts/shop.tgz"]);
            assert!(!is_conditional(), "another chart is followed");
            assert_eq!(list(&one), ["1.1.0 /charts/shop.tgz"]);
            assert!(is_conditional(), "no other chart is");
        });
    }

    #[test]
    fn an_index_of_another_host_leads_not_back_to_an_upstream_with_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "known").unwrap();
        let mut upstream = Upstream::new("https://charts.example/stable");
        let charts = charts(&[("shop", "HEAD")]);
        for (has_token, sent_by, at, is_followed) in [
            (false, "other.example", "https://charts.example/chosen", true),
            (true, "charts.example", "https://charts.example/a.tgz", true),
            (true, "other.example", "a.tgz", true),
            (true, "other.example", "https://charts.example/chosen", false),
            (true, "other.example", "oci://charts.example/chosen", false),
        ] {
            upstream.config.token_file = has_token.then(|| token.clone());
            let index = format!("entries:\n  shop: [{{version: 1.0.0, urls: ['{at}']}}]\n");
            let (versions, _) = index::read(index.as_bytes(), &charts).unwrap();
            let from = Url::parse(&format!("https://{sent_by}/index.yaml")).unwrap();
            let chosen = with_client(&upstream, |client| choose(client, &charts[0], &versions[0], &from));
            match is_followed {
                true => assert!(chosen.is_ok(), "{at}: {chosen:?}"),
                false => assert!(chosen.unwrap_err().contains("leads back to the upstream"), "{at}"),
            }
        }
    }

    #[test]
    fn an_index_that_is_too_large_or_invalid_changes_nothing() {
        let (url, _requests) = server(vec![
            response("200 OK", ETAG, &index("1.0.0")),
            response("200 OK", "", &format!("{}# {}", index("1.1.0"), "x".repeat(1000))),
            response("200 OK", "", &index("1.1.0")[..80]),
            response("200 OK", "", "<html>\n<body>Sign in</body>"),
            response("200 OK", "content-encoding: gzip\r\n", "\u{1f}"),
            response("200 OK", "Content-Type: TEXT/html;charset=utf-8\r\n", "<html>\n<body>Sign in</body>"),
            response("404 Not Found", "", ""),
            NOT_MODIFIED.to_owned(),
        ]);
        let (listing, charts) = (listing(), charts(&[("shop", "HEAD")]));
        let mut upstream = Upstream::new(url.as_str());
        upstream.limits.max_index = ByteSize(1000);
        with_client(&upstream, |client| {
            let list = || {
                listing
                    .list(client, &charts, &FetchProgress::default())
                    .map_err(|error| (error.step(), error.kind(), error.to_string()))
            };
            let first = list().unwrap();
            let expected =
                "the index has more than `[upstreams] max_index` = 1000 bytes: raise it, or use a smaller repository";
            assert_eq!(list(), Err(("list", "limit", expected.to_owned())));
            for encoded in [false, false, true] {
                let (step, kind, reason) = list().unwrap_err();
                assert_eq!((step, kind), ("list", "protocol"));
                assert!(reason.starts_with("`index.yaml` cannot be read: line "), "{reason}");
                assert_eq!(
                    reason.contains("sent `Content-Encoding: gzip`, which was not requested"),
                    encoded,
                    "{reason}"
                );
            }
            let (_, _, reason) = list().unwrap_err();
            assert!(
                reason.starts_with("`index.yaml` cannot be read: the server sent a page (`text/html`): check"),
                "{reason}"
            );
            let (step, kind, _) = list().unwrap_err();
            assert_eq!((step, kind), ("list", "not_found"));
            assert_eq!(list(), Ok(first), "the state stays, with its validators");
        });
    }
}
