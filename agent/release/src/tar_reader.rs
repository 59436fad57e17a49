//! Reads tarballs of format 1: ustar with pax records, and nothing that readers may interpret differently.
//!
//! Own code, because names may contain any byte, also a newline: pax records are split by their lengths only.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use rustix::io::Errno;
use weir_protocol::entry_path::{is_safe_path, percent_encode, turning_points};

const BLOCK: usize = 512;

/// The most bytes of pax records per entry.
const MAX_PAX_BYTES: u64 = 64 << 10;

/// Why a tarball is not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// Its bytes do not come.
    #[error("the tarball cannot be read: {0}")]
    Read(#[from] io::Error),
    /// An entry cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The path, percent-encoded where it is not text.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// It is not a tarball of format 1.
    #[error("the tarball is malformed at byte {position}: {message}")]
    Malformed {
        /// The position of the header.
        position: u64,
        /// What is wrong there.
        message: &'static str,
    },
    /// An entry must not be unpacked.
    #[error("the tarball's entry `{path}` is refused: {reason}")]
    Refused {
        /// The path, percent-encoded where it is not text.
        path: String,
        /// Why.
        reason: &'static str,
    },
}

impl TarError {
    /// `path` below `into` cannot be written; an empty path is `into` itself.
    pub fn cannot_write(into: &Path, path: &[u8], error: io::Error) -> Self {
        let into = into.display();
        Self::Write {
            path: if path.is_empty() { into.to_string() } else { format!("{into}/{}", percent_encode(path)) },
            error,
        }
    }

    /// An entry cannot be made, or must not be.
    pub(crate) fn of_entry(into: &Path, path: &[u8], error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::EXIST) => Self::refused(path, "the name exists already"),
            Some(Errno::NOTDIR | Errno::LOOP) => Self::refused(path, "a file or a symlink is in place of a directory"),
            _ => Self::cannot_write(into, path, error),
        }
    }

    /// An entry must not be unpacked.
    pub fn refused(path: &[u8], reason: &'static str) -> Self {
        Self::Refused { path: percent_encode(path), reason }
    }
}

/// The type of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Directory,
    File { size: u64, executable: bool },
    Symlink { target: Vec<u8> },
}

/// An entry with a safe path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Relative, without a trailing `/`.
    pub path: Vec<u8>,
    pub kind: EntryKind,
}

/// A file, and where its bytes are.
pub(crate) struct TarFile {
    pub path: Vec<u8>,
    pub executable: bool,
    pub position: u64,
    pub size: u64,
}

/// A tarball from its start.
pub(crate) fn rewound(mut file: &File) -> Result<BufReader<&File>, TarError> {
    file.rewind()?;
    Ok(BufReader::with_capacity(64 << 10, file))
}

/// Reads the entries of a tarball.
pub(crate) struct TarReader<R> {
    input: R,
    position: u64,
    /// The unread bytes of the current entry, and the padding after them.
    remaining: u64,
    padding: u64,
}

