//! Issuers of the agents' tokens besides Weir: a cluster's service accounts, an OIDC provider. The entry as it travels to
//! edges; verifying tokens is theirs.

use serde::{Deserialize, Serialize};

use crate::name::IssuerName;
use crate::name_glob::NameGlob;

/// The longest issuer, audience, subject and agent template, in bytes.
pub const MAX_TEXT_BYTES: usize = 500;

/// The most subjects and the most patterns of services.
pub const MAX_ITEMS: usize = 100;

/// The largest key set of an issuer, in bytes of JSON.
pub const MAX_JWKS_BYTES: usize = 16 << 10;

/// An issuer whose tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Issuer {
    /// The name of this entry.
    pub name: IssuerName,
    /// The claim `iss`.
    pub issuer: String,
    /// A token must have it in the claim `aud`.
    pub audience: String,
    /// The accepted values of the claim `sub`.
    pub subjects: Vec<String>,
    /// The keys: a JWK set (RFC 7517), `{"keys": […]}`.
    pub jwks: serde_json::Value,
    /// The name of the agent, or a template over claims such as `{kubernetes.io/namespace}`.
    pub agent: String,
    /// What a token may read: at least one pattern.
    pub services: Vec<NameGlob>,
}

#[derive(Deserialize)]
struct Unchecked {
    name: IssuerName,
    issuer: String,
    audience: String,
    subjects: Vec<String>,
    jwks: serde_json::Value,
    agent: String,
    services: Vec<NameGlob>,
}

/// An issuer's entry is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IssuerError {
    /// A text is empty, too long or has control characters.
    #[error("issuer `{name}`: `{field}` must have 1 to {MAX_TEXT_BYTES} bytes without control characters")]
    Text {
        /// The entry.
        name: IssuerName,
        /// The field.
        field: &'static str,
    },
    /// A list is empty or too long.
    #[error("issuer `{name}`: `{field}` must have 1 to {MAX_ITEMS} items")]
    Items {
        /// The entry.
        name: IssuerName,
        /// The field.
        field: &'static str,
    },
    /// Not a key set.
    #[error(
        "issuer `{0}`: `jwks` must be a JWK set (`{{\"keys\": […]}}`) with at least one key, of at most {MAX_JWKS_BYTES} \
         bytes"
    )]
    Jwks(IssuerName),
}

impl TryFrom<Unchecked> for Issuer {
    type Error = IssuerError;

    fn try_from(read: Unchecked) -> Result<Self, IssuerError> {
        let Unchecked { name, issuer, audience, subjects, jwks, agent, services } = read;
        let is_text = |text: &str| (1..=MAX_TEXT_BYTES).contains(&text.len()) && !text.chars().any(char::is_control);
        for (field, text) in [("issuer", &issuer), ("audience", &audience), ("agent", &agent)] {
            if !is_text(text) {
                return Err(IssuerError::Text { name, field });
            }
        }
        for (field, length) in [("subjects", subjects.len()), ("services", services.len())] {
            if !(1..=MAX_ITEMS).contains(&length) {
                return Err(IssuerError::Items { name, field });
            }
        }
        if !subjects.iter().all(|subject| is_text(subject)) {
            return Err(IssuerError::Text { name, field: "subjects" });
        }
        let has_keys = jwks.get("keys").and_then(serde_json::Value::as_array).is_some_and(|keys| !keys.is_empty());
        if !has_keys || jwks.to_string().len() > MAX_JWKS_BYTES {
            return Err(IssuerError::Jwks(name));
        }
        Ok(Self { name, issuer, audience, subjects, jwks, agent, services })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_checked_when_it_is_read() {
        let json = concat!(
            r#"{"name":"cluster-1","issuer":"https://kubernetes.default.svc.cluster-1","audience":"weir","#,
            r#""subjects":["system:serviceaccount:weir:agent"],"jwks":{"keys":[{"kid":"1","kty":"RSA"}]},"#,
            r#""agent":"cluster-1","services":["*"]}"#
        );
        let issuer: Issuer = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&issuer).unwrap(), json);
        let long = format!(r#"{{"keys":["{}"]}}"#, "a".repeat(MAX_JWKS_BYTES));
        for (field, other, expected) in [
            (r#""audience":"weir""#, r#""audience":"""#, "issuer `cluster-1`: `audience` must have"),
            (r#""audience":"weir","#, "", "missing field `audience`"),
            (r#""agent":"cluster-1""#, r#""agent":"\n""#, "issuer `cluster-1`: `agent` must have"),
            (r#"["system:serviceaccount:weir:agent"]"#, "[]", "issuer `cluster-1`: `subjects` must have"),
            (r#"["system:serviceaccount:weir:agent"]"#, r#"[""]"#, "issuer `cluster-1`: `subjects` must have"),
            (r#""services":["*"]"#, r#""services":[]"#, "issuer `cluster-1`: `services` must have"),
            (r#"{"keys":[{"kid":"1","kty":"RSA"}]}"#, r#"{"keys":[]}"#, "`jwks` must be a JWK set"),
            (r#"{"keys":[{"kid":"1","kty":"RSA"}]}"#, r#""a""#, "`jwks` must be a JWK set"),
            (r#"{"keys":[{"kid":"1","kty":"RSA"}]}"#, &long, "`jwks` must be a JWK set"),
        ] {
            let changed = json.replace(field, other);
            assert_ne!(changed, json);
            let error = serde_json::from_str::<Issuer>(&changed).unwrap_err().to_string();
            assert!(error.contains(expected), "{changed}: {error}");
        }
    }
}
