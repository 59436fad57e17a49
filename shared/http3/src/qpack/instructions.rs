//! The instructions of QPACK's two streams (RFC 9204 section 4.3 and 4.4). Nearly all concern a dynamic table, which is not
//! used.

/// The client's encoder stream. Without a dynamic table it may only set its capacity to 0.
#[derive(Debug, Default)]
pub(in super::super) struct EncoderStream;

impl EncoderStream {
    /// Whether the next bytes of the stream are valid.
    pub(in super::super) fn take(&mut self, bytes: &[u8]) -> bool {
        // Set Dynamic Table Capacity, to 0.
        bytes.iter().all(|&byte| byte == 0b0010_0000)
    }
}

/// The client's decoder stream. Sections without dynamic references are not acknowledged, so it may only cancel streams.
#[derive(Debug, Default)]
pub(in super::super) struct DecoderStream {
    in_an_integer: bool,
}

impl DecoderStream {
    /// Whether the next bytes of the stream are valid.
    pub(in super::super) fn take(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| {
            if self.in_an_integer {
                self.in_an_integer = byte & 0b1000_0000 != 0;
                return true;
            }
            // Stream Cancellation, with the stream id in the other six bits and, if those are full, in further bytes.
            self.in_an_integer = byte & 0b0011_1111 == 0b0011_1111;
            byte >> 6 == 0b01
        })
    }
}
