//! Splits a tar into headers and the bytes that belong to each. The library does so too, but refuses blank numbers.

use std::io::{self, Read};

use tar::Header;

use super::error::ArchiveError;

const BLOCK: u64 = 512;

/// What the file is instead, its caller knows.
const NOT_TAR: ArchiveError = ArchiveError::NotTar { found: "", hint: "" };

/// The headers of a tar.
pub(super) struct Headers<R> {
    tar: R,
    /// The bytes of the last one that were not read: its contents, and what fills its last block.
    unread: u64,
    is_first: bool,
}

/// A header. Reading it reads its contents.
pub(super) struct Entry<'a, R> {
    pub(super) header: Header,
    pub(super) size: u64,
    left: u64,
    headers: &'a mut Headers<R>,
}

impl<R: Read> Headers<R> {
    pub(super) fn new(tar: R) -> Self {
        Self { tar, unread: 0, is_first: true }
    }

    /// The next header. `None`: an empty block, or the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'_, R>>, ArchiveError> {
        let unread = std::mem::take(&mut self.unread);
        if io::copy(&mut self.tar.by_ref().take(unread), &mut io::sink())? < unread {
            return Err(cut());
        }
        let (is_first, mut block) = (std::mem::take(&mut self.is_first), Vec::new());
        self.tar.by_ref().take(BLOCK).read_to_end(&mut block)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        let Some(block) = block.first_chunk() else { return Err(if is_first { NOT_TAR } else { cut() }) };
        *bytes = *block;
        let sum: u32 = bytes[..148].iter().chain(&[b' '; 8]).chain(&bytes[156..]).map(|byte| u32::from(*byte)).sum();
        if header.cksum().ok() != Some(sum) {
            let wrong = || ArchiveError::Unreadable("the checksum of a header is wrong".to_owned());
            return Err(if is_first { NOT_TAR } else { wrong() });
        }
        let numbers = header.as_old_mut();
        for number in [&mut numbers.mode[..], &mut numbers.size[..]] {
            if number.iter().all(|byte| matches!(byte, 0 | b' ')) {
                number[0] = b'0';
            }
        }
        let size = header.entry_size()?;
        let too_large = || ArchiveError::member(&header.path_bytes(), "has a size that is negative or too large");
        self.unread = size.checked_next_multiple_of(BLOCK).ok_or_else(too_large)?;
        Ok(Some(Entry { header, size, left: size, headers: self }))
    }

    /// What follows.
    pub(super) fn into_inner(self) -> R {
        self.tar
    }
}

impl<R: Read> Read for Entry<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.headers.tar.by_ref().take(self.left).read(buffer)?;
        self.left -= read as u64;
        self.headers.unread -= read as u64;
        Ok(read)
    }
}

pub(super) fn cut() -> ArchiveError {
    ArchiveError::Unreadable("it is cut off".to_owned())
}
