//! gRPC to the members of etcd, over HTTP/2: one member is used until it misses an answer, then the next.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Request as HttpRequest, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use prost::Message;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;
use weir_runtime::file_watch::{Fingerprint, fingerprint};

use super::messages::Request;
use crate::etcd_config::EtcdConfig;
use crate::with_causes::with_causes;

/// The longest time of a request to one member. An election takes about as long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd closes connections that are pinged more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// The largest answer: a listing of some 100,000 keys.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

type Http = HttpClient<HttpsConnector<HttpConnector>, Full<Bytes>>;

#[derive(Debug)]
pub(crate) struct Client {
    config: EtcdConfig,
    /// With the contents of the files of TLS that it was made of.
    http: RwLock<(Http, Fingerprint)>,
    members: Vec<Uri>,
    /// The index of the member that answered last.
    current: AtomicUsize,
    /// How long a member may take to answer.
    patience: Duration,
}

/// What may be done again with another member, after one did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A request that changes nothing.
    Always,
    /// A request that was not sent, because there was no connection.
    IfUnsent,
}

struct Failure {
    was_sent: bool,
    cause: String,
}

impl Client {
    /// Sends nothing yet.
    pub(crate) fn new(config: &EtcdConfig, patience: Duration) -> Result<Self, String> {
        let patience = patience.min(REQUEST_TIMEOUT);
        let members: Result<Vec<Uri>, _> = config.endpoints.iter().map(|url| url.parse()).collect();
        let members = members.map_err(|error| format!("[cluster] etcd.endpoints: {error}"))?;
        let http = RwLock::new(connect(config, patience)?);
        Ok(Self { config: config.clone(), http, members, current: AtomicUsize::new(0), patience })
    }

    /// Reads the files of TLS if they have changed, as they have when they were rotated. Returns whether they are new.
    async fn has_new_files(&self) -> bool {
        let (config, patience) = (self.config.clone(), self.patience);
        let read = self.http().1;
        let files = move || (fingerprint(&config.files()) != read).then(|| connect(&config, patience));
        match tokio::task::spawn_blocking(files).await.expect("reading does not panic") {
            None => false,
            Some(Ok(http)) => {
                tracing::info!("the certificates for etcd were reloaded");
                *self.http.write().unwrap_or_else(PoisonError::into_inner) = http;
                true
            }
            Some(Err(error)) => {
                tracing::error!(error, "changed certificates for etcd cannot be used; the old ones stay in use");
                false
            }
        }
    }

    fn http(&self) -> (Http, Fingerprint) {
        self.http.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The index of the member that is asked first.
    #[cfg(test)]
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Sends a request until a member answers it, to each member once.
    ///
    /// # Errors
    /// The reason of each member that was asked. The last one may have done what was requested.
    pub(crate) async fn call<R: Request>(&self, request: &R, retry: Retry) -> Result<R::Response, String> {
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for turn in 0..self.members.len() {
            let index = (first + turn) % self.members.len();
            let member = &self.members[index];
            let mut answered = self.call_in_time(member, request).await;
            if matches!(&answered, Err(failure) if !failure.was_sent) && self.has_new_files().await {
                answered = self.call_in_time(member, request).await;
            }
            let failure = match answered {
                Ok(response) => {
                    self.current.store(index, Ordering::Relaxed);
                    return Ok(response);
                }
                Err(failure) => failure,
            };
            self.current.store((index + 1) % self.members.len(), Ordering::Relaxed);
            reasons.push(format!("{member}: {}", failure.cause));
            if failure.was_sent && retry == Retry::IfUnsent {
                break;
            }
        }
        Err(reasons.join("; "))
    }

    async fn call_in_time<R: Request>(&self, member: &Uri, request: &R) -> Result<R::Response, Failure> {
        let answered = timeout(self.patience, self.call_member(member, request)).await;
        let no_answer = |_| Failure { was_sent: true, cause: format!("no answer within {:?}", self.patience) };
        answered.map_err(no_answer).flatten()
    }

    async fn call_member<R: Request>(&self, member: &Uri, message: &R) -> Result<R::Response, Failure> {
        let request = http_request(member, message).map_err(|cause| Failure { was_sent: false, cause })?;
        let response = self
            .http()
            .0
            .request(request)
            .await
            .map_err(|error| Failure { was_sent: !error.is_connect(), cause: with_causes(&error) })?;
        read_response(response).await.map_err(|cause| Failure { was_sent: true, cause })
    }
}

/// A client of the files as they are now. Connects lazily. Blocks.
fn connect(config: &EtcdConfig, patience: Duration) -> Result<(Http, Fingerprint), String> {
    let read = fingerprint(&config.files());
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(patience / 2));
    let connector = HttpsConnectorBuilder::new().with_tls_config(config.tls()?.unwrap_or_else(no_authorities));
    let http = HttpClient::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .http2_only(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(connector.https_or_http().enable_http2().wrap_connector(tcp));
    Ok((http, read))
}

fn no_authorities() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring provides the default protocol versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// A message in a body: a byte that says that it is not compressed, its length, and the message.
fn http_request<R: Request>(member: &Uri, message: &R) -> Result<HttpRequest<Full<Bytes>>, String> {
    let mut body = BytesMut::new();
    body.put_u8(0);
    body.put_u32(u32::try_from(message.encoded_len()).map_err(|_| "the request is too large".to_owned())?);
    message.encode(&mut body).map_err(|error| error.to_string())?;
    let uri = Uri::builder()
        .scheme(member.scheme_str().unwrap_or_default())
        .authority(member.authority().map_or("", |authority| authority.as_str()))
        .path_and_query(R::PATH);
    let uri = uri.build().map_err(|error| error.to_string())?;
    let request = HttpRequest::post(uri).header(CONTENT_TYPE, "application/grpc").header("te", "trailers");
    // A member without a leader refuses at once.
    let request = request.header("hasleader", "true").body(Full::new(body.freeze()));
    request.map_err(|error| error.to_string())
}

async fn read_response<M: Message + Default>(response: http::Response<hyper::body::Incoming>) -> Result<M, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(|error| error.to_string())?;
    // An answer without a message has the status among its headers.
    match grpc_status(body.trailers().unwrap_or(&head.headers)) {
        Some(("0", _)) => {}
        Some((status, message)) => return Err(format!("gRPC status {status}: {message}")),
        None => return Err(format!("the answer is not that of etcd: HTTP status {}", head.status)),
    }
    let mut bytes = body.to_bytes();
    let is_whole = bytes.len() >= 5 && bytes.get_u8() == 0 && bytes.get_u32() as usize == bytes.len();
    if !is_whole {
        return Err("the answer is not one message".to_owned());
    }
    M::decode(bytes).map_err(|error| error.to_string())
}

fn grpc_status(headers: &HeaderMap) -> Option<(&str, &str)> {
    let text = |name| headers.get(name)?.to_str().ok();
    Some((text("grpc-status")?, text("grpc-message").unwrap_or_default()))
}
