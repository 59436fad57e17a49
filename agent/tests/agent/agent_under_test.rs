//! An agent with a folder of its own, and the questions that tests ask of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;
use tokio::sync::watch;
use weir_agent::config::{EdgeOrder, ServiceConfig};
use weir_agent::{Config, Protocol, Running, ServiceStatus, start};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use crate::edge::{PATIENCE, TestEdge};
use crate::tarball::with_content;

/// Long enough that no test sees it.
pub(crate) const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A folder with certificates, and an agent's root in it.
pub(crate) struct World {
    dir: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        weir_runtime::certificates::write(dir.path(), &[]).expect("certificates");
        Self { dir }
    }

    /// One with an edge that has nothing yet.
    pub(crate) async fn with_edge() -> (Self, TestEdge) {
        let world = Self::new();
        let edge = world.edge().await;
        (world, edge)
    }

    /// One with an edge that has this content of [`shop`].
    pub(crate) async fn offering(content: &str) -> (Self, TestEdge) {
        let (world, edge) = Self::with_edge().await;
        edge.answers.publish(&shop(), with_content(content));
        (world, edge)
    }

    /// An agent that follows an edge, and has this as its first release.
    pub(crate) async fn following(tarball: Vec<u8>) -> (Self, TestEdge, TarballDigest, Agent) {
        let (world, edge) = Self::with_edge().await;
        let (digest, _) = edge.answers.publish(&shop(), tarball);
        let agent = Agent::with_release(world.config(&[edge.url()])).await;
        (world, edge, digest, agent)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn edge(&self) -> TestEdge {
        TestEdge::start(self.path()).await
    }

    /// A configuration that polls and refreshes only on command, with timeouts for a busy machine.
    pub(crate) fn config(&self, edges: &[String]) -> Config {
        let edges = edges.iter().map(|url| url.parse().expect("a URL")).collect();
        let mut config = Config::new(edges, self.path().join("ca.pem"), self.path().join("root"));
        config.name = "cluster-1".parse().expect("a name");
        config.edge_order = EdgeOrder::Listed;
        config.services = vec![ServiceConfig::new(&shop())];
        config.poll_interval = NEVER;
        config.refresh_interval = NEVER;
        config.h3_connect_timeout = Duration::from_secs(10);
        config.idle_timeout = Duration::from_secs(2);
        config
    }

    pub(crate) fn service_dir(&self) -> PathBuf {
        self.path().join("root").join(shop().as_str())
    }

    /// A file as readers see it.
    pub(crate) fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.service_dir().join("current").join(name)).ok()
    }

    /// Where `current` points.
    pub(crate) fn current(&self) -> Option<String> {
        let target = std::fs::read_link(self.service_dir().join("current")).ok()?;
        Some(target.strip_prefix("releases").expect("a relative link").to_str().expect("a name").to_owned())
    }

    /// The names in `releases`, sorted.
    pub(crate) fn releases(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.service_dir().join("releases")).expect("the folder is there");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    }

    /// Nothing is left of what came in or was half unpacked.
    pub(crate) fn assert_no_leftovers(&self) {
        assert_eq!(std::fs::read_dir(self.service_dir().join("incoming")).expect("the folder").count(), 0);
        assert!(self.releases().iter().all(|name| !name.starts_with('.')), "{:?}", self.releases());
    }
}

/// The service of most tests.
pub(crate) fn shop() -> ServiceName {
    "shop".parse().expect("a name")
}

/// The status and body of a document of an agent's admin listener.
pub(crate) async fn admin(agent: &Running, path: &str) -> (u16, String) {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let address = agent.admin_address().expect("`admin_listen` is set");
    let response = client.get(format!("http://{address}{path}").parse().unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// An agent that runs, and its one service.
pub(crate) struct Agent {
    pub(crate) running: Running,
    pub(crate) status: watch::Receiver<ServiceStatus>,
}

impl Agent {
    pub(crate) async fn start(config: Config) -> Self {
        let running = start(config).await.expect("the agent starts");
        let status = running.service(&shop()).expect("it is followed");
        Self { running, status }
    }

    /// Waits for a status.
    pub(crate) async fn until(&mut self, what: &str, wanted: impl FnMut(&ServiceStatus) -> bool) -> ServiceStatus {
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(wanted)).await;
        let found = waited.ok().and_then(|found| found.ok().map(|status| status.clone()));
        found.unwrap_or_else(|| panic!("waited in vain until {what}: {:#?}", self.status.borrow().clone()))
    }

    /// Starts, and waits for the first release.
    pub(crate) async fn with_release(config: Config) -> Self {
        let mut agent = Self::start(config).await;
        agent.until("there is a first release", |status| status.release.is_some()).await;
        agent
    }

    /// One poll, to its end.
    pub(crate) async fn poll(&mut self) -> ServiceStatus {
        let before = self.status.borrow().polls;
        self.running.poll_now(&shop());
        self.until("a poll has ended", |status| status.polls > before).await
    }

    /// Polls until an edge answers over HTTP/3: the first handshake may have been too slow for the first request.
    pub(crate) async fn until_http3(&mut self) {
        let reached = async {
            while self.poll().await.protocol != Some(Protocol::H3) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("HTTP/3 is used");
    }

    /// One forced refresh, to its end, good or bad.
    pub(crate) async fn refresh(&mut self) -> ServiceStatus {
        let before = self.status.borrow().polls;
        self.running.refresh_now(&shop());
        self.until("a refresh has ended", |status| status.polls > before).await
    }

    /// The status and body of a document of the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        admin(&self.running, path).await
    }

    /// Waits until `/readyz` says this.
    pub(crate) async fn until_ready(&self, what: &str) {
        let said = async {
            while !self.admin("/readyz").await.1.contains(what) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, said).await.unwrap_or_else(|_| panic!("`/readyz` never said {what}"));
    }

    /// `/status`.
    pub(crate) async fn shown(&self) -> serde_json::Value {
        serde_json::from_str(&self.admin("/status").await.1).unwrap()
    }

    /// The value of a metric, summed over its labels but for those given.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.series(name, labels).unwrap_or_else(|| panic!("no metric {name}")).iter().sum()
    }

    /// The same; `None`: the metric has no such series.
    pub(crate) fn metric_if_any(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.series(name, labels).filter(|series| !series.is_empty()).map(|series| series.iter().sum())
    }

    fn series(&self, name: &str, labels: &[(&str, &str)]) -> Option<Vec<f64>> {
        let families = self.running.registry().gather();
        let family = families.iter().find(|family| family.name() == name)?;
        let matching = family.get_metric().iter().filter(|metric| {
            let has = |key: &str, value: &str| metric.get_label().iter().any(|l| l.name() == key && l.value() == value);
            labels.iter().all(|(key, value)| has(key, value))
        });
        Some(matching.map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value()).collect())
    }

    pub(crate) async fn until_metric(&self, name: &str, labels: &[(&str, &str)], wanted: f64) {
        let reached = async {
            while self.metric_if_any(name, labels) != Some(wanted) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{name} never was {wanted}"));
    }

    pub(crate) async fn stop(self) {
        assert!(self.running.drain(PATIENCE).await, "the drain ends by itself");
    }
}
