//! The key of QUIC's stateless resets, which outlives the process: agents of an edge that crashed notice its restart with their
//! next packet, instead of waiting for heartbeats that do not come.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Below the cache directory, because no other edge may have it.
const FILE: &str = "quic-reset-key";

/// Reads the key, or makes one. `None`: it cannot be stored.
pub(crate) fn of(dir: &Path) -> Option<[u8; 32]> {
    let file = dir.join(FILE);
    let stored = || -> io::Result<[u8; 32]> {
        if let Some(key) = fs::read(&file).ok().and_then(|bytes| bytes.try_into().ok()) {
            return Ok(key);
        }
        let random = ring::rand::generate(&ring::rand::SystemRandom::new());
        let key: [u8; 32] = random.map_err(|_| io::Error::other("the system provides no random numbers"))?.expose();
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&file)?.write_all(&key)?;
        Ok(key)
    };
    let warn = |error: &io::Error| {
        let file = file.display();
        tracing::warn!(%file, %error, "agents over HTTP/3 will notice a crash of this edge late: the key is not stored");
    };
    stored().inspect_err(warn).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_made_again_when_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let first = of(dir.path()).unwrap();
        assert_eq!(of(dir.path()), Some(first));
        fs::write(dir.path().join(FILE), b"short").unwrap();
        let second = of(dir.path()).unwrap();
        assert!(second != first && of(dir.path()) == Some(second));
        assert_eq!(of(&dir.path().join("missing")), None);
    }
}
