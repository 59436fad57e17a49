//! What a start brings in line with the configuration: generations within bounds, and signatures of the current keys.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use weir_protocol::descriptor::{DescriptorError, DescriptorFields, Generation};
use weir_protocol::name::ServiceName;

use super::decision;
use super::draft::Draft;
use crate::error::PublishError;
use crate::request::Author;
use crate::stored::history_line::{Line, Why};
use crate::stored::row::{StoredVersion, from_unix, parsed};

impl Draft<'_> {
    /// Publishes a service again if its generation is out of bounds, pinned or not. Returns false if it is not, or if the
    /// descriptor would be too large with today's signatures.
    pub(crate) fn republish_in_bounds(
        &mut self,
        service: &ServiceName,
        bounds: &RangeInclusive<Generation>,
        now: SystemTime,
    ) -> Result<bool, PublishError> {
        let mut row = self.row(service)?;
        let for_all = row.generation_for_all();
        if (bounds.contains(&row.generation) && bounds.contains(&for_all)) || row.is_moving {
            return Ok(false);
        }
        let is_ahead = row.generation > *bounds.end();
        let Some(current) = &row.current else {
            if is_ahead {
                row.generation = 0; // The next one is the clock.
                self.put(row);
            }
            return Ok(is_ahead);
        };
        let before = parsed(current)?;
        if before.publication().generation < for_all {
            return Ok(false); // Another repository has published since.
        }
        // If only a staged version is ahead, the one in force is not, and agents believe it.
        let last = if is_ahead { Some(for_all).filter(|last| bounds.contains(last)) } else { row.last_generation() };
        let fields = decision::republished(before.fields(), before.followed_ref(), last, now, *bounds.start());
        let Ok(descriptor) = self.sign(fields) else {
            tracing::warn!(%service, "the service keeps its generation: its descriptor would be too large");
            return Ok(false);
        };
        let (why, by) = (if is_ahead { Why::Lowered } else { Why::FloorRaised }, current.by.clone());
        let version = StoredVersion::new(&descriptor, current.key, current.recipe, why, by);
        let pin = row.pin.clone();
        self.replace_current(row, &descriptor, version, now, Author::origin("the bounds of generations have changed"));
        // The history shows a pin with the current publication, so the pin is entered again for the new one.
        let pinned = pin.map(|pin| Line::pinned(&descriptor, from_unix(pin.since), pin.author));
        self.lines.extend(pinned);
        Ok(true)
    }

    /// Signs all versions of a service with the current keys, also a staged one, and returns how many. A descriptor that
    /// would become too large keeps its old signature; if it is so only together with what is staged, that ends.
    pub(crate) fn renew_signatures(&mut self, service: &ServiceName, now: SystemTime) -> Result<usize, PublishError> {
        let (mut row, mut signed) = (self.row(service)?, 0);
        for retained in &mut row.retained {
            let again = rewritten(service, &retained.version).map(|fields| self.sign(fields));
            if let Some(descriptor) = again.and_then(|again| accepted(service, again)) {
                retained.version = retained.version.with(&descriptor);
                signed += 1;
            }
        }
        // After the staged version, which it has in it.
        if let Some(fields) = row.current.as_ref().and_then(|current| rewritten(service, current)) {
            let again = self.revise(&mut row, fields, now);
            signed += usize::from(accepted(service, again).is_some());
        }
        if signed > 0 {
            self.put(row);
        }
        Ok(signed)
    }
}

/// `None`: it cannot be read.
fn rewritten(service: &ServiceName, version: &StoredVersion) -> Option<DescriptorFields> {
    let read = version.descriptor();
    let unread = |error: &DescriptorError| tracing::warn!(%service, %error, "a version cannot be read and keeps its old signature");
    Some(decision::rewritten(&read.inspect_err(unread).ok()?))
}

fn accepted<T>(service: &ServiceName, signed: Result<T, PublishError>) -> Option<T> {
    signed.inspect_err(|error| tracing::warn!(%service, %error, "a version keeps its old signature")).ok()
}
