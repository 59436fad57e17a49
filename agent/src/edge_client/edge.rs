//! One edge, over HTTP/3 or HTTP/2.

use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use rustls::ClientConfig;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::dcz::{AVAILABLE_DICTIONARY, available_dictionary};
use weir_protocol::digest::{Sha256, TarballDigest};
use weir_protocol::name::ServiceName;
use weir_protocol::request_id::RequestId;
use weir_protocol::route::Route as Path;
use weir_runtime::http_client::{ClientOptions, NameLookup};

use super::body_range::BodyRange;
use super::error::RequestError;
use super::h2::Http2;
use super::h3::Http3;
use super::h3_dialer::Dialer;
use super::http3_state::Http3State;
use super::protocol_selector::{ProtocolSelector, Protocols};
use super::response::Response;
use super::token_file::TokenFile;
use crate::config::EdgeUrl;
use crate::config::{Config, HttpMode};
use crate::metrics::Metrics;
use crate::phase::phase;

/// How long a request waits for the handshake of HTTP/3 before it uses HTTP/2: that of an edge on another continent is done.
const RACE_DELAY: Duration = Duration::from_millis(300);

const USER_AGENT: &str = concat!("weir-agent/", env!("CARGO_PKG_VERSION"));

/// A request for the tarball of a service.
#[derive(Debug, Clone)]
pub(crate) struct TarballRequest<'a> {
    pub(crate) service: &'a ServiceName,
    /// HEAD or GET.
    pub(crate) method: Method,
    /// A retained version; `None`: the current one.
    pub(crate) version: Option<TarballDigest>,
    /// The digest on disk, sent as `If-None-Match`.
    pub(crate) if_none_match: Option<TarballDigest>,
    /// Asks the edge to revalidate and to verify its cache.
    pub(crate) no_cache: bool,
    /// The dictionary on disk: the edge may send a delta against it.
    pub(crate) dictionary: Option<Sha256>,
    /// A part of the body: the edge may send this alone.
    pub(crate) range: Option<BodyRange>,
    /// The timeout of the response's head.
    pub(crate) timeout: Duration,
    /// HTTP/3 has just failed in the middle of a body.
    pub(crate) avoid_http3: bool,
    /// The id of the poll; `None`: the edge makes one.
    pub(crate) request_id: Option<&'a RequestId>,
}

pub(crate) struct Edge {
    url: EdgeUrl,
    http3: Http3,
    http2: Http2,
    http3_state: Arc<Http3State>,
    no_http3: Option<&'static str>,
    token: Option<TokenFile>,
    /// The run of the edge that answered last, as far as it said.
    instance: Mutex<Option<HeaderValue>>,
    metrics: Metrics,
}

impl Edge {
    pub(super) fn new(
        url: EdgeUrl,
        tls: &ClientConfig,
        config: &Config,
        lookup: NameLookup,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let no_http3 = config.no_http3();
        let mode = if no_http3.is_some() { HttpMode::H2 } else { config.http };
        let selector = ProtocolSelector::new(mode, config.h3_retry_interval);
        let http3_state = Arc::new(Http3State::new(url.clone(), selector));
        let max_age = max_age(config, &url);
        let dialer = Dialer::new(url.clone(), lookup.clone(), tls.clone(), config.h3_connect_timeout)?;
        let options = ClientOptions { lookup, proxy: config.proxy.clone() };
        Ok(Self {
            http3: Http3::new(dialer, http3_state.clone(), config.idle_timeout, max_age),
            http2: Http2::new(tls.clone(), options, config.idle_timeout, max_age),
            http3_state,
            no_http3,
            token: config.token_file.as_deref().map(TokenFile::new),
            instance: Mutex::default(),
            url,
            metrics,
        })
    }

    pub(crate) fn url(&self) -> &EdgeUrl {
        &self.url
    }

    pub(crate) fn token_file(&self) -> Option<&FilePath> {
        self.token.as_ref().map(TokenFile::path)
    }

    /// Whether HTTP/3 to it works; `None` before the first response.
    pub(crate) fn http3_usable(&self) -> Option<bool> {
        self.http3_state.is_usable()
    }

    /// The run of the edge that answered last; `None`: none has said which it is.
    pub(crate) fn instance(&self) -> Option<HeaderValue> {
        self.instance.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why HTTP/3 is not used; `None` if it is.
    pub(crate) fn no_http3(&self) -> Option<&'static str> {
        self.no_http3
    }

    /// The open connection over HTTP/3 for new requests.
    pub(crate) fn http3_connection(&self) -> Option<usize> {
        self.http3.connection_id()
    }

