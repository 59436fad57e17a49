//! A Helm repository: a static server with an index and archives, which a test writes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;
use weir_protocol::digest::Sha256;

use crate::prelude::*;
use crate::registry_server::gzip_tar;
use crate::smart_http::tls_config;

/// A Helm repository, until the process ends.
pub(crate) struct Charts {
    pub(crate) dir: TempDir,
    address: SocketAddr,
    /// Another host, which demands a pause of an hour. It has the chart `busy`.
    busy: SocketAddr,
    /// Status and path of each answer.
    answers: Arc<Mutex<Vec<String>>>,
    /// Whether it closes each connection without an answer.
    pub(crate) is_down: Arc<AtomicBool>,
    scheme: &'static str,
    /// The entries of the index: chart, version, digest.
    pub(crate) entries: Mutex<Vec<(String, String, String)>>,
}

impl Charts {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// Over TLS, for clients with a certificate of the same authority and the bearer token `known`.
    pub(crate) fn start_private(certificates: &Path) -> Self {
        Self::start_with(Some(tls_config(certificates, Some(&certificates.join("ca.pem")))))
    }

    fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (dir, address, answers) =
            (tempfile::tempdir().unwrap(), listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let busy = other.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut socket in other.incoming().flatten() {
                let pause = "HTTP/1.1 429 x\r\nretry-after: 3600\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = read_head(&mut socket).and_then(|_| socket.write_all(pause.as_bytes()));
            }
        });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (folder, answered, is_down) = (dir.path().to_owned(), answers.clone(), Arc::<AtomicBool>::default());
        let closes = is_down.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten().filter(|_| !closes.load(Ordering::Relaxed)) {
                // A client that gave up, or is not trusted, is no error of the server.
                let _ = match &tls {
                    None => answer(&folder, socket, &answered, false),
                    Some(config) => {
                        let connection = ServerConnection::new(config.clone()).unwrap();
                        answer(&folder, StreamOwned::new(connection, socket), &answered, true)
                    }
                };
            }
        });
        Self { dir, address, busy, answers, is_down, scheme, entries: Mutex::default() }
    }

    /// Adds a version of a chart to the index.
    pub(crate) fn publish(&self, chart: &str, version: &str, members: &[(&str, &[u8])]) {
        let archive = gzip_tar(members);
        fs::write(self.dir.path().join(format!("{chart}-{version}.tgz")), &archive).unwrap();
        self.index(chart, version, &Sha256::of(&archive).to_string());
    }

    /// Puts an entry into the index, in place of one of the same version.
    pub(crate) fn index(&self, chart: &str, version: &str, digest: &str) {
        let mut entries = self.entries.lock().unwrap();
        entries.retain(|(other, old, _)| (other.as_str(), old.as_str()) != (chart, version));
        entries.push((chart.to_owned(), version.to_owned(), digest.to_owned()));
        drop(entries);
        self.write_index("2026-01-01T00:00:00Z");
    }

    pub(crate) fn write_index(&self, generated: &str) {
        let mut entries = serde_json::Map::new();
        for (chart, version, digest) in &*self.entries.lock().unwrap() {
            let at = if chart == "busy" { format!("http://{}/", self.busy) } else { String::new() };
            let url = format!("{at}{chart}-{version}.tgz");
            let entry = json!({ "version": version, "digest": digest, "urls": [url] });
            let versions = entries.entry(chart).or_insert_with(|| json!([]));
            versions.as_array_mut().unwrap().push(entry);
        }
        self.write(&json!({ "apiVersion": "v1", "generated": generated, "entries": entries }));
    }

    /// Answers a path with a status: 429 demands a pause of a second.
    pub(crate) fn answer_with(&self, path: &str, status: &str) {
        fs::write(self.dir.path().join(format!("{path}.status")), status).unwrap();
    }

    /// Replaces the index.
    pub(crate) fn write(&self, index: &Value) {
        // JSON is YAML.
        fs::write(self.dir.path().join("index.yaml"), index.to_string()).unwrap();
    }

    /// The answers since the last call.
    pub(crate) fn answers(&self) -> Vec<String> {
        std::mem::take(&mut *self.answers.lock().unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Services with the names of charts.
    pub(crate) fn config(&self, home: &Home, charts: &[&str]) -> Config {
        let mut config = home.config(&self.url());
        config.repositories[0].kind = serde_json::from_value(json!("helm")).unwrap();
        let service = |chart: &&str| {
            let document = json!({ "name": chart, "repository": REPOSITORY, "chart": chart, "ref": "semver:^1" });
            serde_json::from_value(document).unwrap()
        };
        config.services = charts.iter().map(service).collect();
        config
    }
}

fn read_head(socket: &mut impl Read) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap().to_ascii_lowercase())
}

fn answer(
    folder: &Path,
    mut socket: impl Read + Write,
    answers: &Mutex<Vec<String>>,
    is_private: bool,
) -> std::io::Result<()> {
    let head = read_head(&mut socket)?;
    let path = head.split(' ').nth(1).unwrap();
    let body = fs::read(folder.join(path.trim_start_matches('/')));
    let stated = fs::read_to_string(folder.join(format!("{}.status", path.trim_start_matches('/')))).ok();
    let etag = format!("\"{}\"", blake3::hash(body.as_deref().unwrap_or_default()).to_hex());
    let (status, body) = match body {
        _ if is_private && !head.contains("\r\nauthorization: bearer known\r\n") => ("401", Vec::new()),
        _ if stated.is_some() => (stated.as_deref().unwrap(), Vec::new()),
        Err(_) => ("404", Vec::new()),
        Ok(_) if head.contains(&format!("if-none-match: {etag}")) => ("304", Vec::new()),
        Ok(body) => ("200", body),
    };
    answers.lock().unwrap().push(format!("{status} {path}"));
    let length = body.len();
    let pause = if status == "429" { "retry-after: 1\r\n" } else { "" };
    let media_type = if body.starts_with(b"<") { "content-type: text/html; charset=utf-8\r\n" } else { "" };
    write!(
        socket,
        "HTTP/1.1 {status} x\r\n{pause}{media_type}etag: {etag}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )?;
    socket.write_all(&body)?;
    socket.flush()
}

/// A chart with one setting.
fn shop(setting: &str) -> Vec<(&'static str, Vec<u8>)> {
    vec![("shop/Chart.yaml", b"name: shop".to_vec()), ("shop/templates/map.yaml", setting.as_bytes().to_vec())]
}

pub(crate) fn publish(charts: &Charts, version: &str, setting: &str) {
    let members = shop(setting);
    let members: Vec<(&str, &[u8])> = members.iter().map(|(path, contents)| (*path, contents.as_slice())).collect();
    charts.publish("shop", version, &members);
}

pub(crate) fn is_version(version: &str) -> impl Fn(&Descriptor) -> bool + '_ {
    move |descriptor| descriptor.publication().version.as_ref().is_some_and(|other| other.as_str() == version)
}

/// The reason for which a service does not follow its chart, once there is one.
pub(crate) async fn failure(node: &Node, service: &str) -> String {
    let mut condition = node.running.condition(&service.parse().unwrap()).unwrap();
    let is = |condition: &Condition| matches!(condition, Condition::Unhealthy { .. });
    match in_time(condition.wait_for(is)).await.unwrap().clone() {
        Condition::Unhealthy { step, reason, .. } => format!("[{step}] {reason}"),
        _ => unreachable!(),
    }
}
