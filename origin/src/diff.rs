//! Compares two tarballs.
//!
//! Both are read once, in parallel, because their entries are sorted by path. Directories are not listed: they exist
//! only for the entries below them.

use std::cmp::Ordering;
use std::io::{self, Read};

use serde::Serialize;
use tar::{Archive, Entries, EntryType};
use tokio_util::sync::CancellationToken;
use weir_protocol::entry_path::percent_encode;

/// The most listed differences; further ones are counted.
pub(crate) const MOST_LISTED: usize = 1000;

const COMPARED_BYTES: usize = 64 << 10;

/// The differences between two tarballs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Paths only in the new tarball.
    pub added: u64,
    /// Paths only in the old tarball.
    pub removed: u64,
    /// Paths in both with different content, kind or mode.
    pub changed: u64,
    /// Paths that are equal in both.
    pub unchanged: u64,
    /// The first differences, sorted by path.
    pub differences: Vec<Difference>,
    /// The number of further differences.
    pub not_listed: u64,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Percent-encoded where it is not UTF-8; `%` is encoded too.
    pub path: String,
    /// The entry in the old tarball.
    pub old: Option<EntryInfo>,
    /// The entry in the new tarball.
    pub new: Option<EntryInfo>,
}

/// An entry of a tarball.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EntryInfo {
    /// Its kind.
    pub kind: EntryKind,
    /// Octal, such as `0644`.
    pub mode: String,
    /// Bytes.
    pub size: u64,
    /// The target of a symlink, percent-encoded like a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A file; `mode` shows whether it is executable.
    File,
    /// A symlink.
    Symlink,
    /// A kind outside tarball format 1.
    Other,
}

/// A reader that fails once `stop` is cancelled.
pub(crate) struct Cancellable<R> {
    bytes: R,
    stop: CancellationToken,
}

impl<R> Cancellable<R> {
    pub(crate) fn new(bytes: R, stop: CancellationToken) -> Self {
        Self { bytes, stop }
    }
}

impl<R: Read> Read for Cancellable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_cancelled() {
            return Err(io::Error::other("the comparison was cancelled"));
        }
        self.bytes.read(buffer)
    }
}

/// Compares two tarballs, and lists at most `limit` differences and never more than [`MOST_LISTED`]. Memory use does
/// not depend on their sizes.
pub(crate) fn diff(old: impl Read, new: impl Read, limit: usize) -> io::Result<Diff> {
    let (mut old, mut new) = (Archive::new(old), Archive::new(new));
    let (mut old, mut new) = (TarCursor::begin(old.entries()?)?, TarCursor::begin(new.entries()?)?);
    let mut diff = Diff::default();
    let limit = limit.min(MOST_LISTED);
    loop {
        let order = match (&old.at, &new.at) {
            (None, None) => return Ok(diff),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.path.cmp(&new.path),
        };
        let (was, is) = match order {
            Ordering::Less => (old.at.take(), None),
            Ordering::Greater => (None, new.at.take()),
            Ordering::Equal => (old.at.take(), new.at.take()),
        };
        let difference = match (was, is) {
            (Some(mut was), Some(mut is)) => {
                if was.info == is.info && same_contents(&mut was.contents, &mut is.contents)? {
                    diff.unchanged += 1;
                    None
                } else {
                    diff.changed += 1;
                    Some((was.path, Some(was.info), Some(is.info)))
                }
            }
            (Some(was), None) => {
                diff.removed += 1;
                Some((was.path, Some(was.info), None))
            }
            (None, Some(is)) => {
                diff.added += 1;
                Some((is.path, None, Some(is.info)))
            }
            (None, None) => None,
        };
        match difference {
            Some((path, old, new)) if diff.differences.len() < limit => {
                diff.differences.push(Difference { path: percent_encode(&path), old, new });
            }
            Some(_) => diff.not_listed += 1,
            None => {}
        }
        if order.is_le() {
            old.advance()?;
        }
        if order.is_ge() {
            new.advance()?;
        }
    }
}

/// One of the two tarballs, and its current entry.
struct TarCursor<'a, R: Read> {
    entries: Entries<'a, R>,
    at: Option<CurrentEntry<'a, R>>,
}

struct CurrentEntry<'a, R: Read> {
    path: Vec<u8>,
    info: EntryInfo,
    contents: tar::Entry<'a, R>,
}

impl<'a, R: Read> TarCursor<'a, R> {
    fn begin(entries: Entries<'a, R>) -> io::Result<Self> {
        let mut side = Self { entries, at: None };
        side.advance()?;
        Ok(side)
    }

    fn advance(&mut self) -> io::Result<()> {
        self.at = None;
        for entry in self.entries.by_ref() {
            let entry = entry?;
            let kind = match entry.header().entry_type() {
                EntryType::Directory => continue,
                EntryType::Regular => EntryKind::File,
                EntryType::Symlink => EntryKind::Symlink,
                _ => EntryKind::Other,
            };
            let info = EntryInfo {
                kind,
                mode: format!("{:04o}", entry.header().mode()? & 0o7777),
                size: entry.size(),
                target: entry.link_name_bytes().map(|target| percent_encode(&target)),
            };
            self.at = Some(CurrentEntry { path: entry.path_bytes().into_owned(), info, contents: entry });
            return Ok(());
        }
        Ok(())
    }
}

