//! Bearer tokens: what an agent shows to an edge, and an edge verifies without asking anybody.
//!
//! A token is a JSON Web Token (RFC 7519) in the compact serialisation (RFC 7515), signed with Ed25519 (RFC 8037), so
//! that any program can issue one. Of all that those standards allow this module reads one shape, strictly: three parts
//! of unpadded base64url, `alg` `EdDSA`, a `kid`, no `crit`, no key twice in an object, at most [`MAX_TOKEN_BYTES`].
//!
//! [`UnverifiedToken`] is what stands on the wire; [`UnverifiedToken::verify`] makes [`Claims`] of it. Everything here
//! is pure: the time is an argument.

mod claims;
mod compact;
mod id;
mod object;
mod public_key;
mod signing_key;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) use claims::has_ended;
pub use claims::{Claims, NotNow};
pub use compact::{TokenError, UnverifiedToken};
pub use id::{IdError, KeyId, TokenId};
pub use public_key::{PublicKey, PublicKeyError};
pub use signing_key::{SigningKey, SigningKeyError};

/// The longest token that is read, in bytes.
pub const MAX_TOKEN_BYTES: usize = 4 << 10;

/// How far the clocks of who issues and who verifies may be apart: a token is taken this long before its `nbf` and after
/// its `exp`.
pub const CLOCK_LEEWAY: Duration = Duration::from_secs(60);

/// Whom a token is for, where it says so (`aud`): it must be, or hold, this.
pub const AUDIENCE: &str = "weir";

/// Whole seconds since 1970, UTC: a `NumericDate` of RFC 7519.
pub type UnixSeconds = u64;

/// The seconds that a clock shows; 0 before 1970.
pub fn unix_seconds(time: SystemTime) -> UnixSeconds {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
