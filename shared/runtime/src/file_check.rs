//! `--check-config`: what is wrong with a configuration and with the files that it names, told alike by each role.

use std::fmt::Display;

/// What is wrong with the files that a configuration names, one sentence each.
#[derive(Debug, Default)]
pub struct FileCheck {
    /// Files that prevent the start, or that the role cannot use later.
    pub errors: Vec<String>,
    /// Files that do not exist, and may be created while the role runs.
    pub missing: Vec<String>,
    /// Files that the role uses, but somebody should look at.
    pub warnings: Vec<String>,
}

impl FileCheck {
    /// Records an error, if there is one. Returns true if there is none.
    pub fn record(&mut self, what: &str, error: Option<impl Display>) -> bool {
        let good = error.is_none();
        self.errors.extend(error.map(|error| format!("{what}: {error}")));
        good
    }

    /// Prints all that was found, one on each line, after what is invalid in the configuration itself. Returns whether the
    /// role can start.
    #[must_use]
    pub fn report(&self, program: &str, invalid: Option<impl Display>) -> bool {
        let invalid = invalid.map(|error| error.to_string());
        for line in invalid.iter().chain(&self.errors).chain(&self.missing) {
            eprintln!("{program}: {line}");
        }
        self.warnings.iter().for_each(|warning| eprintln!("{program}: warning: {warning}"));
        invalid.is_none() && self.errors.is_empty()
    }
}
