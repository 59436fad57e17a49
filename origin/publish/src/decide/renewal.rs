//! What a start brings in line with the configuration: generations within bounds, and signatures of the current keys.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use weir_protocol::descriptor::Generation;
use weir_protocol::name::ServiceName;

use super::decision;
use super::draft::Draft;
use super::staging::with_staged;
use crate::error::PublishError;
use crate::stored::history_line::{Line, Why};
use crate::stored::row::{Row, StoredVersion, from_unix, parsed};

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
        let fields = decision::republished(&before, before.followed_ref(), last, now, *bounds.start());
        let Ok(descriptor) = self.sign(fields) else {
            tracing::warn!(%service, "the service keeps its generation: its descriptor would be too large");
            return Ok(false);
        };
        let (why, by) = (if is_ahead { Why::Lowered } else { Why::FloorRaised }, current.by.clone());
        let version = StoredVersion::new(&descriptor, current.key, current.recipe, why, by);
        let pin = row.pin.clone();
        self.replace_current(row, &descriptor, version, now);
        // The history shows a pin with the current publication, so the pin is entered again for the new one.
        let pinned = pin.map(|pin| Line::pinned(&descriptor, from_unix(pin.since), pin.author));
        self.lines.extend(pinned);
        Ok(true)
    }

    /// Signs all versions of a service with the current keys, also a staged one, and returns how many. A descriptor that
    /// would become too large keeps its old signature.
    pub(crate) fn renew_signatures(&mut self, service: &ServiceName) -> Result<usize, PublishError> {
        let mut row = self.row(service)?;
        let retained: Vec<_> = row.retained.iter().map(|retained| self.signed_again(&row, &retained.version)).collect();
        let mut signed = 0;
        for (retained, version) in row.retained.iter_mut().zip(retained) {
            if let Some(version) = version {
                retained.version = version;
                signed += 1;
            }
        }
        // After the staged version, which it has in it.
        if let Some(version) = row.current.as_ref().and_then(|current| self.signed_again(&row, current)) {
            row.current = Some(version);
            signed += 1;
        }
        if signed > 0 {
            self.put(row);
        }
        Ok(signed)
    }

    fn signed_again(&self, row: &Row, version: &StoredVersion) -> Option<StoredVersion> {
        let service = &row.service;
        let Ok(before) = version.descriptor() else {
            tracing::warn!(%service, "a version cannot be read and keeps its old signature");
            return None;
        };
        let is_current = row.current.as_ref().is_some_and(|current| current.digest == version.digest);
        let fields = decision::rewritten(&before);
        let fields = if is_current { with_staged(row, fields) } else { fields };
        let signed = self.sign(fields);
        let refused = |error| tracing::warn!(%service, %error, "a version keeps its old signature");
        Some(version.with(&signed.map_err(refused).ok()?))
    }
}
