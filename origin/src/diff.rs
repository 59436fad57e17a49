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

/// The largest file whose text is shown, and the text of all files of an answer.
const MAX_TEXT_BYTES: usize = 256 << 10;
const MAX_TEXTS_BYTES: usize = 1 << 20;

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
    /// The text of the file in the old tarball, if texts are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_text: Option<String>,
    /// The text of the file in the new tarball.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_text: Option<String>,
    /// Why neither text is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_text: Option<NoText>,
}

/// Why the text of a file is not shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoText {
    /// It is no text in UTF-8.
    Binary,
    /// The file is too large.
    TooLarge,
    /// The texts of the files before it fill the answer.
    AnswerFull,
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

/// Compares two tarballs, and lists at most `limit` differences and never more than [`MOST_LISTED`], with the texts of small
/// files if they are wanted. Memory use does not depend on their sizes.
pub(crate) fn diff(old: impl Read, new: impl Read, limit: usize, with_texts: bool) -> io::Result<Diff> {
    let (mut old, mut new) = (Archive::new(old), Archive::new(new));
    let (mut old, mut new) = (TarCursor::begin(old.entries()?)?, TarCursor::begin(new.entries()?)?);
    let mut diff = Diff::default();
    let limit = limit.min(MOST_LISTED);
    let mut texts = with_texts.then_some(Texts { left: MAX_TEXTS_BYTES });
    loop {
        let order = match (&old.at, &new.at) {
            (None, None) => return Ok(diff),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.path.cmp(&new.path),
        };
        let (mut was, mut is) = match order {
            Ordering::Less => (old.at.take(), None),
            Ordering::Greater => (None, new.at.take()),
            Ordering::Equal => (old.at.take(), new.at.take()),
        };
        let mut contents = [None, None];
        if texts.is_some() {
            contents = [small(was.as_mut())?, small(is.as_mut())?];
        }
        let is_same = match (&mut was, &mut is) {
            (Some(was), Some(is)) => was.info == is.info && same(was, is, &contents)?,
            _ => false,
        };
        *match (is_same, &was, &is) {
            (true, ..) => &mut diff.unchanged,
            (_, Some(_), Some(_)) => &mut diff.changed,
            (_, Some(_), None) => &mut diff.removed,
            (_, None, _) => &mut diff.added,
        } += 1;
        if !is_same && diff.differences.len() < limit {
            let mut difference = difference(was, is);
            if let Some(texts) = &mut texts {
                texts.add(&mut difference, contents);
            }
            diff.differences.push(difference);
        } else if !is_same {
            diff.not_listed += 1;
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

fn difference(was: Option<CurrentEntry<'_, impl Read>>, is: Option<CurrentEntry<'_, impl Read>>) -> Difference {
    let path = was.as_ref().map(|was| &was.path).or(is.as_ref().map(|is| &is.path));
    Difference {
        path: path.map_or_else(String::new, |path| percent_encode(path)),
        old: was.map(|was| was.info),
        new: is.map(|is| is.info),
        old_text: None,
        new_text: None,
        no_text: None,
    }
}

/// The contents of a small file. They are read.
fn small<R: Read>(entry: Option<&mut CurrentEntry<'_, R>>) -> io::Result<Option<Vec<u8>>> {
    let Some(entry) = entry else { return Ok(None) };
    if entry.info.kind != EntryKind::File || entry.info.size > MAX_TEXT_BYTES as u64 {
        return Ok(None);
    }
    let mut contents = Vec::new();
    entry.contents.read_to_end(&mut contents)?;
    Ok(Some(contents))
}

/// The texts of an answer.
struct Texts {
    /// The bytes that it may still have.
    left: usize,
}

impl Texts {
    /// Adds the texts of both files, or why there is none. A symlink has none, and its target is shown.
    fn add(&mut self, to: &mut Difference, contents: [Option<Vec<u8>>; 2]) {
        let files = [&to.old, &to.new].into_iter().flatten().filter(|entry| entry.kind == EntryKind::File).count();
        let bytes: usize = contents.iter().flatten().map(Vec::len).sum();
        let is_text = |contents: &Vec<u8>| !contents.contains(&0) && std::str::from_utf8(contents).is_ok();
        to.no_text = match contents.iter().flatten().count() {
            read if read < files => Some(NoText::TooLarge),
            _ if !contents.iter().flatten().all(is_text) => Some(NoText::Binary),
            _ if bytes > self.left => Some(NoText::AnswerFull),
            _ => None,
        };
        if to.no_text.is_none() {
            self.left -= bytes;
            let [old, new] = contents.map(|contents| String::from_utf8(contents?).ok());
            (to.old_text, to.new_text) = (old, new);
        }
    }
}

/// Whether two files are the same. `contents`: what was read of them.
fn same(
    was: &mut CurrentEntry<'_, impl Read>,
    is: &mut CurrentEntry<'_, impl Read>,
    contents: &[Option<Vec<u8>>; 2],
) -> io::Result<bool> {
    match contents {
        [Some(old), Some(new)] => Ok(old == new),
        _ => same_contents(&mut was.contents, &mut is.contents),
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
        let found = diff(&tar(&old)[..], &tar(&new)[..], 100, false).unwrap();
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
    fn texts_of_small_files_are_shown_within_a_bound() {
        let file = |contents: &[u8]| TestEntry::File(contents.to_vec(), false);
        let large = vec![b'x'; MAX_TEXT_BYTES];
        let old = of(&[("a", file(b"one\n")), ("b", file(b"same")), ("c", file(b"\xff")), ("d", file(b"gone"))]);
        let mut new = of(&[
            ("a", file(b"two\n")),
            ("b", file(b"same")),
            ("c", file(b"text")),
            ("e", TestEntry::Link("a".into())),
        ]);
        new.insert("f".to_owned(), file(&[&large[..], b"x"].concat()));
        for number in 0..5 {
            new.insert(format!("g{number}"), file(&large));
        }
        let found = diff(&tar(&old)[..], &tar(&new)[..], 100, true).unwrap();
        assert_eq!((found.unchanged, found.changed, found.removed, found.added), (1, 2, 1, 7));
        let at = |path: &str| {
            let found = found.differences.iter().find(|found| found.path == path).unwrap();
            (found.old_text.as_deref(), found.new_text.as_deref(), found.no_text)
        };
        assert_eq!(at("a"), (Some("one\n"), Some("two\n"), None));
        assert_eq!(at("c"), (None, None, Some(NoText::Binary)));
        assert_eq!(at("d"), (Some("gone"), None, None));
        assert_eq!(at("e"), (None, None, None), "a link has a target, and no text");
        assert_eq!(at("f").2, Some(NoText::TooLarge));
        let full: Vec<_> = (0..5).map(|number| at(&format!("g{number}")).2).collect();
        assert_eq!(full, [None, None, None, Some(NoText::AnswerFull), Some(NoText::AnswerFull)]);
        let without = diff(&tar(&old)[..], &tar(&new)[..], 100, false).unwrap();
        assert!(without.differences.iter().all(|found| (&found.old_text, &found.no_text) == (&None, &None)));
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
        assert!(diff(tar(), tar(), 1, false).unwrap_err().to_string().contains("was cancelled"));
    }

    #[test]
    fn entries_beyond_the_page_are_counted() {
        let many: BTreeMap<_, _> =
            (0..30).map(|number| (format!("file-{number:02}"), TestEntry::File(vec![1], false))).collect();
        let found = diff(&tar(&BTreeMap::new())[..], &tar(&many)[..], 10, false).unwrap();
        assert_eq!((found.added, found.differences.len(), found.not_listed), (30, 10, 20));
        assert_eq!(found.differences[9].path, "file-09");
        assert!(diff(&b"no tar at all, and long enough for a header".repeat(100)[..], &[][..], 1, false).is_err());
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
            let found = diff(&tar(&old)[..], &tar(&new)[..], 100, false).unwrap();
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
