//! Rows as the table stores them: what many rows share is a number.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;
use weir_protocol::observed::{Current, Desired, Phase, Problem, Row};
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

/// A row.
#[derive(Debug)]
pub(crate) struct CompactRow {
    pub(crate) service: Id,
    pub(crate) desired: Id,
    pub(crate) current: Id,
    pub(crate) phase: Phase,
    pub(crate) hook: HookState,
    /// The arrival of the current release was counted, and its hook has not succeeded since.
    pub(crate) awaits_hook: bool,
    transfer: Option<TransferKind>,
    /// Unix seconds of `current.since`.
    pub(crate) since: u64,
    received_bytes: u64,
    tarball_bytes: u64,
    pub(crate) problem: Option<Box<Problem>>,
}

/// What rows share.
#[derive(Debug)]
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
        let service = self.services.hold(row.service);
        let name = self.services.get(service).clone();
        let desired = row.desired.map_or(NONE, |Desired { digest, generation }| {
            self.releases.hold(Release { service: name.clone(), digest, generation, revision_id: None })
        });
        let (mut current, mut since) = (NONE, 0);
        if let Some(Current { digest, generation, revision_id, since: time }) = row.current {
            current = self.releases.hold(Release { service: name, digest, generation, revision_id });
            since = unix_seconds(time);
        }
        let (received_bytes, tarball_bytes) = row.transfer.map_or((0, 0), |of| (of.received_bytes, of.tarball_bytes));
        CompactRow {
            service,
            desired,
            current,
            phase: row.phase,
            hook: row.hook,
            awaits_hook: false,
            transfer: row.transfer.map(|transfer| transfer.kind),
            since,
            received_bytes,
            tarball_bytes,
            problem: row.problem.map(Box::new),
        }
    }

    /// Removes a row.
    pub(crate) fn release(&mut self, row: &CompactRow) {
        self.services.release(row.service);
        for release in [row.desired, row.current].into_iter().filter(|id| *id != NONE) {
            self.releases.release(release);
        }
    }

    /// The row as an agent sent it.
    pub(crate) fn row(&self, row: &CompactRow) -> Row {
        let release = |id| (id != NONE).then(|| self.releases.get(id));
        let transfer = |kind| Transfer { kind, received_bytes: row.received_bytes, tarball_bytes: row.tarball_bytes };
        Row {
            service: self.services.get(row.service).clone(),
            desired: release(row.desired).map(|it| Desired { digest: it.digest, generation: it.generation }),
            current: release(row.current).map(|it| Current {
                digest: it.digest,
                generation: it.generation,
                revision_id: it.revision_id.clone(),
                since: from_unix(row.since),
            }),
            phase: row.phase,
            hook: row.hook,
            problem: row.problem.as_deref().cloned(),
            transfer: row.transfer.map(transfer),
        }
    }
}

impl CompactRow {
    /// What it takes besides itself.
    pub(crate) fn boxed_bytes(&self) -> usize {
        self.problem.as_ref().map_or(0, |problem| size_of::<Problem>() + problem.text.capacity())
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
        assert_eq!((size_of::<CompactRow>(), size_of::<Release>()), (48, 72));
        let golden = include_str!("../../../shared/protocol/golden/agent/observed.json");
        let sent = weir_protocol::observed::AgentObserved::parse(golden.as_bytes()).unwrap();
        let mut pools = Pools::new();
        let empty = pools.bytes();
        let stored: Vec<_> = sent.rows.iter().cloned().map(|row| pools.hold(row)).collect();
        assert_eq!(stored.iter().map(|row| pools.row(row)).collect::<Vec<_>>(), sent.rows);
        let full = pools.bytes();
        stored.iter().for_each(|row| pools.release(row));
        assert!(empty < full && pools.bytes() < full);
        assert!(pools.services.map(|_| true).into_iter().chain(pools.releases.map(|_| true)).all(|is_held| !is_held));
    }
}
