//! A Git server on loopback: `git http-backend` over HTTP or TLS, with authentication, redirects and silence; and a
//! proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, WebPkiClientVerifier};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::prelude::*;

/// The behavior of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpBehavior {
    /// The required `Authorization`: `Basic …` or `Bearer …`.
    pub(crate) authorization: Option<String>,
    /// The target of redirects of the first request: the part before the repository's path.
    pub(crate) redirect: Option<String>,
    /// The server falls silent after this many bytes of the response to a fetch.
    pub(crate) silent_after: Option<usize>,
    /// A status with which it answers everything.
    pub(crate) status: Option<u16>,
    /// A header for that response.
    pub(crate) header: Option<String>,
    /// The requests per connection: one more is read and not answered. `None`: one, with notice.
    pub(crate) requests_per_connection: Option<usize>,
    /// Whether the connection of the request without a response stays open.
    pub(crate) hangs: bool,
}

/// A running server, until the process ends.
pub(crate) struct SmartHttp {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    behavior: Arc<Mutex<HttpBehavior>>,
    requests: Arc<Mutex<Vec<String>>>,
    handshakes: Arc<Mutex<Vec<HandshakeKind>>>,
}

impl SmartHttp {
    /// Serves the repositories below a directory; with certificates (`origin.pem`, `origin.key`) over TLS.
    pub(crate) fn start(root: &Path, certificates: Option<&Path>) -> Self {
        Self::start_with(root, certificates.map(|dir| tls_config(dir, None)))
    }

    /// Serves over TLS, only to clients with a certificate of this authority.
    pub(crate) fn start_for_clients_of(root: &Path, certificates: &Path, client_ca: &Path) -> Self {
        Self::start_with(root, Some(tls_config(certificates, Some(client_ca))))
    }

    fn start_with(root: &Path, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            scheme: if tls.is_some() { "https" } else { "http" },
            behavior: Arc::default(),
            requests: Arc::default(),
            handshakes: Arc::default(),
        };
        let (root, behavior, requests) = (root.to_owned(), server.behavior.clone(), server.requests.clone());
        let handshakes = server.handshakes.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (root, tls) = (root.clone(), tls.clone());
                let (behavior, requests) = (behavior.clone(), requests.clone());
                let handshakes = handshakes.clone();
                std::thread::spawn(move || {
                    let socket = socket.unwrap();
                    // Some tests close their connections, or do not trust the server.
                    let _ = match tls {
                        Some(config) => shake_hands(config, socket, &handshakes)
                            .and_then(|stream| answer(stream, &root, &behavior, &requests)),
                        None => answer(socket, &root, &behavior, &requests),
                    };
                });
            }
        });
        server
    }

    pub(crate) fn url(&self, repository: &str) -> String {
        format!("{}://{}/{repository}", self.scheme, self.address)
    }

    pub(crate) fn set_behavior(&self, behavior: HttpBehavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    /// The heads of the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// The TLS handshakes since the last call.
    pub(crate) fn take_handshakes(&self) -> Vec<HandshakeKind> {
        std::mem::take(&mut self.handshakes.lock().unwrap())
    }
}

fn shake_hands(
    config: Arc<ServerConfig>,
    mut socket: TcpStream,
    handshakes: &Mutex<Vec<HandshakeKind>>,
) -> std::io::Result<StreamOwned<ServerConnection, TcpStream>> {
    let mut connection = ServerConnection::new(config).unwrap();
    let shaken = connection.complete_io(&mut socket);
    handshakes.lock().unwrap().extend(connection.handshake_kind());
    shaken.map(|_| StreamOwned::new(connection, socket))
}

/// The TLS configuration of a server with these certificates (`origin.pem`, `origin.key`).
pub(crate) fn tls_config(dir: &Path, client_ca: Option<&Path>) -> Arc<ServerConfig> {
    tls_config_with(dir, client_ca.map(|ca| verifier(ca).build().unwrap()))
}

/// The same with optional client certificates of its own authority (`ca.pem`).
pub(crate) fn tls_config_asking(dir: &Path) -> Arc<ServerConfig> {
    tls_config_with(dir, Some(verifier(&dir.join("ca.pem")).allow_unauthenticated().build().unwrap()))
}

