//! Why a request to an edge failed.

use std::time::Duration;

use weir_protocol::observed::ProblemKind;
use weir_runtime::http_client::plain_words;

/// Why a request got no response, or an incomplete one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// The name does not resolve, or nothing accepts the connection.
    #[error("cannot connect to the edge: {0}")]
    Connect(String),
    /// TLS failed: one side rejected the other's certificate.
    #[error("TLS to the edge failed: {0}")]
    Certificate(String),
    /// Nothing was received for this long.
    #[error("no data from the edge for {0:?}")]
    Silent(Duration),
    /// The edge is alive, and did not respond within this time.
    #[error("the edge did not answer within {0:?}")]
    Slow(Duration),
    /// The connection ended before the response did.
    #[error("the connection to the edge ended: {0}")]
    Closed(String),
    /// The edge reset this response, or it violates HTTP.
    #[error("the edge aborted its response: {0}")]
    Broken(String),
    /// The agent's token cannot be read. Nothing was sent.
    #[error("cannot read the token: {0}")]
    Token(String),
}

impl RequestError {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::Certificate(_) => "certificate",
            Self::Silent(_) => "silent",
            Self::Slow(_) => "slow",
            Self::Closed(_) => "closed",
            Self::Broken(_) => "broken",
            Self::Token(_) => "token",
        }
    }

    /// The kind in the status of a service.
    pub(crate) fn problem(&self) -> ProblemKind {
        match self {
            Self::Connect(_) | Self::Closed(_) | Self::Broken(_) => ProblemKind::Unreachable,
            Self::Silent(_) | Self::Slow(_) => ProblemKind::Timeout,
            Self::Certificate(_) | Self::Token(_) => ProblemKind::Unauthorized,
        }
    }

    /// Whether another version of HTTP may succeed.
    pub(crate) fn is_transport_error(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Slow(_) | Self::Token(_))
    }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        let next = plain_words(error).map_or_else(|| error.to_string(), str::to_owned);
        if !text.ends_with(&next) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = text + separator + &next;
        }
        cause = error.source();
    }
    text
}

/// Whether TLS refused the other side, or was refused: it is among the causes of an error.
pub(super) fn is_tls(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut at = Some(error);
    while let Some(error) = at {
        if error.is::<rustls::Error>() {
            return true;
        }
        // `source` of an `io::Error` skips the error that it wraps.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if wrapped.is_some_and(|wrapped| is_tls(wrapped)) {
            return true;
        }
        at = error.source();
    }
    false
}
