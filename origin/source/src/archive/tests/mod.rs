//! Archives of anybody, made byte by byte or by the tar library.

mod bounds;
mod leniency;
mod refusals;
mod spools;
mod trees;

use std::io::Write;
use std::sync::atomic::AtomicBool;

use super::bounds::Bounds;
use super::error::ArchiveError;
use super::index::{EntryKind, Index};
use super::layout::Layout;
use super::unpack::unpack;

static RUN: AtomicBool = AtomicBool::new(false);

const BOUNDS: Bounds = Bounds {
    max_archive: 10 << 20,
    max_archive_key: "max_chart",
    max_unpacked: 64 << 20,
    max_file: 16 << 20,
    max_spools: 64 << 20,
};

/// A member as it is on the disk: header, contents, padding.
fn member(path: &[u8], kind: u8, link: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path);
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(0o644);
    header.set_size(contents.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(path: &str, contents: &[u8]) -> Vec<u8> {
    member(path.as_bytes(), b'0', b"", contents)
}

/// A tar of members.
fn tar(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

/// A PAX record of the next member.
fn pax(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| rest + length.to_string().len() == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8], window_log: u32) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(window_log).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The index and the contents of an archive.
fn unpacked(archive: &[u8], layout: &Layout, bounds: &Bounds) -> Result<(Index, Vec<u8>), ArchiveError> {
    let mut contents = Vec::new();
    let index = unpack(archive, layout, bounds, &RUN, &mut contents)?;
    Ok((index, contents))
}

/// Each file, directory and link as one line.
fn lines(archive: &[u8], layout: &Layout) -> Vec<String> {
    let (index, contents) = unpacked(archive, layout, &BOUNDS).unwrap();
    let line = |(path, kind): (&[u8], &EntryKind)| {
        let path = String::from_utf8_lossy(path);
        match kind {
            EntryKind::Directory => path.into_owned(),
            EntryKind::Symlink { target } => format!("{path} -> {}", String::from_utf8_lossy(target)),
            EntryKind::File { file, executable } => {
                let contents = &contents[file.offset as usize..][..file.size as usize];
                let mark = if *executable { "*" } else { "" };
                format!("{path}{mark} = {}", String::from_utf8_lossy(contents))
            }
        }
    };
    index.below(b"").map(line).collect()
}

/// The error of an archive.
fn refusal(archive: &[u8], layout: &Layout) -> String {
    let error = unpacked(archive, layout, &BOUNDS).unwrap_err();
    assert!(error.is_in_archive(), "{error}");
    error.to_string()
}
