//! An OCI registry whose faults a test chooses: tokens with a life, redirects of blobs, pages, no `HEAD`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::{ServerConnection, StreamOwned};
use weir_protocol::digest::Sha256;

use crate::prelude::*;
use crate::smart_http::tls_config;

/// The layer of `flux push artifact`.
pub(crate) const FLUX_CONTENT: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
/// Its configuration.
pub(crate) const FLUX_CONFIG: &str = "application/vnd.cncf.flux.config.v1+json";

/// A running registry, until the process ends.
#[derive(Clone)]
pub(crate) struct RegistryServer(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    is_tls: bool,
    behavior: Mutex<RegistryBehavior>,
    /// By repository and tag or digest.
    manifests: Mutex<HashMap<(String, String), Vec<u8>>>,
    blobs: Mutex<HashMap<String, Vec<u8>>>,
    /// Of a Helm repository at the same server.
    index: Mutex<Vec<u8>>,
    /// Of the last token.
    tokens: AtomicU64,
    requests: Mutex<Vec<String>>,
}

/// Default: a registry that anybody may read, and that does everything.
#[derive(Clone, Default)]
pub(crate) struct RegistryBehavior {
    /// The registry demands this password itself.
    pub(crate) basic: Option<(String, String)>,
    /// The registry demands a token. The service demands a password for it, if there is one.
    pub(crate) token: Option<Option<(String, String)>>,
    /// Where its tokens are, if not at the registry.
    pub(crate) realm: Option<String>,
    pub(crate) has_no_head: bool,
    /// What needs credentials is not there without any, except for the root of the registry.
    pub(crate) hides: bool,
    /// Requests with this in their target are never answered.
    pub(crate) stalls: Option<&'static str>,
    /// Requests with this in their target are answered with 429 and a pause of an hour.
    pub(crate) pauses: Option<&'static str>,
    /// The label of blobs, which are as they are.
    pub(crate) encoding: Option<&'static str>,
    /// The tags on a page.
    pub(crate) page: Option<usize>,
    /// The registry that has the blobs.
    pub(crate) storage: Option<String>,
    /// Answers requests with this in their target, which a blank follows, with this status.
    pub(crate) refused: Option<(&'static str, u16)>,
    /// Answers all requests with this status, and a pause of an hour.
    pub(crate) status: Option<u16>,
}

impl RegistryServer {
    /// With certificates (`origin.pem`, `origin.key`) over TLS.
    pub(crate) fn start(certificates: Option<&Path>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tls = certificates.map(|dir| tls_config(dir, None));
        let server = Self(Arc::new(Inner {
            address: listener.local_addr().unwrap(),
            is_tls: tls.is_some(),
            behavior: Mutex::default(),
            manifests: Mutex::default(),
            blobs: Mutex::default(),
            index: Mutex::default(),
            tokens: AtomicU64::new(0),
            requests: Mutex::default(),
        }));
        let serving = server.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (serving, tls) = (serving.clone(), tls.clone());
                std::thread::spawn(move || {
                    // A client that gave up is no error of the server.
                    let _ = match tls {
                        Some(tls) => serving.answer(StreamOwned::new(ServerConnection::new(tls).unwrap(), socket)),
                        None => serving.answer(socket),
                    };
                });
            }
        });
        server
    }

    /// `oci://…` of a repository.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("oci://{}/{name}", self.0.address)
    }

    /// The URL of the registry itself.
    pub(crate) fn base(&self) -> String {
        format!("http{}://{}", if self.0.is_tls { "s" } else { "" }, self.0.address)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut RegistryBehavior)) {
        change(&mut self.0.behavior.lock().unwrap());
    }

    /// Ends the life of all tokens.
    pub(crate) fn expire_tokens(&self) {
        self.0.tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// Status, method and path of the requests since the last call; `+` if one had credentials.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.requests.lock().unwrap())
    }

    /// Stores a blob, and returns its descriptor.
    pub(crate) fn blob(&self, media_type: &str, bytes: &[u8]) -> Value {
        let digest = format!("sha256:{}", Sha256::of(bytes));
        self.0.blobs.lock().unwrap().insert(digest.clone(), bytes.to_vec());
        json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    }

    /// Other bytes for a blob with this digest. `None`: it is deleted.
    pub(crate) fn replace_blob(&self, descriptor: &Value, bytes: Option<&[u8]>) {
        let digest = descriptor["digest"].as_str().unwrap().to_owned();
        let mut blobs = self.0.blobs.lock().unwrap();
        match bytes {
            Some(bytes) => blobs.insert(digest, bytes.to_vec()),
            None => blobs.remove(&digest),
        };
    }

    /// Stores a manifest or an index under its digest and a tag. Returns its descriptor.
    pub(crate) fn push(&self, name: &str, tag: &str, document: &Value) -> Value {
        let bytes = document.to_string().into_bytes();
        let digest = format!("sha256:{}", Sha256::of(&bytes));
        let descriptor = json!({ "mediaType": document["mediaType"], "digest": digest, "size": bytes.len() });
        let mut manifests = self.0.manifests.lock().unwrap();
        manifests.insert((name.to_owned(), digest), bytes.clone());
        manifests.insert((name.to_owned(), tag.to_owned()), bytes);
        descriptor
    }

    /// What `flux push artifact` pushes: one archive. Returns the digest of its manifest.
    pub(crate) fn push_archive(&self, name: &str, tag: &str, members: &[(&str, &str)]) -> String {
        let layer = self.blob(FLUX_CONTENT, &gzip_tar(members));
        let pushed = self.push(name, tag, &self.artifact(FLUX_CONFIG, &[layer]));
        pushed["digest"].as_str().unwrap().to_owned()
    }

    /// Serves an index of charts.
    pub(crate) fn serve_index(&self, index: &Value) {
        *self.0.index.lock().unwrap() = index.to_string().into_bytes();
    }

    /// A manifest of layers.
    pub(crate) fn artifact(&self, config: &str, layers: &[Value]) -> Value {
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        json!({ "schemaVersion": 2, "mediaType": media_type, "config": self.blob(config, b"{}"), "layers": layers })
    }

    /// An index of manifests, each with its platform.
    pub(crate) fn index(&self, manifests: &[(Value, &str)]) -> Value {
        let with_platform = |(descriptor, platform): &(Value, &str)| {
            let mut descriptor = descriptor.clone();
            let (os, architecture) = platform.split_once('/').unwrap();
            descriptor["platform"] = json!({ "os": os, "architecture": architecture });
            descriptor
        };
        let manifests: Vec<_> = manifests.iter().map(with_platform).collect();
        let media_type = "application/vnd.oci.image.index.v1+json";
        json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": manifests })
    }

    pub(crate) fn untag(&self, name: &str, tag: &str) {
        self.0.manifests.lock().unwrap().remove(&(name.to_owned(), tag.to_owned()));
    }

    /// Answers one request and closes the connection.
    fn answer(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let header = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
        };
        let authorization = header("authorization");
        let (status, headers, body) = self.respond(method, target, authorization.as_deref());
        let sent = if authorization.is_some() { " +" } else { "" };
        self.0.requests.lock().unwrap().push(format!("{status} {method} {target}{sent}"));
        let length = body.len();
        let stream = stream.get_mut();
        write!(stream, "HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n")?;
        stream.write_all(if method == "HEAD" { &[] } else { &body })?;
        stream.flush()
    }

    fn respond(&self, method: &str, target: &str, authorization: Option<&str>) -> (u16, String, Vec<u8>) {
        let behavior = self.0.behavior.lock().unwrap().clone();
        let none = |status: u16, headers: &str| (status, headers.to_owned(), Vec::new());
        if let Some(status) = behavior.status {
            return none(status, "retry-after: 3600\r\n");
        }
        if behavior.pauses.is_some_and(|part| target.contains(part)) {
            return none(429, "retry-after: 3600\r\n");
        }
        let has = |(user, password): &(String, String)| {
            authorization == Some(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
        };
        if let Some((_, status)) = behavior.refused.filter(|(part, _)| format!("{target} ").contains(part)) {
            let to = if (300..400).contains(&status) { "location: https://pages.example/\r\n" } else { "" };
            return none(status, to);
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if path == "/token" {
            if behavior.token.flatten().is_some_and(|password| !has(&password)) {
                return none(401, "");
            }
            let number = self.0.tokens.fetch_add(1, Ordering::Relaxed) + 1;
            let token = json!({ "token": format!("t{number}"), "expires_in": 300 });
            return (200, String::new(), token.to_string().into_bytes());
        }
        if behavior.stalls.is_some_and(|part| target.contains(part)) {
            loop {
                std::thread::park();
            }
        }
        if path == "/index.yaml" {
            return (200, String::new(), self.0.index.lock().unwrap().clone());
        }
        let rest = path.strip_prefix("/v2/").unwrap();
        if behavior.hides && authorization.is_none() && !rest.is_empty() {
            return none(404, "");
        }
        let kind = ["/manifests/", "/blobs/", "/tags/", "/referrers/"]
            .into_iter()
            .find(|kind| rest.contains(kind))
            .unwrap_or("/");
        let (name, last) = rest.split_once(kind).unwrap_or_default();
        if behavior.basic.is_some_and(|password| !has(&password)) {
            return none(401, "www-authenticate: Basic realm=\"registry\"\r\n");
        }
        let number = self.0.tokens.load(Ordering::Relaxed);
        if behavior.token.is_some() && authorization != Some(&format!("Bearer t{number}")) {
            let realm = behavior.realm.unwrap_or_else(|| format!("{}/token", self.base()));
            let challenge = format!("Bearer realm=\"{realm}\",service=\"r\",scope=\"repository:{name}:pull\"");
            return none(401, &format!("www-authenticate: {challenge}\r\n"));
        }
        if rest.is_empty() {
            return none(200, "");
        }
        let found = match kind {
            "/manifests/" if method == "HEAD" && behavior.has_no_head => return none(405, ""),
            "/manifests/" => self.0.manifests.lock().unwrap().get(&(name.to_owned(), last.to_owned())).cloned(),
            // What a test has pushed so.
            "/referrers/" => {
                self.0.manifests.lock().unwrap().get(&(name.to_owned(), format!("referrers/{last}"))).cloned()
            }
            "/blobs/" => {
                if let Some(storage) = behavior.storage {
                    return none(307, &format!("location: {storage}{path}?signature=secret\r\n"));
                }
                self.0.blobs.lock().unwrap().get(last).cloned()
            }
            "/tags/" => {
                let manifests = self.0.manifests.lock().unwrap();
                let mut tags: Vec<_> =
                    manifests.keys().filter(|(other, tag)| other == name && !tag.contains(':')).collect();
                tags.sort();
                let skipped =
                    query.split('&').find_map(|it| it.strip_prefix("from=")).map_or(0, |it| it.parse().unwrap());
                let page = behavior.page.unwrap_or(usize::MAX);
                let shown: Vec<_> = tags.iter().skip(skipped).take(page).map(|(_, tag)| tag).collect();
                let next = skipped.saturating_add(page);
                let link = format!("link: </v2/{name}/tags/list?from={next}>; rel=\"next\"\r\n");
                let link = if next < tags.len() { link } else { String::new() };
                return (200, link, json!({ "name": name, "tags": shown }).to_string().into_bytes());
            }
            _ => None,
        };
        match found {
            Some(body) => {
                let label = behavior.encoding.filter(|_| kind == "/blobs/");
                let label = label.map(|label| format!("content-encoding: {label}\r\n")).unwrap_or_default();
                (200, format!("docker-content-digest: sha256:{}\r\n{label}", Sha256::of(&body)), body)
            }
            None => none(404, ""),
        }
    }
}

pub(crate) fn gzip_tar<C: AsRef<[u8]>>(members: &[(&str, C)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, contents) in members {
        let (mut header, contents) = (tar::Header::new_ustar(), contents.as_ref());
        // Not by `set_path`, which refuses what leads out.
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append(&header, contents).unwrap();
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&archive.into_inner().unwrap()).unwrap();
    encoder.finish().unwrap()
}
