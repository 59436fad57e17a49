//! What is wrong with the files that a configuration names.

use std::fmt::Display;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use weir_runtime::tls::{self, Purpose};

use super::TlsConfig;

/// The result of the check, for people.
#[derive(Debug, Default)]
pub struct FileCheck {
    /// Files that prevent the start, or that the origin cannot use later.
    pub errors: Vec<String>,
    /// Files that do not exist, and may be created while the origin runs.
    pub missing: Vec<String>,
    /// Files that the origin uses, but somebody should look at.
    pub warnings: Vec<String>,
}

impl FileCheck {
    /// Records an error, if there is one. Returns true if there is none.
    pub(super) fn record(&mut self, what: &str, error: Option<impl Display>) -> bool {
        let good = error.is_none();
        self.errors.extend(error.map(|error| format!("{what}: {error}")));
        good
    }

    /// Checks a file that is read whenever it is needed.
    pub(super) fn check_later_file(&mut self, what: &str, file: &Path, is_usable: impl Fn(&[u8]) -> Option<()>) {
        let shown = file.display();
        match fs::read(file) {
            Ok(contents) if is_usable(&contents).is_some() => {}
            Ok(_) => self.errors.push(format!("{what} {shown} is empty")),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.missing.push(format!("{what} {shown} does not exist (yet)"));
            }
            Err(error) => self.errors.push(format!("{what} {shown}: {error}")),
        }
    }

    pub(super) fn check_tls(&mut self, what: &str, TlsConfig { certificate, key, client_ca }: &TlsConfig) {
        let errors = tls::check_pair(certificate, key, Purpose::Server, SystemTime::now());
        for error in errors.into_iter().chain(tls::read_roots(client_ca).err()) {
            self.record(what, Some(error));
        }
    }
}
