//! Requests to an origin, and its answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use futures_util::{StreamExt, stream};
use reqwest::header::HeaderMap;
use reqwest::tls::TlsInfo;
use reqwest::{Method, Response, StatusCode, Url};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls_platform_verifier::Verifier;
use serde_json::Value;
use weir_runtime::http_client::root_cause;
use weir_runtime::tls;

use crate::connection::{Connection, ConnectionArguments};
use crate::kind::Kind;

/// How long an origin may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The entries of a page of a list.
const PAGE: &str = "1000";

/// Requests of one command at a time.
const AT_ONCE: usize = 16;

/// No answer came in time: perhaps the change is made all the same.
#[derive(Debug, thiserror::Error)]
#[error("{server} did not answer within {} s", .within.as_secs())]
pub(crate) struct TimedOut {
    server: Url,
    within: Duration,
}

/// An origin refused a request.
#[derive(Debug, thiserror::Error)]
#[error("{}", self.text())]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    /// The last part of the type of the problem; empty if the answer is none.
    pub(crate) kind: String,
    pub(crate) detail: String,
    pub(crate) errors: Vec<String>,
}

impl Refused {
    fn text(&self) -> String {
        let (mut text, status) = (self.detail.clone(), self.status);
        if text.is_empty() {
            text = format!("the server answered {status}");
        }
        // A single error of a document is the detail already.
        for error in self.errors.iter().filter(|error| !self.detail.contains(error.as_str())) {
            text = format!("{text}\n  {error}");
        }
        match status {
            StatusCode::UNAUTHORIZED => format!("{text} (sign in by a token or a certificate: `weir help context`)"),
            _ => text,
        }
    }
}

/// How an origin answers an operator who comes.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) who: Value,
    pub(crate) headers: HeaderMap,
    pub(crate) certificate_ends: Option<SystemTime>,
}

