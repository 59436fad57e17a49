//! `weir-edge explain` and `weir-edge purge`: ask a running edge on its admin listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_edge::Config;
use weir_shared::digest::TarballDigest;
use weir_shared::name::{RepositoryName, ServiceName};
use weir_shared::process::output::print;
use weir_shared::process::tls;

/// How long an edge may take to answer: a purge of a large cache deletes many files.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The exit code when there was nothing to purge.
const NOTHING_HELD: u8 = 3;

/// What is asked of a running edge.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Says what a running edge holds of a service, how fresh that is, from where, and why.
    Explain {
        /// The service.
        service: ServiceName,
        /// One version of it, instead of the current one.
        #[arg(long, value_name = "DIGEST")]
        digest: Option<TarballDigest>,
        /// Prints the whole answer as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        edge: Edge,
    },
    /// Has a running edge drop what it holds, or with --soft look at it again before it is used.
    ///
    /// Exits 3 when nothing of that name is held there, which may be a slip of the pen.
    Purge {
        #[command(flatten)]
        what: What,
        /// Removes nothing: what is held counts as stale, and is verified again.
        #[arg(long)]
        soft: bool,
        #[command(flatten)]
        edge: Edge,
    },
}

/// What is purged.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct What {
    /// A tarball in all its representations, or a blob.
    #[arg(long, value_name = "DIGEST")]
    digest: Option<TarballDigest>,
    /// A service: its current version and the past ones.
    #[arg(long, value_name = "NAME")]
    service: Option<ServiceName>,
    /// All services of a repository.
    #[arg(long, value_name = "NAME")]
    repository: Option<RepositoryName>,
}

/// Which edge, and what it wants to see.
#[derive(Args)]
pub(crate) struct Edge {
    /// Its admin listener, for example http://127.0.0.1:7491; without it, that of --config.
    #[arg(long, value_name = "URL")]
    admin: Option<Uri>,
    /// The authority of its certificate, for https.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The operator's token; without it, that of --config.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl Command {
    /// Asks, and prints the answer.
    pub(crate) async fn carry_out(self, config: Option<&Path>) -> anyhow::Result<ExitCode> {
        match self {
            Command::Explain { service, digest, json, edge } => {
                let digest = digest.map(|digest| format!("&digest={digest}")).unwrap_or_default();
                let path = format!("/v1/explain?service={service}{digest}");
                let answer = edge.ask(config, Method::GET, &path, String::new()).await?;
                if json {
                    print(format_args!("{answer:#}"))?;
                } else {
                    let words = answer["words"].as_array().context("the edge's answer has no `words`")?;
                    words.iter().filter_map(Value::as_str).try_for_each(print)?;
                }
            }
            Command::Purge { what, soft, edge } => {
                let mut order = json!({ "soft": soft });
                let named = [
                    ("digest", what.digest.map(|digest| digest.to_string())),
                    ("service", what.service.map(|service| service.to_string())),
                    ("repository", what.repository.map(|repository| repository.to_string())),
                ];
                for (kind, name) in named {
                    if let Some(name) = name {
                        order[kind] = name.into();
                    }
                }
                let done = edge.ask(config, Method::POST, "/v1/purge", order.to_string()).await?;
                let [services, objects, bytes] =
                    ["services", "objects", "bytes"].map(|key| done[key].as_u64().unwrap_or_default());
                if (services, objects) == (0, 0) {
                    let (kind, name) = (&done["kind"], &done["name"]);
                    let [kind, name] = [kind, name].map(|text| text.as_str().unwrap_or_default());
                    eprintln!("nothing of the {kind} {name} is held there, and nothing was purged: is that its name?");
                    return Ok(ExitCode::from(NOTHING_HELD));
                }
                let verb = if soft { "to be looked at again" } else { "purged" };
                let (services, objects) = (counted(services, "service"), counted(objects, "object"));
                print(format_args!("{verb}: {services}, {objects}, {}", counted(bytes, "byte")))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `1 object`, `2 objects`.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

impl Edge {
    async fn ask(self, config: Option<&Path>, method: Method, path: &str, body: String) -> anyhow::Result<Value> {
        let (mut admin, mut token_file) = (self.admin, self.token_file);
        if admin.is_none() {
            let config = config.context("name the edge: --admin URL, or --config FILE of an edge on this machine")?;
            let config = Config::load(config)?;
            let listen = config.admin_listen.context("the configuration has no admin_listen")?;
            let scheme = if config.admin.tls { "https" } else { "http" };
            admin = Some(format!("{scheme}://{}", within_reach(listen)).parse()?);
            token_file = token_file.or(config.admin.operator_token_file);
        }
        let admin = admin.expect("it was given, or read");
        let authority = admin.authority().context("--admin is a URL such as http://127.0.0.1:7491")?.clone();
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, authority.as_str());
        if let Some(file) = &token_file {
            let token = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let asked = async {
            let port = authority.port_u16().unwrap_or(if admin.scheme_str() == Some("https") { 443 } else { 80 });
            let host = authority.host().trim_matches(['[', ']']);
            let stream = TcpStream::connect((host, port)).await.with_context(|| format!("cannot reach {authority}"))?;
            match admin.scheme_str() {
                Some("https") => {
                    let ca = self.ca.as_deref().context("--ca FILE is needed for https: the authority to trust")?;
                    let connector = TlsConnector::from(Arc::new(tls::client_config(ca, None)?));
                    let name = ServerName::try_from(host.to_owned())?;
                    let stream = connector.connect(name, stream).await;
                    send(stream.with_context(|| format!("TLS with {authority} failed"))?, request).await
                }
                Some("http") => send(stream, request).await,
                _ => bail!("--admin is a URL that begins with http:// or https://"),
            }
        };
        let (status, body) = tokio::time::timeout(TIMEOUT, asked).await.context("the edge does not answer")??;
        let answer: Value = serde_json::from_slice(&body).with_context(|| format!("{status}, and no JSON"))?;
        if status != StatusCode::OK {
            bail!("the edge answers {status}: {}", answer["detail"].as_str().unwrap_or("without a reason"));
        }
        Ok(answer)
    }
}

/// Where a listener that listens everywhere is reached from its own machine.
fn within_reach(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(if listen.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) });
    }
    listen
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    connection.abort();
    Ok((status, body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?.to_bytes()))
}
