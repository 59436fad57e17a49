//! What was published below the floor of generations is published again above it.
//!
//! Readers refuse a generation lower than one they have seen. After a clock that was far ahead, or a restored copy of the
//! data directory, a service whose ref does not move would be refused for good: nothing of it is published any more.

use std::time::SystemTime;

use redb::ReadableTable;
use weir_shared::descriptor::{Descriptor, Generation};

use super::contents::Contents;
use super::decision;
use super::history::{self, Entry, Why};
use super::state::{State, StateError, checked};
use super::tables::Tables;

impl State {
    /// Publishes again whatever is current below the floor; pins stay. How many services that were. All or nothing.
    pub(crate) fn lift(&self, floor: Generation, now: SystemTime) -> Result<usize, StateError> {
        if floor == 0 {
            return Ok(0);
        }
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let mut low = Vec::new();
            for row in tables.currents.iter()? {
                let service = row?.0;
                if tables.last_generation(service.value())?.is_none_or(|last| last < floor) {
                    low.push(service.value().to_owned());
                }
            }
            let (mut lifted, mut contents) = (0, Contents::open(transaction)?);
            for service in low {
                let Some(current) = tables.current(&service)? else { continue };
                if let Some(generation) = self.lift_one(&mut tables, &current, floor, now)? {
                    contents.goes_on(&service, current.publication().generation, generation)?;
                    lifted += 1;
                }
            }
            Ok(lifted)
        })
    }

    /// The generation that it is at now. `None`: it stays where it is, because its descriptor would be too large with the
    /// signatures of now.
    fn lift_one(
        &self,
        tables: &mut Tables<'_>,
        current: &Descriptor,
        floor: Generation,
        now: SystemTime,
    ) -> Result<Option<Generation>, StateError> {
        let service = current.publication().service.as_str();
        let last = tables.last_generation(service)?;
        let descriptor = match checked(self.signer.descriptor(decision::again(current, last, now, floor))) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                tracing::warn!(service, %error, "its generation stays below generation_floor");
                return Ok(None);
            }
        };
        let mut entry = Entry::new(&descriptor, Why::Lifted, None);
        if tables.pins.get(service)?.is_some()
            && let Some(before) = history::entry(&tables.history, current)?
        {
            // Who pinned it, and when, is asked of what is current.
            entry = Entry { by: before.by, pinned_at: before.pinned_at, ..entry };
        }
        tables.replace_current(&descriptor, &entry, self.retention(), now)?;
        Ok(Some(descriptor.publication().generation))
    }
}
