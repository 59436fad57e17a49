//! Tokens of a registry's token service.
//!
//! A registry names the service in its challenge. The service receives the user name and password, over `https://` and
//! within the egress policy; a registry could demand them for itself, so this tells it nothing that it may not have.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::IntCounter;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use weir_protocol::digest::Sha256;
use weir_upstream::http::{Body, BodyError, Client, same_origin};
use weir_upstream::{Scheme, UpstreamError};

use super::OciName;
use super::challenge::TokenService;
use super::error::sent_instead;

/// The largest answer of a token service.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// The lifetime of a token whose service names none.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(60);

/// The longest lifetime that is believed.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The most tokens in memory.
const MAX_TOKENS: usize = 1000;

/// What each repository of a registry accepted last. A token is never used for another repository, nor with other
/// credentials.
pub(crate) struct Tokens {
    granted: Mutex<HashMap<Key, Vec<Kept>>>,
    issued: IntCounter,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// The registry's URL.
    pub(super) registry: Url,
    pub(super) name: OciName,
    /// The SHA-256 of the configured credentials.
    pub(super) credentials: Option<Sha256>,
}

/// What a registry accepts.
#[derive(Clone)]
pub(super) struct Granted {
    /// `None`: the registry demands nothing.
    pub(super) authorization: Option<HeaderValue>,
    /// Which service issued it, if it is a token.
    pub(super) service: Option<TokenService>,
}

impl Granted {
    pub(super) fn nothing() -> Self {
        Self { authorization: None, service: None }
    }
}

struct Kept {
    /// Of the request that demanded it: `tags`, `manifests`, `blobs` or `referrers`. Some registries demand another scope for
    /// each.
    kind: &'static str,
    granted: Granted,
    /// `None`: it is the password itself.
    until: Option<Instant>,
}

