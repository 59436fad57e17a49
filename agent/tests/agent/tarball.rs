//! Tarballs for the tests, good ones and crafted ones.

use tar::{EntryType, Header};
use weir_protocol::tar_writer::{END, HeaderKind, pad, write_header};

/// Builds a tarball entry by entry, without any of the checks that a writer should make.
pub(crate) struct Tarball(tar::Builder<Vec<u8>>);

impl Tarball {
    pub(crate) fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    pub(crate) fn entry(mut self, kind: EntryType, name: &[u8], mode: u32, link: &[u8], data: &[u8]) -> Self {
        let mut records = Vec::new();
        for (key, value) in [("path", name), ("linkpath", link)] {
            if value.len() > 100 || (value.contains(&0) && key == "path") {
                records.extend(record(key, value));
            }
        }
        if !records.is_empty() {
            self.append(EntryType::XHeader, b"pax", 0o644, b"", &records);
        }
        self.append(kind, &name[..name.len().min(100)], mode, &link[..link.len().min(100)], data);
        self
    }

    fn append(&mut self, kind: EntryType, name: &[u8], mode: u32, link: &[u8], data: &[u8]) {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.0.append(&header, data).expect("memory takes all");
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, name.as_ref(), 0o644, b"", data.as_ref())
    }

    pub(crate) fn executable(self, name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Regular, name.as_ref(), 0o755, b"", data.as_ref())
    }

    pub(crate) fn directory(self, name: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Directory, &[name.as_ref(), b"/"].concat(), 0o755, b"", b"")
    }

    pub(crate) fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.entry(EntryType::Symlink, name.as_ref(), 0o777, target.as_ref(), b"")
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0.into_inner().expect("memory takes all")
    }
}

/// A tarball as an origin writes it, entry by entry in the order of their paths.
#[derive(Default)]
pub(crate) struct Written(Vec<u8>);

impl Written {
    pub(crate) fn file(mut self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> Self {
        let (contents, size) = (contents.as_ref(), contents.as_ref().len() as u64);
        write_header(&mut self.0, path.as_ref(), HeaderKind::File { executable: false, size });
        self.0.extend_from_slice(contents);
        pad(&mut self.0, size);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&END);
        self.0
    }
}

/// A tarball with one file, `content`.
pub(crate) fn with_content(content: impl AsRef<[u8]>) -> Vec<u8> {
    Written::default().file("content", content).finish()
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length = (rest..).find(|length| *length == rest + length.to_string().len()).expect("there is one");
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}
