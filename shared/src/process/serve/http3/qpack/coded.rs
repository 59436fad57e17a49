//! Field lines that were coded before.
//!
//! Most values of an answer are those of the answer before: to code them again would cost a poll more than the rest of
//! its answer. A value is recognised by where its bytes lie, which those who clone a header value share. What is kept
//! holds the bytes too, so that no others can come to lie there.

use std::cell::RefCell;

use http::{HeaderName, HeaderValue};

/// Lines that each thread keeps; of two that want the same place the later has it.
const PLACES: usize = 256;

/// The lengths of the values whose lines are kept, in bytes. To code a shorter one costs no more than to find it.
const WORTHWHILE: std::ops::RangeInclusive<usize> = 8..=512;

struct Line {
    name: HeaderName,
    value: HeaderValue,
    coded: Box<[u8]>,
}

thread_local! {
    static LINES: RefCell<[Option<Line>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

/// Writes the line of a field.
pub(in super::super) fn line(name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    if !WORTHWHILE.contains(&value.len()) || value.is_sensitive() {
        return super::line(name.as_str(), value.as_bytes(), out);
    }
    LINES.with_borrow_mut(|lines| {
        let kept = &mut lines[place(value)];
        match kept {
            Some(line) if line.is_of(name, value) => out.extend_from_slice(&line.coded),
            _ => {
                let begin = out.len();
                super::line(name.as_str(), value.as_bytes(), out);
                let coded = out[begin..].into();
                *kept = Some(Line { name: name.clone(), value: value.clone(), coded });
            }
        }
    });
}

impl Line {
    fn is_of(&self, name: &HeaderName, value: &HeaderValue) -> bool {
        std::ptr::eq(self.value.as_bytes(), value.as_bytes()) && self.name == *name
    }
}

/// Where the line of a value is kept: by the address of its bytes, whose lowest bits tell little.
fn place(value: &HeaderValue) -> usize {
    let address = value.as_bytes().as_ptr().addr() as u64 >> 3;
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header;

    fn plain(name: &HeaderName, value: &HeaderValue) -> Vec<u8> {
        let mut out = Vec::new();
        super::super::line(name.as_str(), value.as_bytes(), &mut out);
        out
    }

    #[test]
    fn a_line_is_the_same_whether_it_was_coded_before_or_not() {
        // Many more than are kept, some short, several times, under two names.
        let values: Vec<_> = (0..2000).map(|n: u32| format!("value {}", n * n)).chain(["x".repeat(600)]).collect();
        let values: Vec<HeaderValue> = values.into_iter().map(|value| value.try_into().unwrap()).collect();
        for _ in 0..3 {
            for value in &values {
                for name in [&header::ETAG, &header::VARY, &HeaderName::from_static("weir-digest")] {
                    let mut out = b"before".to_vec();
                    line(name, &value.clone(), &mut out);
                    assert_eq!(out[6..], plain(name, value));
                }
            }
        }
    }

    #[test]
    fn values_that_come_and_go_are_not_taken_for_each_other() {
        for n in 0..2000 {
            let value = HeaderValue::try_from(format!("a value of one length {n:08}")).unwrap();
            let mut out = Vec::new();
            line(&header::ETAG, &value, &mut out);
            assert_eq!(out, plain(&header::ETAG, &value));
        }
    }
}
