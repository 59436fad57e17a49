//! The instructions of QPACK's two streams (RFC 9204 section 4.3 and 4.4): nearly all concern a dynamic table, and there
//! is none.

/// What the peer's encoder says. Without capacity it can only repeat that there is none.
#[derive(Debug, Default)]
pub(in super::super) struct EncoderStream;

impl EncoderStream {
    /// Whether the next bytes of the stream are in order.
    pub(in super::super) fn take(&mut self, bytes: &[u8]) -> bool {
        // Set Dynamic Table Capacity, to 0.
        bytes.iter().all(|&byte| byte == 0b0010_0000)
    }
}

/// What the peer's decoder says. No section of ours needs its acknowledgment, so it can only give up streams.
#[derive(Debug, Default)]
pub(in super::super) struct DecoderStream {
    in_an_integer: bool,
}

impl DecoderStream {
    /// Whether the next bytes of the stream are in order.
    pub(in super::super) fn take(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| {
            if self.in_an_integer {
                self.in_an_integer = byte & 0b1000_0000 != 0;
                return true;
            }
            // Stream Cancellation, with the stream in the other six bits and, if those are full, in bytes of their own.
            self.in_an_integer = byte & 0b0011_1111 == 0b0011_1111;
            byte >> 6 == 0b01
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoder_without_a_table_has_nothing_to_say() {
        assert!(EncoderStream.take(&[0x20, 0x20]));
        // A capacity, an insertion with and without a name's reference, a duplicate.
        for instruction in [0x21, 0x3f, 0xc0, 0x80, 0x41, 0x00] {
            assert!(!EncoderStream.take(&[instruction]), "{instruction:#x}");
        }
    }

    #[test]
    fn a_decoder_may_cancel_streams_alone() {
        let mut stream = DecoderStream::default();
        for bytes in [&[0x44][..], &[0x7f], &[0x81], &[0x80, 0x01, 0x40]] {
            assert!(stream.take(bytes), "{bytes:?}");
        }
        // An acknowledgment, an increment.
        assert!(!DecoderStream::default().take(&[0x80]));
        assert!(!DecoderStream::default().take(&[0x01]));
        assert!(!stream.take(&[0x84]));
    }
}
