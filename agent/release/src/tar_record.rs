//! What is recorded of the tar of a release, so that it can be the dictionary of deltas.

use std::fs::File;
use std::io::{self, Read, Seek};

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use weir_protocol::dcz::MAX_TAR_BYTES;
use weir_protocol::descriptor::FORMAT;
use weir_protocol::digest::Sha256;

/// The tar of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TarRecord {
    /// The SHA-256 of its bytes, by which deltas name it.
    pub sha256: Sha256,
    /// Bytes.
    pub size: u64,
    /// The format of its bytes.
    format: u32,
}

impl TarRecord {
    /// Reads a verified tar. `None`: it is too large for deltas.
    pub fn of(mut tar: &File) -> io::Result<Option<Self>> {
        let size = tar.metadata()?.len();
        if size > MAX_TAR_BYTES {
            return Ok(None);
        }
        tar.rewind()?;
        let (mut context, mut buffer) = (Context::new(&SHA256), vec![0; 64 << 10]);
        loop {
            match tar.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => context.update(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let sha256 = context.finish().as_ref().try_into().expect("a SHA-256 has 32 bytes");
        // Responses do not name the format: this version of the protocol has one.
        Ok(Some(Self { sha256: Sha256::from_bytes(sha256), size, format: FORMAT }))
    }

    /// Whether this agent rebuilds it: an earlier version of the agent recorded larger ones.
    pub fn can_be_rebuilt(&self) -> bool {
        self.format == FORMAT && self.size <= MAX_TAR_BYTES
    }
}
