//! A test origin with an edge before it, in a directory of their own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use prometheus::proto::MetricFamily;
use weir_edge::Running;
use weir_edge::config::{CacheConfig, Config, OriginConfig, TlsConfig};
use weir_protocol::digest::ObjectDigest;
use weir_runtime::certificates;

use crate::client::Client;
use crate::test_origin::{Tarball, TestOrigin};

/// How long anything that must happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Site {
    dir: tempfile::TempDir,
    pub(crate) origin: TestOrigin,
    pub(crate) config: Config,
    edge: Option<Running>,
}

pub(crate) const TARBALL: &str = "/v1/services/shop/tarball";
pub(crate) const ZSTD: (&str, &str) = ("accept-encoding", "zstd");

impl Site {
    pub(crate) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut site = Self::prepare().await;
        change(&mut site.config);
        site.start_edge().await;
        site
    }

    /// An edge before an origin that publishes random content of so many bytes as `shop`.
    pub(crate) async fn serving(bytes: usize) -> (Self, Tarball) {
        let (site, tarball) = (Self::start().await, Tarball::random(1, bytes));
        site.origin.publish("shop", 7, 1, &tarball);
        (site, tarball)
    }

    /// An edge that follows the stream of its origin, and revalidates nothing for an hour.
    pub(crate) async fn following(prepare: impl FnOnce(&Self), change: impl FnOnce(&mut Config)) -> Self {
        let mut site = Self::prepare().await;
        site.origin.serve_events();
        prepare(&site);
        site.config.freshness.fresh = Duration::from_secs(3600);
        change(&mut site.config);
        site.start_edge().await;
        site.in_step().await;
        site
    }

    pub(crate) async fn in_step(&self) {
        self.until("the edge is in step", async || self.metric("weir_edge_stream_up", &[]) == 1.0).await;
    }

    /// A second origin, for an edge that is not started yet.
    pub(crate) async fn second_origin(&mut self) -> TestOrigin {
        let second = TestOrigin::start(self.pki()).await;
        let mut upstream = self.config.origins[0].clone();
        upstream.url = second.url();
        self.config.origins.push(upstream);
        second
    }

    /// Everything but the edge.
    pub(crate) async fn prepare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        let origin = TestOrigin::start(dir.path()).await;
        let file = |name: &str| dir.path().join(name);
        let upstream =
            OriginConfig::new(origin.url(), file("ca.pem"), file("edge-client.pem"), file("edge-client.key"));
        let tls = TlsConfig { certificate: file("edge.pem"), key: file("edge.key") };
        let mut config = Config::new(
            "edge-1".parse().unwrap(),
            "127.0.0.1:0".parse().unwrap(),
            tls,
            CacheConfig::new(file("edge-cache")),
            vec![upstream],
        );
        config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
        config.cache.disk = ByteSize::mib(256);
        Self { dir, origin, config, edge: None }
    }

    pub(crate) async fn start_edge(&mut self) {
        self.edge = Some(weir_edge::start(self.config.clone()).await.unwrap());
    }

    pub(crate) async fn stop_edge(&mut self) {
        assert!(self.edge.take().unwrap().drain(PATIENCE).await);
    }

    pub(crate) async fn cut_edge(&mut self) {
        self.edge.take().unwrap().cut().await;
    }

    pub(crate) fn take_edge(&mut self) -> Running {
        self.edge.take().unwrap()
    }

    pub(crate) fn edge(&self) -> &Running {
        self.edge.as_ref().unwrap()
    }

    pub(crate) fn pki(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) async fn client(&self, version: &str) -> Client {
        Client::connect(version, self.edge().address(), self.pki()).await
    }

    pub(crate) async fn client_as(&self, certificate: &str, version: &str) -> Client {
        Client::connect_as(Some(certificate), version, self.edge().address(), self.pki()).await
    }

    /// The value of a metric, all label values summed that hold `labels`.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metric_of(self.edge(), name, labels)
    }

    /// What is used of a bound.
    pub(crate) fn in_use(&self, bound: &str) -> f64 {
        self.metric("weir_bound_in_use", &[("bound", bound)])
    }

    /// A bound.
    pub(crate) fn limit(&self, bound: &str) -> f64 {
        self.metric("weir_bound_limit", &[("bound", bound)])
    }

    /// The objects on disk, as far as the edge has counted them.
    pub(crate) async fn objects(&self) -> u64 {
        let status: serde_json::Value = serde_json::from_str(&self.admin("/status").await.1).unwrap();
        status["cache"]["objects"].as_u64().unwrap()
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let begun = Instant::now();
        while !condition().await {
            assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until all that was fetched is stored, or is known not to be.
    pub(crate) async fn settled(&self) {
        let fetching = || self.in_use("queued_fills");
        self.until("nothing is being fetched", async || fetching() == 0.0).await;
        self.until("nothing is being written", async || self.metric("weir_edge_cache_writes", &[]) == 0.0).await;
    }

    /// The files of the objects that the edge has, those that are half written left out.
    pub(crate) fn object_files(&self) -> Vec<PathBuf> {
        self.files().into_iter().filter(|file| file.file_name().unwrap().len() == 64).collect()
    }

    /// Files that are half written.
    pub(crate) fn new_files(&self) -> usize {
        self.files().len() - self.object_files().len()
    }

    fn files(&self) -> Vec<PathBuf> {
        let Ok(folders) = std::fs::read_dir(self.objects_dir()) else { return Vec::new() };
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|entry| entry.unwrap().path()).collect()
    }

    /// The file of an object.
    pub(crate) fn object_file(&self, digest: &ObjectDigest) -> PathBuf {
        let hex = digest.hex();
        self.objects_dir().join(&hex[..2]).join(hex)
    }

    pub(crate) fn objects_dir(&self) -> PathBuf {
        self.config.cache.dir.join("objects")
    }

    /// From now on the disk takes no objects: a file stands where their folder would be. What was there is gone.
    pub(crate) fn break_disk(&self) {
        let _ = std::fs::remove_dir_all(self.objects_dir());
        std::fs::write(self.objects_dir(), "in the way").unwrap();
    }

    pub(crate) fn mend_disk(&self) {
        std::fs::remove_file(self.objects_dir()).unwrap();
    }

    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        self.admin_request("GET", path, None, "").await
    }

    /// A request to the admin listener, with a token when there is one.
    pub(crate) async fn admin_request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> (u16, String) {
        ask(self.edge().admin_address().unwrap(), method, path, token, body).await
    }
}

