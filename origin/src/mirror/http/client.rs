//! An HTTP client of one upstream: its authorities, its certificate, its proxy, its credentials. Nothing comes from the
//! environment of the process.

use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use reqwest::{Certificate, Identity, Method, Proxy, Response, StatusCode, Url};

use super::super::attempt::Attempt;
use super::super::{MirrorError, retry_after};
use super::redirects::{self, LONGEST_CHAIN};
use super::trouble;
use crate::source::{Endpoint, Reach, Upstream, secret};

/// Git servers tell Git clients from browsers by the first four letters.
const NAME: &str = concat!("git/2 (weir-origin/", env!("CARGO_PKG_VERSION"), ")");

/// A client for one attempt at an upstream.
pub(in super::super) struct Client<'a> {
    attempt: &'a Attempt<'a>,
    /// For the upstream itself.
    http: reqwest::Client,
    /// For wherever else it leads: without the client certificate, and to fewer places.
    elsewhere: OnceCell<reqwest::Client>,
    /// Where it may lead.
    pub(super) beyond: Arc<Reach>,
    /// The upstream's own address: credentials are for it alone.
    pub(super) home: Url,
    authorization: Option<HeaderValue>,
}

impl<'a> Client<'a> {
    /// Reads the files that the upstream's configuration names.
    pub(in super::super) fn new(attempt: &'a Attempt<'a>) -> Result<Self, MirrorError> {
        let upstream = attempt.upstream;
        let unsupported = |reason| MirrorError::UnsupportedUrl { url: upstream.url.to_string(), reason };
        let home = upstream.url.http().map_err(unsupported)?.clone();
        upstream.reach.check_host(home.host_str().unwrap_or_default())?;
        let authorization = authorization(upstream)?;
        if authorization.is_some() && home.scheme() != "https" {
            let reason = "a password or token is not sent over http://, where others can read it: use https://";
            return Err(MirrorError::Authenticate(reason.to_owned()));
        }
        // Two providers would be compiled in only by mistake, and whoever installs this one first is welcome.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let account = upstream.client_certificate.as_ref().zip(upstream.client_key.as_ref());
        let identity = account.map(|(certificate, key)| identity(certificate, key)).transpose()?;
        let http = http(attempt, upstream.reach.clone(), identity)?;
        let beyond = Arc::new(upstream.reach.beyond(&upstream.redirects));
        Ok(Self { attempt, http, elsewhere: OnceCell::new(), beyond, home, authorization })
    }

    /// Asks, and follows redirects as configured. Where the answer came from, and the answer.
    pub(super) fn get(&self, mut url: Url, headers: &HeaderMap, kind: &str) -> Result<(Url, Response), MirrorError> {
        for _ in 0..=LONGEST_CHAIN {
            let answer = self.send(Method::GET, &url, headers, None)?;
            if !answer.status().is_redirection() {
                return Ok((url, self.expect(answer, kind)?));
            }
            url = self.redirected(&url, &answer)?;
        }
        Err(redirects::too_many(&url))
    }

    /// Tells, and takes the answer from nowhere else.
    pub(super) fn post(
        &self,
        url: &Url,
        headers: &HeaderMap,
        body: Bytes,
        kind: &str,
    ) -> Result<Response, MirrorError> {
        let answer = self.send(Method::POST, url, headers, Some(body))?;
        if answer.status().is_redirection() {
            let to = redirects::place(&self.redirected(url, &answer)?);
            return Err(MirrorError::Redirected { to, reason: "only the first request of a poll may be redirected" });
        }
        self.expect(answer, kind)
    }

    /// The next bytes of an answer; nothing at its end.
    pub(in super::super) fn more(&self, answer: &mut Response) -> Result<Bytes, MirrorError> {
        let chunk = self.attempt.wait(answer.chunk())?;
        let chunk = chunk.map_err(|error| trouble::of(self.attempt, &error))?.unwrap_or_default();
        self.attempt.received(chunk.len())?;
        Ok(chunk)
    }

