//! LFS pointers, which stand for files in a repository.

use std::fmt;

/// The exclusive upper limit of a pointer's size.
pub const MAX_POINTER_BYTES: u64 = 1024;

const VERSIONS: [&[u8]; 2] =
    [b"version https://git-lfs.github.com/spec/v1\n", b"version https://hawser.github.com/spec/v1\n"];

/// The id of an LFS object: the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LfsOid([u8; 32]);

impl LfsOid {
    /// Parses 64 lower-case hexadecimal digits.
    pub fn from_hex(hex: &[u8]) -> Option<Self> {
        let (pairs, []) = hex.as_chunks::<2>() else { return None };
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        Some(Self(bytes?.try_into().ok()?))
    }

    /// The 32 bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for LfsOid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LfsOid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LfsOid({self})")
    }
}

/// A pointer to an LFS object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pointer {
    /// The object's id.
    pub oid: LfsOid,
    /// The object's size in bytes.
    pub size: u64,
}

/// An LFS file of a tarball.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LfsFile {
    /// A path of the file in the folder, for messages.
    pub path: String,
    /// Its object.
    pub pointer: Pointer,
}

impl Pointer {
    /// Parses a pointer strictly by the specification: `version`, then sorted unique keys with `oid` and `size`. `None`
    /// for anything else, and for pointers with extensions, whose meaning depends on programs that are not run here.
    pub fn parse(contents: &[u8]) -> Option<Self> {
        if contents.len() as u64 >= MAX_POINTER_BYTES {
            return None;
        }
        let rest = VERSIONS.iter().find_map(|version| contents.strip_prefix(*version))?;
        let lines = str::from_utf8(rest).ok()?.strip_suffix('\n')?;
        let (mut oid, mut size, mut last) = (None, None, "");
        for line in lines.split('\n') {
            let (key, value) = line.split_once(' ')?;
            let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '.' || c == '-';
            if key.is_empty() || !key.chars().all(is_key) || key <= last || key.starts_with("ext-") {
                return None;
            }
            last = key;
            match key {
                "oid" => oid = Some(LfsOid::from_hex(value.strip_prefix("sha256:")?.as_bytes())?),
                "size" if value.bytes().all(|byte| byte.is_ascii_digit()) => size = Some(value.parse().ok()?),
                "size" => return None,
                _ => {}
            }
        }
        Some(Self { oid: oid?, size: size? })
    }
}

/// Whether a file is a pointer rather than contents, even if it is invalid.
pub fn looks_like_pointer(contents: &[u8]) -> bool {
    (contents.len() as u64) < MAX_POINTER_BYTES
        && VERSIONS.iter().any(|version| contents.starts_with(version))
        && contents.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"oid sha256:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OID: &str = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";

    fn parse(text: &str) -> Option<Pointer> {
        Pointer::parse(text.replace("OID", OID).replace("V1", "version https://git-lfs.github.com/spec/v1").as_bytes())
    }

    #[test]
    fn a_pointer_has_an_id_and_a_size() {
        let pointer = parse("V1\noid sha256:OID\nsize 12345\n").unwrap();
        assert_eq!((pointer.oid.to_string().as_str(), pointer.size), (OID, 12345));
        assert_eq!(parse("V1\na.b-1 x y\noid sha256:OID\nsize 0\nz 1\n").unwrap().size, 0);
        assert!(parse("version https://hawser.github.com/spec/v1\noid sha256:OID\nsize 1\n").is_some());
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        for text in [
            "",
            "V1",
            "V1\n",
            "V1\noid sha256:OID\n",
            "V1\nsize 1\n",
            "V1\noid sha256:OID\nsize 1",
            "V1\nsize 1\noid sha256:OID\n",
            "V1\noid sha256:OID\noid sha256:OID\nsize 1\n",
            "V1\noid sha256:OID \nsize 1\n",
            "V1\noid sha256:OID0\nsize 1\n",
            "V1\noid md5:OID\nsize 1\n",
            "V1\noid sha256:OID\nsize -1\n",
            "V1\noid sha256:OID\nsize +1\n",
            "V1\noid sha256:OID\nsize 18446744073709551616\n",
            "V1\noid sha256:OID\nsize 1\n\n",
            "V1\r\noid sha256:OID\r\nsize 1\r\n",
            "V1\next-0-foo sha256:OID\noid sha256:OID\nsize 1\n",
            "version https://git-lfs.github.com/spec/v2\noid sha256:OID\nsize 1\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(&format!("V1\na {}\noid sha256:OID\nsize 1\n", "x".repeat(1000))), None);
        assert_eq!(LfsOid::from_hex(OID.to_uppercase().as_bytes()), None);
    }

    #[test]
    fn an_invalid_pointer_is_still_recognized() {
        let extended = b"version https://git-lfs.github.com/spec/v1\next-0-foo sha256:00\noid sha256:11\nsize 1\n";
        assert!(looks_like_pointer(extended) && Pointer::parse(extended).is_none());
        assert!(!looks_like_pointer(b""));
        assert!(!looks_like_pointer(b"version https://git-lfs.github.com/spec/v1\n"));
        assert!(!looks_like_pointer(&[&extended[..], &[b'x'; 1000]].concat()));
    }

    proptest! {
        #[test]
        fn pointers_round_trip(oid in any::<[u8; 32]>(), size: u64) {
            let pointer = Pointer { oid: LfsOid(oid), size };
            let text = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {size}\n", pointer.oid);
            prop_assert!(looks_like_pointer(text.as_bytes()));
            prop_assert_eq!(Pointer::parse(text.as_bytes()), Some(pointer));
        }
    }
}
