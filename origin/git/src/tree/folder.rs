//! Finds the tree of a folder in a commit, with the attributes that apply from above it.

use std::cmp::Ordering;

use gix::bstr::BString;
use gix::objs::tree::{EntryKind, EntryMode, EntryRef};
use gix::prelude::FindExt;
use gix::{ObjectId, Repository};
use weir_protocol::commit_id::CommitId;
use weir_protocol::entry_path;
use weir_tarball::{FolderPath, Matcher, TarballError};

use super::attributes::{Attributes, FILE_NAME, MAX_BYTES};
use crate::commit::Commit;

/// The most steps of matching the folder's own path: a second of one processor.
const MAX_MATCH_STEPS: u64 = 50_000_000;

/// A folder of a commit.
pub(super) struct Folder {
    /// The folder's tree.
    pub(super) tree: ObjectId,
    /// The attributes from above the folder, without its own `.gitattributes`.
    pub(super) attributes: Attributes,
    /// The paths and ids of the attribute files above the folder, from the root down. With `tree` they determine its
    /// contents.
    pub(super) attribute_files: Vec<(String, ObjectId)>,
    /// Whether `export-ignore` excludes the folder or a parent.
    pub(super) export_ignored: bool,
}

/// One entry of a tree.
pub(super) struct TreeEntry {
    pub(super) name: BString,
    pub(super) mode: EntryMode,
    pub(super) id: ObjectId,
}

/// Finds a folder. Reads one tree per component of its path.
pub(super) fn find(repo: &Repository, commit: &CommitId, path: &FolderPath) -> Result<Folder, TarballError> {
    let id = ObjectId::from_hex(commit.as_str().as_bytes()).map_err(|e| TarballError::object(commit, e))?;
    let tree = Commit::read(&repo.objects, id).map_err(|e| TarballError::object(id, e))?.tree;
    let mut folder = Folder { tree, attributes: Attributes::new(), attribute_files: Vec::new(), export_ignored: false };
    let (mut above, mut matcher) = (String::new(), Matcher::with_steps(MAX_MATCH_STEPS));
    for name in path.components() {
        // Large trees above the folder take no memory for their other entries.
        let entries = read_tree(repo, folder.tree, above.as_bytes(), |entry| {
            Ok(entry.filename == name || entry.filename == FILE_NAME)
        })?;
        enter(repo, &mut folder, &above, &entries, &mut matcher)?;
        if !above.is_empty() {
            above.push('/');
        }
        above.push_str(name);
        let entry = entries.iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| TarballError::FolderMissing(path.to_string()))?;
        let kind = match entry.mode.kind() {
            EntryKind::Tree => None,
            EntryKind::Blob | EntryKind::BlobExecutable => Some("file"),
            EntryKind::Link => Some("symlink"),
            EntryKind::Commit => Some("submodule"),
        };
        if let Some(kind) = kind {
            return Err(TarballError::NotAFolder(above, kind));
        }
        folder.export_ignored |= folder.attributes.of(above.as_bytes(), true, &mut matcher).export_ignore;
        if matcher.is_exhausted() {
            return Err(TarballError::PatternsTooSlow { limit: MAX_MATCH_STEPS });
        }
        folder.tree = entry.id;
    }
    Ok(folder)
}

fn enter(
    repo: &Repository,
    folder: &mut Folder,
    path: &str,
    entries: &[TreeEntry],
    matcher: &mut Matcher,
) -> Result<(), TarballError> {
    if let Some(id) = enter_attributes(repo, &mut folder.attributes, path.as_bytes(), entries, matcher)? {
        folder.attribute_files.push((path.to_owned(), id));
    }
    Ok(())
}

