//! Plain words for errors of connections that a library tells in its own.

use std::error::Error;
use std::io;

/// What a cause means to whoever reads the log, where its own words do not say it. Empty: nothing that its own cause does not
/// say.
pub fn plain_words(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    if is_not_tls(cause) {
        return Some("the server does not speak TLS there: check the port, which may be that of an admin listener");
    }
    match cause.to_string().as_str() {
        "client error (Connect)" => Some(""),
        // Of the requests that wait for one connection, all but the one that makes it.
        "request was canceled" => Some("the connection that it shares with another request was not made"),
        _ => None,
    }
}

/// Whether the other side answered with something else than TLS.
pub fn is_not_tls(cause: &(dyn Error + 'static)) -> bool {
    // An io::Error shows the error that it wraps only when asked.
    let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    matches!(cause.downcast_ref(), Some(rustls::Error::InvalidMessage(_)))
        || wrapped.is_some_and(|cause| is_not_tls(cause))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::InvalidMessage;

    #[test]
    fn an_admin_port_and_a_shared_connection_are_told_in_plain_words() {
        let not_tls = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert!(plain_words(&not_tls).unwrap().contains("check the port"));
        assert!(
            plain_words(&io::Error::new(io::ErrorKind::InvalidData, not_tls)).unwrap().contains("does not speak TLS")
        );
        assert!(plain_words(&io::Error::other("request was canceled")).unwrap().contains("shares"));
        assert_eq!(plain_words(&io::Error::other("client error (Connect)")), Some(""));
        assert_eq!(plain_words(&rustls::Error::DecryptError), None);
    }
}
