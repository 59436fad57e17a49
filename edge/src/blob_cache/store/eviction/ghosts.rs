//! The names of blobs that failed their probation, for about as long as their bytes would have been kept.

use std::collections::{BTreeMap, HashMap};

use weir_shared::digest::BlobDigest;

use super::Limits;

/// Ghosts that are remembered even by a cache that holds fewer blobs.
pub(super) const AT_LEAST: usize = 1024;

/// Names without blobs. A name is its first eight bytes: a mistake costs a blob its probation, no more.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    turns: BTreeMap<u64, (u64, u64)>,
    by_name: HashMap<u64, u64>,
    bytes: u64,
    next_turn: u64,
}

impl Ghosts {
    /// Remembers a blob of `size` bytes that went; forgets the oldest ones beyond `limits`.
    pub(super) fn remember(&mut self, digest: &BlobDigest, size: u64, limits: Limits) {
        self.take(digest);
        self.next_turn += 1;
        self.turns.insert(self.next_turn, (short(digest), size));
        self.by_name.insert(short(digest), self.next_turn);
        self.bytes += size;
        while self.turns.len() > limits.entries || self.bytes > limits.bytes {
            let Some((_, (name, size))) = self.turns.pop_first() else { break };
            self.by_name.remove(&name);
            self.bytes -= size;
        }
    }

    /// Whether a blob is remembered; it is no more.
    pub(super) fn take(&mut self, digest: &BlobDigest) -> bool {
        let turn = self.by_name.remove(&short(digest));
        let known = turn.and_then(|turn| self.turns.remove(&turn));
        self.bytes -= known.map_or(0, |(_, size)| size);
        known.is_some()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.turns.len(), self.by_name.len());
        self.turns.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn short(digest: &BlobDigest) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *digest.as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