/// Enters a directory, and returns the id of its attribute file, if any.
pub(super) fn enter_attributes(
    repo: &Repository,
    attributes: &mut Attributes,
    path: &[u8],
    entries: &[TreeEntry],
    matcher: &mut Matcher,
) -> Result<Option<ObjectId>, TarballError> {
    // A symlink of that name is not followed, as in Git.
    let file = entries.iter().find(|entry| entry.name == FILE_NAME && entry.mode.is_blob());
    let mut contents = None;
    if let Some(entry) = file {
        let size = blob_size(repo, entry.id)?;
        if attributes.exceed_limit_with(size) {
            let above = entry_path::percent_encode(path);
            let path = if above.is_empty() { ".gitattributes".to_owned() } else { format!("{above}/.gitattributes") };
            return Err(TarballError::AttributesTooLarge { path, size, limit: MAX_BYTES });
        }
        // One file may be that of many directories.
        matcher.spend(usize::try_from(size).unwrap_or(usize::MAX));
        if !matcher.is_exhausted() {
            let mut buffer = Vec::new();
            read_blob(repo, entry.id, &mut buffer)?;
            contents = Some(buffer);
        }
    }
    attributes.enter(path, contents.as_deref());
    Ok(file.map(|entry| entry.id))
}

/// Reads the entries of a tree that `select` returns true for. It is called for each entry before the next one is read, and
/// may fail. `path` is that of the tree, for errors. Checks what the order of a tarball relies on: Git's order and unique names.
pub(super) fn read_tree(
    repo: &Repository,
    id: ObjectId,
    path: &[u8],
    mut select: impl FnMut(&EntryRef<'_>) -> Result<bool, TarballError>,
) -> Result<Vec<TreeEntry>, TarballError> {
    let mut buffer = Vec::new();
    let tree = repo.objects.find_tree_iter(&id, &mut buffer).map_err(|e| TarballError::object(id, e))?;
    let mut entries = Vec::new();
    for entry in tree {
        let entry = entry.map_err(|e| TarballError::malformed(id, e))?;
        if select(&entry)? {
            entries.push(TreeEntry { name: entry.filename.to_owned(), mode: entry.mode, id: entry.oid.to_owned() });
        }
    }
    let order = |a: &TreeEntry, name: &[u8], is_tree: bool| {
        gix::objs::tree::name_order(&a.name, a.mode.is_tree(), name, is_tree)
    };
    let wrong = |entry: &TreeEntry, what: &str| {
        let slash: &[u8] = if path.is_empty() || path.ends_with(b"/") { b"" } else { b"/" };
        let shown = entry_path::percent_encode(&[path, slash, &entry.name].concat());
        TarballError::malformed(id, format_args!("the tree has `{shown}` {what}"))
    };
    for pair in entries.windows(2) {
        match order(&pair[0], &pair[1].name, pair[1].mode.is_tree()) {
            Ordering::Less => {}
            Ordering::Equal => return Err(wrong(&pair[1], "twice")),
            Ordering::Greater => return Err(wrong(&pair[1], "out of order")),
        }
    }
    // A file and a directory of one name need not be adjacent.
    let twice = |entry: &&TreeEntry| {
        entry.mode.is_tree() && entries.binary_search_by(|other| order(other, &entry.name, false)).is_ok()
    };
    match entries.iter().find(twice) {
        Some(entry) => Err(wrong(entry, "twice")),
        None => Ok(entries),
    }
}

/// The size of a blob in bytes, from its header.
pub(super) fn blob_size(repo: &Repository, id: ObjectId) -> Result<u64, TarballError> {
    let header = repo.find_header(id).map_err(|e| TarballError::object(id, e))?;
    if header.kind() == gix::object::Kind::Blob {
        Ok(header.size())
    } else {
        Err(TarballError::malformed(id, format_args!("a blob was expected, but it is a {}", header.kind())))
    }
}

/// Decodes a blob into `buffer`, whose former contents are lost.
pub(super) fn read_blob(repo: &Repository, id: ObjectId, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
    let blob = repo.objects.find_blob(&id, buffer).map_err(|e| TarballError::object(id, e))?;
    let (start, length) = (blob.data.as_ptr() as usize, blob.data.len());
    // gix may leave more than the object in the buffer, and leaves it unchanged for an empty object.
    let offset = start.wrapping_sub(buffer.as_ptr() as usize);
    match offset.checked_add(length) {
        _ if length == 0 => buffer.clear(),
        Some(end) if end <= buffer.len() => {
            buffer.truncate(end);
            buffer.drain(..offset);
        }
        _ => return Err(TarballError::object(id, "gix decoded it outside of the buffer")),
    }
    Ok(())
}
