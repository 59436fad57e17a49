//! Rows as the table stores them: what many rows share is a number.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{Applied, Current, Desired, Phase, Problem, Row};
use weir_protocol::observed::{HookState, Transfer, TransferKind};
use weir_protocol::revision_id::RevisionId;
use weir_protocol::token::unix_seconds;

use crate::pool::{Id, Pool};

/// What an agent has, or should have, of a service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Release {
    /// The service.
    pub service: ServiceName,
    /// The digest of the tarball.
    pub digest: TarballDigest,
    /// The generation; 0 if it is not known.
    pub generation: Generation,
    /// What it was made of, if that is known.
    pub revision_id: Option<RevisionId>,
}

/// No release.
pub(crate) const NONE: Id = Id::MAX;

/// It is not known whether there is a release.
pub(crate) const UNSAID: Id = Id::MAX - 1;

/// A row.
#[derive(Debug, Clone)]
pub(crate) struct CompactRow {
    pub(crate) service: Id,
    pub(crate) desired: Id,
    pub(crate) current: Id,
    /// The last release whose hooks succeeded, or that was switched to without any. It may be [`UNSAID`].
    pub(crate) applied: Id,
    pub(crate) phase: Phase,
    pub(crate) hook: HookState,
    /// The arrival of the current release was counted, and its hook has not succeeded since.
    pub(crate) awaits_hook: bool,
    transfer: Option<TransferKind>,
    /// Unix seconds of `current.since`, until 2106.
    pub(crate) since: u32,
    /// Those of `applied.since`.
    pub(crate) applied_since: u32,
    received_bytes: u64,
    tarball_bytes: u64,
    pub(crate) problem: Option<Box<Problem>>,
}

/// What rows share.
#[derive(Debug, Clone)]
pub(crate) struct Pools {
    pub(crate) services: Pool<ServiceName>,
    pub(crate) releases: Pool<Release>,
}

impl Pools {
    pub(crate) fn new() -> Self {
        let text_of = |release: &Release| release.revision_id.as_ref().map_or(0, |id| id.as_str().len());
        Self { services: Pool::new(|name| name.as_str().len()), releases: Pool::new(text_of) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.services.bytes() + self.releases.bytes()
    }

    /// Stores a row.
    pub(crate) fn hold(&mut self, row: Row) -> CompactRow {
        let service = self.services.hold(row.service.clone());
        let name = self.services.get(service).clone();
        let desired = row.desired.map_or(NONE, |Desired { digest, generation }| {
            self.releases.hold(Release { service: name.clone(), digest, generation, revision_id: None })
        });
        let mut held = |of: Option<&Current>| {
            let Some(Current { digest, generation, revision_id, since }) = of else { return (NONE, 0) };
            let (digest, generation, revision_id) = (*digest, *generation, revision_id.clone());
            let id = self.releases.hold(Release { service: name.clone(), digest, generation, revision_id });
            (id, u32::try_from(unix_seconds(*since)).unwrap_or(u32::MAX))
        };
        let (current, since) = held(row.current.as_ref());
        let (applied, applied_since) = row.applied().map_or((UNSAID, 0), held);
        let (received_bytes, tarball_bytes) = row.transfer.map_or((0, 0), |of| (of.received_bytes, of.tarball_bytes));
        CompactRow {
            service,
            desired,
            current,
            applied,
            phase: row.phase,
            hook: row.hook,
            awaits_hook: false,
            transfer: row.transfer.map(|transfer| transfer.kind),
            since,
            applied_since,
            received_bytes,
            tarball_bytes,
            problem: row.problem.map(Box::new),
        }
    }

    /// Removes a row.
    pub(crate) fn release(&mut self, row: &CompactRow) {
        self.services.release(row.service);
        let releases = [row.desired, row.current, row.applied];
        for release in releases.into_iter().filter(|id| *id < UNSAID) {
            self.releases.release(release);
        }
    }

    /// The row as an agent sent it, and what follows from it. `applied` is `null` where the agent does not say it.
    pub(crate) fn row(&self, row: &CompactRow) -> Row {
        let release = |id| (id < UNSAID).then(|| self.releases.get(id));
        let current = |id, since| {
            release(id).map(|it| Current {
                digest: it.digest,
                generation: it.generation,
                revision_id: it.revision_id.clone(),
                since: from_unix(u64::from(since)),
            })
        };
        let transfer = |kind| Transfer { kind, received_bytes: row.received_bytes, tarball_bytes: row.tarball_bytes };
        Row {
            service: self.services.get(row.service).clone(),
            desired: release(row.desired).map(|it| Desired { digest: it.digest, generation: it.generation }),
            current: current(row.current, row.since),
            phase: row.phase,
            hook: row.hook,
            applied: Applied::Said(current(row.applied, row.applied_since)),
            problem: row.problem.as_deref().cloned(),
            transfer: row.transfer.map(transfer),
        }
    }
}

impl CompactRow {
    /// What it takes besides itself.
    pub(crate) fn boxed_bytes(&self) -> usize {
        self.problem.as_ref().map_or(0, |problem| {
            size_of::<Problem>() + problem.text.capacity() + problem.output.as_ref().map_or(0, String::capacity)
        })
    }
}

/// The inverse of [`unix_seconds`](weir_protocol::token::unix_seconds).
pub(crate) fn from_unix(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_few_bytes_and_comes_back_as_it_was() {
        assert_eq!((size_of::<CompactRow>(), size_of::<Release>()), (56, 72));
        let golden = include_str!("../../../shared/protocol/golden/agent/observed.json");
        let mut sent = weir_protocol::observed::AgentObserved::parse(golden.as_bytes()).unwrap();
        let mut pools = Pools::new();
        let empty = pools.bytes();
        let stored: Vec<_> = sent.rows.iter().cloned().map(|row| pools.hold(row)).collect();
        // Without a hook, what is current is applied.
        for row in &mut sent.rows {
            row.applied = Applied::Said(row.applied().unwrap().cloned());
        }
        assert_eq!(stored.iter().map(|row| pools.row(row)).collect::<Vec<_>>(), sent.rows);
        let full = pools.bytes();
        stored.iter().for_each(|row| pools.release(row));
        assert!(empty < full && pools.bytes() < full);
        assert!(pools.services.map(|_| true).into_iter().chain(pools.releases.map(|_| true)).all(|is_held| !is_held));
    }
}
