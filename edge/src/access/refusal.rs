//! Why a client is not authenticated.

/// Why a client is not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(crate) enum Refusal {
    /// It sent neither a token nor an agent's certificate.
    NoCredential,
    /// The token is malformed.
    Malformed,
    /// The key of the token is unknown.
    UnknownKey,
    /// Only the origins know the key or the issuer of the token, and this edge takes no keys from them.
    KeyOfOrigins,
    /// The key of the token is unknown, and an entry of its issuer names a URL of keys that this edge does not fetch.
    KeysNotFetched,
    /// The key of the token is revoked.
    RevokedKey,
    BadSignature,
    /// The token is for another audience.
    WrongAudience,
    /// The issuer's tokens are not accepted for this subject.
    WrongSubject,
    /// The claims make no name of an agent.
    NoAgent,
    Expired,
    NotYetValid,
    Denied,
}

impl Refusal {
    /// Whether the key of the token may be one that is fetched now.
    pub(crate) fn may_pass(self) -> bool {
        matches!(self, Refusal::UnknownKey | Refusal::KeysNotFetched)
    }

    /// The reason as a sentence, fit for clients and for a quoted string of RFC 9110.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Refusal::NoCredential => "This edge needs a bearer token or a client certificate of an agent.",
            Refusal::Malformed => "The token cannot be read.",
            Refusal::UnknownKey => "The token is signed with an unknown key.",
            Refusal::KeyOfOrigins => {
                "Only the origins know the key of the token, and this edge does not accept keys from them: set keys_from_origins in its [auth]."
            }
            Refusal::KeysNotFetched => {
                "The key of the token is unknown, and keys of its issuer are at a URL that this edge does not fetch: add the host to key_hosts in its [auth], or raise max_issuer_urls."
            }
            Refusal::RevokedKey => "The token is signed with a key that was revoked: use a new token.",
            Refusal::BadSignature => "The signature of the token is invalid.",
            Refusal::WrongAudience => "The token is for another audience.",
            Refusal::WrongSubject => "Tokens of this subject are not accepted here.",
            Refusal::NoAgent => "The claims of the token do not form the name of an agent.",
            Refusal::Expired => "The token or the certificate has expired: use a new one.",
            Refusal::NotYetValid => "The token is not valid yet.",
            Refusal::Denied => "The token was revoked: use a new one.",
        }
    }
}
