//! HTTP requests to one upstream, with its credentials.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};

use super::super::config::RepositoryConfig;
use super::super::egress_policy::EgressPolicy;
use super::super::error::{Server, UpstreamError};
use super::super::secret;
use super::super::server_report::ServerReport;
use super::super::upstream::Upstream;
use super::clients::{self, IDLE_CONNECTIONS_PER_HOST};
use super::redirects;
use super::session::UpstreamSession;
use super::{errors, retry_after};

/// The only content encoding that is requested: what is fetched is compressed already, or has a digest.
pub const IDENTITY: &str = "identity";

/// An HTTP client for one session.
pub struct Client<'a> {
    session: &'a UpstreamSession<'a>,
    /// The client for the upstream's host.
    http: reqwest::Client,
    /// The client for other hosts, to which redirects and LFS responses refer.
    external: OnceCell<reqwest::Client>,
    /// The egress policy for other hosts.
    pub(crate) external_policy: Arc<EgressPolicy>,
    /// The upstream's URL. Only its origin receives the credentials.
    pub upstream_url: Url,
    authorization: Option<HeaderValue>,
    /// What was sent last, such as a token.
    pub(super) sent_authorization: RefCell<Option<HeaderValue>>,
    user_agent: &'static str,
}

impl<'a> Client<'a> {
    /// Reads the files of the upstream's credentials and certificates.
    pub fn new(session: &'a UpstreamSession<'a>, user_agent: &'static str) -> Result<Self, UpstreamError> {
        let upstream = session.upstream;
        let unsupported = |reason| UpstreamError::UnsupportedUrl { url: upstream.config.url.to_string(), reason };
        let upstream_url = upstream.http_url().map_err(unsupported)?;
        upstream.egress.check_host(upstream_url.host_str().unwrap_or_default())?;
        let authorization = authorization(&upstream.config)?;
        if authorization.is_some() && upstream_url.scheme() != "https" {
            let reason = "credentials are not sent over http://, where others can read them: use https://";
            return Err(UpstreamError::Authenticate(reason.to_owned()));
        }
        let http = clients::for_upstream(upstream, session.connect_timeout())?;
        let external_policy = Arc::new(upstream.egress.for_other_hosts(upstream.config.redirects.hosts()));
        let (external, sent_authorization) = (OnceCell::new(), RefCell::default());
        Ok(Self {
            session,
            http,
            external,
            external_policy,
            upstream_url,
            authorization,
            sent_authorization,
            user_agent,
        })
    }

    /// Sends a GET request and follows redirects as configured. Returns the final URL and the response.
    pub fn get(&self, url: Url, headers: &HeaderMap) -> Result<(Url, Response), UpstreamError> {
        let (url, response) = self.get_any(url, |_| headers)?;
        Ok((url, self.expect_success(response)?))
    }

