//! The place of an agent in a fleet: what all would do at once, each does at its own part of an interval.

/// A hash of the words from 0 to 1, the same on every machine.
pub(crate) fn phase(words: &[&str]) -> f64 {
    let hash = blake3::hash(words.join("/").as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk::<4>().expect("a hash has 32 bytes");
    f64::from(u32::from_le_bytes(*first)) / f64::from(u32::MAX)
}