impl Kept {
    fn is_live(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl Tokens {
    /// No tokens. `issued` counts them.
    pub(crate) fn new(issued: IntCounter) -> Self {
        Self { granted: Mutex::default(), issued }
    }

    /// What a registry accepted for a kind of requests, or last for another kind.
    pub(super) fn get(&self, key: &Key, kind: &str, now: Instant) -> Option<Granted> {
        let granted = self.granted();
        let live = || granted.get(key).into_iter().flatten().filter(|kept| kept.is_live(now));
        let found = live().find(|kept| kept.kind == kind).or_else(|| live().next_back());
        found.map(|kept| kept.granted.clone())
    }

    /// `lifetime`: `None` for a password.
    pub(super) fn put(&self, key: Key, kind: &'static str, granted: Granted, lifetime: Option<Duration>, now: Instant) {
        let mut all = self.granted();
        if all.len() >= MAX_TOKENS {
            all.retain(|_, others| others.iter().any(|kept| kept.is_live(now)));
        }
        if all.len() >= MAX_TOKENS {
            all.clear();
        }
        // It is not sent when it is about to end.
        let until = lifetime.map(|lifetime| now + lifetime.min(MAX_LIFETIME).mul_f64(0.9));
        let of_repository = all.entry(key).or_default();
        of_repository.retain(|kept| kept.kind != kind);
        of_repository.push(Kept { kind, granted, until });
    }

    pub(super) fn remove(&self, key: &Key, kind: &str) {
        if let Some(of_repository) = self.granted().get_mut(key) {
            of_repository.retain(|kept| kept.kind != kind);
        }
    }

    /// Requests a token. Returns its header and its lifetime.
    pub(super) fn request(
        &self,
        client: &Client<'_>,
        registry: &Url,
        service: &TokenService,
        name: &OciName,
        credentials: Option<&HeaderValue>,
    ) -> Result<(HeaderValue, Duration), UpstreamError> {
        let mut url = realm(client, registry, &service.realm)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let failed = |reason: String| UpstreamError::Authenticate(format!("the token service `{host}` {reason}"));
        let default_scope = format!("repository:{name}:pull");
        for scope in service.scope.as_deref().unwrap_or(&default_scope).split_ascii_whitespace() {
            url.query_pairs_mut().append_pair("scope", scope);
        }
        if let Some(service) = &service.service {
            url.query_pairs_mut().append_pair("service", service);
        }
        let may_receive = is_registry(client) || same_origin(&url, &client.upstream_url);
        let is_withheld = credentials.is_some() && !may_receive;
        let credentials = credentials.filter(|_| url.scheme() == "https" && may_receive);
        let headers = credentials.map(|credentials| (AUTHORIZATION, credentials.clone())).into_iter().collect();
        let response = client.send_as(&Method::GET, &url, headers, None)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(failed("redirects, which is not followed".to_owned())),
            _ => {
                return Err(match client.response_error(response) {
                    UpstreamError::HttpStatus { status: 401 | 403, report, .. } => failed(match credentials {
                        Some(_) => format!("does not accept the configured user name and password{report}"),
                        None if is_withheld => format!(
                            "gives no token for `{name}` without credentials, and receives none, because only the index names \
                             it: follow the chart of the registry (`url = \"oci://…\"`){report}"
                        ),
                        None => format!(
                            "gives no token for `{name}` without credentials (`username` with `password_file`){report}"
                        ),
                    }),
                    other => other.of_token_service(&host),
                });
            }
        }
        let (mut bytes, instead) = (Vec::new(), sent_instead(&response));
        Body::new(client, response, MAX_ANSWER_BYTES).write_to(&mut bytes).map_err(|error| match error {
            BodyError::Upstream(error) => error,
            BodyError::TooLarge => failed(format!("answers with more than {MAX_ANSWER_BYTES} bytes")),
            BodyError::Write(error) => failed(format!("cannot be read: {error}")),
        })?;
        let granted = parse(&bytes).ok_or_else(|| failed(format!("answers without a token{instead}")))?;
        self.issued.inc();
        Ok(granted)
    }

    fn granted(&self) -> MutexGuard<'_, HashMap<Key, Vec<Kept>>> {
        self.granted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the upstream itself is a registry: its token service receives the credentials. An index may name any registry.
fn is_registry(client: &Client<'_>) -> bool {
    client.session().upstream.config.url.scheme() == Some(Scheme::Oci)
}

/// The URL of a token service, if it may be contacted.
fn realm(client: &Client<'_>, registry: &Url, realm: &str) -> Result<Url, UpstreamError> {
    let refused = |host: &str, reason: &dyn std::fmt::Display| {
        UpstreamError::Authenticate(format!(
            "the registry asks for a token of `{host}`, which is not followed: {reason}"
        ))
    };
    client.other_host(registry, realm).map_err(|error| match error {
        UpstreamError::Redirected { to, reason } => refused(&to, &reason),
        UpstreamError::NotAllowed(reason) => {
            let host = Url::parse(realm).ok().and_then(|url| url.host_str().map(str::to_owned));
            refused(&host.unwrap_or_default(), &reason)
        }
        other => other,
    })
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    /// The name of OAuth 2, which some services use.
    access_token: Option<String>,
    expires_in: Option<serde_json::Value>,
}

/// The header and the lifetime of the token in an answer.
fn parse(answer: &[u8]) -> Option<(HeaderValue, Duration)> {
    let Answer { token, access_token, expires_in } = serde_json::from_slice(answer).ok()?;
    let token = [token, access_token].into_iter().flatten().find(|token| !token.is_empty())?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    let lifetime = expires_in.and_then(|seconds| seconds.as_u64()).map(Duration::from_secs);
    Some((header, lifetime.unwrap_or(DEFAULT_LIFETIME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, password: &[u8]) -> Key {
        let registry = Url::parse("https://registry.example/").unwrap();
        Key { registry, name: name.parse().unwrap(), credentials: Some(Sha256::of(password)) }
    }

    fn tokens() -> Tokens {
        Tokens::new(IntCounter::new("tokens", "tokens").unwrap())
    }

    #[test]
    fn a_token_ends_early_and_belongs_to_one_repository_and_one_password() {
        let (tokens, now) = (tokens(), Instant::now());
        let put = |name: &str, lifetime: Option<u64>| {
            let header = HeaderValue::try_from(format!("Bearer {name}")).unwrap();
            let granted = Granted { authorization: Some(header), service: None };
            tokens.put(key(name, b"one"), "tags", granted, lifetime.map(Duration::from_secs), now);
        };
        put("shop", Some(300));
        let at = |key: &Key, seconds| tokens.get(key, "manifests", now + Duration::from_secs(seconds)).is_some();
        assert!(at(&key("shop", b"one"), 269) && !at(&key("shop", b"one"), 270));
        assert!(!at(&key("shop", b"two"), 0) && !at(&key("blog", b"one"), 0));
        let other = Url::parse("http://registry.example/").unwrap();
        assert!(!at(&Key { registry: other, ..key("shop", b"one") }, 0));
        put("password", None);
        put("forever", Some(u64::MAX));
        assert!(at(&key("password", b"one"), 1 << 30) && at(&key("forever", b"one"), 77_759));
        assert!(!at(&key("forever", b"one"), 77_760), "a day, less 10 %");
        tokens.remove(&key("shop", b"one"), "tags");
        assert!(!at(&key("shop", b"one"), 0));
        for number in 0..MAX_TOKENS {
            put(&number.to_string(), Some(1));
        }
        assert!(tokens.granted().len() <= MAX_TOKENS);
    }

    #[test]
    fn an_answer_has_a_token_by_either_name() {
        let read = |text: &str| {
            let (header, lifetime) = parse(text.as_bytes())?;
            Some((header.to_str().unwrap().to_owned(), lifetime.as_secs()))
        };
        for (text, expected) in [
            (r#"{"token":"a","expires_in":300,"issued_at":"x"}"#, ("Bearer a", 300)),
            (r#"{"access_token":"b","token":""}"#, ("Bearer b", 60)),
            (r#"{"token":"a","access_token":"b","expires_in":-1}"#, ("Bearer a", 60)),
        ] {
            assert_eq!(read(text), Some((expected.0.to_owned(), expected.1)), "{text}");
        }
        for text in ["", "{}", r#"{"token":""}"#, r#"{"token":"a\nb"}"#, r#"{"token":1}"#, "<html>"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
