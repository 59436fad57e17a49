//! Tarballs taken apart, to compare ours with what `git archive` writes.

use std::collections::HashMap;
use std::io;
use std::io::Read;

use ring::digest::{SHA256, digest};
use weir_git::lfs::LfsObjects;
use weir_git::tree::GitTree;
use weir_protocol::manifest::{Frame, MAX_FRAME_TAR_BYTES};
use weir_tarball::{BuildContext, Contents, FrameSink, Recipe, build};

use crate::prelude::*;

/// The fields of an entry that must be equal in every tar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TarEntry {
    /// Bytes that are not text show escaped.
    pub(crate) path: String,
    /// `0` a file, `2` a symlink, `5` a directory.
    pub(crate) kind: char,
    pub(crate) executable: bool,
    pub(crate) target: String,
    pub(crate) contents: Vec<u8>,
}

/// The entries of a tar in their order. Reads what ustar and pax say to the letter, and independently of the writer.
pub(crate) fn read_tar(mut bytes: &[u8]) -> Vec<TarEntry> {
    let mut entries = Vec::new();
    let mut long: Vec<(String, Vec<u8>)> = Vec::new();
    while bytes[..512].iter().any(|byte| *byte != 0) {
        let (header, rest) = bytes.split_at(512);
        let text = |from: usize, to: usize| header[from..to].split(|byte| *byte == 0).next().unwrap();
        let number = |from, to| usize::from_str_radix(str::from_utf8(text(from, to)).unwrap().trim(), 8).unwrap();
        let blank = |at: usize| if (148..156).contains(&at) { b' ' } else { header[at] };
        assert_eq!(number(148, 156), (0..512).map(|at| usize::from(blank(at))).sum::<usize>());
        assert_eq!(text(257, 263), b"ustar");
        let size = number(124, 136);
        let contents = rest[..size].to_vec();
        bytes = &rest[size.next_multiple_of(512)..];
        match header[156] {
            b'g' => {}
            b'x' => long = read_records(&contents),
            kind => {
                let prefix = text(345, 500);
                let name =
                    if prefix.is_empty() { text(0, 100).to_vec() } else { [prefix, b"/", text(0, 100)].concat() };
                let or_long = |key: &str, short: Vec<u8>| {
                    let found = long.iter().find(|(found, _)| found == key);
                    found.map_or(short, |(_, value)| value.clone()).escape_ascii().to_string()
                };
                entries.push(TarEntry {
                    path: or_long("path", name),
                    kind: kind.into(),
                    executable: kind == b'0' && number(100, 108) & 0o100 != 0,
                    target: or_long("linkpath", text(157, 257).to_vec()),
                    contents,
                });
                long.clear();
            }
        }
    }
    assert!(bytes.len() >= 1024 && bytes.iter().all(|byte| *byte == 0), "it ends in zero blocks");
    entries
}

/// Pax records, by their lengths: a value may hold anything, line breaks too.
fn read_records(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ').unwrap();
        let length: usize = str::from_utf8(&bytes[..space]).unwrap().parse().unwrap();
        let (record, rest) = bytes.split_at(length);
        let record = record[space + 1..].strip_suffix(b"\n").unwrap();
        let equals = record.iter().position(|byte| *byte == b'=').unwrap();
        records.push((str::from_utf8(&record[..equals]).unwrap().to_owned(), record[equals + 1..].to_vec()));
        bytes = rest;
    }
    records
}

/// What `git archive` makes of a commit, below a folder if one is named.
pub(crate) fn git_archive(git: &Git, commit: &CommitId, folder: &str) -> Vec<TarEntry> {
    let mut entries = read_tar(&if folder.is_empty() {
        git.run(["archive", "--format=tar", commit.as_str()])
    } else {
        git.run(["archive", "--format=tar", commit.as_str(), "--", folder])
    });
    if !folder.is_empty() {
        let prefix = format!("{folder}/");
        entries.retain_mut(|entry| {
            let below = entry.path.strip_prefix(&prefix).filter(|rest| !rest.is_empty()).map(str::to_owned);
            below.map(|path| entry.path = path).is_some()
        });
    }
    entries
}

