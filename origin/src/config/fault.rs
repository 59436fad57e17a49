//! What is wrong with a document, each thing by its field, for who writes a file and for who sends one by the API.

use std::fmt;

use serde::Serialize;

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The field; of a file in a table with a dot (`verify.pgp_keyring`). Empty: the document as a whole.
    pub field: String,
    /// In words. Never what the field holds where that may be a secret.
    pub detail: String,
}

impl Fault {
    pub(crate) fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.detail),
            field => write!(f, "`{field}`: {}", self.detail),
        }
    }
}

/// All of them in one sentence.
pub(crate) fn told(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; ")
}
