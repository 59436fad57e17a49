//! The databases of a data directory: redb files that outlive a disk that fails them for a while.

mod damaged;
#[cfg(test)]
pub(crate) mod faulty;
mod file;
mod new_file;
mod overlay;
mod pages;
mod way_out;

pub(crate) use damaged::{Damaged, Extent, Rows};
pub(crate) use file::DatabaseFile;
pub(crate) use way_out::way_out;

/// A database cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error("{0}")]
    Failed(Box<redb::Error>),
    #[error("it cannot be opened just now: {0}")]
    Closed(String),
    /// A file without a byte, as a copy that broke off leaves it. redb would make a new database of it.
    #[error("it is empty")]
    Empty,
}

impl<E: Into<redb::Error>> From<E> for DatabaseError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

/// The error of whoever reads or writes: the database's, or their own.
pub(crate) trait OfDatabase: From<DatabaseError> {
    fn of_database(&self) -> Option<&DatabaseError>;
}

impl DatabaseError {
    /// Whether the disk has failed, after which the database is of no use until it is opened anew.
    pub(super) fn is_the_disk_s(&self) -> bool {
        use redb::Error::{DatabaseClosed, Io, LockPoisoned, PreviousIo};
        matches!(self, Self::Failed(error) if matches!(**error, Io(_) | PreviousIo | LockPoisoned(_) | DatabaseClosed))
    }

    /// Whether the file is no database, or one whose bytes have changed: it stays so, whatever the disk does.
    pub(crate) fn is_damage(&self) -> bool {
        use std::io::ErrorKind::{InvalidData, UnexpectedEof};
        let Self::Failed(error) = self else { return true };
        match &**error {
            // No version of the program has written another format: a bit of the version flipped.
            redb::Error::Corrupted(_) | redb::Error::RepairAborted | redb::Error::UpgradeRequired(_) => true,
            redb::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
            _ => false,
        }
    }

    /// Whether it failed before this was tried.
    pub(super) fn came_before(&self) -> bool {
        matches!(self, Self::Failed(error) if matches!(**error, redb::Error::PreviousIo | redb::Error::DatabaseClosed))
    }
}
