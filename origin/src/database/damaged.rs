//! Reading what can be read of a damaged database.
//!
//! redb opens a database only when it can read what it writes with, looks at no checksum while it reads, and takes a page
//! that contradicts it for a fault in the program. So the pages are read without it: a bad page costs what stands on it, or
//! below it, and nothing else. A row on a page whose checksum is right is as it was written; whether another one is right
//! is for whoever asked to find out.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use redb::{Key, TableDefinition, TableHandle, Value};

use super::pages::{Holds, Link, Page, Pages, ROOT, Widths};

/// Trees are not higher: a page that is said to be further down is above itself.
const HIGHEST_TREE: usize = 32;

/// Tables are named in a tree of their own, in which neither names nor definitions are all of one length.
const TABLES: Widths = Widths { key: None, value: None };

/// Where a definition has the root of its table. Before it stand a kind, the number of rows, and whether there is a root.
const ROOT_AT: usize = 10;

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

    /// The first and the last key that a service may have.
    fn keys(service: &str) -> [Vec<u8>; 2];
}

/// How much of a table was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Every row, as it was written.
    pub(crate) is_whole: bool,
    /// What was read is what was there before the last commit: where to find what is there since cannot be read.
    pub(crate) is_older: bool,
    /// The services of which there may be rows, or more rows, that cannot be read.
    pub(crate) unknown: Vec<String>,
}

/// A damaged database. Nothing of it changes.
#[derive(Debug)]
pub(crate) struct Damaged {
    /// `None`: it cannot be read at all.
    pages: Option<Pages>,
}

impl Damaged {
    pub(crate) fn at(path: &Path) -> Self {
        Self { pages: Pages::open(path).ok() }
    }

    /// Reads what can be read of a table, and says of each row whether it is as it was written. Of `services` it is found
    /// out which of them may have rows that cannot be read.
    pub(crate) fn read<T: Rows>(&self, services: &BTreeSet<String>, mut take: impl FnMut(T::Row, bool)) -> Extent {
        let widths = Widths { key: T::Key::fixed_width(), value: T::Value::fixed_width() };
        let found = self.pages.as_ref().and_then(|pages| Some((pages, table(pages, T::TABLE.name(), widths)?)));
        let Some((pages, (root, is_older))) = found else {
            return Extent { unknown: services.iter().cloned().collect(), ..Extent::default() };
        };
        let mut read = |key: &[u8], value: &[u8], is_sound| {
            // Bytes of something else are a fault.
            let row = quietly(|| T::row(T::Key::from_bytes(key), T::Value::from_bytes(value)));
            let is_read = row.is_some();
            row.into_iter().for_each(|row| take(row, is_sound && !is_older));
            is_read
        };
        let lost = root.map_or(Vec::new(), |root| walk(pages, root, widths, &mut read));
        let may_be_lost = |service: &&String| {
            let [first, last] = T::keys(service);
            is_older || lost.iter().any(|span: &Span| span.touches::<T::Key>(&first, &last))
        };
        Extent {
            is_whole: lost.is_empty() && !is_older,
            is_older,
            unknown: services.iter().filter(may_be_lost).cloned().collect(),
        }
    }
}

/// Where the tree of a table begins, if it has any row, and whether only that of the commit before the last one can be read.
fn table(pages: &Pages, name: &str, widths: Widths) -> Option<(Option<Link>, bool)> {
    pages.commits().into_iter().enumerate().find_map(|(place, tables)| {
        let mut found = None;
        let lost = walk(pages, tables?, TABLES, &mut |key, definition, is_sound| {
            let is_it = key == name.as_bytes() && definition.len() >= ROOT_AT + ROOT;
            let has_root = is_it && definition[ROOT_AT - 1] != 0;
            if has_root {
                found = Some(Link::parse(&definition[ROOT_AT..]));
            } else if is_it && is_sound {
                found = Some(None);
            }
            true
        });
        let root = if lost.is_empty() { found.or(Some(None)) } else { found };
        let can_be_read = |root: &Option<Link>| root.is_none_or(|root| pages.page(&root, widths).is_some());
        root.filter(can_be_read).map(|root| (root, place > 0))
    })
}

/// Keys whose rows may be lost: those after the first one, up to the second one.
#[derive(Debug)]
struct Span(Option<Vec<u8>>, Option<Vec<u8>>);

impl Span {
    fn touches<K: Key>(&self, first: &[u8], last: &[u8]) -> bool {
        // A key of a damaged page may be none.
        let compare = |key: &[u8], other: &Option<Vec<u8>>, otherwise| {
            other.as_ref().map_or(Some(otherwise), |other| quietly(|| K::compare(key, other)))
        };
        compare(last, &self.0, Ordering::Greater).is_none_or(Ordering::is_gt)
            && compare(first, &self.1, Ordering::Less).is_none_or(Ordering::is_le)
    }
}

/// Takes a key, a value, and whether they are as they were written; says whether they can be read.
type Take<'a> = dyn FnMut(&[u8], &[u8], bool) -> bool + 'a;

/// Takes the pairs of a tree, and says what may be lost of it.
fn walk(pages: &Pages, root: Link, widths: Widths, take: &mut Take<'_>) -> Vec<Span> {
    let (mut lost, mut seen) = (Vec::new(), HashSet::new());
    let mut to_read = vec![(root, Span(None, None), 0)];
    while let Some((link, span, depth)) = to_read.pop() {
        // A number that was read wrongly may lead anywhere, and to the same page over and over.
        let page = if depth < HIGHEST_TREE && seen.insert(link.number()) { pages.page(&link, widths) } else { None };
        let Some(page) = page else {
            lost.push(span);
            continue;
        };
        let is_read = match &page.holds {
            Holds::Pairs(pairs) => pairs
                .iter()
                .fold(true, |is_read, (key, value)| take(page.bytes(key), page.bytes(value), page.is_sound) && is_read),
            Holds::Children(children) => {
                to_read.extend(below(&page, children, &span).map(|(link, span)| (link, span, depth + 1)));
                true
            }
        };
        if !(page.is_sound && is_read) {
            lost.push(span);
        }
    }
    lost
}

