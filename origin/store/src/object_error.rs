//! Errors of storing and reading objects.

use super::object_location::ObjectLocation;

/// Why an object cannot be stored or read. Only [`ObjectError::Corrupt`] means damage. After any other error the
/// object may be intact, and nothing may be deleted because of it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    /// The store has no such object.
    #[error("object {0} is missing")]
    Missing(ObjectLocation),
    /// The stored bytes do not match the digest.
    #[error("object {0} is corrupt: the stored bytes do not have its digest")]
    Corrupt(ObjectLocation),
    /// The store failed or did not answer, so the state of the object is unknown. The text names the operation and
    /// the cause.
    #[error("the object store failed: {0}")]
    Unavailable(String),
}
