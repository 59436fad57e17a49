//! Parses the members of a tar, with the PAX and GNU records that change them. Where readers of tars disagree on a member,
//! the archive is refused.

use std::io::Read;

use tar::EntryType;

use super::bounds::MAX_RECORD_BYTES;
use super::error::ArchiveError;
use super::headers::{Entry, Headers, cut};

/// A member.
pub(super) struct Member {
    /// As the archive has it.
    pub(super) path: Vec<u8>,
    pub(super) kind: MemberKind,
}

pub(super) enum MemberKind {
    File {
        size: u64,
        executable: bool,
    },
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    /// The path of another member.
    HardLink {
        target: Vec<u8>,
    },
}

/// Calls `visit` for each member, with the contents of a file.
pub(super) fn read<R: Read>(
    tar: R,
    visit: &mut dyn FnMut(Member, &mut dyn Read) -> Result<(), ArchiveError>,
) -> Result<(), ArchiveError> {
    let mut headers = Headers::new(tar);
    let mut records = Records::default();
    while let Some(mut entry) = headers.next()? {
        check_header(&entry.header)?;
        if !records.read(&mut entry)? {
            let member = std::mem::take(&mut records).member(&entry)?;
            visit(member, &mut entry)?;
        }
    }
    if records.is_some() {
        return Err(ArchiveError::Unreadable("it ends before the member that its last record describes".to_owned()));
    }
    // The end of the compressed bytes, which has their checksum, comes after that of the tar.
    only_zeros(headers.into_inner(), "the tar")
}

/// What the library reads otherwise than others do.
fn check_header(header: &tar::Header) -> Result<(), ArchiveError> {
    let (bytes, path) = (header.as_bytes(), header.path_bytes());
    // It ignores the prefix of the path.
    if bytes[257..263] == *b"ustar\0" && bytes[263..265] != *b"00" {
        return Err(ArchiveError::member(&path, "has a header of an unknown version"));
    }
    // It ignores the first bytes of a binary number, and its sign.
    if bytes[124] & 0x80 != 0 && bytes[124..128] != [0x80, 0, 0, 0] {
        return Err(ArchiveError::member(&path, "has a size that is negative or too large"));
    }
    Ok(())
}

/// Reads what follows the end. Other readers go on after one empty block.
pub(super) fn only_zeros(mut rest: impl Read, of: &str) -> Result<(), ArchiveError> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = rest.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Err(ArchiveError::Unreadable(format!("something follows the end of {of}")));
        }
    }
}

/// What records say about the next member.
#[derive(Default)]
struct Records {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<Vec<u8>>,
}

impl Records {
    /// Reads an entry that is a record. False: it is a member.
    fn read(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, ArchiveError> {
        match entry.header.entry_type() {
            EntryType::GNULongName => set(&mut self.path, without_nul(contents(entry)?))?,
            EntryType::GNULongLink => set(&mut self.link, without_nul(contents(entry)?))?,
            EntryType::XHeader => {
                for (key, value) in pax(&contents(entry)?)? {
                    match key {
                        b"path" => set(&mut self.path, value.to_vec())?,
                        b"linkpath" => set(&mut self.link, value.to_vec())?,
                        b"size" => set(&mut self.size, value.to_vec())?,
                        _ if key.starts_with(b"GNU.sparse.") => return Err(sparse()),
                        _ => {}
                    }
                }
            }
            // `git archive` writes a comment.
            EntryType::XGlobalHeader => {
                let changes_members = |key: &[u8]| matches!(key, b"path" | b"linkpath" | b"size");
                if pax(&contents(entry)?)?
                    .iter()
                    .any(|(key, _)| changes_members(key) || key.starts_with(b"GNU.sparse."))
                {
                    let reason = "a global record changes the paths or sizes of its members";
                    return Err(ArchiveError::Unreadable(reason.to_owned()));
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_some(&self) -> bool {
        self.path.is_some() || self.link.is_some() || self.size.is_some()
    }

    /// The member after the records.
    fn member(self, entry: &Entry<'_, impl Read>) -> Result<Member, ArchiveError> {
        let header = &entry.header;
        let path = self.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let target = || match self.link {
            Some(link) => link,
            None => header.link_name_bytes().unwrap_or_default().into_owned(),
        };
        let size = entry.size;
        if self.size.is_some_and(|text| text != size.to_string().as_bytes()) {
            return Err(ArchiveError::member(&path, "has two different sizes"));
        }
        let kind = match header.entry_type() {
            // As in archives from before there was a type for directories.
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => MemberKind::Directory,
            EntryType::Regular | EntryType::Continuous => {
                MemberKind::File { size, executable: header.mode()? & 0o100 != 0 }
            }
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => MemberKind::Symlink { target: target() },
            EntryType::Link => MemberKind::HardLink { target: target() },
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                return Err(ArchiveError::member(&path, "is a device"));
            }
            EntryType::GNUSparse => return Err(sparse()),
            other => {
                let fault = format!("has the type `{}`, which is not supported", other.as_byte().escape_ascii());
                return Err(ArchiveError::member(&path, fault));
            }
        };
        if size > 0 && !matches!(kind, MemberKind::File { .. }) {
            return Err(ArchiveError::member(&path, "has contents, but is not a file"));
        }
        Ok(Member { path, kind })
    }
}

fn sparse() -> ArchiveError {
    ArchiveError::Unreadable("it has sparse files: write it without `--sparse`".to_owned())
}

fn set(slot: &mut Option<Vec<u8>>, value: Vec<u8>) -> Result<(), ArchiveError> {
    match slot.replace(value) {
        Some(_) => Err(ArchiveError::Unreadable("two records describe one member".to_owned())),
        None => Ok(()),
    }
}

fn contents(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, ArchiveError> {
    let size = entry.size;
    if size > MAX_RECORD_BYTES {
        return Err(ArchiveError::RecordTooLarge);
    }
    let mut contents = Vec::new();
    entry.read_to_end(&mut contents)?;
    if (contents.len() as u64) < size {
        return Err(cut());
    }
    Ok(contents)
}

fn without_nul(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// A key and its value.
type PaxRecord<'a> = (&'a [u8], &'a [u8]);

/// The records of a PAX header, each `<length> <key>=<value>\n`. Values may have line ends.
fn pax(mut rest: &[u8]) -> Result<Vec<PaxRecord<'_>>, ArchiveError> {
    let mut records = Vec::new();
    while !rest.is_empty() {
        let malformed = || ArchiveError::Unreadable("a PAX record is malformed".to_owned());
        let (record, others) = pax_record(rest).ok_or_else(malformed)?;
        records.push(record);
        rest = others;
    }
    Ok(records)
}

/// The first record, and the bytes of the others.
fn pax_record(bytes: &[u8]) -> Option<(PaxRecord<'_>, &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let digits = &bytes[..space];
    let length: usize = str::from_utf8(digits).ok().filter(|_| digits.iter().all(u8::is_ascii_digit))?.parse().ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), &bytes[length..]))
}
