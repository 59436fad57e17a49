//! An origin to test, and an edge's client for it.

use std::future::Future;
use std::ops::Deref;
use std::sync::LazyLock;

use http::{HeaderMap, Request};
use http_body_util::Empty;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_origin::Running;
use weir_origin::config::TlsConfig;
use weir_protocol::name::ServiceName;
use weir_runtime::http_client::{Http2Client, http2_client, read_body};

use crate::prelude::*;

/// Longer than anything takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const SERVICE: &str = "shop-prod";
pub(crate) const REPOSITORY: &str = "shop";

/// Where an origin lives: certificates and data. Outlives the origins that are started in it.
pub(crate) struct Home {
    dir: TempDir,
}

/// A running origin.
pub(crate) struct Node {
    pub(crate) running: Running,
    edge: Edge,
}

impl Deref for Node {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        &self.edge
    }
}

/// An edge, as far as it sends requests to an origin.
pub(crate) struct Edge {
    pub(crate) client: Http2Client,
    /// Where the origin is: address and port.
    pub(crate) origin: String,
}

/// What a request was answered with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An origin of a small upstream, once it has published.
pub(crate) async fn started() -> (Home, Upstream, Node, Arc<Descriptor>) {
    let (home, upstream) = (Home::new(), Upstream::small());
    let (node, descriptor) = home.start_published(&upstream).await;
    (home, upstream, node, descriptor)
}

/// The certificates that all tests share. Who needs another authority writes certificates of its own.
pub(crate) fn write_certificates(dir: &Path) {
    static CERTIFICATES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), &[]).unwrap();
        archive(dir.path())
    });
    tar::Archive::new(CERTIFICATES.as_slice()).unpack(dir).unwrap();
}

impl Home {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_certificates(dir.path());
        Self { dir }
    }

    /// With certificates for further hosts.
    pub(crate) fn of_hosts(hosts: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificates::write(dir.path(), hosts).unwrap();
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.file("data")
    }

    /// The file of a public object.
    pub(crate) fn object(&self, digest: &ObjectDigest) -> PathBuf {
        self.data_dir().join("objects").join(REPOSITORY).join("public").join(digest.hex())
    }

    /// The folder `deploy` of the branch `main`, polled only when triggered.
    pub(crate) fn config(&self, url: &str) -> Config {
        let tls = TlsConfig {
            certificate: self.file("origin.pem"),
            key: self.file("origin.key"),
            client_ca: self.file("ca.pem"),
        };
        let mut config = Config::new("origin-1".parse().unwrap(), self.data_dir(), tls);
        config.admin_listen = Some(([127, 0, 0, 1], 0).into());
        let mut repository = RepositoryConfig::new(repository(), url);
        repository.poll_interval = Duration::from_secs(3600);
        repository.min_poll_interval = Duration::from_millis(100);
        config.repositories = vec![repository];
        let mut service = ServiceConfig::new(service(), config.repositories[0].name.clone());
        service.followed_ref = "main".parse().unwrap();
        service.folder = "deploy".parse().unwrap();
        config.services = vec![service];
        config
    }

    /// A configuration file with these certificates and this data directory, and more.
    pub(crate) fn write_config(&self, more: &str) -> PathBuf {
        let file = self.file("origin.toml");
        let text = "name = \"origin-1\"\nlisten = \"127.0.0.1:0\"\ndata_dir = \"data\"\n\
                    tls = { certificate = \"origin.pem\", key = \"origin.key\", client_ca = \"ca.pem\" }\n";
        std::fs::write(&file, format!("{text}{more}")).unwrap();
        file
    }

    pub(crate) async fn start(&self, config: Config) -> Node {
        let running = weir_origin::start(config).await.unwrap();
        let edge = Edge { client: self.client("edge-client"), origin: running.address().to_string() };
        Node { running, edge }
    }

    /// An origin of an upstream, once it has published.
    pub(crate) async fn start_published(&self, upstream: &Upstream) -> (Node, Arc<Descriptor>) {
        let node = self.start(self.config(&upstream.url())).await;
        let descriptor = node.published(|_| true).await;
        (node, descriptor)
    }

    /// A client with one of the certificates.
    pub(crate) fn client(&self, certificate: &str) -> Http2Client {
        let (pem, key) = (self.file(&format!("{certificate}.pem")), self.file(&format!("{certificate}.key")));
        http2_client(tls::client_config(&self.file("ca.pem"), Some((&pem, &key))).unwrap())
    }
}

impl Node {
    /// The service's descriptor, once there is one of that kind.
    pub(crate) async fn published(&self, is: impl Fn(&Descriptor) -> bool) -> Arc<Descriptor> {
        self.published_of(SERVICE, is).await
    }

    /// The same of another service.
    pub(crate) async fn published_of(&self, service: &str, is: impl Fn(&Descriptor) -> bool) -> Arc<Descriptor> {
        let mut current = self.running.service(&service.parse().unwrap()).unwrap();
        let found = in_time(current.wait_for(|current| current.as_ref().is_some_and(|d| is(d)))).await;
        found.unwrap().clone().unwrap()
    }

    /// The repository's state, once it is of that kind.
    pub(crate) async fn repository(&self, is: impl FnMut(&RepositoryState) -> bool) -> RepositoryState {
        let mut state = self.running.repository(&repository()).unwrap();
        in_time(state.wait_for(is)).await.unwrap().clone()
    }

