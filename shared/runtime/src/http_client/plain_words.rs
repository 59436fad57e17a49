//! Plain words for connection errors that libraries report in their own terms.

use std::error::Error;
use std::io;

/// A plain text for a cause whose own text explains little. Empty if the cause adds nothing to its own cause.
pub fn plain_words(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    if is_not_tls(cause) {
        return Some("the server does not speak TLS there: check the port, which may be that of an admin listener");
    }
    if let Some(words) = refused_certificate(cause) {
        return Some(words);
    }
    match cause.to_string().as_str() {
        "client error (Connect)" => Some(""),
        // Reported by requests that wait for a connection which another request opens.
        "request was canceled" => Some("the connection that it shares with another request could not be opened"),
        "tunnel error: proxy authorization required" => {
            Some("the proxy requires a user and a password that it accepts")
        }
        "tunnel error: unsuccessful" => {
            Some("the proxy opens no tunnel to the server: it may not allow its host or port")
        }
        _ => None,
    }
}

/// The root cause of an error in plain words: `connection refused` rather than `client error (Connect)`.
pub fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    plain_words(cause).map_or_else(|| cause.to_string(), str::to_owned)
}

/// Whether the server responded with something else than TLS.
pub fn is_not_tls(cause: &(dyn Error + 'static)) -> bool {
    // `io::Error::source` skips the error that it wraps.
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    matches!(cause.downcast_ref(), Some(rustls::Error::InvalidMessage(_)))
        || wrapped.is_some_and(|cause| is_not_tls(cause))
}

/// What the server's alert says of the client's certificate.
fn refused_certificate(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    use rustls::AlertDescription as Alert;
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let Some(rustls::Error::AlertReceived(alert)) = cause.downcast_ref() else {
        return wrapped.and_then(|wrapped| refused_certificate(wrapped));
    };
    match alert {
        Alert::CertificateRequired => Some("the server requires a client certificate"),
        Alert::CertificateExpired => Some("the server refuses the client certificate: it has expired"),
        Alert::UnknownCA => Some("the server refuses the client certificate: it does not know the authority"),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::AccessDenied => Some("the server refuses the client certificate"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::InvalidMessage;

    #[test]
    fn an_admin_port_and_a_shared_connection_have_plain_messages() {
        let not_tls = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(plain_words(&not_tls).unwrap().contains("check the port"));
        assert!(
            plain_words(&io::Error::new(io::ErrorKind::InvalidData, not_tls)).unwrap().contains("does not speak TLS")
        );
        assert!(plain_words(&io::Error::other("request was canceled")).unwrap().contains("shares"));
        assert_eq!(plain_words(&io::Error::other("client error (Connect)")), Some(""));
        assert_eq!(plain_words(&rustls::Error::DecryptError), None);
        let alert = io::Error::other(rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA));
        assert!(plain_words(&alert).unwrap().contains("does not know the authority"));
    }
}
