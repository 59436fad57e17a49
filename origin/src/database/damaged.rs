//! Reading what can be read of a damaged database.
//!
//! redb looks at no checksum while it reads, and takes a page that contradicts it for a fault in the program. So each
//! table is read from both ends up to the fault, and then service by service; keys that do not ascend are a fault as well.
//! Whether a row is right is for whoever asked to find out: a bit may have flipped in any of them.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Once;

use redb::{
    AccessGuard, Database, Key, Range, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction, ReadableDatabase,
    ReadableTableMetadata, StorageError, TableDefinition, Value,
};

use super::overlay;

/// After so many faults the services that are left are not asked for. A page holds some hundreds of them.
const MOST_FAULTS: usize = 10_000;

thread_local! {
    /// Faults of this thread are expected: nothing is said of them.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A table of which each row is a service's.
pub(crate) trait Rows {
    type Key: Key + 'static;
    type Value: Value + 'static;
    /// A row by itself, in the order of the keys.
    type Row: Ord + Clone;

    const TABLE: TableDefinition<'static, Self::Key, Self::Value>;

    fn row(key: <Self::Key as Value>::SelfType<'_>, value: <Self::Value as Value>::SelfType<'_>) -> Self::Row;

    /// The rows of one service.
    fn of(table: &Table<Self>, service: &str) -> Result<Pairs<Self>, StorageError>;
}

type Table<T> = ReadOnlyTable<<T as Rows>::Key, <T as Rows>::Value>;
type Pairs<T> = Range<'static, <T as Rows>::Key, <T as Rows>::Value>;
type Pair<T> = (AccessGuard<'static, <T as Rows>::Key>, AccessGuard<'static, <T as Rows>::Value>);

/// How much of a table was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Every row.
    pub(crate) is_whole: bool,
    /// The services of which there may be rows, or more rows, that cannot be read.
    pub(crate) unknown: Vec<String>,
}

/// A damaged database. Nothing of it changes.
#[derive(Debug)]
pub(crate) struct Damaged {
    path: PathBuf,
}

/// It is closed when this goes.
struct Opened {
    transaction: ReadTransaction,
    _database: Box<dyn std::any::Any>,
}