    /// The same, with a response of any status but a redirect, and with headers for each URL.
    pub(super) fn get_any<'h>(
        &self,
        url: Url,
        headers: impl Fn(&Url) -> &'h HeaderMap,
    ) -> Result<(Url, Response), UpstreamError> {
        let send = |url: &Url| self.send(&Method::GET, url, headers(url), None);
        redirects::follow_all(url, send, |from, response| self.redirected(from, response))
    }

    /// Sends a POST request, without redirects.
    pub fn post(&self, url: &Url, headers: &HeaderMap, body: &Bytes) -> Result<Response, UpstreamError> {
        let response = self.send(&Method::POST, url, headers, Some(body))?;
        if response.status().is_redirection() {
            let to = redirects::display_origin(&self.redirected(url, &response)?);
            return Err(UpstreamError::Redirected { to, reason: "only the first request of a poll may be redirected" });
        }
        self.expect_success(response)
    }

    /// The next chunk of a response; empty at its end.
    pub fn next_chunk(&self, response: &mut Response) -> Result<Bytes, UpstreamError> {
        let chunk = self.session.wait(response.chunk())?;
        Ok(chunk.map_err(|error| errors::classify(self.session, &error))?.unwrap_or_default())
    }

    /// The session whose requests it sends.
    pub fn session(&self) -> &'a UpstreamSession<'a> {
        self.session
    }

    /// The upstream's credentials, as a header.
    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    fn send(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, UpstreamError> {
        let mut headers = headers.clone();
        headers.remove(AUTHORIZATION);
        self.send_with(method, url, headers, body)
    }

    /// The same, but an `Authorization` in the headers takes precedence over the upstream's credentials.
    pub(crate) fn send_with(
        &self,
        method: &Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, UpstreamError> {
        if let Some(authorization) = &self.authorization
            && redirects::same_origin(url, &self.upstream_url)
        {
            headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        self.send_as(method, url, headers, body)
    }

    /// Sends a request with no credentials but those in the headers, without redirects.
    pub fn send_as(
        &self,
        method: &Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, UpstreamError> {
        if let Some(authorization) = headers.get(AUTHORIZATION) {
            self.sent_authorization.replace(Some(authorization.clone()));
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(self.user_agent));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(IDENTITY));
        let http = self.http_for(url)?;
        self.check_proxied_address(url)?;
        let send = || {
            let request = http.request(method.clone(), url.clone()).headers(headers.clone());
            let request = body.into_iter().cloned().fold(request, RequestBuilder::body);
            let connected = Rc::new(Cell::new(false));
            self.session.count_request();
            let response = self.session.wait(clients::send(request, connected.clone()));
            // Not of the hosts that the upstream refers to, of which it could name many.
            if let Ok(Ok(response)) = &response
                && redirects::same_host(&self.upstream_url, url)
            {
                self.session.upstream.clocks.observe(url.host_str().unwrap_or_default(), response.headers());
            }
            (response, !connected.get())
        };
        let failed = |error: reqwest::Error| match (errors::classify(self.session, &error), self.other_host_of(url)) {
            (error, Some(host)) => error.at_host(host),
            (error, None) => error,
        };
        // The server may have closed an idle connection just now, or its path may be dead without a sign, as after a NAT
        // has forgotten it. Requests are idempotent, so one that got no response is sent over another connection. A POST
        // follows a GET that was just answered: a server that is silent then is slow, and its connection is not dead.
        // One that was not even sent over a new connection is repeated to learn why.
        for _ in 0..IDLE_CONNECTIONS_PER_HOST {
            match send() {
                (Ok(Err(error)), true) if errors::is_unanswered(&error) => {}
                (Ok(Err(error)), false) if errors::is_unsent(&error) => {}
                (Err(UpstreamError::Stalled { .. }), true) if *method != Method::POST => {}
                (response, _) => return response?.map_err(failed),
            }
        }
        send().0?.map_err(failed)
    }

    /// A proxy resolves host names itself, so the egress policy is applied to them here.
    fn check_proxied_address(&self, url: &Url) -> Result<(), UpstreamError> {
        let Upstream { config, egress, .. } = self.session.upstream;
        if config.proxy.is_none() {
            return Ok(());
        }
        let egress = if redirects::same_host(&self.upstream_url, url) { egress } else { &self.external_policy };
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        Ok(self.session.wait(egress.check_behind_proxy(host, port))??)
    }

    fn http_for(&self, url: &Url) -> Result<&reqwest::Client, UpstreamError> {
        if redirects::same_host(&self.upstream_url, url) {
            return Ok(&self.http);
        }
        if let Some(external) = self.external.get() {
            return Ok(external);
        }
        let UpstreamSession { upstream, .. } = self.session;
        let external = clients::for_other_hosts(upstream, &self.external_policy, self.session.connect_timeout())?;
        Ok(self.external.get_or_init(|| external))
    }

    /// The target of a redirect, if it may be followed.
    pub fn redirected(&self, from: &Url, response: &Response) -> Result<Url, UpstreamError> {
        let Upstream { config, egress, .. } = self.session.upstream;
        let to = redirects::follow(&config.redirects, egress, from, self.location(response)?)?;
        self.not_sent_back(from, to)
    }

    /// Refuses to be sent back to the upstream by another host, which would choose the path of a request with credentials.
    pub(super) fn not_sent_back(&self, from: &Url, to: Url) -> Result<Url, UpstreamError> {
        if self.leads_back(from, &to) {
            let reason = "another host leads back to the upstream, which would receive the credentials";
            return Err(UpstreamError::Redirected { to: redirects::display_origin(&to), reason });
        }
        Ok(to)
    }

    /// Whether another host chose a URL of the upstream, which would receive the credentials.
    pub fn leads_back(&self, from: &Url, to: &Url) -> bool {
        let has_credentials = self.authorization.is_some() || self.session.upstream.config.client_certificate.is_some();
        has_credentials && self.other_host_of(from).is_some() && self.other_host_of(to).is_none()
    }

    /// The `Location` of a response.
    pub(crate) fn location<'r>(&self, response: &'r Response) -> Result<&'r str, UpstreamError> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        location.ok_or_else(|| self.error_of_head(response, ServerReport::default()))
    }

    /// Checks that the status is 200.
    pub fn expect_success(&self, response: Response) -> Result<Response, UpstreamError> {
        match response.status() {
            StatusCode::OK => Ok(response),
            _ => Err(self.status_error(response)),
        }
    }

    fn status_error(&self, response: Response) -> UpstreamError {
        let unauthorized = self.unauthorized(response.url());
        match self.response_error(response) {
            UpstreamError::HttpStatus { status: 401, report, .. } => {
                UpstreamError::Authenticate(format!("{unauthorized}{report}"))
            }
            UpstreamError::HttpStatus { status: 403, retry_after: None, server, report, .. } => {
                UpstreamError::Authenticate(match server {
                    Server::Other(host) => {
                        format!("it named or redirected to another host, `{host}`, which answered 403{report}")
                    }
                    _ => format!("it answered 403: the credentials do not give access to this repository{report}"),
                })
            }
            UpstreamError::HttpStatus { status: status @ (404 | 410), server, report, .. } => {
                let server = if server == Server::Upstream { "it".to_owned() } else { server.to_string() };
                let cause = format!("{server} answered {status}{report}");
                UpstreamError::NotFound { step: self.session.step(), cause }
            }
            other => other,
        }
    }

    /// The error for a response's status, with what the server reports.
    pub fn response_error(&self, mut response: Response) -> UpstreamError {
        let report = self.report(&mut response);
        self.error_of_head(&response, report)
    }

    fn error_of_head(&self, response: &Response, report: ServerReport) -> UpstreamError {
        let status = response.status().as_u16();
        let pause = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = pause.and_then(|pause| retry_after::parse(pause, SystemTime::now()));
        let other = self.other_host_of(response.url());
        let server = other.map_or(Server::Upstream, |host| Server::Other(host.to_owned()));
        UpstreamError::HttpStatus { server, step: self.session.step(), status, retry_after, report }
    }

    /// The host of a URL, unless it is the upstream's.
    fn other_host_of<'u>(&self, url: &'u Url) -> Option<&'u str> {
        url.host_str().filter(|_| !redirects::same_host(&self.upstream_url, url))
    }

    /// Why a request was answered with 401.
    pub fn unauthorized(&self, url: &Url) -> String {
        let RepositoryConfig { username, token_file, .. } = &self.session.upstream.config;
        if let Some(host) = self.other_host_of(url) {
            return format!("it named or redirected to another host, `{host}`, which does not receive the credentials");
        }
        let reason = if token_file.is_some() {
            "it does not accept the token in `token_file`: it may have expired, or give no access to this repository"
        } else if username.is_some() {
            "it does not accept the configured user name and password (`username`, `password_file`)"
        } else {
            "it requires credentials, but none are configured (`username` with `password_file`, or `token_file`)"
        };
        reason.to_owned()
    }
}