/// Frames in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames(Arc<Mutex<HashMap<ObjectDigest, Bytes>>>);

impl FrameSink for Frames {
    fn put(&self, frame: Bytes) -> io::Result<ObjectDigest> {
        let digest = ObjectDigest::of(&frame);
        self.0.lock().unwrap().insert(digest, frame);
        Ok(digest)
    }
}

impl Frames {
    pub(crate) fn get(&self, digest: &ObjectDigest) -> io::Result<Bytes> {
        self.0.lock().unwrap().get(digest).cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    pub(crate) fn remove(&self, digest: &ObjectDigest) {
        self.0.lock().unwrap().remove(digest).unwrap();
    }

    /// A build to take frames from, through the bytes of its recipe.
    pub(crate) fn base(&self, built: &Built) -> Base {
        let frames = self.clone();
        Base::new(Recipe::parse(&built.recipe.to_bytes()).unwrap(), move |digest| frames.get(digest))
    }

    /// The tar, of which each frame has exactly the part that its manifest names.
    fn decode(&self, frames: &[Frame], decode: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
        let mut tar = Vec::new();
        for frame in frames {
            let bytes = self.get(&frame.digest).unwrap();
            let part = decode(&bytes);
            assert_eq!((bytes.len() as u64, part.len() as u64), (frame.size, frame.tar_size));
            assert!((1..=MAX_FRAME_TAR_BYTES).contains(&frame.tar_size), "{frame:?}");
            tar.extend(part);
        }
        tar
    }
}

/// Builds a tarball, checks its bytes, and returns the tar.
pub(crate) fn build_tar(
    repository: &Path,
    commit: &CommitId,
    selection: &Selection,
    threads: usize,
) -> Result<(Built, Vec<u8>), TarballError> {
    build_limited(repository, commit, selection, threads, &Limits::default())
}

pub(crate) fn build_limited(
    repository: &Path,
    commit: &CommitId,
    selection: &Selection,
    threads: usize,
    limits: &Limits,
) -> Result<(Built, Vec<u8>), TarballError> {
    build_into(&Frames::default(), repository, commit, selection, threads, limits, None)
}

/// The same with the frames of other builds, and after one of them.
pub(crate) fn build_into(
    frames: &Frames,
    repository: &Path,
    commit: &CommitId,
    selection: &Selection,
    threads: usize,
    limits: &Limits,
    base: Option<&Base>,
) -> Result<(Built, Vec<u8>), TarballError> {
    let lfs = LfsObjects::of_mirror(repository);
    let repository = gix::open_opts(repository, gix::open::Options::isolated()).unwrap();
    build_contents(
        frames,
        &GitTree { repository, commit: commit.clone(), selection, lfs: Some(&lfs) },
        selection,
        threads,
        limits,
        base,
    )
}

/// The same of any contents.
pub(crate) fn build_contents(
    frames: &Frames,
    contents: &impl Contents,
    selection: &Selection,
    threads: usize,
    limits: &Limits,
    base: Option<&Base>,
) -> Result<(Built, Vec<u8>), TarballError> {
    let context = BuildContext { limits, threads, base, interrupt: &AtomicBool::new(false) };
    let built = build(contents, selection, &context, frames)?;
    let tar = frames.decode(&built.zstd, |frame| {
        let size = zstd::zstd_safe::get_frame_content_size(frame).unwrap().unwrap();
        let tar = zstd::decode_all(frame).unwrap();
        assert_eq!(tar.len() as u64, size);
        tar
    });
    assert_eq!(built.gzip.is_some(), selection.gzip);
    if let Some(gzip) = &built.gzip {
        let member = |bytes: &[u8]| {
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(bytes).read_to_end(&mut tar).unwrap();
            tar
        };
        assert!(frames.decode(gzip, member) == tar);
        assert_eq!(gzip.len(), built.zstd.len());
    }
    assert_eq!(built.digest, TarballDigest::of(&tar));
    assert_eq!(built.sha256.as_bytes(), digest(&SHA256, &tar).as_ref());
    assert_eq!(built.size, tar.len() as u64);
    assert_eq!(built.entries, read_tar(&tar).len() as u64);
    Ok((built, tar))
}
