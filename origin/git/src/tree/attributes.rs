//! Reads `.gitattributes`: `export-ignore`, line endings (`text`, `eol`) and `filter=lfs`.
//!
//! Git's defaults on Linux apply instead of any configuration, so that equal trees give equal bytes on every machine.
//! No program is run: filter drivers, `ident`, `export-subst` and `working-tree-encoding` are ignored.

use std::path::{Path, PathBuf};

use gix::attrs::search::{MetadataCollection, Outcome};
use gix::attrs::{Search, StateRef};
use gix::bstr::{BStr, ByteSlice};
use gix::filter::plumbing::eol::{self, AttributesDigest};
use gix::glob::pattern::Case;

/// The name of attribute files.
pub(super) const FILE_NAME: &[u8] = b".gitattributes";

/// The most bytes of the attribute files that apply in a directory: its own, and those above it. Parsed rules take up to
/// 74 times their size in memory, and each service of a repository parses them.
pub(super) const MAX_BYTES: u64 = 1 << 20;

/// The length from which a line is ignored, as in Git.
const MAX_LINE_BYTES: usize = 2048;

const NAMES: [&str; 5] = ["export-ignore", "text", "crlf", "eol", "filter"];

/// The attributes of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PathAttributes {
    pub(super) export_ignore: bool,
    pub(super) line_ends: Option<LineEnds>,
    pub(super) lfs: bool,
}

/// A rule that may convert LF to CRLF, depending on the contents for `text=auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineEnds(AttributesDigest);

impl LineEnds {
    /// The name of the rule in content keys.
    pub(super) fn as_str(self) -> &'static str {
        match self.0 {
            AttributesDigest::TextAutoCrlf => "text=auto eol=crlf",
            // `line_ends` makes no others.
            AttributesDigest::TextCrlf => "text eol=crlf",
            _ => "other",
        }
    }

    /// The contents with CRLF line endings, or `None` if they stay unchanged.
    pub(super) fn convert(self, contents: &[u8]) -> Result<Option<Vec<u8>>, gix::Error> {
        let mut converted = Vec::new();
        let changed = eol::convert_to_worktree(contents, self.0, &mut converted, eol::Configuration::default())?;
        Ok(changed.then_some(converted))
    }
}

/// The attribute files from the root of the tree to the current directory of a walk.
pub(super) struct Attributes {
    search: Search,
    known: MetadataCollection,
    outcome: Outcome,
    /// For each entered directory: the bytes of its attribute file, if it has one.
    levels: Vec<Option<u64>>,
    /// The sum of `levels`.
    bytes: u64,
}

impl Attributes {
    /// Git's built-in attributes only (the macro `binary`).
    pub(super) fn new() -> std::io::Result<Self> {
        let mut known = MetadataCollection::default();
        let search = Search::new_globals(std::iter::empty::<PathBuf>(), &mut Vec::new(), &mut known)?;
        let mut attributes = Self { search, known, outcome: Outcome::default(), levels: Vec::new(), bytes: 0 };
        attributes.outcome.initialize_with_selection(&attributes.known, NAMES);
        Ok(attributes)
    }

    /// Whether a file of so many bytes exceeds the limit, together with those above it.
    pub(super) fn exceed_limit_with(&self, file_bytes: u64) -> bool {
        self.bytes.saturating_add(file_bytes) > MAX_BYTES
    }

    /// Enters a directory of the tree with the contents of its `.gitattributes`, if any. `directory` has no slash at
    /// its end and is empty for the root. Only the root's file may define macros.
    pub(super) fn enter(&mut self, directory: &BStr, file: Option<&[u8]>) -> std::io::Result<()> {
        self.levels.push(file.map(|contents| contents.len() as u64));
        if let Some(contents) = file {
            let source = gix::path::from_bstr(directory).map_err(std::io::Error::other)?.join(".gitattributes");
            let contents = without_long_lines(until_nul(contents));
            self.search.add_patterns_buffer(
                &contents,
                source,
                Some(Path::new("")),
                &mut self.known,
                directory.is_empty(),
            )?;
            self.bytes += file.map_or(0, <[u8]>::len) as u64;
            self.outcome.initialize(&self.known);
        }
        Ok(())
    }

    /// Leaves the current directory.
    pub(super) fn leave(&mut self) {
        if let Some(Some(bytes)) = self.levels.pop() {
            self.search.pop_pattern_list();
            self.bytes -= bytes;
        }
    }

    /// The attributes of a path in the current directory, relative to the root of the tree.
    pub(super) fn of(&mut self, path: &[u8], is_directory: bool) -> PathAttributes {
        if self.bytes == 0 {
            return PathAttributes::default();
        }
        self.outcome.reset();
        self.search.pattern_matching_relative_path(
            path.as_bstr(),
            Case::Sensitive,
            Some(is_directory),
            &mut self.outcome,
        );
        let mut states = [StateRef::Unspecified; NAMES.len()];
        for (state, found) in states.iter_mut().zip(self.outcome.iter_selected()) {
            *state = found.assignment.state;
        }
        let [export_ignore, text, crlf, eol, filter] = states;
        PathAttributes {
            export_ignore: export_ignore == StateRef::Set,
            line_ends: line_ends(text, crlf, eol),
            lfs: is_value(filter, b"lfs"),
        }
    }
}

fn is_value(state: StateRef<'_>, expected: &[u8]) -> bool {
    matches!(state, StateRef::Value(value) if value.as_bstr() == expected)
}