/// The upstream's credentials as a header.
fn authorization(config: &RepositoryConfig) -> Result<Option<HeaderValue>, UpstreamError> {
    let value = if let Some(file) = &config.token_file {
        format!("Bearer {}", secret::read(file, "token_file")?)
    } else if let Some((username, file)) = config.username.as_ref().zip(config.password_file.as_ref()) {
        let password = secret::read(file, "password_file")?;
        format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
    } else {
        return Ok(None);
    };
    let invalid = || UpstreamError::Authenticate("the token or password contains invalid characters".to_owned());
    let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::super::egress_policy::Hosts;
    use super::super::super::redirects::Redirects;
    use super::super::test_server::{response, server, with_client};
    use super::*;

    #[test]
    fn no_secret_that_a_server_repeats_is_shown() {
        // `weir:s3cret`.
        let basic = "Basic d2VpcjpzM2NyZXQ=";
        for (authorization, report, shown) in [
            (basic, r#"{"message":"invalid: Basic d2VpcjpzM2NyZXQ="}"#, ""),
            (basic, r#"{"message":"weir:s3cr\u0065t is no user"}"#, ""),
            (basic, "weir is no user", "; the server reports: weir is no user"),
            ("Bearer t0k.n", "<Message>t0k.n has expired</Message>", ""),
            ("Bearer t0k.n", "it has expired", "; the server reports: it has expired"),
        ] {
            let (url, _requests) = server(vec![response("401 x", "", report)]);
            let upstream = Upstream::new(url.as_str());
            let error = with_client(&upstream, |client| {
                let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(authorization))]);
                client.response_error(client.send_as(&Method::GET, &url, headers, None).unwrap())
            });
            let UpstreamError::HttpStatus { report, .. } = error else { panic!("{error}") };
            assert_eq!(report.to_string(), shown);
        }
    }

    #[test]
    fn no_other_host_chooses_the_path_of_a_request_with_credentials() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        fs::write(&token, "known").unwrap();
        let back = response("302 x", "location: https://charts.example/chosen\r\n", "");
        let (other, _requests) = server(vec![back; 4]);
        let mut upstream = Upstream::new("https://charts.example/stable");
        let hosts = ["127.0.0.1", "charts.example"].map(str::to_owned);
        upstream.config.redirects = Redirects::To(Hosts::new(hosts).unwrap());
        let followed = |upstream: &Upstream| {
            with_client(upstream, |client| {
                let get = || client.send_as(&Method::GET, &other, HeaderMap::new(), None).unwrap();
                [
                    client.redirected(&other, &get()),
                    client.storage_redirect(&other, &get()),
                    client.other_host(&other, "https://charts.example/chosen"),
                ]
            })
        };
        for followed in followed(&upstream) {
            assert_eq!(followed.unwrap().path(), "/chosen", "without credentials it may be a mirror");
        }
        upstream.config.token_file = Some(token);
        for followed in followed(&upstream) {
            let error = followed.unwrap_err().to_string();
            assert!(
                error.ends_with("another host leads back to the upstream, which would receive the credentials"),
                "{error}"
            );
        }
    }
}
