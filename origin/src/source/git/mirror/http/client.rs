//! What is asked of one upstream over HTTP, with its credentials.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};

use super::super::attempt::Attempt;
use super::super::{MirrorError, retry_after};
use super::redirects::{self, LONGEST_CHAIN};
use super::trouble;
use crate::source::http_clients::{self, IDLE_CONNECTIONS_PER_HOST};
use crate::source::{Reach, Upstream, secret};

/// Git servers tell Git clients from browsers by the first four letters.
const NAME: &str = concat!("git/2 (weir-origin/", env!("CARGO_PKG_VERSION"), ")");

/// A client for one attempt at an upstream.
pub(in super::super) struct Client<'a> {
    attempt: &'a Attempt<'a>,
    /// For the upstream itself.
    http: reqwest::Client,
    /// For wherever else it leads.
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
        let http = http_clients::home(upstream, attempt.connect_timeout())?;
        let beyond = Arc::new(upstream.reach.beyond(&upstream.redirects));
        Ok(Self { attempt, http, elsewhere: OnceCell::new(), beyond, home, authorization })
    }

    /// Asks, and follows redirects as configured. Where the answer came from, and the answer.
    pub(super) fn get(&self, mut url: Url, headers: &HeaderMap, kind: &str) -> Result<(Url, Response), MirrorError> {
        for _ in 0..=LONGEST_CHAIN {
            let answer = self.send(&Method::GET, &url, headers, None)?;
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
        body: &Bytes,
        kind: &str,
    ) -> Result<Response, MirrorError> {
        let answer = self.send(&Method::POST, url, headers, Some(body))?;
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
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, MirrorError> {
        let mut headers = headers.clone();
        headers.remove(AUTHORIZATION);
        self.send_with(method, url, headers, body)
    }

    /// The same with an `Authorization` of somebody else's, if there is one among the headers.
    pub(super) fn send_with(
        &self,
        method: &Method,
        url: &Url,
        mut headers: HeaderMap,
        body: Option<&Bytes>,
    ) -> Result<Response, MirrorError> {
        headers.insert(USER_AGENT, HeaderValue::from_static(NAME));
        if let Some(authorization) = &self.authorization
            && redirects::same_origin(url, &self.home)
        {
            headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        let http = self.http_for(url)?;
        self.judge_before_a_proxy(url)?;
        let send = || {
            let request = http.request(method.clone(), url.clone()).headers(headers.clone());
            let request = body.into_iter().cloned().fold(request, RequestBuilder::body);
            let connected = Rc::new(Cell::new(false));
            self.attempt.asks();
            let answer = self.attempt.wait(http_clients::send(request, connected.clone()));
            (answer, !connected.get())
        };
        let failed = |error: reqwest::Error| trouble::of(self.attempt, &error);
        // The server may have closed an idle connection just now, or its path may be dead without a sign, as after a NAT
        // has forgotten it. Requests are idempotent, so one that got no response is sent over another connection.
        for _ in 0..IDLE_CONNECTIONS_PER_HOST {
            match send() {
                (Ok(Err(error)), true) if trouble::broke_off_unanswered(&error) => {}
                (Err(MirrorError::Stalled { .. }), true) => {}
                (answer, _) => return answer?.map_err(failed),
            }
        }
        send().0?.map_err(failed)
    }

    /// What a proxy connects to it looks up itself, so where only some addresses may be asked they are judged here.
    fn judge_before_a_proxy(&self, url: &Url) -> Result<(), MirrorError> {
        let Upstream { proxy, reach, .. } = self.attempt.upstream;
        if proxy.is_none() {
            return Ok(());
        }
        let reach = if redirects::stays(&self.home, url) { reach } else { &self.beyond };
        let (host, port) = (url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
        Ok(self.attempt.wait(reach.judge(host, port))??)
    }

    fn http_for(&self, url: &Url) -> Result<&reqwest::Client, MirrorError> {
        if redirects::stays(&self.home, url) {
            return Ok(&self.http);
        }
        if let Some(elsewhere) = self.elsewhere.get() {
            return Ok(elsewhere);
        }
        let Attempt { upstream, .. } = self.attempt;
        let elsewhere = http_clients::elsewhere(upstream, &self.beyond, self.attempt.connect_timeout())?;
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