#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    link_path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, position: 0, remaining: 0, padding: 0 }
    }

    /// The next entry; `None` at a valid end.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        let mut pax = None;
        loop {
            self.skip_rest()?;
            let header_at = self.position;
            let malformed = |message| TarError::Malformed { position: header_at, message };
            let header = self.block()?.ok_or(malformed("it ends without two zero blocks"))?;
            if header == [0; BLOCK] {
                if pax.is_some() {
                    return Err(malformed("pax records describe an entry that does not follow"));
                }
                return self.end(header_at).map(|()| None);
            }
            let header = Header::parse(&header).map_err(malformed)?;
            match header.kind {
                b'x' if pax.is_none() && header.size <= MAX_PAX_BYTES => {
                    self.begin(header.size).ok_or(malformed("a size is out of range"))?;
                    let mut records = vec![0; header.size as usize];
                    self.read_exact(&mut records)?;
                    pax = Some(Pax::parse(&records).map_err(malformed)?);
                }
                b'x' => return Err(malformed("too many pax records")),
                _ => return self.entry(&header, pax.unwrap_or_default()).map(Some),
            }
        }
    }

    /// The bytes of the tarball that were read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The unread contents of the current entry.
    pub(crate) fn contents(&mut self) -> Contents<'_, R> {
        Contents(self)
    }

    fn entry(&mut self, header: &Header, pax: Pax) -> Result<Entry, TarError> {
        let path = pax.path.unwrap_or_else(|| header.name.clone());
        let refused = |reason| TarError::refused(&path, reason);
        let target = pax.link_path.unwrap_or_else(|| header.link.clone());
        let size = pax.size.unwrap_or(header.size);
        let kind = match header.kind {
            b'0' | 0 => EntryKind::File { size, executable: header.mode & 0o111 != 0 },
            b'5' => EntryKind::Directory,
            b'2' => EntryKind::Symlink { target },
            b'1' => return Err(refused("hard links are not unpacked")),
            b'3' | b'4' => return Err(refused("devices are not unpacked")),
            b'6' => return Err(refused("fifos are not unpacked")),
            _ => return Err(refused("its type is not known")),
        };
        if !is_safe_path(&path) || (path.ends_with(b"/") && kind != EntryKind::Directory) {
            return Err(refused("the name is not safe"));
        }
        let path = path.strip_suffix(b"/").unwrap_or(&path).to_vec();
        match &kind {
            EntryKind::Symlink { target } if turning_points(&path, target).is_none() => {
                return Err(refused("the symlink may leave the release"));
            }
            EntryKind::Directory | EntryKind::Symlink { .. } if size != 0 => return Err(refused("it has contents")),
            _ => {}
        }
        self.begin(size).ok_or_else(|| refused("its size is out of range"))?;
        Ok(Entry { path, kind })
    }

    /// Checks for two zero blocks at the end of the input.
    fn end(&mut self, position: u64) -> Result<(), TarError> {
        let malformed = |message| TarError::Malformed { position, message };
        if self.block()? != Some([0; BLOCK]) {
            return Err(malformed("it ends without two zero blocks"));
        }
        if self.input.read(&mut [0])? != 0 {
            return Err(malformed("something follows its end"));
        }
        Ok(())
    }

    /// The next block; `None` at the end of the input.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        match self.input.read_exact(&mut block) {
            Ok(()) => {
                self.position += BLOCK as u64;
                Ok(Some(block))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn begin(&mut self, size: u64) -> Option<()> {
        self.remaining = size;
        self.padding = size.checked_next_multiple_of(BLOCK as u64)? - size;
        // All positions must fit into 64 bits.
        self.position.checked_add(size)?.checked_add(self.padding)?;
        Some(())
    }

    fn skip_rest(&mut self) -> Result<(), TarError> {
        let rest = self.remaining + self.padding;
        let skipped = io::copy(&mut self.input.by_ref().take(rest), &mut io::sink())?;
        self.position += skipped;
        if skipped != rest {
            return Err(TarError::Malformed { position: self.position, message: "it ends within an entry" });
        }
        (self.remaining, self.padding) = (0, 0);
        Ok(())
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.contents().read_exact(buffer)
    }
}

/// Reads the contents of an entry.
pub(crate) struct Contents<'a, R>(&'a mut TarReader<R>);

impl<R: Read> Read for Contents<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let reader = &mut self.0;
        let read = reader.input.by_ref().take(reader.remaining).read(buffer)?;
        if read == 0 && reader.remaining > 0 && !buffer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tarball ends within an entry"));
        }
        reader.remaining -= read as u64;
        reader.position += read as u64;
        Ok(read)
    }
}

struct Header {
    name: Vec<u8>,
    link: Vec<u8>,
    mode: u64,
    size: u64,
    kind: u8,
}

impl Header {
    fn parse(block: &[u8; BLOCK]) -> Result<Self, &'static str> {
        if &block[257..265] != b"ustar\x0000" {
            return Err("a header is not ustar");
        }
        let sum: u64 =
            block.iter().enumerate().map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) }).sum();
        if number(&block[148..156]) != Some(sum) {
            return Err("the checksum of a header is wrong");
        }
        let mut name = text(&block[..100]).to_vec();
        let prefix = text(&block[345..500]);
        if !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        Ok(Self {
            name,
            link: text(&block[157..257]).to_vec(),
            mode: number(&block[100..108]).ok_or("a mode is not a number")?,
            size: number(&block[124..136]).ok_or("a size is not a number")?,
            kind: block[156],
        })
    }
}

/// A field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