    pub(in super::super) fn attempt(&self) -> &'a Attempt<'a> {
        self.attempt
    }

    fn send(
        &self,
        method: Method,
        url: &Url,
        headers: &HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Response, MirrorError> {
        let mut headers = headers.clone();
        headers.remove(AUTHORIZATION);
        self.send_with(method, url, headers, body)
    }

    /// The same with an `Authorization` of somebody else's, if there is one among the headers.
    pub(super) fn send_with(
        &self,
        method: Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Response, MirrorError> {
        headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
        if let Some(authorization) = &self.authorization
            && redirects::same_origin(url, &self.home)
        {
            headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        let mut request = self.http_for(url)?.request(method, url.clone()).headers(headers);
        if let Some(body) = body {
            request = request.body(body);
        }
        self.attempt.asks();
        self.attempt.wait(request.send())?.map_err(|error| trouble::of(self.attempt, &error))
    }

    fn http_for(&self, url: &Url) -> Result<&reqwest::Client, MirrorError> {
        if redirects::stays(&self.home, url) {
            return Ok(&self.http);
        }
        if let Some(elsewhere) = self.elsewhere.get() {
            return Ok(elsewhere);
        }
        let elsewhere = http(self.attempt, self.beyond.clone(), None)?;
        Ok(self.elsewhere.get_or_init(|| elsewhere))
    }

    /// Where an answer sends us, if that is to be followed.
    pub(super) fn redirected(&self, from: &Url, answer: &Response) -> Result<Url, MirrorError> {
        let Upstream { redirects, reach, .. } = self.attempt.upstream;
        redirects::follow(redirects, reach, from, self.location(answer)?)
    }

    /// Where an answer says that something else is.
    pub(super) fn location<'r>(&self, answer: &'r Response) -> Result<&'r str, MirrorError> {
        let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        location.ok_or_else(|| self.says_no(answer))
    }

    /// Takes an answer that says yes, in the words of Git's protocol.
    fn expect(&self, answer: Response, kind: &str) -> Result<Response, MirrorError> {
        let answer = self.expect_success(answer)?;
        let found = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        // It may have parameters, of which Git's protocol knows none.
        let named = found.split_once(';').map_or(found, |(named, _)| named).trim();
        if named.eq_ignore_ascii_case(kind) {
            return Ok(answer);
        }
        let found: String = found.chars().filter(|c| !c.is_control()).take(60).collect();
        let cause = format!(
            "it answered with `{found}`, which is not Git's protocol: the URL may be that of a web page, or a proxy or \
             a log-in page answers in its place"
        );
        Err(MirrorError::Upstream { step: self.attempt.step(), cause })
    }

    /// Takes an answer that says yes.
    pub(super) fn expect_success(&self, answer: Response) -> Result<Response, MirrorError> {
        match answer.status() {
            StatusCode::OK => Ok(answer),
            StatusCode::UNAUTHORIZED => Err(MirrorError::Authenticate(self.unauthorized(answer.url()).to_owned())),
            _ => Err(self.says_no(&answer)),
        }
    }

    fn says_no(&self, answer: &Response) -> MirrorError {
        match self.answered(answer) {
            MirrorError::Answered { status: 403, retry_after: None, .. } => {
                MirrorError::Authenticate("it answered 403: what it was shown does not open this repository".to_owned())
            }
            MirrorError::Answered { status: status @ (404 | 410), .. } => {
                MirrorError::NotFound(format!("it answered {status}"))
            }
            other => other,
        }
    }

    /// An answer's status as an error, whatever it is.
    pub(in super::super) fn answered(&self, answer: &Response) -> MirrorError {
        let status = answer.status().as_u16();
        let pause = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = pause.and_then(|pause| retry_after::parse(pause, SystemTime::now()));
        MirrorError::Answered { step: self.attempt.step(), status, retry_after }
    }

    fn unauthorized(&self, asked: &Url) -> &'static str {
        let Upstream { username, token_file, .. } = self.attempt.upstream;
        if self.authorization.is_some() && !redirects::same_origin(asked, &self.home) {
            "it was redirected to another host, which is not given the credentials"
        } else if token_file.is_some() {
            "it does not accept the token in `token_file`: it may have ended, or not open this repository"
        } else if username.is_some() {
            "it does not accept the configured user name and password (`username`, `password_file`)"
        } else {
            "it asks for credentials, and none are configured (`username` with `password_file`, or `token_file`)"
        }
    }
}