/// A request in plain HTTP, with a token when there is one.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    ask_with(address, method, path, &format!("host: {address}\r\n{token}"), body).await
}

/// A request in plain HTTP with these lines of headers.
pub(crate) async fn ask_with(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let (head, body) = answer_of(address, method, path, headers, body).await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// The head and the body of the answer to such a request.
pub(crate) async fn answer_of(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (String, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The same of any edge.
pub(crate) fn metric_of(edge: &Running, name: &str, labels: &[(&str, &str)]) -> f64 {
    let families = edge.registry().gather();
    let family = families.iter().find(|family| family.name() == name);
    family.map_or(0.0, |family| sum(family, labels))
}

fn sum(family: &MetricFamily, labels: &[(&str, &str)]) -> f64 {
    let holds = |metric: &&prometheus::proto::Metric| {
        labels.iter().all(|(name, value)| metric.get_label().iter().any(|l| l.name() == *name && l.value() == *value))
    };
    let value = |metric: &prometheus::proto::Metric| {
        metric.get_counter().get_value()
            + metric.get_gauge().get_value()
            + metric.get_histogram().get_sample_count() as f64
    };
    family.get_metric().iter().filter(holds).map(value).sum()
}

/// Lets the timeline of an edge that is fresh for no time at all move on.
pub(crate) async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(5)).await;
}

/// An edge that queries its origin at each request.
pub(crate) fn always_revalidating(config: &mut Config) {
    config.freshness.fresh = Duration::ZERO;
    config.freshness.stale_while_revalidate = Duration::ZERO;
}
