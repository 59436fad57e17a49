//! One edge, over HTTP/3 or HTTP/2.

use std::path::Path as FilePath;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderValue, Method, Request, header};
use rustls::ClientConfig;
use weir_protocol::conditional::tarball_etag;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::route::Route as Path;

use super::choice::{Change, Choice, Route};
use super::edge_url::EdgeUrl;
use super::error::RequestError;
use super::h2::Http2;
use super::h3::Http3;
use super::response::Response;
use super::token_file::TokenFile;
use crate::config::{Config, HttpMode};
use crate::metrics::Metrics;

/// The timeout of a QUIC handshake with `http = "h3"`.
const LONE_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("weir-agent/", env!("CARGO_PKG_VERSION"));

/// A request for the tarball of a service.
#[derive(Debug, Clone)]
pub(crate) struct Question<'a> {
    pub(crate) service: &'a ServiceName,
    /// HEAD or GET.
    pub(crate) method: Method,
    /// The digest on disk, sent as `If-None-Match`.
    pub(crate) holds: Option<TarballDigest>,
    /// Asks the edge to revalidate and to verify its cache.
    pub(crate) no_cache: bool,
    /// The timeout of the response's head.
    pub(crate) patience: Duration,
    /// HTTP/3 has just failed in the middle of a body.
    pub(crate) not_http3: bool,
}

pub(crate) struct Edge {
    url: EdgeUrl,
    http3: Http3,
    http2: Http2,
    choice: Mutex<Choice>,
    token: Option<TokenFile>,
    metrics: Metrics,
}

impl Edge {
    pub(super) fn new(url: EdgeUrl, tls: &ClientConfig, config: &Config, metrics: Metrics) -> anyhow::Result<Self> {
        let connect_timeout = match config.http {
            HttpMode::H3 => LONE_CONNECT_TIMEOUT.max(config.h3_connect_timeout),
            HttpMode::Auto | HttpMode::H2 => config.h3_connect_timeout,
        };
        Ok(Self {
            http3: Http3::new(url.clone(), tls.clone(), connect_timeout, config.idle_timeout)?,
            http2: Http2::new(tls.clone(), config.idle_timeout),
            choice: Mutex::new(Choice::new(config.http, config.h3_retry_interval)),
            token: config.token_file.as_deref().map(TokenFile::new),
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

    /// Whether HTTP/3 to it works; `None` before the first request.
    pub(crate) fn http3_usable(&self) -> Option<bool> {
        self.choice().http3_usable()
    }

    /// Sends a request.
    ///
    /// # Errors
    /// No version of HTTP gave a response, or the agent's token cannot be read.
    pub(crate) async fn ask(&self, question: &Question<'_>) -> Result<Response, RequestError> {
        let mut request = self.request(question);
        if let Some(token) = &self.token {
            request.headers_mut().insert(header::AUTHORIZATION, token.authorization().await?);
        }
        if question.not_http3 {
            self.http3.give_up().await;
        }
        let route = self.choice().route(Instant::now());
        let answer = match route {
            Route::H2 => self.http2.request(&request, question.patience).await,
            Route::H3 => {
                let answer = self.http3.request(&request, question.patience).await;
                if answer.is_ok() {
                    let change = self.choice().http3_answered();
                    self.tell(change);
                }
                answer
            }
            Route::H3ThenH2 => self.ask_both(&request, question).await,
        };
        if let Ok(response) = &answer {
            self.metrics.answered(response.protocol);
        }
        answer
    }

    async fn ask_both(&self, request: &Request<()>, question: &Question<'_>) -> Result<Response, RequestError> {
        if !question.not_http3 {
            match self.http3.request(request, question.patience).await {
                Err(error) if error.is_of_the_way() => {
                    tracing::debug!(edge = %self.url, %error, "no answer over HTTP/3");
                }
                // A response, or a broken one: UDP works.
                answer => {
                    let change = self.choice().http3_answered();
                    self.tell(change);
                    return answer;
                }
            }
        }
        let answer = self.http2.request(request, question.patience).await;
        let change = match &answer {
            Ok(_) => self.choice().only_http2_answered(Instant::now()),
            Err(_) => {
                self.choice().nothing_answered(Instant::now());
                None
            }
        };
        self.tell(change);
        answer
    }

    fn tell(&self, change: Option<Change>) {
        match change {
            Some(Change::Usable) => tracing::info!(edge = %self.url, "HTTP/3 works"),
            Some(Change::Blocked(pause)) => tracing::warn!(
                edge = %self.url,
                retry_after = %humantime::format_duration(pause),
                "UDP does not get through to the edge: using HTTP/2"
            ),
            None => {}
        }
        if let Some(usable) = self.http3_usable() {
            self.metrics.http3_usable.set(usable.into());
        }
    }

    fn choice(&self) -> std::sync::MutexGuard<'_, Choice> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, question: &Question<'_>) -> Request<()> {
        let mut request = Request::builder()
            .method(question.method.clone())
            .uri(format!("{}{}", self.url, Path::Tarball(question.service.clone())))
            .header(header::ACCEPT_ENCODING, "zstd")
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(digest) = &question.holds {
            request = request.header(header::IF_NONE_MATCH, tarball_etag(digest, None));
        }
        if question.no_cache {
            request = request.header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        }
        request.body(()).expect("a checked host, a checked path and headers of ours make a request")
    }
}