/// The parameters of a request.
pub(crate) type Query = Vec<(&'static str, String)>;

/// A client of one origin.
pub(crate) struct Client {
    http: reqwest::Client,
    server: Url,
    token: Option<String>,
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(arguments: &ConnectionArguments) -> anyhow::Result<Self> {
        Self::of(arguments.resolve()?)
    }

    pub(crate) fn of(Connection { server, ca, token, identity }: Connection) -> anyhow::Result<Self> {
        let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let mut tls = match &ca {
            Some(ca) => tls::client_config(ca, identity)?,
            None => of_the_system(identity)?,
        };
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let agent = concat!("weir/", env!("CARGO_PKG_VERSION"));
        let http = reqwest::Client::builder().tls_backend_preconfigured(tls).user_agent(agent).tls_info(true);
        Ok(Self { http: http.build()?, server, token, timeout: TIMEOUT })
    }

    /// For requests that take longer.
    pub(crate) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The host that answers.
    pub(crate) fn server(&self) -> &str {
        self.server.host_str().unwrap_or_default()
    }

    /// Asks who this is.
    pub(crate) async fn greet(&self) -> anyhow::Result<Greeting> {
        let response = self.request(Method::GET, "/v1/whoami", &Query::new(), None).await?;
        let headers = response.headers().clone();
        let certificate = response.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
        let certificate_ends = certificate.and_then(|der| tls::ends(&CertificateDer::from(der)));
        let who = answer(response).await?.1;
        Ok(Greeting { who, headers, certificate_ends })
    }

    /// The answer to `GET`.
    pub(crate) async fn get(&self, path: &str, query: &Query) -> anyhow::Result<Value> {
        Ok(self.send(Method::GET, path, query, None).await?.1)
    }

    /// The answer to `GET`; `None`: there is no such object.
    pub(crate) async fn find(&self, path: &str) -> anyhow::Result<Option<Value>> {
        match self.get(path, &Query::new()).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request; the status and the body of an answer that is no refusal.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Value)> {
        answer(self.request(method, path, query, body).await?).await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        query: &Query,
        body: Option<&Value>,
    ) -> anyhow::Result<Response> {
        let mut url = self.server.join(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url).timeout(self.timeout);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().await.map_err(|error| match error.is_timeout() {
            true => TimedOut { server: self.server.clone(), within: self.timeout }.into(),
            false => anyhow::anyhow!("cannot reach {}: {}", self.server, root_cause(&error)),
        })
    }

    /// A list of objects with their states, also of those that other origins own: these are asked for by name, where one passes
    /// the request on. What stays elsewhere is not known, because its owner does not answer.
    pub(crate) async fn with_states(&self, kind: Kind, query: &Query) -> anyhow::Result<Vec<Value>> {
        let (entries, _) = self.list(&kind.list(), query, kind.plural()).await?;
        Ok(self.states(kind, entries).await)
    }

    /// The same of some entries of a list.
    pub(crate) async fn states(&self, kind: Kind, entries: Vec<Value>) -> Vec<Value> {
        let found = entries.into_iter().map(|entry| async {
            if !is_elsewhere(&entry) {
                return entry;
            }
            match kind.path(entry["name"].as_str().unwrap_or_default()) {
                Ok(path) => self.get(&path, &Query::new()).await.unwrap_or(entry),
                Err(_) => entry,
            }
        });
        stream::iter(found).buffered(AT_ONCE).collect().await
    }

    /// All entries of a list, page by page. The rest of the answer is that of the first page.
    pub(crate) async fn list(&self, path: &str, query: &Query, key: &str) -> anyhow::Result<(Vec<Value>, Value)> {
        let (mut entries, mut first, mut page) = (Vec::new(), None, None::<(&'static str, String)>);
        loop {
            let mut query = query.clone();
            if !query.iter().any(|(key, _)| *key == "limit") {
                query.push(("limit", PAGE.to_owned()));
            }
            query.extend(page.take());
            let mut answer = self.get(path, &query).await?;
            let listed = answer.get_mut(key).and_then(Value::as_array_mut).map(std::mem::take);
            entries.extend(listed.with_context(|| format!("the answer of {path} has no `{key}`"))?);
            let next = [("page", "next_page"), ("cursor", "cursor")];
            page = next.into_iter().find_map(|(name, of)| Some((name, answer[of].as_str()?.to_owned())));
            first.get_or_insert(answer);
            if page.is_none() {
                return Ok((entries, first.unwrap_or_default()));
            }
        }
    }
}

/// Whether a list says of an object that another origin owns it: its state is not in it.
pub(crate) fn is_elsewhere(entry: &Value) -> bool {
    entry["status"]["condition"] == "elsewhere" || entry["status"]["health"] == "elsewhere"
}

/// Whether an error may be over soon: the server was not reached, or says that it cannot answer now.
pub(crate) fn may_pass(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_none_or(|refused| refused.status.is_server_error())
}

/// Whether an error says that the operator may not ask this.
pub(crate) fn is_forbidden(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::FORBIDDEN)
}

/// What only some operators may ask; `None`: this one may not.
pub(crate) fn if_permitted<T>(answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_forbidden(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an error says that there is no such object.
pub(crate) fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| refused.status == StatusCode::NOT_FOUND)
}

/// The status and the body of an answer that is no refusal.
async fn answer(response: Response) -> anyhow::Result<(StatusCode, Value)> {
    let (status, text) = (response.status(), response.text().await);
    let text = text.map_err(|error| anyhow::anyhow!("the answer broke off: {}", root_cause(&error)))?;
    let body = serde_json::from_str(&text).unwrap_or(Value::Null);
    if status.is_success() { Ok((status, body)) } else { Err(refused(status, &body).into()) }
}

fn refused(status: StatusCode, body: &Value) -> Refused {
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    let errors = body["errors"].as_array().into_iter().flatten();
    // Of a document, or of one of several.
    let error = |error: &Value| match (error["detail"].as_str(), error["kind"].as_str(), error["name"].as_str()) {
        (Some(detail), Some(kind), Some(name)) => format!("{kind} {name}: {detail}"),
        (Some(detail), ..) => detail.to_owned(),
        _ => error.as_str().map_or_else(|| error.to_string(), str::to_owned),
    };
    let kind = text("type").rsplit(':').next().unwrap_or_default().to_owned();
    Refused { status, kind, detail: text("detail"), errors: errors.map(error).collect() }
}

fn of_the_system(identity: Option<(&std::path::Path, &std::path::Path)>) -> anyhow::Result<rustls::ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let verifier = Verifier::new(provider).context("the authorities of the system cannot be read: set --ca")?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(match identity {
        Some((certificate, key)) => {
            let chain = tls::read_certificates(certificate, "certificate")?;
            config.with_client_auth_cert(chain, tls::read_key(key)?)?
        }
        None => config.with_no_client_auth(),
    })
}
