//! What cosign signs: payloads and bundles, by public keys. `oci` reads them from a registry.

#[cfg(feature = "fuzzing")]
mod fuzz;
mod public_key;
#[cfg(any(test, feature = "fuzzing"))]
mod test_data;
mod verify;

#[cfg(feature = "fuzzing")]
pub use fuzz::fuzz_cosign;
pub use public_key::PublicKey;
pub(crate) use verify::{Seen, Verdict, verify_attestation, verify_bundle, verify_payload};