    /// Opens a connection over HTTP/3, unless there is one.
    ///
    /// # Errors
    /// The QUIC handshake fails.
    pub(crate) async fn handshake(&self) -> Result<(), RequestError> {
        self.http3.handshake().await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// No version of HTTP gave a response, or the agent's token cannot be read.
    pub(crate) async fn send(&self, tarball_request: &TarballRequest<'_>) -> Result<Response, RequestError> {
        let TarballRequest { timeout, avoid_http3, .. } = *tarball_request;
        self.exchange(self.request(tarball_request), timeout, avoid_http3, tarball_request.request_id).await
    }

    /// Requests a document: with a GET, or with a POST of `json`.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn document(
        &self,
        path: &Path,
        json: Option<Vec<u8>>,
        timeout: Duration,
        request_id: Option<&RequestId>,
    ) -> Result<Response, RequestError> {
        let request = Request::builder().uri(format!("{}{path}", self.url)).header(header::USER_AGENT, USER_AGENT);
        let request = match json {
            None => request.body(Bytes::new()),
            Some(json) => {
                let post = request.method(Method::POST).header(header::CONTENT_TYPE, "application/json");
                post.body(json.into())
            }
        };
        let request = request.expect("a checked host and a checked path make a request");
        self.exchange(request, timeout, false, request_id).await
    }

    /// Requests a document, unless its entity tag is this one. `target`: path and query, of checked texts.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) async fn get(
        &self,
        target: &str,
        if_none_match: Option<&HeaderValue>,
        timeout: Duration,
        request_id: Option<&RequestId>,
    ) -> Result<Response, RequestError> {
        let request = Request::builder().uri(format!("{}{target}", self.url)).header(header::USER_AGENT, USER_AGENT);
        let request = match if_none_match {
            Some(tag) => request.header(header::IF_NONE_MATCH, tag),
            None => request,
        };
        let request = request.body(Bytes::new()).expect("a checked host and a checked path make a request");
        self.exchange(request, timeout, false, request_id).await
    }

    async fn exchange(
        &self,
        mut request: Request<Bytes>,
        timeout: Duration,
        avoid_http3: bool,
        request_id: Option<&RequestId>,
    ) -> Result<Response, RequestError> {
        request_id.into_iter().for_each(|id| id.insert_into(request.headers_mut()));
        if let Some(token) = &self.token {
            let (authorization, ends) = token.authorization().await?;
            request.headers_mut().insert(header::AUTHORIZATION, authorization);
            if let Some(ends) = ends {
                self.metrics.credential_ends("token", UNIX_EPOCH + Duration::from_secs(ends));
            }
        }
        let mut protocols = self.http3_state.select(Instant::now());
        if avoid_http3 {
            self.http3.drop_connection();
            if protocols == Protocols::H3OrH2 {
                protocols = Protocols::H2;
            }
        }
        let answer = match protocols {
            Protocols::H2 => self.over_http2(&request, timeout).await,
            Protocols::H3 => self.http3.request(&request, timeout, None).await,
            Protocols::H3OrH2 => match self.http3.request(&request, timeout, Some(RACE_DELAY)).await {
                Err(error) if error.is_transport_error() => {
                    tracing::debug!(edge = %self.url, %error, "no response over HTTP/3");
                    self.over_http2(&request, timeout).await
                }
                answer => answer,
            },
        };
        if let Ok(response) = &answer {
            self.metrics.answered(response.protocol.as_str());
            if let Some(instance) = response.headers.get("weir-edge-instance") {
                *self.instance.lock().unwrap_or_else(PoisonError::into_inner) = Some(instance.clone());
            }
        }
        answer
    }

    async fn over_http2(&self, request: &Request<Bytes>, timeout: Duration) -> Result<Response, RequestError> {
        let answer = self.http2.request(request, timeout).await;
        self.http3_state.http2_ended(answer.is_ok(), Instant::now());
        answer
    }

    fn request(&self, tarball_request: &TarballRequest<'_>) -> Request<Bytes> {
        let service = tarball_request.service.clone();
        let path = match tarball_request.version {
            None => Path::Tarball(service),
            Some(digest) => Path::TarballVersion(service, digest),
        };
        let mut request = Request::builder()
            .method(tarball_request.method.clone())
            .uri(format!("{}{path}", self.url))
            .header(header::USER_AGENT, USER_AGENT);
        request = match &tarball_request.dictionary {
            None => request.header(header::ACCEPT_ENCODING, "zstd"),
            Some(dictionary) => request
                .header(header::ACCEPT_ENCODING, "dcz, zstd")
                .header(AVAILABLE_DICTIONARY, available_dictionary(dictionary)),
        };
        if let Some(digest) = &tarball_request.if_none_match {
            request = request.header(header::IF_NONE_MATCH, tarball_etag(digest, None));
        }
        if let Some(range) = &tarball_request.range {
            request = request.header(header::RANGE, range.header()).header(header::IF_RANGE, &range.etag);
        }
        if tarball_request.no_cache {
            request = request.header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        request.body(Bytes::new()).expect("a checked host, a checked path and headers of ours make a request")
    }
}

/// The age after which connections are replaced: up to a quarter less than configured, so that a fleet that connected
/// together does not do so again.
fn max_age(config: &Config, edge: &EdgeUrl) -> Duration {
    let phase = phase(&[config.name.as_str(), "connection", &edge.to_string()]);
    config.max_connection_age.mul_f64(0.75 + 0.25 * phase)
}
