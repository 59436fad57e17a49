//! Why a registry did not give what was requested.

use reqwest::Response;
use weir_upstream::http::BodyError;
use weir_upstream::{ServerReport, UpstreamError};

use super::OciName;
use crate::encoding;
use crate::page::{PAGE, is_page};

#[derive(Debug)]
pub(crate) enum RegistryError {
    /// The registry cannot be used, whatever is requested.
    Upstream(UpstreamError),
    /// It refuses access to this repository. It may as well not exist.
    Denied { name: OciName, status: u16, report: ServerReport },
    /// It has no such tag, manifest or blob, or hides it.
    NotFound(ServerReport),
    /// What it has cannot be used: the end of a sentence that begins with the name of what was requested.
    Unusable(String),
}

impl RegistryError {
    /// The reason for which a service cannot have `what`, or the error of all services.
    ///
    /// # Errors
    /// It concerns all services of the registry.
    pub(crate) fn of_one(self, what: &str) -> Result<String, UpstreamError> {
        match self {
            Self::Upstream(error) => Err(error),
            // What is sent with each request is no longer accepted, or the rules of the registry are about this tag alone.
            Self::Denied { name, status: 401, report } => Err(UpstreamError::Authenticate(denied(&name, &report))),
            Self::Denied { status, report, .. } => Ok(format!(
                "{what} is refused by the registry: it answered {status}: check its rules, `url`, and the credentials \
                 (`username`, `password_file`, `token_file`){report}"
            )),
            Self::NotFound(report) => {
                Ok(format!("{what} is not in the registry, or is hidden without the right credentials{report}"))
            }
            Self::Unusable(reason) => Ok(format!("{what} {reason}")),
        }
    }

    /// The error of all services that follow something of this repository.
    pub(crate) fn of_all(self, name: &OciName) -> UpstreamError {
        match self {
            Self::Upstream(error) => error,
            Self::Denied { report, .. } | Self::NotFound(report) => UpstreamError::Authenticate(denied(name, &report)),
            Self::Unusable(reason) => UpstreamError::Protocol { step: "list", cause: format!("`{name}` {reason}") },
        }
    }
}

/// The most failures of one listing that each may be about one artifact. After them the registry counts as failing.
const MAX_FAILURES: usize = 4;

/// The failures of one listing that may each be about one artifact: a manifest that the registry cannot read, for example.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<UpstreamError>);

impl Failures {
    /// The step and the reason for which a service cannot have `what`.
    ///
    /// # Errors
    /// It is another error, or there were too many.
    pub(crate) fn of_one(&mut self, error: RegistryError, what: &str) -> Result<(&'static str, String), RegistryError> {
        match error {
            RegistryError::Upstream(
                error @ (UpstreamError::Protocol { .. }
                | UpstreamError::Redirected { .. }
                | UpstreamError::HttpStatus { status: 500..=599, retry_after: None, .. }),
            ) if self.0.len() < MAX_FAILURES => {
                let reason = (error.step(), format!("{what}: {error}"));
                self.0.push(error);
                Ok(reason)
            }
            error => Err(error),
        }
    }

    /// The error of the listing, if nothing was found: the registry fails.
    pub(crate) fn first(self) -> Option<UpstreamError> {
        self.0.into_iter().next()
    }
}

/// The reason for which nothing of a repository can be had.
pub(crate) fn denied(name: &OciName, report: &ServerReport) -> String {
    format!(
        "the registry refuses access to `{name}`, or has no such repository: check `url`, and the credentials (`username`, \
         `password_file`, `token_file`){report}"
    )
}

/// The end of a message about a response that cannot be read, if the server says that it is something else.
pub(super) fn sent_instead(response: &Response) -> String {
    if is_page(response) { format!("; {PAGE}") } else { encoding::unrequested(response) }
}

/// The error of a body of at most `max_bytes` in memory.
pub(super) fn of_body(error: BodyError, max_bytes: u64) -> RegistryError {
    match error {
        BodyError::Upstream(error) => RegistryError::Upstream(error),
        BodyError::TooLarge => RegistryError::Unusable(format!("has more than {max_bytes} bytes")),
        // Nothing is written.
        BodyError::Write(error) => RegistryError::Unusable(format!("cannot be stored: {error}")),
    }
}

impl From<UpstreamError> for RegistryError {
    fn from(error: UpstreamError) -> Self {
        Self::Upstream(error)
    }
}
