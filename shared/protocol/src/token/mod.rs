//! Bearer tokens, which agents send and edges verify offline.
//!
//! A token is a JSON Web Token (RFC 7519) in compact serialisation (RFC 7515), so that any program can issue one. Only
//! one form is accepted: three parts of unpadded base64url, a `kid`, the `alg` of that key, no `crit`, no duplicate key
//! in an object, at most [`MAX_TOKEN_BYTES`]. Weir's own are signed with Ed25519 (RFC 8037), those of an issuer by a
//! key of its [`JwkSet`].
//!
//! [`UnverifiedToken::verify`] and [`UnverifiedToken::verify_of`] turn an [`UnverifiedToken`] into [`Claims`]. Pure: the
//! time is an argument.

mod agent_template;
mod claims;
mod compact;
mod error;
mod id;
mod issuer_policy;
mod jwk_set;
mod public_key;
mod signing_key;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use agent_template::{AgentTemplate, AgentTemplateError};
pub(crate) use claims::has_expired;
pub use claims::{Claims, ValidityError};
pub use compact::{UnverifiedToken, unverified_expiry};
pub use error::TokenError;
pub use id::{IdError, KeyId, TokenId};
pub use issuer_policy::IssuerPolicy;
pub use jwk_set::{JwkSet, JwkSetError, MAX_JWK_SET_BYTES, MAX_JWKS, VerifyingKey};
pub use public_key::{PublicKey, PublicKeyError};
pub use signing_key::{SigningKey, SigningKeyError};

/// The longest token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4 << 10;

/// The tolerated difference between clocks: a token is accepted this long before its `nbf` and after its `exp`.
pub const CLOCK_LEEWAY: Duration = Duration::from_secs(60);

/// The required audience of a token that has an `aud`.
pub const AUDIENCE: &str = "weir";

/// Whole seconds since 1970, UTC: `NumericDate` in RFC 7519.
pub type UnixSeconds = u64;

/// The Unix time; 0 before 1970.
pub fn unix_seconds(time: SystemTime) -> UnixSeconds {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
