//! A Git server with LFS on loopback: the batch API as specified, and a storage, with faults on demand.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicUsize;

use ring::digest::{SHA256, digest};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::sync::Semaphore;

use crate::prelude::*;
use crate::smart_http::{http_backend, tls_config, tls_config_asking};

/// The end of the head of a request whose client has shown a certificate.
pub(crate) const SHOWN: &str = "(a certificate was shown)";

/// The behavior of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct LfsBehavior {
    /// The `Authorization` that the repository and the API require.
    pub(crate) authorization: Option<String>,
    /// The origin of download URLs; by default the server's own.
    pub(crate) storage: Option<String>,
    /// The origin to which downloads are redirected, if any.
    pub(crate) redirect: Option<String>,
    /// The bytes that the storage sends instead of an object.
    pub(crate) contents: Option<Vec<u8>>,
    /// The body of the response to a batch request, instead of the right one.
    pub(crate) batch_body: Option<String>,
    /// The server falls silent after this many bytes of an object.
    pub(crate) silent_after: Option<usize>,
    /// Objects are sent byte by byte with pauses, until the behavior changes.
    pub(crate) slow: bool,
    /// The only object to which the storage's faults apply, by its pointer.
    pub(crate) only_object: Option<String>,
    /// The status and the target's origin of a redirect of batch requests.
    pub(crate) api_redirect: Option<(&'static str, String)>,
    /// A status and a header line with which the API answers everything.
    pub(crate) api_response: Option<(&'static str, &'static str)>,
    /// The same for the storage.
    pub(crate) storage_response: Option<(&'static str, &'static str)>,
    /// After this many downloads the URLs expire, until others are requested.
    pub(crate) downloads_until_expiry: Option<usize>,
    /// The `expires_in` of the API.
    pub(crate) expires_in: Option<u64>,
}

struct Inner {
    root: std::path::PathBuf,
    address: SocketAddr,
    scheme: &'static str,
    objects: Mutex<HashMap<String, Vec<u8>>>,
    behavior: Mutex<LfsBehavior>,
    requests: Mutex<Vec<String>>,
    /// Downloads since URLs were requested.
    downloads: AtomicUsize,
    /// A permit for each object that is sent slowly.
    dripping: Semaphore,
}

/// A running server, until the process ends.
#[derive(Clone)]
pub(crate) struct LfsServer(Arc<Inner>);

impl LfsServer {
    /// Serves the repositories below a directory; with certificates (`origin.pem`, `origin.key`) over TLS.
    pub(crate) fn start(root: &Path, certificates: Option<&Path>) -> Self {
        Self::start_with(root, certificates.map(|dir| tls_config(dir, None)))
    }

    /// The same over TLS, with optional client certificates. The head of a request with one ends in [`SHOWN`].
    pub(crate) fn start_asking_for_certificates(root: &Path, certificates: &Path) -> Self {
        Self::start_with(root, Some(tls_config_asking(certificates)))
    }

