//! Issuers of the agents' tokens besides Weir: a cluster's service accounts, an OIDC provider. The entry as it travels to
//! edges; verifying tokens is theirs.

use http::Uri;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::name::IssuerName;
use crate::name_glob::NameGlob;

/// The longest issuer, audience, subject and agent template, in bytes.
pub const MAX_TEXT_BYTES: usize = 500;

/// The most subjects and the most patterns of services.
pub const MAX_ITEMS: usize = 100;

/// The largest key set of an issuer, in bytes of JSON.
pub const MAX_JWKS_BYTES: usize = 16 << 10;

/// The largest authority of the host of a key set, in bytes of PEM.
pub const MAX_CA_BYTES: usize = 16 << 10;

/// Where an issuer publishes its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysAt {
    /// An `https://` URL.
    pub url: Uri,
    /// The authority of its host, as PEM.
    pub ca: String,
}

/// A text as the URL of a key set: `https://`, and without a user name, which would be sent to nobody.
pub fn key_url(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let is_plain = uri.authority().is_some_and(|host| !host.as_str().contains('@') && !host.host().is_empty());
    (uri.scheme_str() == Some("https") && is_plain).then_some(uri)
}

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
    /// The keys: a JWK set (RFC 7517), `{"keys": […]}`, or where readers fetch it, `{"url", "ca"}`.
    pub jwks: Value,
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
    jwks: Value,
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
         bytes, or have a `url` and a `ca`"
    )]
    Jwks(IssuerName),
    /// Not the URL of a key set.
    #[error(
        "issuer `{0}`: `jwks.url` must be an `https://` URL of at most {MAX_TEXT_BYTES} bytes, without a user name and \
         without `keys` beside it"
    )]
    Url(IssuerName),
    /// Not the authority of a URL's host.
    #[error(
        "issuer `{0}`: `jwks.ca` must be the authority of the URL's host: the text of a PEM file with its certificate, of \
         at most {MAX_CA_BYTES} bytes"
    )]
    Authority(IssuerName),
    /// A private or symmetric key. Everybody who reads the entry would have it.
    #[error(
        "issuer `{0}`: `jwks` has a private or symmetric key: send public keys and certificates only, and replace that key"
    )]
    PrivateKey(IssuerName),
}

/// The members of a JWK that are secret (RFC 7518 section 6).
const SECRET_MEMBERS: [&str; 7] = ["d", "p", "q", "dp", "dq", "qi", "k"];

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
        if let Some(url) = jwks.get("url") {
            check_url(&name, url, &jwks)?;
            return Ok(Self { name, issuer, audience, subjects, jwks, agent, services });
        }
        let keys = jwks.get("keys").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if keys.is_empty() || jwks.to_string().len() > MAX_JWKS_BYTES {
            return Err(IssuerError::Jwks(name));
        }
        if keys.iter().any(|key| SECRET_MEMBERS.iter().any(|member| key.get(member).is_some())) {
            return Err(IssuerError::PrivateKey(name));
        }
        Ok(Self { name, issuer, audience, subjects, jwks, agent, services })
    }
}

fn check_url(name: &IssuerName, url: &Value, jwks: &Value) -> Result<(), IssuerError> {
    let url = url.as_str().filter(|url| url.len() <= MAX_TEXT_BYTES && jwks.get("keys").is_none());
    if url.and_then(key_url).is_none() {
        return Err(IssuerError::Url(name.clone()));
    }
    let ca = jwks.get("ca").and_then(Value::as_str).unwrap_or_default();
    if ca.contains("PRIVATE KEY-----") {
        return Err(IssuerError::PrivateKey(name.clone()));
    }
    let certificates = || CertificateDer::pem_slice_iter(ca.as_bytes()).collect::<Result<Vec<_>, _>>();
    let is_authority = ca.len() <= MAX_CA_BYTES && certificates().is_ok_and(|found| !found.is_empty());
    if is_authority { Ok(()) } else { Err(IssuerError::Authority(name.clone())) }
}

