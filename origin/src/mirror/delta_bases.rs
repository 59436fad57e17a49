//! How much memory the objects of a pack hold while deltas against them are resolved, and how much the deltas take that lead
//! to an object when it is read later. Pure.
//!
//! gix resolves depth first, and an object stays until the last delta against it is resolved. So a pack of nested deltas
//! of which each has a sibling holds all objects from the first to the last, and a few bytes of it describe each of them.
//!
//! Nor does an object hold just its own size. Each delta is resolved into the buffer that the one before it left, as large
//! as that is; if deltas rest on the object, it keeps the buffer. So buffers are followed here, as gix hands them on.
//!
//! Whoever reads an object has all deltas that lead to it in memory at once, one after the other: their sizes add up.

use std::collections::HashMap;

use gix::ObjectId;

use super::pack_entry::Sizes;

/// What a delta is told against.
#[derive(Debug, Clone, Copy)]
pub(super) enum Base {
    /// An object of the same pack, by the offset of its entry.
    At(u64),
    /// An object of the same pack, by its name: which entry that is turns out only when it is resolved.
    Named(ObjectId),
}

/// The deltas of a pack that are not resolved yet, and what is held for them.
#[derive(Debug, Default)]
pub(super) struct DeltaBases {
    /// The offset of each delta and of what it is told against. They come in the order of their offsets.
    at: Vec<(u64, u64)>,
    /// The offset of each delta and the name of what it is told against, likewise.
    named: Vec<(u64, ObjectId)>,
    /// How many deltas wait for an entry, or for a name, that is not resolved yet.
    waiting_at: HashMap<u64, u32>,
    waiting_named: HashMap<ObjectId, u32>,
    /// Which entries have the names that deltas waited for.
    found: HashMap<ObjectId, u64>,
    /// What deltas still wait for, by its offset.
    held: HashMap<u64, Held>,
    /// The bytes of all that.
    held_bytes: u64,
    /// The bytes of the buffer into which the next delta is resolved, which grows if need be.
    spare: u64,
    last: Option<Resolved>,
}

/// An object that is held.
#[derive(Debug)]
struct Held {
    /// Of its buffer.
    bytes: u64,
    /// Of the deltas that lead to it.
    line: u64,
    /// So many are still to be resolved against it.
    deltas: u32,
}

/// What was resolved last. What becomes of its buffer turns out with the next one, which may be told against its name.
#[derive(Debug)]
struct Resolved {
    offset: u64,
    /// The offset of what it is told against, if it is a delta.
    base: Option<u64>,
    /// Of its buffer.
    bytes: u64,
    /// Of the deltas that lead to it.
    line: u64,
}

/// What there is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    /// The bytes that are held when an entry is resolved, itself counted if deltas wait for it by its offset. Whatever
    /// nothing waits for comes on top: one object at a time, and one buffer.
    pub(super) held: u64,
    /// The bytes of all deltas that lead to it, itself counted.
    pub(super) line: u64,
}

impl DeltaBases {
    /// The pack has a delta. They are told in the order of the pack.
    pub(super) fn add(&mut self, offset: u64, base: Base) {
        let waiting = match base {
            Base::At(base) => {
                self.at.push((offset, base));
                self.waiting_at.entry(base).or_default()
            }
            Base::Named(name) => {
                self.named.push((offset, name));
                self.waiting_named.entry(name).or_default()
            }
        };
        *waiting += 1;
    }

    /// An entry of such sizes is resolved next.
    pub(super) fn resolve(&mut self, offset: u64, sizes: Sizes) -> Memory {
        let base = self.base_of(offset);
        self.hand_on();
        let bytes = if base.is_some() { sizes.object.max(std::mem::take(&mut self.spare)) } else { sizes.object };
        let before = base.and_then(|base| self.held.get(&base)).map_or(0, |base| base.line);
        let line = before.saturating_add(sizes.delta);
        self.last = Some(Resolved { offset, base, bytes, line });
        let own = if self.waiting_at.contains_key(&offset) { bytes } else { 0 };
        Memory { held: self.held_bytes.saturating_add(own), line }
    }