    /// Has the upstream polled, and waits until everything that follows from it was done.
    pub(crate) async fn poll(&self) -> RepositoryState {
        // The first poll begins by itself and may have looked before whatever was pushed.
        let before = self.repository(|state| state.applied_polls > 0).await.applied_polls;
        assert!(self.running.trigger_poll(&repository()));
        self.repository(|state| state.applied_polls > before).await
    }

    /// A page of the admin listener: status and body.
    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.running.admin_address().unwrap()).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        in_time(stream.read_to_string(&mut answer)).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a metric, 0 when it is not there yet. `series` is a name with its labels.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let (_, page) = self.admin("/metrics").await;
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    pub(crate) async fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.admin("/status").await.1).unwrap()
    }

    pub(crate) async fn stop(self) {
        assert!(self.running.drain(PATIENCE).await);
    }
}

impl Edge {
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, &[]).await
    }

    pub(crate) async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.try_request(method, path, headers).await.expect("the origin answers")
    }

    pub(crate) async fn descriptor(&self) -> Descriptor {
        let answer = self.get(&format!("/v1/services/{SERVICE}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        Descriptor::parse(answer.body).unwrap()
    }

    /// Fetches the tarball of a descriptor, verified as an agent would.
    pub(crate) async fn tarball(&self, descriptor: &Descriptor) -> Vec<u8> {
        let body = self.body(descriptor, Encoding::Zstd).await;
        let tar = zstd::decode_all(body.as_slice()).unwrap();
        assert_eq!(TarballDigest::of(&tar), descriptor.publication().digest);
        assert_eq!(tar.len() as u64, descriptor.publication().size);
        tar
    }

    /// The stored body of a descriptor in one coding, put together from its frames.
    pub(crate) async fn body(&self, descriptor: &Descriptor, encoding: Encoding) -> Vec<u8> {
        let stored = descriptor.representation(encoding).unwrap();
        let repository = &descriptor.publication().repository;
        let first = self.object(repository, &stored.digest).await;
        let mut body = Vec::new();
        if stored.frames == 1 {
            body.extend_from_slice(&first);
        } else {
            let manifest = Manifest::parse(&first).unwrap();
            assert_eq!(manifest.frames().len() as u32, stored.frames);
            for frame in manifest.frames() {
                let bytes = self.object(repository, &frame.digest).await;
                assert_eq!(bytes.len() as u64, frame.size);
                body.extend_from_slice(&bytes);
            }
        }
        assert_eq!(body.len() as u64, stored.size);
        body
    }

    /// An object, verified as an edge would.
    pub(crate) async fn object(&self, repository: &RepositoryName, digest: &ObjectDigest) -> Bytes {
        let answer = self.get(&format!("/v1/objects/{repository}/{digest}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(ObjectDigest::of(&answer.body), *digest);
        answer.body
    }

    /// The same of an origin that may go away meanwhile.
    pub(crate) async fn try_request(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Option<Answer> {
        let mut request = Request::builder().method(method).uri(format!("https://{}{path}", self.origin));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = in_time(self.client.request(request.body(Empty::new()).unwrap())).await.ok()?;
        let (head, body) = response.into_parts();
        let body = read_body(body, 256 << 20, PATIENCE).await.ok()?;
        Some(Answer { status: head.status, headers: head.headers, body })
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The problem's kind and detail.
    pub(crate) fn problem(&self) -> (String, String) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let text = |key: &str| problem[key].as_str().unwrap().to_owned();
        (text("type").strip_prefix("urn:weir:problem:").unwrap().to_owned(), text("detail"))
    }
}

pub(crate) fn service() -> ServiceName {
    SERVICE.parse().unwrap()
}

pub(crate) fn repository() -> RepositoryName {
    REPOSITORY.parse().unwrap()
}

pub(crate) fn object_path(digest: &ObjectDigest) -> String {
    format!("/v1/objects/{REPOSITORY}/{digest}")
}

/// The object that a descriptor's zstd body is, or whose manifest it is.
pub(crate) fn object_of(descriptor: &Descriptor) -> ObjectDigest {
    descriptor.representation(Encoding::Zstd).unwrap().digest
}

/// The commit of a publication.
#[track_caller]
pub(crate) fn commit_of(descriptor: &Descriptor) -> &str {
    descriptor.publication().commit.as_ref().expect("it is of Git").as_str()
}

/// The names of a tar's entries, as its headers have them.
pub(crate) fn names(mut tar: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    while tar.len() >= 512 && tar[0] != 0 {
        let text = |field: &[u8]| String::from_utf8(field.split(|b| *b == 0).next().unwrap().to_vec()).unwrap();
        names.push(text(&tar[..100]));
        let size = usize::from_str_radix(&text(&tar[124..136]), 8).unwrap();
        tar = &tar[512 + size.div_ceil(512) * 512..];
    }
    names
}

/// Flips one bit in the middle of a file.
pub(crate) fn flip_a_bit(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(file, bytes).unwrap();
}

/// Adds another service of the same repository, of the folder of its name.
pub(crate) fn also<'a>(config: &'a mut Config, name: &str) -> &'a mut ServiceConfig {
    let (one, folder) = (config.services[0].clone(), name.parse().unwrap());
    config.services.push(ServiceConfig { name: name.parse().unwrap(), folder, ..one });
    config.services.last_mut().unwrap()
}

/// Waits for a condition that no channel announces.
pub(crate) async fn until(mut is: impl AsyncFnMut() -> bool) {
    let waits = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(waits).await;
}

pub(crate) async fn in_time<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("something hangs")
}
