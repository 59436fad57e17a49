//! Validation errors of documents: of the configuration file, and of operators.

use std::fmt;

use serde::Serialize;

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValidationError {
    /// The field; within a table with a dot (`verify.pgp_keyring`). Empty: the whole document.
    pub field: String,
    /// What is wrong. It never has a value that may be secret.
    pub detail: String,
}

impl ValidationError {
    /// Something is wrong with this field.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.detail),
            field => write!(f, "`{field}`: {}", self.detail),
        }
    }
}

/// All errors in one line.
pub fn joined(errors: &[ValidationError]) -> String {
    errors.iter().map(ValidationError::to_string).collect::<Vec<_>>().join("; ")
}
