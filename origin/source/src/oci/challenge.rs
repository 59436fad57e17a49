//! `WWW-Authenticate` of a registry (RFC 9110, and the token service of Docker's registry). Pure.

use http_auth::{ChallengeParser, ChallengeRef};
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

/// How a registry demands to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// With user name and password.
    Basic,
    /// With a token of another server.
    Bearer(TokenService),
}

/// The server that issues a registry's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenService {
    /// Its URL.
    pub(super) realm: String,
    pub(super) service: Option<String>,
    pub(super) scope: Option<String>,
}

/// The challenge to answer: tokens before passwords, whatever their order. `None`: none is supported.
pub(super) fn read(headers: &HeaderMap) -> Option<Challenge> {
    let values = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    // What follows a syntax error is not read: it may be a part of it.
    let challenges = values.flat_map(|value| ChallengeParser::new(value).map_while(Result::ok));
    let mut basic = None;
    for challenge in challenges {
        if challenge.scheme.eq_ignore_ascii_case("Bearer")
            && let Some(realm) = parameter(&challenge, "realm")
        {
            let (service, scope) = (parameter(&challenge, "service"), parameter(&challenge, "scope"));
            return Some(Challenge::Bearer(TokenService { realm, service, scope }));
        }
        if challenge.scheme.eq_ignore_ascii_case("Basic") {
            basic = Some(Challenge::Basic);
        }
    }
    basic
}

/// A parameter. An empty one is none.
fn parameter(challenge: &ChallengeRef<'_>, name: &str) -> Option<String> {
    let found = challenge.params.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_unescaped()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    use super::*;

    fn read(values: &[&str]) -> Option<Challenge> {
        let values = values.iter().map(|value| (WWW_AUTHENTICATE, HeaderValue::from_str(value).unwrap()));
        let mut headers = HeaderMap::new();
        values.for_each(|(name, value)| _ = headers.append(name, value));
        super::read(&headers)
    }

    #[test]
    fn a_token_is_preferred_and_what_is_not_known_is_skipped() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            let (realm, service, scope) = (realm.to_owned(), service.map(str::to_owned), scope.map(str::to_owned));
            Some(Challenge::Bearer(TokenService { realm, service, scope }))
        };
        let docker =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull""#;
        let expected = bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull"));
        for values in [&[docker][..], &["Basic realm=\"x\"", docker], &[&format!("Negotiate, Basic realm=x, {docker}")]]
        {
            assert_eq!(read(values), expected, "{values:?}");
        }
        assert_eq!(
            read(&[r#"bearer REALM="https://a/t?x=1,2" , Service="a \"b\"""#]),
            bearer("https://a/t?x=1,2", Some("a \"b\""), None)
        );
        assert_eq!(read(&["Basic realm=\"Registry\""]), Some(Challenge::Basic));
        assert_eq!(read(&["Bearer service=\"x\"", "basic realm=x"]), Some(Challenge::Basic), "a token needs a realm");
        for values in
            [&[][..], &[""], &["Bearer"], &["Bearer realm=\"\""], &["Digest realm=\"x\", nonce=\"y\""], &["\"=,"]]
        {
            assert_eq!(read(values), None, "{values:?}");
        }
    }

    proptest! {
        #[test]
        fn any_challenge_is_read(value in r#"(Bearer|Basic|[ -~]){0,3}[ -~]{0,40}"#) {
            if let Some(Challenge::Bearer(service)) = read(&[&value]) {
                prop_assert!(!service.realm.is_empty() && service.realm.len() <= value.len());
            }
        }
    }
}