    /// The offset of what an entry is told against, if it is a delta.
    fn base_of(&mut self, offset: u64) -> Option<u64> {
        if let Ok(at) = self.at.binary_search_by_key(&offset, |(delta, _)| *delta) {
            return Some(self.at[at].1);
        }
        let name = self.named[self.named.binary_search_by_key(&offset, |(delta, _)| *delta).ok()?].1;
        if let Some(deltas) = self.waiting_named.remove(&name) {
            // The first of them comes right after what has the name.
            let last = self.last.as_ref()?.offset;
            *self.waiting_at.entry(last).or_default() += deltas;
            self.found.insert(name, last);
        }
        self.found.get(&name).copied()
    }

    /// The buffer of what was resolved last is kept if deltas rest on it. Otherwise it is the next one's; or that of what it
    /// was told against, if nothing else is and that is larger.
    fn hand_on(&mut self) {
        let Some(last) = self.last.take() else { return };
        if let Some(deltas) = self.waiting_at.remove(&last.offset) {
            self.held.insert(last.offset, Held { bytes: last.bytes, line: last.line, deltas });
            self.held_bytes = self.held_bytes.saturating_add(last.bytes);
        } else if last.base.is_some() {
            self.spare = last.bytes;
        }
        let Some(base) = last.base else { return };
        let Some(held) = self.held.get_mut(&base) else { return };
        held.deltas = held.deltas.saturating_sub(1);
        if held.deltas == 0 {
            let bytes = held.bytes;
            self.held.remove(&base);
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
            self.spare = self.spare.max(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::rc::Rc;

    use super::*;
    use proptest::prelude::*;

    fn resolve<const N: usize>(bases: &mut DeltaBases, entries: [(u64, u64); N]) -> [u64; N] {
        entries.map(|(offset, object)| bases.resolve(offset, Sizes { object, delta: 0 }).held)
    }

    #[test]
    fn deltas_that_lead_to_an_object_add_up_and_those_beside_them_do_not() {
        let mut bases = DeltaBases::default();
        for (offset, base) in [(1, 0), (2, 1), (3, 1), (4, 0)] {
            bases.add(offset, Base::At(base));
        }
        let lines = [(0, 0), (1, 5), (3, 50), (2, 500), (4, 7), (9, 0)]
            .map(|(offset, delta)| bases.resolve(offset, Sizes { object: 1, delta }).line);
        assert_eq!(lines, [0, 5, 55, 505, 7, 0]);
    }

    #[test]
    fn a_line_of_deltas_holds_two_and_one_with_siblings_all() {
        let mut line = DeltaBases::default();
        for offset in 1..5 {
            line.add(offset, Base::At(offset - 1));
        }
        assert_eq!(resolve(&mut line, [0, 1, 2, 3, 4].map(|offset| (offset, 10))), [10, 20, 20, 20, 10]);

        let mut siblings = DeltaBases::default();
        for offset in 1..4 {
            siblings.add(2 * offset, Base::At(2 * offset - 2));
            siblings.add(2 * offset + 1, Base::At(2 * offset - 2));
        }
        assert_eq!(resolve(&mut siblings, [0, 2, 4, 6].map(|offset| (offset, 10))), [10, 20, 30, 30]);
        assert_eq!(resolve(&mut siblings, [7, 5, 3].map(|offset| (offset, 10))), [30, 20, 10]);
        assert_eq!(resolve(&mut siblings, [(99, 10)]), [0]);
    }

    #[test]
    fn a_small_object_in_the_place_of_a_large_one_holds_as_much() {
        let mut bases = DeltaBases::default();
        for (offset, base) in [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (6, 2)] {
            bases.add(offset, Base::At(base));
        }
        let held = resolve(&mut bases, [(0, 10), (3, 1000), (2, 10), (6, 1000), (5, 10), (4, 10), (1, 10)]);
        assert_eq!(held, [10, 10, 1010, 1010, 1010, 1010, 10]);
    }

    #[test]
    fn what_is_named_is_held_from_its_first_delta_to_its_last() {
        let name = ObjectId::from_bytes_or_panic(&[7; 20]);
        let mut bases = DeltaBases::default();
        bases.add(1, Base::Named(name));
        bases.add(2, Base::Named(name));
        assert_eq!(resolve(&mut bases, [(0, 5), (2, 9), (1, 9), (3, 9)]), [0, 5, 5, 0]);
    }

    /// One entry of a forest.
    #[derive(Debug, Clone)]
    struct Node {
        /// What it is told against, and whether by a name.
        base: Option<(usize, bool)>,
        size: u64,
    }

    /// Resolves a forest as gix does, with buffers of which only the capacity counts: what was found last comes first, what
    /// is told against a name is found after what is told against an offset. Returns the order, and what was held.
    fn held_by_a_stack(nodes: &[Node]) -> Vec<(usize, u64)> {
        let children = |of: usize, named: bool| {
            (0..nodes.len()).filter(move |child| nodes[*child].base == Some((of, named))).collect::<Vec<_>>()
        };
        let (mut spare, mut held) = (0, Vec::new());
        for root in (0..nodes.len()).filter(|at| nodes[*at].base.is_none()) {
            let mut stack: Vec<(usize, Option<Rc<u64>>)> = vec![(root, None)];
            while let Some((at, base)) = stack.pop() {
                let buffer = if base.is_some() { nodes[at].size.max(spare) } else { nodes[at].size };
                let mut seen = HashSet::new();
                let kept = stack.iter().filter_map(|(_, base)| base.as_ref()).chain(base.as_ref());
                let kept: u64 = kept.filter(|base| seen.insert(Rc::as_ptr(base))).map(|base| **base).sum();
                let by_offset = children(at, false);
                held.push((at, if by_offset.is_empty() { kept } else { kept + buffer }));
                let all = [by_offset, children(at, true)].concat();
                let mut reusable = None;
                if base.is_some() {
                    spare = 0;
                }
                if all.is_empty() {
                    reusable = base.is_some().then_some(buffer);
                } else {
                    let shared = Rc::new(buffer);
                    stack.extend(all.into_iter().map(|child| (child, Some(shared.clone()))));
                }
                if let Some(Ok(freed)) = base.map(Rc::try_unwrap)
                    && reusable.is_none_or(|reusable| freed > reusable)
                {
                    reusable = Some(freed);
                }
                spare = reusable.unwrap_or(spare);
            }
        }
        held
    }

    proptest! {
        #[test]
        fn what_it_says_is_held_is_held(
            links in prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, 0u64..1000), 1..60),
        ) {
            let nodes: Vec<Node> = links.iter().enumerate().map(|(at, (link, kind, size))| {
                let base = (at > 0 && *kind > 0).then(|| (link.index(at), *kind > 3));
                Node { base, size: *size }
            }).collect();
            let mut bases = DeltaBases::default();
            for (at, node) in nodes.iter().enumerate() {
                match node.base {
                    Some((base, false)) => bases.add(at as u64, Base::At(base as u64)),
                    Some((base, true)) => {
                        bases.add(at as u64, Base::Named(ObjectId::from_bytes_or_panic(&[base as u8; 20])));
                    }
                    None => {}
                }
            }
            let delta = |at: usize| if nodes[at].base.is_some() { 1 + at as u64 } else { 0 };
            let line = |at: usize| {
                let bases = std::iter::successors(Some(at), |at| nodes[*at].base.map(|(base, _)| base));
                bases.map(delta).sum::<u64>()
            };
            for (at, held) in held_by_a_stack(&nodes) {
                let sizes = Sizes { object: nodes[at].size, delta: delta(at) };
                prop_assert_eq!(bases.resolve(at as u64, sizes), Memory { held, line: line(at) }, "at {}", at);
            }
            prop_assert!(bases.waiting_at.is_empty() && bases.waiting_named.is_empty());
        }
    }
}
