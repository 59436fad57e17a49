//! Decodes the Huffman code of HPACK and QPACK (RFC 7541, Appendix B). The server does not write it.
//!
//! The code is canonical: symbols ordered by the length of their code, then by their value, have consecutive codes. So the
//! table only needs the lengths.

use std::sync::LazyLock;

/// The lengths of the codes, in bits, by symbol. The end-of-string symbol, with 30 bits, is the 257th and never sent.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26,
];

/// The codes by symbol, in the low bits.
static CODES: LazyLock<[u32; 256]> = LazyLock::new(|| {
    let mut symbols: Vec<usize> = (0..256).collect();
    symbols.sort_by_key(|&symbol| (LENGTHS[symbol], symbol));
    let mut codes = [0; 256];
    let (mut next, mut length) = (0u32, LENGTHS[symbols[0]]);
    for symbol in symbols {
        next <<= LENGTHS[symbol] - length;
        length = LENGTHS[symbol];
        codes[symbol] = next;
        next += 1;
    }
    codes
});

/// Bits that are looked up at once: room for two of the most frequent symbols.
const PREFIX_BITS: u32 = 12;

/// The lookup tables of the decoder.
struct Decoding {
    /// By the next [`PREFIX_BITS`] bits: the symbols that they begin with. None at all: the first one is longer.
    short: Vec<Symbols>,
    /// Of each length above, from the shortest on: where its codes end, left-aligned in 32 bits, its first code, and
    /// how many shorter codes there are.
    long: Vec<Length>,
    /// The symbols in the order of their codes.
    symbols: Vec<u8>,
}

/// One symbol or two, with the bits that the first one takes, and that both take. 0: there is none.
#[derive(Clone, Copy, Default)]
struct Symbols {
    symbols: [u8; 2],
    first: u8,
    both: u8,
}

struct Length {
    bits: u32,
    end: u64,
    first: u32,
    before: usize,
}

static DECODING: LazyLock<Decoding> = LazyLock::new(|| {
    let mut symbols: Vec<u8> = (0..=255).collect();
    symbols.sort_by_key(|&symbol| (LENGTHS[usize::from(symbol)], symbol));
    let short = vec![Symbols::default(); 1 << PREFIX_BITS];
    let mut decoding = Decoding { short, long: Vec::new(), symbols };
    for (before, &symbol) in decoding.symbols.iter().enumerate() {
        let (bits, code) = (u32::from(LENGTHS[usize::from(symbol)]), CODES[usize::from(symbol)]);
        if bits <= PREFIX_BITS {
            let spare = PREFIX_BITS - bits;
            let first = (code << spare) as usize;
            let alone = Symbols { symbols: [symbol, 0], first: bits as u8, both: 0 };
            decoding.short[first..first + (1 << spare)].fill(alone);
            continue;
        }
        let end = u64::from(code + 1) << (32 - bits);
        match decoding.long.last_mut() {
            Some(length) if length.bits == bits => length.end = end,
            _ => decoding.long.push(Length { bits, end, first: code, before }),
        }
    }
    let alone = decoding.short.clone();
    for (bits, symbols) in decoding.short.iter_mut().enumerate() {
        // What stands behind the first symbol, if all of it is there.
        let second = alone[bits << symbols.first & ((1 << PREFIX_BITS) - 1)];
        if symbols.first > 0 && second.first > 0 && u32::from(symbols.first + second.first) <= PREFIX_BITS {
            symbols.symbols[1] = second.symbols[0];
            symbols.both = symbols.first + second.first;
        }
    }
    decoding
});

impl Decoding {
    /// The symbols that 32 bits begin with. `None`: the end-of-string symbol, which must not be sent.
    fn next(&self, window: u32) -> Option<Symbols> {
        let symbols = self.short[(window >> (32 - PREFIX_BITS)) as usize];
        if symbols.first > 0 {
            return Some(symbols);
        }
        // Codes grow with their lengths: the first length whose codes end beyond is the one.
        let length = self.long.iter().find(|length| u64::from(window) < length.end)?;
        let index = length.before + ((window >> (32 - length.bits)) - length.first) as usize;
        Some(Symbols { symbols: [self.symbols[index], 0], first: length.bits as u8, both: 0 })
    }
}

/// Decodes a string. `None`: it is no coded string.
pub(super) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let decoding = &*DECODING;
    // The shortest code has five bits.
    let mut text = Vec::with_capacity(coded.len() * 8 / 5);
    // What was read and is not decoded yet: the upper `bits` of it.
    let (mut pending, mut bits) = (0u64, 0u32);
    let mut rest = coded;
    loop {
        while bits <= 56
            && let Some((&byte, tail)) = rest.split_first()
        {
            pending |= u64::from(byte) << (56 - bits);
            bits += 8;
            rest = tail;
        }
        // Behind the end stand ones, as in the padding: so what is left decodes to nothing but a longer code.
        let window = (pending >> 32) as u32 | if bits < 32 { u32::MAX >> bits } else { 0 };
        let taken = match decoding.next(window) {
            Some(Symbols { symbols, both: both @ 1.., .. }) if u32::from(both) <= bits => {
                text.extend_from_slice(&symbols);
                u32::from(both)
            }
            Some(Symbols { symbols, first, .. }) if u32::from(first) <= bits => {
                text.push(symbols[0]);
                u32::from(first)
            }
            // All ones, and fewer than eight.
            _ => return (bits < 8 && window == u32::MAX).then_some(text),
        };
        pending <<= taken;
        bits -= taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Codes a string.
    fn encode(text: &[u8], out: &mut Vec<u8>) {
        let codes = &*CODES;
        let (mut pending, mut bits) = (0u64, 0u32);
        for &byte in text {
            let length = u32::from(LENGTHS[usize::from(byte)]);
            pending = pending << length | u64::from(codes[usize::from(byte)]);
            bits += length;
            // At most 31 bits stay, and a code has at most 30: 64 are enough.
            if bits >= 32 {
                bits -= 32;
                out.extend_from_slice(&((pending >> bits) as u32).to_be_bytes());
            }
        }
        while bits >= 8 {
            bits -= 8;
            out.push((pending >> bits) as u8);
        }
        if bits > 0 {
            // The rest of the last byte is filled with ones.
            out.push((pending << (8 - bits)) as u8 | 0xff >> bits);
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn the_examples_of_rfc_7541() {
        for (text, coded) in [
            ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
            ("no-cache", "a8eb10649cbf"),
            ("custom-value", "25a849e95bb8e8b4bf"),
            ("302", "6402"),
            ("Mon, 21 Oct 2013 20:13:21 GMT", "d07abe941054d444a8200595040b8166e082a62d1bff"),
        ] {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            assert_eq!(out, hex(coded), "{text}");
            assert_eq!(decode(&out).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn padding_is_ones_and_shorter_than_a_byte() {
        assert_eq!(decode(&[]), Some(vec![]));
        // "0" is 00000, and three ones.
        assert_eq!(decode(&[0b0000_0111]), Some(b"0".to_vec()));
        assert_eq!(decode(&[0b0000_0110]), None);
        assert_eq!(decode(&[0b0000_0111, 0xff]), None);
        // The end-of-string symbol.
        assert_eq!(decode(&[0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn every_string_survives(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut coded = Vec::new();
            encode(&text, &mut coded);
            prop_assert_eq!(decode(&coded), Some(text));
        }

        #[test]
        fn only_canonical_codes_are_decoded(coded in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decode(&coded) {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, coded);
            }
        }
    }
}
