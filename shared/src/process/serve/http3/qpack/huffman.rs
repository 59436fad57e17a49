//! The Huffman code of HPACK and QPACK (RFC 7541, Appendix B).
//!
//! The code is canonical: symbols in order of their code's length, then of their value, have consecutive codes. So the
//! lengths are all that has to be written down.

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

/// What four more bits do to a decoder that stands at an inner node of the code's tree.
#[derive(Clone, Copy, Default)]
struct Step {
    /// The node after them; 0 is the root.
    next: u16,
    /// The symbol that they completed, if they did: no code is shorter than four bits, so it is one at most.
    symbol: Option<u8>,
    /// They lead out of the tree: the end-of-string symbol, which must not be sent.
    invalid: bool,
    /// The string may end here: all bits since the last symbol are ones, and fewer than eight.
    may_end: bool,
}

/// The steps by node and four bits.
static STEPS: LazyLock<Vec<[Step; 16]>> = LazyLock::new(|| {
    const ABSENT: u16 = u16::MAX;
    // The tree: children by node; a child below is another node, or a leaf that holds a symbol.
    #[derive(Clone, Copy)]
    enum Child {
        None,
        Node(u16),
        Leaf(u8),
    }
    let mut tree = vec![[Child::None; 2]];
    // How far a node is from the root over ones alone; absent when a zero was among them.
    let mut ones = vec![0u16];
    for (symbol, (&code, &length)) in (0u8..=255).zip(CODES.iter().zip(&LENGTHS)) {
        let mut node = 0usize;
        for bit in (0..length).rev().map(|shift| usize::from(code >> shift & 1 == 1)) {
            node = match tree[node][bit] {
                Child::Node(next) => usize::from(next),
                Child::Leaf(_) => unreachable!("no code is the beginning of another"),
                Child::None => {
                    let next = u16::try_from(tree.len()).expect("there are 255 inner nodes");
                    ones.push(if bit == 1 && ones[node] != ABSENT { ones[node] + 1 } else { ABSENT });
                    tree.push([Child::None; 2]);
                    tree[node][bit] = Child::Node(next);
                    usize::from(next)
                }
            };
        }
        // The last node is a leaf: its parent's child is turned into one. Leaves keep an unused entry of the tree.
        let parent = tree
            .iter()
            .position(|children| children.iter().any(|c| matches!(c, Child::Node(n) if usize::from(*n) == node)));
        for child in &mut tree[parent.expect("every node but the root has a parent")] {
            if matches!(child, Child::Node(n) if usize::from(*n) == node) {
                *child = Child::Leaf(symbol);
            }
        }
    }
    let step = |from: usize, bits: usize| {
        let mut step = Step::default();
        let mut node = from;
        for shift in (0..4).rev() {
            match tree[node][bits >> shift & 1] {
                Child::Node(next) => node = usize::from(next),
                Child::Leaf(symbol) => {
                    step.symbol = Some(symbol);
                    node = 0;
                }
                Child::None => return Step { invalid: true, ..Step::default() },
            }
        }
        step.next = u16::try_from(node).expect("it is a node of the tree");
        step.may_end = ones[node] < 8;
        step
    };
    (0..tree.len()).map(|from| std::array::from_fn(|bits| step(from, bits))).collect()
});

/// The bytes that a string takes when it is coded.
pub(super) fn encoded_length(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Codes a string.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
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

/// Decodes a string. `None`: it is no coded string.
pub(super) fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let steps = &*STEPS;
    // The shortest code has five bits.
    let mut text = Vec::with_capacity(coded.len() * 8 / 5);
    let mut step = Step { may_end: true, ..Step::default() };
    for byte in coded {
        for bits in [byte >> 4, byte & 15] {
            step = steps[usize::from(step.next)][usize::from(bits)];
            if step.invalid {
                return None;
            }
            text.extend(step.symbol);
        }
    }
    step.may_end.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            assert_eq!(encoded_length(text.as_bytes()), out.len());
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
            prop_assert_eq!(coded.len(), encoded_length(&text));
            prop_assert_eq!(decode(&coded), Some(text));
        }

        #[test]
        fn what_decodes_is_what_would_be_coded(coded in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decode(&coded) {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, coded);
            }
        }
    }
}