impl Damaged {
    pub(crate) fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Reads what can be read of a table; some rows twice. `services` are asked for by name where it cannot be read from end
    /// to end.
    pub(crate) fn read<T: Rows>(&self, services: &BTreeSet<String>, mut take: impl FnMut(T::Row)) -> Extent {
        let forwards = self.table::<T>().and_then(|(_opened, table)| {
            let length = quietly(|| table.len())?.ok()?;
            let mut rows = quietly(|| table.range::<<T::Key as Value>::SelfType<'_>>(..))?.ok()?;
            let (read, is_end) = walk::<T>(|| rows.next(), |last, next| last < next, &mut take);
            Some(is_end && read == length)
        });
        if forwards == Some(true) {
            return Extent { is_whole: true, unknown: Vec::new() };
        }
        if let Some((_opened, table)) = self.table::<T>()
            && let Some(Ok(mut rows)) = quietly(|| table.range::<<T::Key as Value>::SelfType<'_>>(..))
        {
            walk::<T>(|| rows.next_back(), |last, next| last > next, &mut take);
        }
        Extent { is_whole: false, unknown: self.by_name::<T>(services, &mut take) }
    }

    /// Asks for services by their names: those that cannot be read.
    fn by_name<T: Rows>(&self, services: &BTreeSet<String>, take: &mut impl FnMut(T::Row)) -> Vec<String> {
        let (mut unknown, mut table, mut faults) = (Vec::new(), self.table::<T>(), 0);
        for service in services {
            let rows = table.as_ref().and_then(|(_, table)| quietly(|| T::of(table, service))?.ok());
            let is_known = rows.is_some_and(|mut rows| walk::<T>(|| rows.next(), |last, next| last < next, take).1);
            if !is_known {
                unknown.push(service.clone());
                faults += 1;
                // A fault may leave anything behind.
                table = if faults < MOST_FAULTS { self.table::<T>() } else { None };
            }
        }
        unknown
    }

    fn table<T: Rows>(&self) -> Option<(Opened, Table<T>)> {
        let opened = self.open()?;
        let table = quietly(|| opened.transaction.open_table(T::TABLE))?.ok()?;
        Some((opened, table))
    }

    fn open(&self) -> Option<Opened> {
        let read_only = || {
            let database = ReadOnlyDatabase::open(&self.path).ok()?;
            let transaction = database.begin_read().ok()?;
            Some(Opened { transaction, _database: Box::new(database) })
        };
        // One that was not closed has to be written to be opened.
        let overlaid = || {
            let database: Database = overlay::open(&self.path).ok()?;
            let transaction = database.begin_read().ok()?;
            Some(Opened { transaction, _database: Box::new(database) })
        };
        quietly(read_only).flatten().or_else(|| quietly(overlaid).flatten())
    }
}

/// Takes rows until they end or there is a fault: how many, and whether they ended.
fn walk<T: Rows>(
    mut next: impl FnMut() -> Option<Result<Pair<T>, StorageError>>,
    is_in_order: impl Fn(&T::Row, &T::Row) -> bool,
    take: &mut impl FnMut(T::Row),
) -> (u64, bool) {
    let (mut read, mut last) = (0, None);
    loop {
        match quietly(&mut next) {
            Some(None) => return (read, true),
            None | Some(Some(Err(_))) => return (read, false),
            Some(Some(Ok((key, value)))) => {
                let Some(row) = quietly(|| T::row(key.value(), value.value())) else { continue };
                if last.as_ref().is_some_and(|last| !is_in_order(last, &row)) {
                    return (read, false);
                }
                take(row.clone());
                (read, last) = (read + 1, Some(row));
            }
        }
    }
}

/// `None`: a fault ended it.
fn quietly<T>(act: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |fault| {
            if !IS_QUIET.get() {
                others(fault);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    IS_QUIET.set(false);
    done.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use redb::ReadableTable;
    use std::fs;

    struct Numbers;

    const NUMBERS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("numbers");

    impl Rows for Numbers {
        type Key = &'static str;
        type Value = u64;
        type Row = (String, u64);

        const TABLE: TableDefinition<'static, &'static str, u64> = NUMBERS;

        fn row(name: &str, number: u64) -> (String, u64) {
            (name.to_owned(), number)
        }

        fn of(table: &Table<Self>, name: &str) -> Result<Pairs<Self>, StorageError> {
            table.range(name..=name)
        }
    }

    fn name(number: u64) -> String {
        format!("name-{number:05}")
    }

    /// Rows enough for many pages, in a file that was closed.
    fn written(path: &Path, rows: u64) {
        let database = Database::create(path).unwrap();
        let mut transaction = database.begin_write().unwrap();
        transaction.set_quick_repair(true);
        let mut table = transaction.open_table(NUMBERS).unwrap();
        for number in 0..rows {
            table.insert(name(number).as_str(), number).unwrap();
        }
        assert!(table.first().unwrap().is_some());
        drop(table);
        transaction.commit().unwrap();
    }

    /// Takes away the pages on which these stand.
    fn spoil(path: &Path, numbers: &[u64]) {
        let mut bytes = fs::read(path).unwrap();
        for page in bytes.chunks_mut(4096) {
            let holds = |number: &u64| page.windows(10).any(|window| window == name(*number).as_bytes());
            if numbers.iter().any(holds) {
                page.fill(0xff);
            }
        }
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn what_stands_on_other_pages_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.redb");
        let all: BTreeSet<String> = (0..5000).map(name).collect();
        let read = |path: &Path| {
            let mut rows = BTreeSet::new();
            let extent = Damaged::at(path).read::<Numbers>(&all, |row| {
                rows.insert(row);
            });
            (rows, extent)
        };
        written(&path, 5000);
        let (rows, extent) = read(&path);
        assert_eq!((rows.len(), extent), (5000, Extent { is_whole: true, unknown: Vec::new() }));

        // Between two pages that are gone nothing is reached from either end.
        spoil(&path, &[1000, 3000]);
        let (rows, extent) = read(&path);
        let lost: Vec<String> = (0..5000).map(name).filter(|name| !rows.iter().any(|(read, _)| read == name)).collect();
        assert!(!extent.is_whole && lost.iter().all(|name| extent.unknown.contains(name)), "{lost:?}");
        // The last ones before such a page may have more on it, for all that is known.
        assert!(extent.unknown.len() <= lost.len() + 2, "{} and {}", extent.unknown.len(), lost.len());
        assert!(lost.contains(&name(1000)) && lost.contains(&name(3000)) && lost.len() < 1000, "{}", lost.len());
        assert!(rows.contains(&(name(2000), 2000)) && rows.iter().all(|(name, number)| *name == self::name(*number)));

        fs::write(&path, b"no database").unwrap();
        let (rows, extent) = read(&path);
        assert_eq!((rows.len(), extent.unknown.len()), (0, 5000));
    }
}