/// An octal number with NULs and spaces around it.
fn number(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    if digits.is_empty() {
        return Some(0);
    }
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

impl Pax {
    /// Records are `<length> <key>=<value>
    /// `, where the length is that of the whole record.
    fn parse(mut records: &[u8]) -> Result<Self, &'static str> {
        const MALFORMED: &str = "a pax record is malformed";
        let mut pax = Self::default();
        while !records.is_empty() {
            let space = records.iter().position(|b| *b == b' ').ok_or(MALFORMED)?;
            let length: usize =
                std::str::from_utf8(&records[..space]).ok().and_then(|t| t.parse().ok()).ok_or(MALFORMED)?;
            let record = records.get(space + 1..length).ok_or(MALFORMED)?;
            let record = record.strip_suffix(b"\n").ok_or(MALFORMED)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or(MALFORMED)?;
            let (key, value) = (&record[..equals], record[equals + 1..].to_vec());
            let fresh = match key {
                b"path" => pax.path.replace(value).is_none(),
                b"linkpath" => pax.link_path.replace(value).is_none(),
                b"size" => {
                    let size = std::str::from_utf8(&value).ok().and_then(|t| t.parse().ok()).ok_or(MALFORMED)?;
                    pax.size.replace(size).is_none()
                }
                _ if key.starts_with(b"GNU.sparse.") => return Err("sparse files are not unpacked"),
                _ => true,
            };
            if !fresh {
                return Err("a pax record is repeated");
            }
            records = &records[length..];
        }
        Ok(pax)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tar(entries: &[(tar::EntryType, &[u8], &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, name, data) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.as_mut_bytes()[..name.len()].copy_from_slice(name);
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, *data).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn read(tar: &[u8]) -> Result<Vec<Entry>, TarError> {
        let mut reader = TarReader::new(tar);
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    fn record(key: &str, value: &[u8]) -> Vec<u8> {
        let rest = key.len() + value.len() + 3;
        let length = (rest..).find(|length| *length == rest + length.to_string().len()).unwrap();
        [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
    }

    use tar::EntryType as T;

    #[test]
    fn contents_follow_their_entry_and_may_be_skipped() {
        let tar = tar(&[(T::Regular, b"a", b"12345"), (T::Directory, b"d/", b""), (T::Regular, b"d/b", &[7; 1024])]);
        let mut reader = TarReader::new(&tar[..]);
        assert_eq!(reader.next().unwrap().unwrap().kind, EntryKind::File { size: 5, executable: false });
        assert_eq!(reader.next().unwrap().unwrap(), Entry { path: b"d".to_vec(), kind: EntryKind::Directory });
        assert_eq!(reader.next().unwrap().unwrap().path, b"d/b");
        let mut contents = Vec::new();
        reader.contents().read_to_end(&mut contents).unwrap();
        assert_eq!(contents, [7; 1024]);
        assert_eq!(reader.next().unwrap(), None);
    }

    #[test]
    fn a_name_may_contain_any_byte() {
        let name = [b"odd\n12 path=x\n\xff ".as_slice(), &[b'n'; 100]].concat();
        let records = [record("mtime", b"0"), record("path", &name), record("size", b"3")].concat();
        let tar = tar(&[(T::XHeader, b"pax", &records), (T::Regular, b"cut", b"abc")]);
        assert_eq!(read(&tar).unwrap(), [Entry { path: name, kind: EntryKind::File { size: 3, executable: false } }]);
    }

    #[test]
    fn other_formats_are_refused() {
        let good = tar(&[(T::Regular, b"a", b"12345")]);
        assert_eq!(read(&good).unwrap().len(), 1);
        for length in 0..good.len() {
            assert!(read(&good[..length]).is_err(), "cut to {length}");
        }
        assert!(read(&[good.as_slice(), &[0; 512]].concat()).is_err(), "something follows");
        let mut flipped = good;
        flipped[0] ^= 1;
        assert!(read(&flipped).unwrap_err().to_string().contains("checksum"));
        for (records, reason) in [
            (record("path", b"../x"), "not safe"),
            (record("path", b"/x"), "not safe"),
            ([record("path", b"x"), record("path", b"y")].concat(), "repeated"),
            (record("GNU.sparse.major", b"1"), "sparse"),
            (b"9 path=x\n\n".to_vec(), "pax"),
            (b"999 path=x\n".to_vec(), "pax"),
            (record("size", b"18446744073709551615"), "range"),
        ] {
            let tar = tar(&[(T::XHeader, b"pax", &records), (T::Regular, b"a", b"")]);
            let error = read(&tar).unwrap_err().to_string();
            assert!(error.contains(reason), "{reason}: {error}");
        }
        for (kind, name) in [
            (T::Link, &b"l"[..]),
            (T::Char, b"c"),
            (T::Block, b"b"),
            (T::Fifo, b"f"),
            (T::XGlobalHeader, b"g"),
            (T::GNULongName, b"n"),
            (T::Regular, b"a/"),
            (T::Regular, b".git"),
            (T::Regular, b"x/.GIT/config"),
            (T::Symlink, b"empty-target"),
        ] {
            let tar = tar(&[(kind, name, b"")]);
            assert!(matches!(read(&tar), Err(TarError::Refused { .. })), "{kind:?} {name:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(mut tar in proptest::collection::vec(any::<u8>(), 0..3000), fix in any::<bool>()) {
            if fix && tar.len() >= 512 {
                tar[257..265].copy_from_slice(b"ustar\x0000");
                let sum: u64 = (0..512).map(|i| if (148..156).contains(&i) { 32 } else { u64::from(tar[i]) }).sum();
                tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
            let _ = read(&tar);
        }
    }
}