/// On Linux with Git's defaults contents change only if `eol=crlf` applies to a path that is or may be text.
fn line_ends(text: StateRef<'_>, crlf: StateRef<'_>, eol: StateRef<'_>) -> Option<LineEnds> {
    if !is_value(eol, b"crlf") {
        return None;
    }
    // `crlf` is the deprecated name of `text`, and counts only where `text` has no known value.
    let kind = |state: StateRef<'_>| match state {
        StateRef::Set => Some(AttributesDigest::TextCrlf),
        StateRef::Unset => Some(AttributesDigest::Binary),
        StateRef::Value(value) if value.as_bstr() == "auto" => Some(AttributesDigest::TextAutoCrlf),
        StateRef::Value(value) if value.as_bstr() == "input" => Some(AttributesDigest::TextCrlf),
        StateRef::Value(_) | StateRef::Unspecified => None,
    };
    match kind(text).or_else(|| kind(crlf)).unwrap_or(AttributesDigest::TextCrlf) {
        AttributesDigest::Binary => None,
        digest => Some(LineEnds(digest)),
    }
}

/// Git reads the file as a C string: a NUL ends it.
fn until_nul(contents: &[u8]) -> &[u8] {
    contents.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn without_long_lines(contents: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    let is_long = |line: &[u8]| line.trim_end_with(|c| c == '\n').len() >= MAX_LINE_BYTES;
    if contents.lines_with_terminator().any(is_long) {
        contents.lines_with_terminator().filter(|line| !is_long(line)).collect::<Vec<_>>().concat().into()
    } else {
        contents.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(top: &str, below: Option<&str>, path: &str) -> PathAttributes {
        let mut attributes = Attributes::new().unwrap();
        attributes.enter("".into(), Some(top.as_bytes())).unwrap();
        attributes.enter("dir".into(), below.map(str::as_bytes)).unwrap();
        attributes.of(path.as_bytes(), path.ends_with('/'))
    }

    #[test]
    fn the_nearest_file_wins() {
        assert!(at("*.md export-ignore", None, "dir/a.md").export_ignore);
        assert!(!at("*.md export-ignore", Some("*.md -export-ignore"), "dir/a.md").export_ignore);
        assert!(!at("*.md export-ignore", Some("a.md !export-ignore"), "dir/a.md").export_ignore);
        assert!(at("", Some("/a.md export-ignore"), "dir/a.md").export_ignore);
        assert!(!at("/a.md export-ignore", None, "dir/a.md").export_ignore);
    }

    #[test]
    fn attributes_of_a_directory_end_with_it() {
        let mut attributes = Attributes::new().unwrap();
        attributes.enter("".into(), None).unwrap();
        attributes.enter("a".into(), Some(b"* export-ignore")).unwrap();
        assert!(attributes.of(b"a/x", false).export_ignore);
        attributes.leave();
        attributes.enter("b".into(), Some(b"*.x eol=crlf")).unwrap();
        assert_eq!(attributes.of(b"b/y", false), PathAttributes::default());
        assert!(attributes.of(b"b/y.x", false).line_ends.is_some());
        attributes.leave();
        assert_eq!(attributes.of(b"x", false), PathAttributes::default());
    }

    #[test]
    fn macros_are_built_in_or_defined_at_the_root() {
        assert!(at("* eol=crlf\n*.png binary", None, "dir/a.png").line_ends.is_none());
        assert!(at("[attr]hidden export-ignore\n*.x hidden", None, "dir/a.x").export_ignore);
        assert!(!at("", Some("[attr]hidden export-ignore\n*.x hidden"), "dir/a.x").export_ignore);
        assert!(at("[attr]hidden export-ignore", Some("*.x hidden"), "dir/a.x").export_ignore);
    }

    #[test]
    fn line_ends_change_only_with_eol_crlf() {
        let convert = |rule: &str, contents: &[u8]| {
            at(rule, None, "dir/f").line_ends.and_then(|rule| rule.convert(contents).unwrap())
        };
        for rule in ["* text", "* text=auto", "* eol=lf", "* text eol=lf", "* -text eol=crlf", "* binary", "* crlf"] {
            assert_eq!(convert(rule, b"a\nb\n"), None, "{rule}");
        }
        for rule in ["* eol=crlf", "* text eol=crlf", "* text=auto eol=crlf", "* crlf eol=crlf", "* text=odd eol=crlf"]
        {
            assert_eq!(convert(rule, b"a\nb\n").as_deref(), Some(&b"a\r\nb\r\n"[..]), "{rule}");
        }
        assert_eq!(convert("* text=auto eol=crlf", b"a\n\0"), None, "binary");
        assert_eq!(convert("* text=auto eol=crlf", b"a\r\nb\n"), None, "mixed");
        assert_eq!(convert("* text eol=crlf", b"a\r\nb\n").as_deref(), Some(&b"a\r\nb\r\n"[..]));
    }

    #[test]
    fn overlong_lines_are_ignored() {
        let long = format!("{} export-ignore\n*.y export-ignore\n", "x".repeat(3000));
        assert!(at(&long, None, "dir/a.y").export_ignore);
        assert!(!at(&format!("*.y export-ignore{}", " ".repeat(3000)), None, "dir/a.y").export_ignore);
    }

    #[test]
    fn filter_lfs_marks_lfs_files() {
        assert!(at("*.bin filter=lfs diff=lfs merge=lfs -text", None, "dir/a.bin").lfs);
        assert!(!at("*.bin filter=other", None, "dir/a.bin").lfs);
    }
}