impl Issuer {
    /// Whether readers fetch its keys from a URL.
    pub fn has_url(&self) -> bool {
        self.jwks.get("url").is_some()
    }

    /// Where readers fetch its keys. `None`: they are in it.
    pub fn keys_at(&self) -> Option<KeysAt> {
        let text = |member| self.jwks.get(member).and_then(Value::as_str);
        Some(KeysAt { url: key_url(text("url")?)?, ca: text("ca")?.to_owned() })
    }

    /// The ids of its keys. A token's key is looked up by issuer and key id, so that no two entries may have one pair.
    pub fn key_ids(&self) -> impl Iterator<Item = &str> {
        let keys = self.jwks.get("keys").and_then(Value::as_array);
        keys.into_iter().flatten().filter_map(|key| key.get("kid")?.as_str())
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
        assert_eq!(issuer.key_ids().collect::<Vec<_>>(), ["1"]);
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
            (r#""kty":"RSA""#, r#""kty":"oct","k":"AA""#, "private or symmetric key"),
            (r#"{"keys":[{"kid":"1","kty":"RSA"}]}"#, long.as_str(), "`jwks` must be a JWK set"),
        ] {
            let changed = json.replace(field, other);
            assert_ne!(changed, json);
            let error = serde_json::from_str::<Issuer>(&changed).unwrap_err().to_string();
            assert!(error.contains(expected), "{changed}: {error}");
        }
    }

    #[test]
    fn keys_may_be_at_a_url_with_an_authority() {
        let ca = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let read = |jwks: &Value| -> Result<Issuer, String> {
            serde_json::from_value(serde_json::json!({ "name": "c", "issuer": "https://i", "audience": "weir",
                "subjects": ["s"], "jwks": jwks, "agent": "a", "services": ["*"] }))
            .map_err(|error| error.to_string())
        };
        let right = serde_json::json!({ "url": "https://api.cluster-1.example:6443/openid/v1/jwks", "ca": ca });
        let issuer = read(&right).unwrap();
        let keys = issuer.keys_at().unwrap();
        assert_eq!((keys.url.host(), &*keys.ca), (Some("api.cluster-1.example"), ca));
        assert_eq!((issuer.has_url(), issuer.key_ids().count(), issuer.jwks), (true, 0, right));
        assert!(read(&serde_json::json!({ "keys": [{}] })).unwrap().keys_at().is_none());
        let long = ca.repeat(MAX_CA_BYTES / ca.len() + 1);
        let key = format!("{ca}-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
        let host = |length| format!("https://a/{}", "a".repeat(length));
        for (jwks, expected) in [
            (serde_json::json!({ "url": "http://a/", "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": "https://u:p@a/", "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": "https:///jwks", "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": "/jwks", "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": 7, "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": host(MAX_TEXT_BYTES), "ca": ca }), "`jwks.url` must be"),
            (serde_json::json!({ "url": "https://a/", "ca": ca, "keys": [{}] }), "without `keys` beside it"),
            (serde_json::json!({ "url": "https://a/" }), "`jwks.ca` must be"),
            (serde_json::json!({ "url": "https://a/", "ca": "/etc/ca.pem" }), "`jwks.ca` must be"),
            (serde_json::json!({ "url": "https://a/", "ca": "-----BEGIN CERTIFICATE-----" }), "`jwks.ca` must be"),
            (serde_json::json!({ "url": "https://a/", "ca": long }), "`jwks.ca` must be"),
            (serde_json::json!({ "url": "https://a/", "ca": key }), "private or symmetric key"),
            (serde_json::json!({ "ca": ca }), "or have a `url` and a `ca`"),
        ] {
            let error = read(&jwks).unwrap_err();
            assert!(error.contains(expected), "{jwks}: {error}");
        }
    }
}
