//! Reads `.gitattributes`: `export-ignore`, line endings (`text`, `eol`) and `filter=lfs`.
//!
//! Git's defaults on Linux apply instead of any configuration, so that equal trees give equal bytes on every machine.
//! No program is run: filter drivers, `ident`, `export-subst` and `working-tree-encoding` are ignored.

use std::collections::HashMap;

use gix::attrs::parse::Kind;
use gix::attrs::{Assignment, Name, State, StateRef};
use gix::bstr::ByteSlice;
use gix::filter::plumbing::eol::{self, AttributesDigest};
use gix::glob::Pattern;
use weir_tarball::Matcher;

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
    /// What each attribute that is set stands for, by its id: nothing, unless it is a macro, which only the root's file defines.
    macros: Vec<Assignments>,
    ids: HashMap<String, usize>,
    /// For each entered directory: its attribute file, if it has one.
    levels: Vec<Option<Level>>,
    /// The bytes of all these files.
    bytes: u64,
}

/// Assigned states by the ids of attributes. The last one of an attribute counts.
type Assignments = Box<[(usize, State)]>;

/// The attribute file of a directory.
struct Level {
    bytes: u64,
    /// The length of the directory's path, with its slash.
    directory_bytes: usize,
    /// The rules on attributes that are known. The last one that matches counts.
    rules: Vec<(Pattern, Assignments)>,
}

impl Attributes {
    /// Git's built-in attributes only (the macro `binary`).
    pub(super) fn new() -> Self {
        let ids = NAMES.iter().enumerate().map(|(id, name)| ((*name).to_owned(), id)).collect();
        let macros = vec![Assignments::default(); NAMES.len()];
        let mut attributes = Self { macros, ids, levels: Vec::new(), bytes: 0 };
        attributes.define_macros(b"[attr]binary -diff -merge -text");
        attributes
    }

    /// Whether a file of so many bytes exceeds the limit, together with those above it.
    pub(super) fn exceed_limit_with(&self, file_bytes: u64) -> bool {
        self.bytes.saturating_add(file_bytes) > MAX_BYTES
    }

    /// Enters a directory of the tree with the contents of its `.gitattributes`, if any. `directory` has no slash at
    /// its end and is empty for the root. Only the root's file may define macros.
    pub(super) fn enter(&mut self, directory: &[u8], file: Option<&[u8]>) {
        let level = file.map(|file| {
            let contents = without_long_lines(until_nul(file));
            if directory.is_empty() {
                self.define_macros(&contents);
            }
            let rules = lines(&contents).filter_map(|(kind, assignments)| match kind {
                Kind::Pattern(pattern) => Some((pattern, self.known(&assignments)?)),
                Kind::Macro(_) => None,
            });
            let directory_bytes = directory.len() + usize::from(!directory.is_empty());
            Level { bytes: file.len() as u64, directory_bytes, rules: rules.collect() }
        });
        self.bytes += level.as_ref().map_or(0, |level| level.bytes);
        self.levels.push(level);
    }

    /// Leaves the current directory.
    pub(super) fn leave(&mut self) {
        self.bytes -= self.levels.pop().flatten().map_or(0, |level| level.bytes);
    }

    /// The attributes of a path in the current directory, relative to the root of the tree.
    pub(super) fn of(&self, path: &[u8], is_directory: bool, matcher: &mut Matcher) -> PathAttributes {
        let mut found: Vec<Option<&State>> = vec![None; self.macros.len()];
        matcher.spend(self.macros.len());
        for level in self.levels.iter().rev().flatten() {
            for (pattern, assignments) in level.rules.iter().rev() {
                if found[..NAMES.len()].iter().all(Option::is_some) {
                    break;
                }
                if matcher.matches(pattern, &path[level.directory_bytes..], is_directory) {
                    self.assign(assignments, &mut found, matcher);
                }
            }
        }
        let state = |id: usize| found[id].map_or(StateRef::Unspecified, State::as_ref);
        PathAttributes {
            export_ignore: state(0) == StateRef::Set,
            line_ends: line_ends(state(1), state(2), state(3)),
            lfs: is_value(state(4), b"lfs"),
        }
    }

    /// Takes states of attributes that have none yet, and those that macros stand for: each macro once.
    fn assign<'a>(&'a self, assignments: &'a Assignments, found: &mut [Option<&'a State>], matcher: &mut Matcher) {
        let mut stack: Vec<&(usize, State)> = assignments.iter().collect();
        while let Some((id, state)) = stack.pop() {
            matcher.spend(1);
            if found[*id].is_some() {
                continue;
            }
            found[*id] = Some(state);
            if *state == State::Set {
                stack.extend(&self.macros[*id]);
            }
        }
    }

    /// Macros may be used above their definition, and the last definition counts.
    fn define_macros(&mut self, contents: &[u8]) {
        let defined = lines(contents).filter_map(|(kind, assignments)| match kind {
            Kind::Macro(name) => Some((name.as_str().to_owned(), assignments)),
            Kind::Pattern(_) => None,
        });
        let defined: Vec<_> = defined.collect();
        for (name, _) in &defined {
            let next = self.ids.len();
            if *self.ids.entry(name.clone()).or_insert(next) == next {
                self.macros.push(Box::default());
            }
        }
        for (name, assignments) in defined {
            let id = self.ids[&name];
            self.macros[id] = self.known(&assignments).unwrap_or_default();
        }
    }

    /// The assignments of attributes that are known, if there are any.
    fn known(&self, assignments: &[Assignment]) -> Option<Assignments> {
        let id = |name: &Name| self.ids.get(name.as_str()).copied();
        let known: Vec<_> = assignments.iter().filter_map(|each| Some((id(&each.name)?, each.state.clone()))).collect();
        (!known.is_empty()).then(|| known.into())
    }
}

/// The rules and macros of a file. Lines with an error are passed over, as in Git.
fn lines(contents: &[u8]) -> impl Iterator<Item = (Kind, Vec<Assignment>)> {
    gix::attrs::parse(contents).flatten().filter_map(|(kind, assignments, _)| {
        let assignments = assignments.map(|each| each.map(|each| each.to_owned())).collect::<Result<_, _>>();
        Some((kind, assignments.ok()?))
    })
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
        let mut attributes = Attributes::new();
        attributes.enter(b"", Some(top.as_bytes()));
        attributes.enter(b"dir", below.map(str::as_bytes));
        attributes.of(path.as_bytes(), path.ends_with('/'), &mut Matcher::default())
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
        let (mut attributes, mut matcher) = (Attributes::new(), Matcher::default());
        attributes.enter(b"", None);
        attributes.enter(b"a", Some(b"* export-ignore"));
        assert!(attributes.of(b"a/x", false, &mut matcher).export_ignore);
        attributes.leave();
        attributes.enter(b"b", Some(b"*.x eol=crlf"));
        assert_eq!(attributes.of(b"b/y", false, &mut matcher), PathAttributes::default());
        assert!(attributes.of(b"b/y.x", false, &mut matcher).line_ends.is_some());
        attributes.leave();
        assert_eq!(attributes.of(b"x", false, &mut matcher), PathAttributes::default());
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
