//! Sends requests with what the registry demands: nothing, a password, or a token.

use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use weir_protocol::digest::Sha256;
use weir_upstream::UpstreamError;
use weir_upstream::http::same_origin;

use super::OciName;
use super::challenge::{self, Challenge, TokenService};
use super::error::RegistryError;
use super::registry::Registry;
use super::tags::has_only_number;
use super::token::{Granted, Key};

/// How long a registry is believed that demands nothing.
const RECHECK_ROOT: Duration = Duration::from_secs(3600);

/// A response, and the `Authorization` of its request.
pub(super) type Answered = (Response, Option<HeaderValue>);

impl Registry<'_> {
    /// Sends a request with what the registry accepted last, and once more with what it demands.
    pub(super) fn authorized(
        &self,
        (name, kind): (&OciName, &'static str),
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<Answered, RegistryError> {
        let credentials = self.credentials();
        if self.has_own_token() {
            // The token is for the registry itself.
            return Ok((self.send_with(method, url, headers, credentials)?, credentials.cloned()));
        }
        let credentials_digest = credentials.map(|value| Sha256::of(value.as_bytes()));
        let key = Key { registry: self.url.clone(), name: name.clone(), credentials: credentials_digest };
        let kept = self.tokens.get(&key, kind, Instant::now());
        let sent = kept.as_ref().and_then(|kept| kept.authorization.clone());
        let response = self.send_with(method, url, headers, sent.as_ref())?;
        let is_pause = response.headers().contains_key(RETRY_AFTER);
        let service = kept.as_ref().and_then(|kept| kept.service.clone()).map(Challenge::Bearer);
        let challenge = match response.status() {
            StatusCode::UNAUTHORIZED => challenge::read(response.headers()).or(service),
            // Some registries say so that a token has ended, or another one has more rights by now.
            status if may_be_of_token(status, url) && !is_pause && service.is_some() => service,
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND if credentials.is_some() && kept.is_none() && !is_pause => {
                let root = self.root()?;
                match root.status() {
                    StatusCode::UNAUTHORIZED => challenge_of_root(&root),
                    StatusCode::OK => {
                        self.tokens.put(key.clone(), kind, Granted::nothing(), Some(RECHECK_ROOT), Instant::now());
                        None
                    }
                    // It does not say whether credentials are demanded.
                    status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                        return Err(self.client.response_error(root).into());
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        let (granted, lifetime) = match (challenge, credentials) {
            // The password was sent.
            (Some(Challenge::Basic), Some(credentials)) if sent.as_ref() == Some(credentials) => {
                self.tokens.remove(&key, kind);
                return Ok((response, sent));
            }
            (Some(Challenge::Bearer(service)), _) => {
                let granted = self.tokens.request(self.client, &self.url, &service, name, credentials)?;
                (Granted { authorization: Some(granted.0), service: Some(service) }, Some(granted.1))
            }
            (Some(Challenge::Basic), Some(credentials)) => {
                (Granted { authorization: Some(credentials.clone()), service: None }, None)
            }
            (Some(Challenge::Basic) | None, _) => return Ok((response, sent)),
        };
        let authorization = granted.authorization.clone();
        let response = self.send_with(method, url, headers, authorization.as_ref())?;
        match response.status() {
            StatusCode::UNAUTHORIZED => self.tokens.remove(&key, kind),
            _ => self.tokens.put(key, kind, granted, lifetime, Instant::now()),
        }
        Ok((response, authorization))
    }

    pub(super) fn send_with(
        &self,
        method: &Method,
        url: &Url,
        headers: &HeaderMap,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, UpstreamError> {
        let mut headers = headers.clone();
        headers.extend(authorization.map(|value| (AUTHORIZATION, value.clone())));
        self.client.send_as(method, url, headers, None)
    }

    /// Why a registry refuses what it was sent, if that is no matter of rights.
    pub(super) fn not_authorized(&self, response: &Response) -> Option<String> {
        if response.status() != StatusCode::UNAUTHORIZED || !same_origin(response.url(), &self.url) {
            return None;
        }
        match challenge::read(response.headers()) {
            _ if self.has_own_token() => Some(self.client.unauthorized(response.url())),
            Some(Challenge::Basic) if self.credentials().is_none() => Some(self.client.unauthorized(response.url())),
            Some(_) => None,
            None => Some(
                "the registry demands credentials in a way that is not supported: neither a password (`Basic`) nor a token \
                 (`Bearer` with a `realm`)"
                    .to_owned(),
            ),
        }
    }

    /// What the upstream is sent, if the registry is the upstream.
    fn credentials(&self) -> Option<&HeaderValue> {
        self.client.authorization().filter(|_| self.is_upstream())
    }

    fn has_own_token(&self) -> bool {
        self.is_upstream() && self.client.session().upstream.config.token_file.is_some()
    }

    fn is_upstream(&self) -> bool {
        same_origin(&self.url, &self.client.upstream_url)
    }

    /// Requests the root without credentials. Some registries hide from the public what it may not read, and demand nothing
    /// there.
    fn root(&self) -> Result<Response, UpstreamError> {
        let mut root = self.url.clone();
        root.set_path("/v2/");
        self.client.send_as(&Method::GET, &root, HeaderMap::new(), None)
    }
}

/// Whether a registry may answer so to a token that it does not accept any more. What else is refused is requested in another
/// way: a HEAD as a GET, and tags without their number.
fn may_be_of_token(status: StatusCode, url: &Url) -> bool {
    let is_refused_number = status != StatusCode::FORBIDDEN && has_only_number(url);
    status.is_client_error() && ![404, 405, 407, 408, 429].contains(&status.as_u16()) && !is_refused_number
}

/// What a registry demands for its root.
fn challenge_of_root(root: &Response) -> Option<Challenge> {
    challenge::read(root.headers()).map(|challenge| match challenge {
        // Its scope is not of the repository.
        Challenge::Bearer(service) => Challenge::Bearer(TokenService { scope: None, ..service }),
        Challenge::Basic => Challenge::Basic,
    })
}
