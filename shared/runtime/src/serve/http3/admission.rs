//! Admission of QUIC handshakes under load. Pure.
//!
//! A handshake costs the server a signature, and its source address may be spoofed. While few handshakes are in progress all
//! are accepted. Above that a client must first validate its address with a Retry token (RFC 9000 section 8.1), which costs
//! the client a round trip and the server no memory.

use super::QuicOptions;

/// What happens to a new handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// The handshake goes on.
    Accept,
    /// The client gets a Retry packet with a token.
    Retry,
    /// The client gets `CONNECTION_REFUSED`, and can try another server at once.
    Refuse,
    /// No reply: the source address may be spoofed.
    Ignore,
}

/// Decides about a new handshake while `handshakes` are in progress.
pub(super) fn decide(options: &QuicOptions, handshakes: usize, is_validated: bool) -> Admission {
    match (handshakes, is_validated) {
        (count, true) if count >= options.max_handshakes => Admission::Refuse,
        (count, false) if count >= options.max_handshakes => Admission::Ignore,
        (count, false) if count >= options.max_unvalidated_handshakes => Admission::Retry,
        _ => Admission::Accept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_must_validate_their_address_under_load() {
        let options = QuicOptions { max_unvalidated_handshakes: 2, max_handshakes: 4, ..QuicOptions::default() };
        use Admission::*;
        for (handshakes, unvalidated, validated) in [
            (0, Accept, Accept),
            (1, Accept, Accept),
            (2, Retry, Accept),
            (3, Retry, Accept),
            (4, Ignore, Refuse),
            (5, Ignore, Refuse),
        ] {
            assert_eq!(decide(&options, handshakes, false), unvalidated, "{handshakes}");
            assert_eq!(decide(&options, handshakes, true), validated, "{handshakes}");
        }
    }
}