    fn start_with(root: &Path, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self(Arc::new(Inner {
            root: root.to_owned(),
            address: listener.local_addr().unwrap(),
            scheme: if tls.is_some() { "https" } else { "http" },
            objects: Mutex::default(),
            behavior: Mutex::default(),
            requests: Mutex::default(),
            downloads: AtomicUsize::new(0),
            dripping: Semaphore::new(0),
        }));
        let serving = server.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (serving, tls) = (serving.clone(), tls.clone());
                std::thread::spawn(move || {
                    let socket = socket.unwrap();
                    // Some tests close their connections.
                    let _ = match tls {
                        Some(config) => {
                            let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
                            let _ = stream.conn.complete_io(&mut stream.sock);
                            let shown = stream.conn.peer_certificates().is_some();
                            serving.respond_once(stream, shown)
                        }
                        None => serving.respond_once(socket, false),
                    };
                });
            }
        });
        server
    }

    /// The origin of its URLs.
    pub(crate) fn base(&self) -> String {
        format!("{}://{}", self.0.scheme, self.0.address)
    }

    pub(crate) fn url(&self, repository: &str) -> String {
        format!("{}/{repository}", self.base())
    }

    pub(crate) fn set_behavior(&self, behavior: LfsBehavior) {
        *self.0.behavior.lock().unwrap() = behavior;
    }

    /// The heads of the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.requests.lock().unwrap())
    }

    /// Waits until an object is sent slowly, once for each.
    pub(crate) async fn wait_for_slow_download(&self) {
        in_time(self.0.dripping.acquire()).await.unwrap().forget();
    }

    /// Stores an object, and returns its pointer.
    pub(crate) fn store(&self, contents: &[u8]) -> String {
        let oid: String = digest(&SHA256, contents).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        self.0.objects.lock().unwrap().insert(oid.clone(), contents.to_vec());
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {}\n", contents.len())
    }

    /// Answers one request and closes the connection.
    fn respond_once(&self, stream: impl Read + Write, shown: bool) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        self.0.requests.lock().unwrap().push(head.clone() + if shown { SHOWN } else { "" });
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
        };
        let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut body)?;
        let stream = stream.get_mut();
        let (method, target) = head.split_once(' ').unwrap();
        let target = target.split(' ').next().unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut behavior = self.0.behavior.lock().unwrap().clone();
        if let Some(oid) = path.strip_prefix("/storage/") {
            if behavior.only_object.as_ref().is_some_and(|only| !only.contains(oid)) {
                behavior = LfsBehavior {
                    authorization: behavior.authorization,
                    storage: behavior.storage,
                    ..LfsBehavior::default()
                };
            }
            return self.respond_storage(stream, oid, header("x-storage-key").as_deref(), &behavior);
        }
        if behavior.authorization.is_some() && header("authorization") != behavior.authorization {
            return respond(stream, "401 Unauthorized", "WWW-Authenticate: Basic realm=\"git\"\r\n", b"");
        }
        if path.ends_with(".git/info/lfs/objects/batch") {
            if let Some((status, headers)) = behavior.api_response {
                return respond(stream, status, headers, b"");
            }
            if let Some((status, to)) = behavior.api_redirect.as_ref().filter(|_| !path.starts_with("/moved/")) {
                return respond(stream, status, &format!("Location: {to}/moved{path}\r\n"), b"");
            }
            self.0.downloads.store(0, Ordering::Relaxed);
            let body = behavior.batch_body.clone().unwrap_or_else(|| self.respond_batch(&body, &behavior).to_string());
            return respond(stream, "200 OK", "Content-Type: application/vnd.git-lfs+json\r\n", body.as_bytes());
        }
        let (version, kind) = (header("git-protocol").unwrap_or_default(), header("content-type").unwrap_or_default());
        let (status, headers, body) = http_backend(&self.0.root, (method, path, query), &version, &kind, &body);
        respond(stream, &status, &headers, &body)
    }

    fn respond_batch(&self, body: &[u8], behavior: &LfsBehavior) -> Value {
        let request: Value = serde_json::from_slice(body).unwrap();
        assert_eq!(request["operation"], "download");
        assert_eq!(request["transfers"], json!(["basic"]));
        let base = behavior.storage.clone().unwrap_or_else(|| self.base());
        let objects = self.0.objects.lock().unwrap();
        let objects = request["objects"].as_array().unwrap().iter().map(|object| {
            let oid = object["oid"].as_str().unwrap();
            match objects.get(oid) {
                Some(contents) if contents.len() as u64 == object["size"].as_u64().unwrap() => {
                    let header = json!({"X-Storage-Key": "a key for one object"});
                    let download = json!({"href": format!("{base}/storage/{oid}"), "header": header, "expires_in": behavior.expires_in});
                    json!({"oid": oid, "size": object["size"], "authenticated": true, "actions": {"download": download}})
                }
                _ => json!({"oid": oid, "size": object["size"], "error": {"code": 404, "message": "Object does not exist"}}),
            }
        });
        json!({"transfer": "basic", "objects": objects.collect::<Vec<_>>(), "hash_algo": "sha256"})
    }

    fn respond_storage(
        &self,
        stream: &mut impl ReadWrite,
        oid: &str,
        key: Option<&str>,
        behavior: &LfsBehavior,
    ) -> std::io::Result<()> {
        if let Some((status, headers)) = behavior.storage_response {
            return respond(stream, status, headers, b"");
        }
        let downloads = self.0.downloads.fetch_add(1, Ordering::Relaxed);
        if behavior.downloads_until_expiry.is_some_and(|most| downloads >= most) {
            return respond(stream, "403 Forbidden", "", b"");
        }
        if let Some(to) = &behavior.redirect {
            return respond(stream, "302 Found", &format!("Location: {to}/storage/{oid}\r\n"), b"");
        }
        let objects = self.0.objects.lock().unwrap();
        let Some(object) = objects.get(oid).cloned() else { return respond(stream, "404 Not Found", "", b"") };
        drop(objects);
        if behavior.storage.is_none() && key != Some("a key for one object") {
            return respond(stream, "403 Forbidden", "", b"");
        }
        let object = behavior.contents.clone().unwrap_or(object);
        match behavior.silent_after {
            _ if behavior.slow => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", object.len())?;
                self.0.dripping.add_permits(1);
                for byte in object {
                    if !self.0.behavior.lock().unwrap().slow {
                        break;
                    }
                    stream.write_all(&[byte])?;
                    stream.flush()?;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Ok(())
            }
            Some(bytes) => {
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", object.len())?;
                stream.write_all(&object[..bytes])?;
                stream.flush()?;
                // Until the client closes the connection.
                stream.read(&mut [0]).map(|_| ())
            }
            None => respond(stream, "200 OK", "Content-Type: application/octet-stream\r\n", &object),
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

fn respond(stream: &mut impl Write, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)?;
    stream.flush()
}
