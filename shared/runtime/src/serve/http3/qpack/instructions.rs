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