/// The children of a page, each with the keys that may be on it.
fn below<'p>(
    page: &'p Page,
    children: &'p [(Link, Option<std::ops::Range<usize>>)],
    span: &Span,
) -> impl Iterator<Item = (Link, Span)> {
    let mut before = span.0.clone();
    let last = span.1.clone();
    children.iter().map(move |(link, key)| {
        let key = key.as_ref().map(|key| page.bytes(key).to_vec()).or_else(|| last.clone());
        (*link, Span(std::mem::replace(&mut before, key.clone()), key))
    })
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
    use redb::{Database, ReadableTable};
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

        fn keys(name: &str) -> [Vec<u8>; 2] {
            [name.into(), name.into()]
        }
    }

    fn name(number: u64) -> String {
        format!("name-{number:05}")
    }

    /// Writes rows as the databases are written.
    fn write(database: &Database, numbers: std::ops::Range<u64>) {
        let mut transaction = database.begin_write().unwrap();
        transaction.set_quick_repair(true);
        let mut table = transaction.open_table(NUMBERS).unwrap();
        for number in numbers {
            table.insert(name(number).as_str(), number).unwrap();
        }
        assert!(table.first().unwrap().is_some());
        drop(table);
        transaction.commit().unwrap();
    }

    fn written(path: &Path, rows: u64) {
        write(&Database::create(path).unwrap(), 0..rows);
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

    fn read(path: &Path, rows: u64) -> (BTreeSet<(String, u64)>, Extent) {
        let mut read = BTreeSet::new();
        let extent = Damaged::at(path).read::<Numbers>(&(0..rows).map(name).collect(), |row, is_sound| {
            if is_sound {
                read.insert(row);
            }
        });
        (read, extent)
    }

    #[test]
    fn what_stands_on_other_pages_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.redb");
        written(&path, 5000);
        let (rows, extent) = read(&path, 5000);
        assert_eq!((rows.len(), extent), (5000, Extent { is_whole: true, ..Extent::default() }));

        spoil(&path, &[1000, 3000]);
        let (rows, extent) = read(&path, 5000);
        let lost: Vec<String> = (0..5000).map(name).filter(|name| !rows.iter().any(|(read, _)| read == name)).collect();
        assert!(!extent.is_whole && extent.unknown == lost, "{lost:?} {extent:?}");
        assert!(lost.contains(&name(1000)) && lost.contains(&name(3000)) && lost.len() < 1000, "{}", lost.len());
        assert!(rows.contains(&(name(2000), 2000)) && rows.iter().all(|(name, number)| *name == self::name(*number)));

        fs::write(&path, b"no database").unwrap();
        let (rows, extent) = read(&path, 5000);
        assert_eq!((rows.len(), extent.unknown.len()), (0, 5000));
    }

    /// Takes one page after the other away, but the header, and says of each which rows are lost.
    fn each_page_lost(path: &Path, rows: u64) -> Vec<(BTreeSet<(String, u64)>, Extent)> {
        let whole = fs::read(path).unwrap();
        let lost = (1..whole.len() / 4096).map(|page| {
            let mut damaged = whole.clone();
            damaged[4096 * page..4096 * (page + 1)].fill(0xff);
            fs::write(path, damaged).unwrap();
            read(path, rows)
        });
        let lost = lost.collect();
        fs::write(path, whole).unwrap();
        lost
    }

    #[test]
    fn a_page_that_holds_no_row_costs_no_row_however_the_database_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let (closed, killed) = (dir.path().join("closed.redb"), dir.path().join("killed.redb"));
        let database = Database::create(&closed).unwrap();
        write(&database, 0..400);
        write(&database, 400..600);
        // What the file is like while a process has it open.
        fs::copy(&closed, &killed).unwrap();
        drop(database);
        for (path, was_killed) in [(closed, false), (killed, true)] {
            let (rows, extent) = read(&path, 600);
            assert_eq!((rows.len(), extent.is_whole), (600, true), "{path:?}");
            let mut costly = 0;
            for (page, (rows, extent)) in each_page_lost(&path, 600).into_iter().enumerate() {
                assert_eq!(extent.is_whole, rows.len() == 600, "{page}: {extent:?}");
                let read: BTreeSet<String> = rows.into_iter().map(|(name, _)| name).collect();
                assert!((0..600).map(name).all(|name| read.contains(&name) || extent.unknown.contains(&name)));
                // The page that names the tables, and the one that the table begins with. To close it is a write as well,
                // which changed neither.
                if read.len() < 300 {
                    assert_eq!(extent.is_older, was_killed);
                    costly += 1;
                }
            }
            assert_eq!(costly, 2);
        }
    }

    #[test]
    fn whatever_bit_flips_no_row_that_is_said_to_be_as_it_was_written_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.redb");
        written(&path, 300);
        let whole = fs::read(&path).unwrap();
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1;
        for flip in 0..2000 {
            let mut damaged = whole.clone();
            damaged[flip * 7919 % used] ^= 1 << (flip % 8);
            fs::write(&path, damaged).unwrap();
            let (rows, extent) = read(&path, 300);
            assert!(rows.iter().all(|(name, number)| *name == self::name(*number)), "{flip}");
            assert!(rows.len() == 300 || !extent.is_whole, "{flip}: {}", rows.len());
        }
    }
}
