//! For the fuzzer in `loadtest/fuzz`: archives of anybody.

use std::sync::atomic::AtomicBool;

use weir_protocol::entry_path::is_safe_component;

use super::bounds::{Bounds, MAX_PATH_BYTES};
use super::index::{EntryKind, Index};
use super::layout::Layout;
use super::unpack::unpack;

/// An archive after a byte that says how it becomes a folder: what is accepted is within its bounds, and no path leads
/// out.
pub fn fuzz_archive(bytes: &[u8]) {
    let Some((layout, archive)) = bytes.split_first() else { return };
    let layout = if layout % 2 == 0 { Layout::StripTop } else { Layout::AsIs };
    let bounds = Bounds {
        max_archive: 16_000,
        max_archive_key: "max_chart",
        max_unpacked: 1 << 20,
        max_file: 1 << 16,
        max_spools: 0,
    };
    let mut contents = Vec::new();
    let unpacked = unpack(archive, &layout, &bounds, &AtomicBool::new(false), &mut contents);
    assert!(contents.len() as u64 <= bounds.max_unpacked, "no more is written than is read");
    let Ok(index) = unpacked else { return };
    assert!(archive.len() <= 16_000);
    assert!(Index::decode(&index.encode()).as_ref() == Some(&index), "what is written is read back");
    let mut before: &[u8] = b"";
    for (path, kind) in index.below(b"") {
        assert!(path > before && path.len() <= MAX_PATH_BYTES + 1, "the entries are in order, and each is there once");
        before = path;
        let (names, is_directory) = path.strip_suffix(b"/").map_or((path, false), |names| (names, true));
        assert_eq!(is_directory, *kind == EntryKind::Directory);
        // A walk leaves other unsafe names out and lists them.
        let stays_inside = |name: &[u8]| is_safe_component(name) || !matches!(name, b"" | b"." | b"..");
        assert!(names.split(|byte| *byte == b'/').all(stays_inside), "no path leads out");
        for (at, _) in names.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            assert!(index.get(&names[..at]).is_none(), "nothing is below a file or a link");
            assert!(index.get(&names[..=at]) == Some(&EntryKind::Directory), "each directory is there");
        }
        if let EntryKind::File { file, .. } = kind {
            assert!(file.size <= bounds.max_file);
            let bytes = &contents[file.offset as usize..][..file.size as usize];
            assert!(*blake3::hash(bytes).as_bytes() == file.digest, "the contents are those of the file");
        }
    }
}