fn same_contents(one: &mut impl Read, other: &mut impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    loop {
        let (read, as_much) = (fill(one, &mut left)?, fill(other, &mut right)?);
        if left[..read] != right[..as_much] {
            return Ok(false);
        }
        if read < COMPARED_BYTES {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone, PartialEq)]
    enum TestEntry {
        File(Vec<u8>, bool),
        Link(String),
    }

    fn tar(things: &BTreeMap<String, TestEntry>) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, thing) in things {
            let mut header = tar::Header::new_ustar();
            header.set_mtime(0);
            match thing {
                TestEntry::File(contents, executable) => {
                    header.set_mode(if *executable { 0o755 } else { 0o644 });
                    header.set_size(contents.len() as u64);
                    tar.append_data(&mut header, path, contents.as_slice()).unwrap();
                }
                TestEntry::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target).unwrap();
                }
            }
        }
        tar.into_inner().unwrap()
    }

    fn of(things: &[(&str, TestEntry)]) -> BTreeMap<String, TestEntry> {
        things.iter().map(|(path, thing)| ((*path).to_owned(), thing.clone())).collect()
    }

    #[test]
    fn added_removed_and_changed_entries_are_listed() {
        let file = |contents: &str| TestEntry::File(contents.into(), false);
        let old = of(&[
            ("a", file("same")),
            ("b", file("short")),
            ("c", file("123")),
            ("d", file("x")),
            ("e", file("went")),
            ("f", TestEntry::Link("a".into())),
            ("g", file("becomes a link")),
        ]);
        let new = of(&[
            ("a", file("same")),
            ("b", file("longer")),
            ("c", file("124")),
            ("d", TestEntry::File("x".into(), true)),
            ("e-", file("came")),
            ("f", TestEntry::Link("b".into())),
            ("g", TestEntry::Link("a".into())),
        ]);
        let found = diff(&tar(&old)[..], &tar(&new)[..], 100).unwrap();
        assert_eq!((found.added, found.removed, found.changed, found.unchanged, found.not_listed), (1, 1, 5, 1, 0));
        let at = |path: &str| found.differences.iter().find(|found| found.path == path).unwrap();
        let info = |kind, mode: &str, size, target: Option<&str>| {
            Some(EntryInfo { kind, mode: mode.into(), size, target: target.map(str::to_owned) })
        };
        assert_eq!(at("b").old, info(EntryKind::File, "0644", 5, None));
        assert_eq!(at("b").new, info(EntryKind::File, "0644", 6, None));
        assert_eq!(at("c").old, at("c").new, "only the bytes differ");
        assert_eq!(at("d").new, info(EntryKind::File, "0755", 1, None));
        assert_eq!((&at("e").new, &at("e-").old), (&None, &None));
        assert_eq!(at("f").new, info(EntryKind::Symlink, "0777", 0, Some("b")));
        assert_eq!(at("g").new, info(EntryKind::Symlink, "0777", 0, Some("a")));
    }

    #[test]
    fn a_dropped_diff_stops() {
        /// A tarball of one endless file, whose comparison is cancelled midway.
        struct Endless(CancellationToken, u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.1 += buffer.len() as u64;
                if self.1 > 1 << 20 {
                    self.0.cancel();
                }
                buffer.fill(0);
                Ok(buffer.len())
            }
        }
        let mut header = tar::Header::new_ustar();
        header.set_path("zeros").unwrap();
        header.set_mode(0o644);
        header.set_size(1 << 40);
        header.set_cksum();
        let stop = CancellationToken::new();
        let tar = || Cancellable::new(header.as_bytes().chain(Endless(stop.clone(), 0)), stop.clone());
        assert!(diff(tar(), tar(), 1).unwrap_err().to_string().contains("was cancelled"));
    }

    #[test]
    fn entries_beyond_the_page_are_counted() {
        let many: BTreeMap<_, _> =
            (0..30).map(|number| (format!("file-{number:02}"), TestEntry::File(vec![1], false))).collect();
        let found = diff(&tar(&BTreeMap::new())[..], &tar(&many)[..], 10).unwrap();
        assert_eq!((found.added, found.differences.len(), found.not_listed), (30, 10, 20));
        assert_eq!(found.differences[9].path, "file-09");
        assert!(diff(&b"no tar at all, and long enough for a header".repeat(100)[..], &[][..], 1).is_err());
    }

    proptest! {
        #[test]
        fn a_diff_equals_the_comparison_of_two_maps(
            old in proptest::collection::btree_map("[ab./]{0,3}[ab-]", thing(), 0..12),
            new in proptest::collection::btree_map("[ab./]{0,3}[ab-]", thing(), 0..12),
        ) {
            let clean = |things: BTreeMap<String, TestEntry>| -> BTreeMap<String, TestEntry> {
                things.into_iter().filter(|(path, _)| !path.split('/').any(|part| matches!(part, "" | "." | ".."))).collect()
            };
            let (old, new) = (clean(old), clean(new));
            let found = diff(&tar(&old)[..], &tar(&new)[..], 100).unwrap();
            let paths: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
            let differing: Vec<_> = paths.iter().filter(|path| old.get(**path) != new.get(**path)).map(|path| path.as_str()).collect();
            prop_assert_eq!(found.differences.iter().map(|found| found.path.as_str()).collect::<Vec<_>>(), differing);
            prop_assert_eq!(found.unchanged as usize, paths.len() - found.differences.len());
        }
    }

    fn thing() -> impl Strategy<Value = TestEntry> {
        prop_oneof![
            (proptest::collection::vec(0u8..2, 0..3), any::<bool>())
                .prop_map(|(contents, x)| TestEntry::File(contents, x)),
            "[ab]".prop_map(TestEntry::Link),
        ]
    }
}
