//! A smart-HTTP Git server: git's own `http-backend` behind TLS with a private CA and basic authentication.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use prometheus::Registry;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use weir_runtime::certificates;
use weir_runtime::serve::{self, Body, BoxError, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

use crate::git_repository::git_command;
use crate::git_requests::{GitRequests, Recording, Wants};
use crate::processes::free_address;

/// The user name.
pub const USERNAME: &str = "ci";
/// The password.
pub const PASSWORD: &str = "s3cret-pa55";

/// A running server. When dropped it runs until the runtime ends; [`GitServer::stop`] stops it.
#[derive(Debug)]
pub struct GitServer {
    address: SocketAddr,
    certificates: PathBuf,
    root: PathBuf,
    state: State,
    drain: Drain,
}

/// What goes on over a restart.
#[derive(Debug, Clone, Default)]
struct State {
    requests: GitRequests,
    /// How long it thinks about each `POST`, in milliseconds.
    delay: Arc<AtomicU64>,
}

impl GitServer {
    /// Serves all repositories below `root` on a free loopback port; its CA is `<certificates>/ca.pem`.
    ///
    /// # Errors
    /// Certificates cannot be written, or the port cannot be bound.
    pub async fn start(root: &Path, certificates: &Path) -> anyhow::Result<Self> {
        // The port stays free for a restart.
        Self::start_at(free_address()?, root, certificates).await
    }

    /// The same at an address.
    ///
    /// # Errors
    /// Certificates cannot be written, or the address cannot be bound.
    pub async fn start_at(address: SocketAddr, root: &Path, certificates: &Path) -> anyhow::Result<Self> {
        if !certificates.join("ca.pem").exists() {
            certificates::write(certificates, &[address.ip().to_string()])?;
        }
        Self::listen(address, root.to_owned(), certificates.to_owned(), State::default()).await
    }

    async fn listen(address: SocketAddr, root: PathBuf, certificates: PathBuf, state: State) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        let server =
            tls::server_config(&certificates.join("origin.pem"), &certificates.join("origin.key"), ClientAuth::None)?;
        let drain = Drain::new();
        let metrics = HttpMetrics::register(&Registry::new())?.listener("git");
        let backend = HttpBackend { root: root.clone(), state: state.clone() };
        serve::tcp(listener, Some(server), backend, metrics, &drain);
        Ok(Self { address, certificates, root, state, drain })
    }

    /// The URL of the repository `<name>.git`.
    pub fn url(&self, name: &str) -> String {
        if self.address.ip().is_loopback() {
            format!("https://localhost:{}/{name}.git", self.address.port())
        } else {
            format!("https://{}/{name}.git", self.address)
        }
    }

    /// The PEM file of the server's CA.
    pub fn ca(&self) -> PathBuf {
        self.certificates.join("ca.pem")
    }

    /// The requests that have ended, over restarts too.
    pub fn requests(&self) -> &GitRequests {
        &self.state.requests
    }

    /// Delays the response to each `POST`, so that fetches take a while.
    pub fn delay(&self, by: Duration) {
        self.state.delay.store(by.as_millis() as u64, Ordering::Relaxed);
    }

    /// Stops immediately: connections break, and the port is closed.
    pub async fn stop(&self) {
        self.drain.cut().await;
    }

    /// Restarts on the same port after [`stop`](Self::stop).
    ///
    /// # Errors
    /// Another process uses the port.
    pub async fn restart(self) -> anyhow::Result<Self> {
        Self::listen(self.address, self.root, self.certificates, self.state).await
    }
}

/// Runs `git http-backend` as a CGI server does (RFC 3875).
#[derive(Clone)]
struct HttpBackend {
    root: PathBuf,
    state: State,
}

impl Handler for HttpBackend {
    async fn handle(&self, request: Request<RequestBody>, peer: Arc<Peer>) -> Response<Body> {
        if !is_authorised(&request) {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            let challenge = HeaderValue::from_static("Basic realm=\"git\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            return response;
        }
        let recording = self.state.requests.begin(peer.address.ip(), request.uri().path());
        self.run(request, recording).await.unwrap_or_else(|error| {
            let mut response = Response::new(Body::from(format!("{error:#}\n").into_bytes()));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        })
    }
}

fn is_authorised(request: &Request<RequestBody>) -> bool {
    let credentials = base64::engine::general_purpose::STANDARD.encode(format!("{USERNAME}:{PASSWORD}"));
    request.headers().get(header::AUTHORIZATION).is_some_and(|value| value == &format!("Basic {credentials}"))
}

impl HttpBackend {
    async fn run(&self, request: Request<RequestBody>, mut recording: Recording) -> anyhow::Result<Response<Body>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
        if head.method == http::Method::POST {
            recording.wants(Wants::of(&body, head.headers.contains_key(header::CONTENT_ENCODING)));
            tokio::time::sleep(Duration::from_millis(self.state.delay.load(Ordering::Relaxed))).await;
        }
        let text = |name: &HeaderName| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");

        let mut command = Command::from(git_command(&self.root));
        command
            .args(["-c", "http.receivepack=false", "-c", "safe.directory=*", "http-backend"])
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", head.method.as_str())
            .env("PATH_INFO", head.uri.path())
            .env("QUERY_STRING", head.uri.query().unwrap_or(""))
            .env("CONTENT_TYPE", text(&header::CONTENT_TYPE))
            .env("CONTENT_LENGTH", body.len().to_string())
            .env("HTTP_CONTENT_ENCODING", text(&header::CONTENT_ENCODING))
            .env("GIT_PROTOCOL", text(&HeaderName::from_static("git-protocol")))
            .env("REMOTE_USER", USERNAME)
            .env("REMOTE_ADDR", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot run git http-backend")?;
        let mut stdin = child.stdin.take().context("stdin is piped")?;
        tokio::spawn(async move {
            // The backend may exit before it has read everything.
            let _ = stdin.write_all(&body).await;
        });
        let mut stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let mut response = Response::new(Body::Empty);
        loop {
            let mut line = String::new();
            if stdout.read_line(&mut line).await? == 0 {
                anyhow::bail!("git http-backend ended within the headers");
            }
            let line = line.trim_end();
            let Some((name, value)) = line.split_once(": ") else { break };
            if name.eq_ignore_ascii_case("status") {
                *response.status_mut() = value.split(' ').next().unwrap_or(value).parse()?;
            } else {
                response.headers_mut().append(name.parse::<HeaderName>()?, value.parse()?);
            }
        }
        *response.body_mut() = Body::stream(output(child, stdout, recording));
        Ok(response)
    }
}

fn output(
    child: Child,
    stdout: BufReader<ChildStdout>,
    recording: Recording,
) -> impl http_body::Body<Data = Bytes, Error = BoxError> + Send {
    // The child is part of the state: when the client goes away, it is killed.
    StreamBody::new(stream::try_unfold((child, stdout, recording), |(child, mut stdout, mut recording)| async move {
        let mut chunk = BytesMut::with_capacity(64 << 10);
        let read = stdout.read_buf(&mut chunk).await?;
        recording.sends();
        Ok::<_, BoxError>((read > 0).then(|| (Frame::data(chunk.freeze()), (child, stdout, recording))))
    }))
}
