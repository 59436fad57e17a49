//! Values that many rows share, each stored once under a small number.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// The number of a value in its pool, while somebody holds it.
pub(crate) type Id = u32;

/// What a value costs besides itself and its slot: its entry of the index, and the counts of its `Arc`.
const OVERHEAD: usize = 48;

/// Counted values. A value goes with its last holder, and its number is used again.
#[derive(Debug, Clone)]
pub(crate) struct Pool<T> {
    slots: Vec<Option<(Arc<T>, u32)>>,
    free: Vec<Id>,
    ids: HashMap<Arc<T>, Id>,
    /// Bytes of texts in the values.
    text_bytes: usize,
    text_of: fn(&T) -> usize,
}

impl<T: Hash + Eq> Pool<T> {
    /// An empty pool. `text_of`: the bytes that a value has elsewhere.
    pub(crate) fn new(text_of: fn(&T) -> usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), ids: HashMap::new(), text_bytes: 0, text_of }
    }

    /// Adds a holder of a value.
    pub(crate) fn hold(&mut self, value: T) -> Id {
        if let Some(&id) = self.ids.get(&value) {
            if let Some((_, holders)) = &mut self.slots[id as usize] {
                *holders += 1;
            }
            return id;
        }
        self.text_bytes += (self.text_of)(&value);
        let value = Arc::new(value);
        let slot = Some((value.clone(), 1));
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(Id::MAX)
            }
        };
        self.ids.insert(value, id);
        id
    }

    /// Removes a holder.
    pub(crate) fn release(&mut self, id: Id) {
        let Some((value, holders)) = &mut self.slots[id as usize] else { return };
        *holders -= 1;
        if *holders == 0 {
            self.text_bytes -= (self.text_of)(value);
            self.ids.remove(value);
            self.slots[id as usize] = None;
            self.free.push(id);
        }
    }

    /// A value that is held.
    pub(crate) fn get(&self, id: Id) -> &T {
        let slot = self.slots[id as usize].as_ref();
        &slot.unwrap_or_else(|| unreachable!("a held number has a value")).0
    }

    /// For each number: what `of` makes of its value.
    pub(crate) fn map<R: Default>(&self, of: impl Fn(&T) -> R) -> Vec<R> {
        self.slots.iter().map(|slot| slot.as_ref().map(|(value, _)| of(value)).unwrap_or_default()).collect()
    }

    /// What the values take in memory.
    pub(crate) fn bytes(&self) -> usize {
        let slot = size_of::<Option<(Arc<T>, u32)>>() + size_of::<Id>();
        self.slots.len() * slot + self.ids.len() * (size_of::<T>() + OVERHEAD) + self.text_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_stored_once_and_goes_with_its_last_holder() {
        let mut pool = Pool::<String>::new(String::len);
        let one = pool.hold("one".to_owned());
        assert_eq!(pool.hold("one".to_owned()), one);
        let two = pool.hold("two".to_owned());
        let full = pool.bytes();
        pool.release(one);
        assert_eq!(pool.get(one), "one");
        pool.release(one);
        let value = size_of::<String>() + OVERHEAD + 3;
        assert_eq!((pool.bytes(), pool.map(String::len), pool.get(two).as_str()), (full - value, vec![0, 3], "two"));
        assert_eq!(pool.hold("ten".to_owned()), one);
        assert_eq!(pool.bytes(), full);
    }
}