/// A client of the HTTP library for an upstream, which goes where it may and shows a certificate if it is given one.
fn http(attempt: &Attempt, reach: Arc<Reach>, identity: Option<Identity>) -> Result<reqwest::Client, MirrorError> {
    let upstream = attempt.upstream;
    // All goes through a proxy if there is one, and no name is looked up here but its own: it is where the configuration
    // says, and not where somebody leads.
    let reach = if upstream.proxy.is_some() { upstream.reach.clone() } else { reach };
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(attempt.connect_timeout())
        .dns_resolver(Resolver(reach));
    if let Some(file) = &upstream.ca {
        // Only these: a private upstream should not be impersonated by whoever any public authority trusts.
        builder = builder.tls_certs_only(authorities(file)?);
    }
    if let Some(identity) = identity {
        builder = builder.identity(identity);
    }
    if let Some(url) = &upstream.proxy {
        builder = builder.proxy(proxy(upstream, url)?);
    }
    builder.build().map_err(|error| trouble::of(attempt, &error))
}

/// What an upstream is shown to let us in.
fn authorization(upstream: &Upstream) -> Result<Option<HeaderValue>, MirrorError> {
    let value = if let Some(file) = &upstream.token_file {
        format!("Bearer {}", secret::read(file, "token_file")?)
    } else if let Some((username, file)) = upstream.username.as_ref().zip(upstream.password_file.as_ref()) {
        let password = secret::read(file, "password_file")?;
        format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
    } else {
        return Ok(None);
    };
    let wrong = || MirrorError::Authenticate("the token or password holds what no header may".to_owned());
    let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn authorities(file: &Path) -> Result<Vec<Certificate>, MirrorError> {
    let pem = std::fs::read(file);
    let pem = pem.map_err(MirrorError::unread("ca", file))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(authorities) if !authorities.is_empty() => Ok(authorities),
        _ => Err(MirrorError::Trust("`ca` holds no certificate".to_owned())),
    }
}

fn identity(certificate: &Path, key: &Path) -> Result<Identity, MirrorError> {
    let mut pem = std::fs::read(certificate).map_err(MirrorError::unread("client_certificate", certificate))?;
    pem.push(b'\n');
    pem.extend(std::fs::read(key).map_err(MirrorError::unread("client_key", key))?);
    let wrong = "`client_certificate` and `client_key` are not a certificate and its key, both PEM";
    Identity::from_pem(&pem).map_err(|_| MirrorError::Trust(wrong.to_owned()))
}

fn proxy(upstream: &Upstream, url: &Endpoint) -> Result<Proxy, MirrorError> {
    let wrong = || MirrorError::Connect { cause: "`proxy` is no address".to_owned(), timeout: false };
    let url = url.http().map_err(|_| wrong())?;
    if upstream.reach.public_only {
        upstream.reach.check_host(url.host_str().unwrap_or_default())?;
    }
    let proxy = Proxy::all(url.clone()).map_err(|_| wrong())?;
    let account = upstream.proxy_username.as_ref().zip(upstream.proxy_password_file.as_ref());
    Ok(match account {
        Some((username, file)) => proxy.basic_auth(username, &secret::read(file, "proxy_password_file")?),
        None => proxy,
    })
}

/// Looks names up, and keeps to where the upstream may lead.
struct Resolver(Arc<Reach>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0.clone();
        Box::pin(async move {
            let addresses = reach.resolve(name.as_str(), 0).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
