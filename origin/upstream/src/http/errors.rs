//! Classifies errors below HTTP: connections, TLS, proxies.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

use super::super::error::{Server, UpstreamError};
use super::super::server_report::ServerReport;
use super::super::user_info::without_user_info;
use super::session::UpstreamSession;

/// The error for one of the HTTP client.
pub(crate) fn classify(session: &UpstreamSession, error: &reqwest::Error) -> UpstreamError {
    if let Some(own) = find::<UpstreamError>(error) {
        return own.clone();
    }
    if let Some(tls) = find::<rustls::Error>(error) {
        return UpstreamError::Trust(classify_tls(tls));
    }
    let innermost = without_user_info(&chain(error).last().map(ToString::to_string).unwrap_or_default());
    if error.is_connect() {
        return match innermost.as_str() {
            // The connector's text for a response of 407 by the proxy.
            text if text.contains("proxy authorization required") => UpstreamError::HttpStatus {
                server: Server::Upstream,
                step: session.step(),
                status: 407,
                retry_after: None,
                report: ServerReport::default(),
            },
            text if text.contains("tunnel") || text == "unsuccessful" => UpstreamError::Connect {
                cause: "the proxy refuses to connect to it (CONNECT)".to_owned(),
                timeout: false,
            },
            _ => UpstreamError::Connect { cause: innermost, timeout: error.is_timeout() },
        };
    }
    let cause = format!("its response was cut off or is invalid ({innermost})");
    UpstreamError::Protocol { step: session.step(), cause }
}

/// Whether a connection ended after a request was sent, and before a response was received. The only timeout is that of the
/// kernel (`TCP_USER_TIMEOUT`).
pub(crate) fn is_unanswered(error: &reqwest::Error) -> bool {
    error.is_request() && !error.is_connect() && find::<rustls::Error>(error).is_none()
}

/// Whether a connection ended before the request was sent. Of a new one that is how a refused client certificate may show: in
/// TLS 1.3 the alert comes after the handshake (RFC 8446 section 4.4.2.4), and only who writes or waits then hears it.
pub(crate) fn is_unsent(error: &reqwest::Error) -> bool {
    find::<hyper::Error>(error).is_some_and(hyper::Error::is_canceled)
}

fn classify_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(error) => match error {
            // The second occurs for an authority with the name of ours and another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is signed by an authority that is not trusted here: name \
                                                a file with the right one in `ca`"
                    .to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: renew it, or correct the clock".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: correct the clock".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "its certificate is for another host name than `url` has".to_owned()
            }
            other => format!("its certificate is invalid: {other}"),
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
        ) => "it requires a client certificate, or another one (`client_certificate`, `client_key`)".to_owned(),
        rustls::Error::InvalidMessage(_) => "it does not speak TLS on this port".to_owned(),
        other => format!("the TLS handshake failed: {other}"),
    }
}

/// An error and its sources, outermost first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        // `io::Error::source` skips the error that it wraps.
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
