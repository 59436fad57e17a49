//! Why an object cannot be stored or read.

use super::object_location::ObjectLocation;

/// Why an object cannot be stored or read. Only [`ObjectError::Corrupt`] is damage: after any other error the object may
/// be good, and nothing may be deleted because of it.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ObjectError {
    /// The store answered that it has no such object.
    #[error("object {0} is missing")]
    Missing(ObjectLocation),
    /// The store returned bytes that do not have the object's name.
    #[error("object {0} is corrupt: the stored bytes do not have its digest")]
    Corrupt(ObjectLocation),
    /// The store did not answer, or with an error: nothing is known about the object. What was being done, and the cause.
    #[error("the object store failed: {0}")]
    Unavailable(String),
}
