//! Why an edge could not be asked.

use std::time::Duration;

use weir_runtime::http_client::{is_not_tls, plain_words};

/// Why a request got no answer, or its body no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// There is no connection to be had: the name does not resolve, nobody listens, nothing comes back.
    #[error("cannot connect to the edge: {0}")]
    Connect(String),
    /// The edge's certificate is not acceptable, or ours is not to it.
    #[error("the edge cannot be trusted: {0}")]
    Certificate(String),
    /// Nothing came for this long.
    #[error("the edge was silent for {0:?}")]
    Silent(Duration),
    /// The edge is there, and did not begin its answer in this time.
    #[error("the edge did not answer within {0:?}")]
    Slow(Duration),
    /// The connection ended before the answer did.
    #[error("the connection to the edge ended: {0}")]
    Closed(String),
    /// The edge broke off this one answer, or sent what is not HTTP.
    #[error("the edge broke off its answer: {0}")]
    Broken(String),
    /// The agent's own token cannot be had: nothing was asked.
    #[error("cannot ask without a token: {0}")]
    Token(String),
}

impl RequestError {
    /// The value of a metric's label.
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

    /// Whether the way there is at fault, so that another protocol may get through.
    pub(crate) fn is_of_the_way(&self) -> bool {
        !matches!(self, Self::Broken(_) | Self::Slow(_) | Self::Token(_))
    }
}

/// An error with all that caused it, in one line.
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
            return !is_not_tls(error);
        }
        // An io::Error shows the error that it wraps only when asked.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if wrapped.is_some_and(|wrapped| is_tls(wrapped)) {
            return true;
        }
        at = error.source();
    }
    false
}
