//! What went wrong below HTTP, in plain words.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

use super::super::MirrorError;
use super::super::attempt::Attempt;
use crate::source::without_user_info;

/// What an error of the HTTP client comes down to.
pub(super) fn of(attempt: &Attempt, error: &reqwest::Error) -> MirrorError {
    if let Some(own) = find::<MirrorError>(error) {
        return own.clone();
    }
    if let Some(tls) = find::<rustls::Error>(error) {
        return MirrorError::Trust(of_tls(tls));
    }
    let innermost = without_user_info(&chain(error).last().map(ToString::to_string).unwrap_or_default());
    if error.is_connect() {
        return match innermost.as_str() {
            // What the connector says of a proxy that answers 407.
            text if text.contains("proxy authorization required") => {
                MirrorError::Answered { step: attempt.step(), status: 407, retry_after: None }
            }
            text if text.contains("tunnel") || text == "unsuccessful" => MirrorError::Connect {
                cause: "the proxy does not open a way to it (CONNECT)".to_owned(),
                timeout: false,
            },
            _ => MirrorError::Connect { cause: innermost, timeout: error.is_timeout() },
        };
    }
    let cause = format!("its answer broke off or makes no sense ({innermost})");
    MirrorError::Upstream { step: attempt.step(), cause }
}

/// Whether a connection ended after a request was sent, and before anything was answered. The only timeout is that of the
/// kernel (`TCP_USER_TIMEOUT`).
pub(super) fn broke_off_unanswered(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && find::<rustls::Error>(error).is_none()
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            // The second is of an authority that has the name of ours and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by an authority that is not trusted here: name \
                                                a file with the right one in `ca`"
                    .to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has ended: it has to be renewed, or a clock is wrong".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: a clock is wrong".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name than `url` has".to_owned()
            }
            other => format!("its certificate does not do: {other}"),
        },
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied,
        ) => "it wants a client certificate, or another one (`client_certificate`, `client_key`)".to_owned(),
        rustls::Error::InvalidMessage(_) => "it does not speak TLS on this port".to_owned(),
        other => format!("the TLS handshake failed: {other}"),
    }
}

/// An error and what led to it, from the outside in.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        // The system's errors name what is below the one that they carry, and pass over that one.
        let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match carried {
            Some(carried) => Some(carried as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
}

fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    chain(error).find_map(|error| error.downcast_ref())
}
