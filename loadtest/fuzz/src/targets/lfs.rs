//! What repositories and LFS servers say of files that stand elsewhere.

use std::time::{Duration, SystemTime};

use weir_git::lfs::{MAX_POINTER_BYTES, Pointer, batch, looks_like_pointer};

/// A pointer that is read looks like one, and is read back from what is written of it.
pub(crate) fn pointer(bytes: &[u8]) {
    let Some(pointer) = Pointer::parse(bytes) else { return };
    assert!(looks_like_pointer(bytes) && (bytes.len() as u64) < MAX_POINTER_BYTES);
    let (oid, size) = (pointer.oid, pointer.size);
    let written = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n");
    assert_eq!(Pointer::parse(written.as_bytes()), Some(pointer));
}

/// What an answer says is short enough to be shown, and is about objects that can be named.
pub(crate) fn answer(bytes: &[u8]) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let Ok(found) = batch::parse(bytes) else { return };
    for (oid, said) in found {
        assert_eq!(oid.to_string().len(), 64);
        match said {
            Ok(download) => {
                assert!(download.header.len() <= 32);
                // What has ended stays so.
                let ended = |seconds| download.has_expired(Duration::from_secs(seconds), now);
                assert!(!ended(0) || ended(u64::MAX));
            }
            Err(error) => assert!(!error.message.chars().any(char::is_control) && error.message.len() <= 800),
        }
    }
}
