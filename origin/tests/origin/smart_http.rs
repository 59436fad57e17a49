//! A Git server on loopback: `git http-backend` behind HTTP or TLS, with authentication, redirects and silence; and a proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, WebPkiClientVerifier};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use crate::prelude::*;

/// What the server does besides serving.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manner {
    /// What `Authorization` has to say: `Basic …` or `Bearer …`.
    pub(crate) authorization: Option<String>,
    /// Where the first request of each poll is sent on to: what comes before the path of the repository.
    pub(crate) redirect: Option<String>,
    /// After so many bytes of the answer to a fetch the server falls silent.
    pub(crate) silent_after: Option<usize>,
    /// Answers with this status and nothing else.
    pub(crate) status: Option<u16>,
    /// A header for that answer.
    pub(crate) header: Option<String>,
    /// How many requests a connection is kept for: one more is read, and not answered. Absent: one, and that is said.
    pub(crate) keeps: Option<usize>,
    /// Whether the connection of the request without a response stays open.
    pub(crate) hangs: bool,
}

/// A running server; it ends with the process.
pub(crate) struct SmartHttp {
    pub(crate) address: SocketAddr,
    scheme: &'static str,
    manner: Arc<Mutex<Manner>>,
    requests: Arc<Mutex<Vec<String>>>,
    handshakes: Arc<Mutex<Vec<HandshakeKind>>>,
}

impl SmartHttp {
    /// Serves the repositories below a directory; with certificates (`origin.pem`, `origin.key`) over TLS.
    pub(crate) fn start(root: &Path, certificates: Option<&Path>) -> Self {
        Self::start_with(root, certificates.map(|dir| tls_config(dir, None)))
    }

    /// Serves over TLS, to clients with a certificate of this authority alone.
    pub(crate) fn start_for_clients_of(root: &Path, certificates: &Path, client_ca: &Path) -> Self {
        Self::start_with(root, Some(tls_config(certificates, Some(client_ca))))
    }

    fn start_with(root: &Path, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            scheme: if tls.is_some() { "https" } else { "http" },
            manner: Arc::default(),
            requests: Arc::default(),
            handshakes: Arc::default(),
        };
        let (root, manner, requests) = (root.to_owned(), server.manner.clone(), server.requests.clone());
        let handshakes = server.handshakes.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (root, tls) = (root.clone(), tls.clone());
                let (manner, requests) = (manner.lock().unwrap().clone(), requests.clone());
                let handshakes = handshakes.clone();
                std::thread::spawn(move || {
                    let socket = socket.unwrap();
                    // A client that goes away, or does not trust us, is what some tests are about.
                    let _ = match tls {
                        Some(config) => shake_hands(config, socket, &handshakes)
                            .and_then(|stream| answer(stream, &root, &manner, &requests)),
                        None => answer(socket, &root, &manner, &requests),
                    };
                });
            }
        });
        server
    }

    pub(crate) fn url(&self, repository: &str) -> String {
        format!("{}://{}/{repository}", self.scheme, self.address)
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    /// The heads of the requests since the last time.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// The handshakes of TLS connections since the last time.
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

/// What a server with these certificates (`origin.pem`, `origin.key`) begins a connection with.
pub(crate) fn tls_config(dir: &Path, client_ca: Option<&Path>) -> Arc<ServerConfig> {
    tls_config_with(dir, client_ca.map(|ca| verifier(ca).build().unwrap()))
}

/// The same of one that asks for a certificate of its own authority (`ca.pem`), and serves those without one too.
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

/// Answers requests and closes the connection.
fn answer(
    stream: impl Read + Write,
    root: &Path,
    manner: &Manner,
    requests: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    for further in (0..=manner.keeps.unwrap_or(0)).rev() {
        let silent = further == 0 && manner.keeps.is_some();
        answer_one(&mut stream, root, manner, requests, silent)?;
    }
    Ok(())
}

fn answer_one(
    stream: &mut BufReader<impl Read + Write>,
    root: &Path,
    manner: &Manner,
    requests: &Mutex<Vec<String>>,
    silent: bool,
) -> std::io::Result<()> {
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
    if silent {
        // Until the client gives up.
        return if manner.hangs { stream.read(&mut [0]).map(|_| ()) } else { Ok(()) };
    }
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let stream = stream.get_mut();
    if let Some(status) = manner.status {
        let header = manner.header.as_ref().map(|header| format!("{header}\r\n")).unwrap_or_default();
        return write!(stream, "HTTP/1.1 {status} No\r\n{header}Content-Length: 0\r\nConnection: close\r\n\r\n");
    }
    if let Some(to) = &manner.redirect
        && method == "GET"
    {
        return write!(
            stream,
            "HTTP/1.1 302 Found\r\nLocation: {to}{target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    if let Some(expected) = &manner.authorization
        && header("authorization").as_ref() != Some(expected)
    {
        let challenge = "WWW-Authenticate: Basic realm=\"git\"";
        return write!(
            stream,
            "HTTP/1.1 401 Unauthorized\r\n{challenge}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let version = header("git-protocol").unwrap_or_default();
    let (status, headers, body) =
        http_backend(root, (method, path, query), &version, &header("content-type").unwrap_or_default(), &body);
    let connection = if manner.keeps.is_some() { "keep-alive" } else { "close" };
    write!(stream, "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: {connection}\r\n\r\n", body.len())?;
    match manner.silent_after {
        // The list of refs is short; only the pack is meant.
        Some(bytes) if method == "POST" && body.len() > bytes => {
            stream.write_all(&body[..bytes])?;
            stream.flush()?;
            // Until the client has had enough.
            stream.read(&mut [0]).map(|_| ())
        }
        _ => {
            stream.write_all(&body)?;
            stream.flush()
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

/// A proxy on loopback that opens tunnels (CONNECT) to whoever shows `Proxy-Authorization`; and the heads it was sent.
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

/// A Git daemon on loopback, one process for each connection.
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

/// Puts a password into a file beside a repository and names it.
pub(crate) fn password_file(dir: &Path, password: &str) -> PathBuf {
    let file = dir.join("password");
    fs::write(&file, format!("{password}\n")).unwrap();
    file
}
