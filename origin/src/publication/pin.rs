//! Pins and rollbacks. While a service is pinned its ref moves no publication; a pin outlives a restart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::{ReadableTable, TableDefinition};
use weir_shared::descriptor::{Descriptor, Generation};
use weir_shared::digest::TarballDigest;
use weir_shared::name::ServiceName;

use super::decision;
use super::history::{self, Entry, Time, Why};
use super::rows::{CURRENT, parse, unix_milliseconds};
use super::state::{Change, State, StateError, checked};
use super::tables::Tables;

/// Service → since when it is pinned (Unix milliseconds). Goes with the service.
pub(super) const PINS: TableDefinition<'_, &str, u64> = TableDefinition::new("pins_v1");

/// What an operator wants of a service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    pub(crate) service: &'a ServiceName,
    /// Only when the current generation is this one; `None`: whatever it is.
    pub(crate) expected: Option<Generation>,
    /// The operator's name, for the history.
    pub(crate) by: Option<&'a str>,
    pub(crate) now: SystemTime,
}

/// A service is pinned.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) change: Change,
    pub(crate) since: SystemTime,
}

/// Why an operator's order was not followed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error(transparent)]
    State(#[from] StateError),
    #[error("nothing is published of `{0}`: there is nothing to pin")]
    NothingPublished(ServiceName),
    #[error("`{0}` has no version {1}, or it is not kept any more: its history says which are retained")]
    NotRetained(ServiceName, TarballDigest),
    #[error("`{service}` is at generation {}, not at the one that was expected", shown(*current))]
    Overtaken { service: ServiceName, current: Option<Generation> },
    #[error("`{0}` was changed or deleted just now, and nothing was done: ask again")]
    Withdrawn(ServiceName),
}

fn shown(generation: Option<Generation>) -> String {
    generation.map_or("none".to_owned(), |generation| generation.to_string())
}

impl State {
    /// The services that are pinned, each since when.
    pub(crate) fn pins(&self) -> Result<Vec<(ServiceName, SystemTime)>, StateError> {
        self.read(|transaction| {
            let mut pins = Vec::new();
            for row in transaction.open_table(PINS)?.iter()? {
                let (service, since) = row?;
                pins.extend(service.value().parse().ok().map(|service| (service, from_unix(since.value()))));
            }
            Ok(pins)
        })
    }

    /// What a service is at, and since when it is pinned.
    pub(crate) fn standing(
        &self,
        service: &ServiceName,
    ) -> Result<(Option<Descriptor>, Option<SystemTime>), StateError> {
        self.read(|transaction| {
            let current = transaction.open_table(CURRENT)?.get(service.as_str())?;
            let current = current.and_then(|row| parse(service.as_str(), row.value()).ok());
            let pinned = transaction.open_table(PINS)?.get(service.as_str())?;
            Ok((current, pinned.map(|since| from_unix(since.value()))))
        })
    }

    /// Pins a service to a digest, the current one (`None`) or a retained one. A retained one is published under a new
    /// generation, with the commit it had.
    pub(crate) fn pin(
        &self,
        order: &Order<'_>,
        digest: Option<&TarballDigest>,
        floor: Generation,
    ) -> Result<Pinned, OrderError> {
        let service = order.service.as_str();
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let current = match expected(order, tables.current(service)?) {
                Ok(current) => current,
                Err(refused) => return Ok(Err(refused)),
            };
            let stays = current.filter(|current| digest.is_none_or(|digest| current.publication().digest == *digest));
            let change = match (stays, digest) {
                (Some(current), _) => {
                    history::amend(&mut tables.history, &current, |entry| entry.pinned_by(order))?;
                    Change::Kept(Some(current))
                }
                (None, None) => return Ok(Err(OrderError::NothingPublished(order.service.clone()))),
                (None, Some(digest)) => {
                    let Some(retained) = tables.retained(service, digest)? else {
                        return Ok(Err(OrderError::NotRetained(order.service.clone(), *digest)));
                    };
                    let last = tables.last_generation(service)?;
                    let fields = decision::again(&retained, last, order.now, floor);
                    let descriptor = checked(self.signer.descriptor(fields))?;
                    let mut entry = Entry::new(&descriptor, Why::RolledBack, order.by);
                    entry.pinned_by(order);
                    tables.replace_current(&descriptor, &entry, self.retention(), order.now)?;
                    Change::Published(descriptor)
                }
            };
            let since = tables.pins.get(service)?.map(|since| since.value());
            let since = since.unwrap_or(unix_milliseconds(order.now));
            tables.pins.insert(service, since)?;
            Ok(Ok(Pinned { change, since: from_unix(since) }))
        })?
    }

    /// Lets a service follow its ref again. False: it was not pinned.
    pub(crate) fn unpin(&self, order: &Order<'_>) -> Result<bool, OrderError> {
        let service = order.service.as_str();
        self.write(|transaction| {
            let mut tables = Tables::open(transaction)?;
            let current = match expected(order, tables.current(service)?) {
                Ok(current) => current,
                Err(refused) => return Ok(Err(refused)),
            };
            let was_pinned = tables.pins.remove(service)?.is_some();
            if let Some(current) = current.filter(|_| was_pinned) {
                history::amend(&mut tables.history, &current, |entry| entry.unpinned_by(order))?;
            }
            Ok(Ok(was_pinned))
        })?
    }
}

/// The current descriptor, if it is the one that the order expects.
fn expected(order: &Order<'_>, current: Option<Descriptor>) -> Result<Option<Descriptor>, OrderError> {
    let generation = current.as_ref().map(|current| current.publication().generation);
    if order.expected.is_some() && order.expected != generation {
        return Err(OrderError::Overtaken { service: order.service.clone(), current: generation });
    }
    Ok(current)
}

impl Entry {
    fn pinned_by(&mut self, order: &Order<'_>) {
        self.pinned_at = Some(Time::from(order.now));
        self.by = order.by.map(str::to_owned);
    }

    fn unpinned_by(&mut self, order: &Order<'_>) {
        self.unpinned_at = Some(Time::from(order.now));
        self.by = order.by.map(str::to_owned);
    }
}

pub(super) fn from_unix(milliseconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(milliseconds)).unwrap_or(UNIX_EPOCH)
}
