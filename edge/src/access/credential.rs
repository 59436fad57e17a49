//! The credential of a request, in `Authorization` (RFC 9110 section 11.6.2, RFC 6750 section 2.1).

use http::{HeaderMap, header};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Credential<'a> {
    /// None, or one of another scheme.
    None,
    Token(&'a str),
    /// Several, or one that is not text: rejected, because it is ambiguous.
    Unreadable,
}

impl<'a> Credential<'a> {
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        let Some(value) = values.next() else { return Credential::None };
        if values.next().is_some() {
            return Credential::Unreadable;
        }
        let Ok(value) = value.to_str() else { return Credential::Unreadable };
        match value.split_once(' ').unwrap_or((value, "")) {
            (scheme, token) if scheme.eq_ignore_ascii_case("bearer") => Credential::Token(token.trim_matches(' ')),
            _ => Credential::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bearer_token_or_none() {
        for (values, expected) in [
            (&[][..], Credential::None),
            (&["Bearer a.b.c"], Credential::Token("a.b.c")),
            (&["bEARER   a.b.c "], Credential::Token("a.b.c")),
            (&["Bearer"], Credential::Token("")),
            (&["Bearer a b"], Credential::Token("a b")),
            (&["Basic YTpi"], Credential::None),
            (&["Bearerx a"], Credential::None),
            (&["Bearer a", "Bearer a"], Credential::Unreadable),
            (&["Basic YTpi", "Bearer a"], Credential::Unreadable),
            (&["Bearer \u{e9}"], Credential::Unreadable),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
            }
            assert_eq!(Credential::of(&headers), expected, "{values:?}");
        }
    }
}