fn verifier(client_ca: &Path) -> ClientCertVerifierBuilder {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(client_ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
}

fn tls_config_with(dir: &Path, verifier: Option<Arc<dyn ClientCertVerifier>>) -> Arc<ServerConfig> {
    let certificates = CertificateDer::pem_file_iter(dir.join("origin.pem")).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(dir.join("origin.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = match verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    Arc::new(builder.with_single_cert(certificates, key).unwrap())
}

/// Answers requests and closes the connection. Each request meets the behavior of that moment: a client may hold
/// connections that it opened earlier and has not used.
fn answer(
    stream: impl Read + Write,
    root: &Path,
    behavior: &Mutex<HttpBehavior>,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut answered = 0;
    while answer_one(&mut stream, root, behavior, requests, answered)? {
        answered += 1;
    }
    Ok(())
}

/// Answers one request and returns whether the connection stays open.
fn answer_one(
    stream: &mut BufReader<impl Read + Write>,
    root: &Path,
    behavior: &Mutex<HttpBehavior>,
    requests: &Mutex<Vec<String>>,
    answered: usize,
) -> std::io::Result<bool> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    requests.lock().unwrap().push(head.clone());
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let mut body = vec![0; header("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body)?;
    let behavior = behavior.lock().unwrap().clone();
    if behavior.requests_per_connection.is_some_and(|most| answered >= most) {
        if behavior.hangs {
            // Until the client gives up.
            let _ = stream.read(&mut [0])?;
        }
        return Ok(false);
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let stream = stream.get_mut();
    if let Some(status) = behavior.status {
        let header = behavior.header.as_ref().map(|header| format!("{header}\r\n")).unwrap_or_default();
        write!(stream, "HTTP/1.1 {status} No\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(false);
    }
    if let Some(to) = &behavior.redirect
        && method == "GET"
    {
        write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {to}{target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        return Ok(false);
    }
    if let Some(expected) = &behavior.authorization
        && header("authorization").as_ref() != Some(expected)
    {
        let challenge = "WWW-Authenticate: Basic realm=\"git\"";
        write!(stream, "HTTP/1.1 401 Unauthorized\r\n{challenge}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        return Ok(false);
    }
    let version = header("git-protocol").unwrap_or_default();
    let (status, headers, body) =
        http_backend(root, (method, path, query), &version, &header("content-type").unwrap_or_default(), &body);
    let connection = if behavior.requests_per_connection.is_some() { "keep-alive" } else { "close" };
    write!(stream, "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: {connection}\r\n\r\n", body.len())?;
    match behavior.silent_after {
        // Listings are short; only packs are meant.
        Some(bytes) if method == "POST" && body.len() > bytes => {
            stream.write_all(&body[..bytes])?;
            stream.flush()?;
            // Until the client closes the connection.
            let _ = stream.read(&mut [0])?;
            Ok(false)
        }
        _ => {
            stream.write_all(&body)?;
            stream.flush()?;
            Ok(behavior.requests_per_connection.is_some())
        }
    }
}

pub(crate) fn http_backend(
    root: &Path,
    (method, path, query): (&str, &str, &str),
    version: &str,
    kind: &str,
    body: &[u8],
) -> (String, String, Vec<u8>) {
    let mut command = git_command(root);
    command.arg("http-backend").envs([
        ("REQUEST_METHOD", method),
        ("PATH_INFO", &path.replace("%20", " ")),
        ("QUERY_STRING", query),
        ("CONTENT_TYPE", kind),
        ("GIT_PROTOCOL", version),
        ("GIT_HTTP_EXPORT_ALL", "1"),
        ("REMOTE_ADDR", "127.0.0.1"),
    ]);
    command.env("GIT_PROJECT_ROOT", root).env("CONTENT_LENGTH", body.len().to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let body = body.to_owned();
    let feeder = std::thread::spawn(move || {
        let _ = stdin.write_all(&body);
    });
    let output = child.wait_with_output().unwrap().stdout;
    feeder.join().unwrap();
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("the CGI program answers with headers");
    let head = str::from_utf8(&output[..end]).unwrap();
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
    let headers = head.lines().filter(|line| !line.starts_with("Status: ")).map(|line| format!("{line}\r\n")).collect();
    (status, headers, output[end + 4..].to_vec())
}

/// A proxy on loopback that opens tunnels (CONNECT) for a `Proxy-Authorization`, and the heads that it received.
pub(crate) fn tunnel_proxy(authorization: &'static str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let seen = heads.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, seen) = (socket.unwrap(), seen.clone());
            std::thread::spawn(move || tunnel(&socket, authorization, &seen));
        }
    });
    (address, heads)
}

fn tunnel(mut client: &TcpStream, authorization: &str, heads: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let to = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default().to_owned();
    let known = head
        .lines()
        .any(|line| line.to_ascii_lowercase().starts_with("proxy-authorization:") && line.ends_with(authorization));
    heads.lock().unwrap().push(head);
    if !known {
        return client.write_all(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n");
    }
    let server = TcpStream::connect(to)?;
    client.write_all(b"HTTP/1.1 200 Go on\r\n\r\n")?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::copy(&mut &*client, &mut &server);
            server.shutdown(std::net::Shutdown::Write)
        });
        let _ = std::io::copy(&mut &server, &mut &*client);
        client.shutdown(std::net::Shutdown::Both)
    })
}

/// A Git daemon on loopback, one process per connection.
pub(crate) fn git_daemon(root: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let socket: TcpStream = socket.unwrap();
            let (input, output) = (socket.try_clone().unwrap(), socket);
            let mut daemon = git_command(&root);
            daemon.args(["daemon", "--inetd", "--export-all", "--base-path=."]);
            daemon
                .stdin(std::os::fd::OwnedFd::from(input))
                .stdout(std::os::fd::OwnedFd::from(output))
                .stderr(Stdio::null());
            let mut daemon = daemon.spawn().unwrap();
            std::thread::spawn(move || daemon.wait());
        }
    });
    address
}

/// Writes a password to a file next to a repository.
pub(crate) fn password_file(dir: &Path, password: &str) -> PathBuf {
    let file = dir.join("password");
    fs::write(&file, format!("{password}\n")).unwrap();
    file
}
