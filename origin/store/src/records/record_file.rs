//! The stored form of a record, the same in files, buckets and etcd: a line with a checksum, then the record's bytes.
//!
//! ```text
//! weir-record-1 <32 hex digits, random> <64 hex digits: BLAKE3 of the random digits and the bytes>
//! ```
//! The random digits make every write different, even of equal bytes. So the checksum can be the record's version in a
//! file, and its ETag in a bucket is new even where ETags are MD5 sums.

use bytes::Bytes;

use super::Version;

const FORMAT: &str = "weir-record-1";

/// Encodes a record; also returns its version.
pub(crate) fn encode(bytes: &[u8]) -> (Vec<u8>, Version) {
    let nonce = format!("{:032x}", fastrand::u128(..));
    let checksum = checksum(&nonce, bytes);
    let file = [format!("{FORMAT} {nonce} {checksum}\n").as_bytes(), bytes].concat();
    (file, Version(checksum.into()))
}

/// Decodes a record.
///
/// # Errors
/// A description of the damage.
pub(crate) fn decode(file: &Bytes) -> Result<(Bytes, Version), &'static str> {
    let end = file.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
    let line = std::str::from_utf8(&file[..end]).map_err(|_| "its first line is no text")?;
    let [FORMAT, nonce, stated] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err("its first line is not that of a record");
    };
    let bytes = file.slice(end + 1..);
    if checksum(nonce, &bytes) != stated {
        return Err("its bytes do not have its checksum");
    }
    Ok((bytes, Version(stated.into())))
}

fn checksum(nonce: &str, bytes: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(nonce.as_bytes()).update(b" ").update(bytes);
    hasher.finalize().to_hex().to_string()
}
