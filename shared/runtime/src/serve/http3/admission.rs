//! Whether a client that knocks is let in, when many do. Pure.
//!
//! A handshake costs this end a signature, and the address it seems to come from may be somebody else's. While few are
//! under way all are let in at once; above that a client first has to come again with a token that was sent to its
//! address (RFC 9000 section 8.1), which costs it a round trip and this end no memory.

use super::QuicOptions;

/// What a client that begins a handshake gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Its handshake.
    Accepted,
    /// A token to come again with.
    Validated,
    /// A refusal, so that it goes elsewhere at once.
    Refused,
    /// Nothing: perhaps nobody is there.
    Ignored,
}

/// Decides. `handshakes`: how many are under way. `is_validated`: it has shown that its address is its own.
pub(super) fn decide(options: &QuicOptions, handshakes: usize, is_validated: bool) -> Admission {
    match (handshakes, is_validated) {
        (under_way, true) if under_way >= options.max_handshakes => Admission::Refused,
        (under_way, false) if under_way >= options.max_handshakes => Admission::Ignored,
        (under_way, false) if under_way >= options.max_unvalidated_handshakes => Admission::Validated,
        _ => Admission::Accepted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_come_the_more_is_asked_of_them() {
        let options = QuicOptions { max_unvalidated_handshakes: 2, max_handshakes: 4, ..QuicOptions::default() };
        use Admission::*;
        for (handshakes, unvalidated, validated) in [
            (0, Accepted, Accepted),
            (1, Accepted, Accepted),
            (2, Validated, Accepted),
            (3, Validated, Accepted),
            (4, Ignored, Refused),
            (5, Ignored, Refused),
        ] {
            assert_eq!(decide(&options, handshakes, false), unvalidated, "{handshakes}");
            assert_eq!(decide(&options, handshakes, true), validated, "{handshakes}");
        }
    }
}
