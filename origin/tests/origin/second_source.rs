//! A folder on the disk as the contents of a tarball: all that a source has to bring that is not Git.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use weir_origin::tarball::{Base, Built, Contents, Filters, KeyWriter, Limits, Selection, TarballError, Walk, list};
use weir_shared::descriptor::OmissionReason;
use weir_shared::digest::ObjectDigest;

use crate::tar_reading::{Frames, build_contents};

#[derive(Clone)]
struct Folder(PathBuf);

struct DiskFile {
    path: PathBuf,
    digest: ObjectDigest,
}

fn readable<T>(result: io::Result<T>) -> Result<T, TarballError> {
    result.map_err(|error| TarballError::Object { id: "of the folder".to_owned(), cause: error.to_string() })
}

fn is_executable(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o100 != 0)
}

/// The names in a directory, in the order of a tarball.
fn names(directory: &Path) -> io::Result<Vec<(OsString, fs::FileType)>> {
    let entry = |entry: io::Result<fs::DirEntry>| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?)));
    let mut names = fs::read_dir(directory)?.map(entry).collect::<io::Result<Vec<_>>>()?;
    let slash = |kind: &fs::FileType| if kind.is_dir() { &b"/"[..] } else { b"" };
    names.sort_by_key(|(name, kind)| [name.as_encoded_bytes(), slash(kind)].concat());
    Ok(names)
}

impl Folder {
    fn visit(&self, directory: &Path, into: &mut Walk<'_, DiskFile>) -> Result<(), TarballError> {
        for (name, kind) in readable(names(directory))? {
            let path = directory.join(&name);
            if !into.visit(name.as_encoded_bytes(), kind.is_dir(), || false)? {
                continue;
            }
            if kind.is_dir() {
                into.enter();
                self.visit(&path, into)?;
                into.leave();
            } else if kind.is_symlink() {
                let target = readable(fs::read_link(&path))?.into_os_string().into_vec();
                let is_link = |path: &Path| path != self.0 && path.is_symlink();
                into.symlink(target, |path| {
                    let path = self.0.join(OsString::from_vec(path.to_vec()));
                    Ok(path.ancestors().take_while(|path| path.starts_with(&self.0)).any(is_link))
                })?;
            } else {
                let contents = readable(fs::read(&path))?;
                let executable = readable(is_executable(&path))?;
                let file = DiskFile { path, digest: ObjectDigest::of(&contents) };
                into.file(file, contents.len() as u64, executable)?;
            }
        }
        Ok(())
    }
}

impl Contents for Folder {
    type File = DiskFile;

    fn walk(&self, into: &mut Walk<'_, DiskFile>) -> Result<(), TarballError> {
        self.visit(&self.0, into)
    }

    fn identify(file: &DiskFile, executable: bool, key: &mut KeyWriter) {
        key.field(&[u8::from(executable)]);
        key.field(file.digest.as_bytes());
    }

    fn read(&self, _: &[u8], file: &DiskFile, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
        *buffer = readable(fs::read(&file.path))?;
        Ok(())
    }
}

/// Everything below a directory, in the order of a tarball: a line for each, with what it holds.
fn everything(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, kind) in names(directory).unwrap() {
        let path = directory.join(&name);
        let name = name.display();
        if kind.is_dir() {
            lines.push(format!("{name}/"));
            lines.extend(everything(&path).into_iter().map(|line| format!("{name}/{line}")));
        } else if kind.is_symlink() {
            lines.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
        } else {
            let digest = ObjectDigest::of(&fs::read(&path).unwrap());
            lines.push(format!("{name} {} {digest}", is_executable(&path).unwrap()));
        }
    }
    lines
}

fn unpack(tar: &[u8]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    tar::Archive::new(tar).unpack(dir.path()).unwrap();
    everything(dir.path())
}

#[test]
fn a_folder_on_the_disk_is_built_and_unpacked_as_it_is_and_its_frames_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("folder");
    let write = |path: &str, contents: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    };
    let noise =
        |bytes: usize| -> Vec<u8> { (0..bytes as u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 21) as u8).collect() };
    for path in ["a-b", "a/x", "a/y/z", "a0", "run"] {
        write(path, path.as_bytes());
    }
    for number in 0..40 {
        write(&format!("many/{number}"), &noise(150_000 + number));
    }
    write("zz-large", &noise(9 << 20));
    let mode = |mode| fs::set_permissions(root.join("run"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    symlink("y/z", root.join("a/link")).unwrap();
    let (folder, selection, limits) = (Folder(root.clone()), Selection::default(), Limits::default());
    let frames = Frames::default();
    let build = |base: Option<&Base>| build_contents(&frames, &folder, &selection, 2, &limits, base).unwrap();
    let cold = || build_contents(&Frames::default(), &folder, &selection, 2, &limits, None).unwrap().0;
    let (first, tar) = build(None);
    assert_eq!(unpack(&tar), everything(&root));
    assert!(first.zstd.len() > 10);
    assert_eq!(cold(), first);

    // A file changes, and of another the mode alone.
    write("many/30", b"changed");
    mode(0o644);
    let (second, tar) = build(Some(&frames.base(&first)));
    assert_eq!(unpack(&tar), everything(&root));
    assert!(second.reused_frames > 5, "{}", second.reused_frames);
    assert_eq!(Built { reused_frames: 0, ..second }, cold());
    symlink("many", root.join("m")).unwrap();
    // By the letter it leads to `run`, and through the other link to wherever that leads.
    symlink("m/../run", root.join("out")).unwrap();
    let (third, _) = build(None);
    assert_eq!(
        third.omitted.iter().map(|left| (left.path.as_str(), left.reason)).collect::<Vec<_>>(),
        [("out", OmissionReason::Symlink)]
    );

    let filters = Filters::new(&["a".to_owned(), "**/7".to_owned()], &["z".to_owned()]).unwrap();
    let (selection, mut listed) = (Selection { filters, ..Selection::default() }, Vec::new());
    let stop = AtomicBool::new(false);
    let found = list(&folder, &selection, &limits, &stop, &mut |entry| listed.push(entry.path)).unwrap();
    assert_eq!(listed, ["a/", "a/link", "a/x", "many/", "many/7"]);
    assert_eq!(found.file_bytes, 3 + 150_007);
}
