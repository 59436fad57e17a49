//! Writes tarball format 1: ustar headers, with pax records where ustar has no room, padding and the end.
//!
//! The format is fixed to the last byte, because the digest of a tarball identifies it: two origins with the same
//! folder must write the same bytes, and an agent must rebuild them from a release. Nothing here depends on the clock,
//! the user or the machine. `docs/reference/tarball.md` has the order of the entries.

/// The block size of tar.
pub const BLOCK: usize = 512;

/// The end of a tarball: exactly two zero blocks.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// The length of a name in a ustar header; longer names need a pax record.
const NAME_BYTES: usize = 100;

/// The largest size in eleven octal digits (8 GiB − 1).
const MAX_USTAR_SIZE: u64 = (1 << 33) - 1;

/// The kind of an entry, for its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderKind<'a> {
    /// A file, whose contents and [`padding`] follow the header.
    File {
        /// Mode 0755 instead of 0644.
        executable: bool,
        /// Bytes.
        size: u64,
    },
    /// A directory.
    Directory,
    /// A symlink.
    Symlink {
        /// The target.
        target: &'a [u8],
    },
}

/// Appends the header of an entry, preceded by a pax header if needed. The path of a directory must end in `/`.
pub fn write_header(out: &mut Vec<u8>, path: &[u8], kind: HeaderKind<'_>) {
    let (flag, mode, size, target) = match kind {
        HeaderKind::File { executable: false, size } => (b'0', 0o644, size, &b""[..]),
        HeaderKind::File { executable: true, size } => (b'0', 0o755, size, &b""[..]),
        HeaderKind::Directory => (b'5', 0o755, 0, &b""[..]),
        HeaderKind::Symlink { target } => (b'2', 0o777, 0, target),
    };
    let mut records = Vec::new();
    if path.len() > NAME_BYTES {
        write_record(&mut records, "path", path);
    }
    if target.len() > NAME_BYTES {
        write_record(&mut records, "linkpath", target);
    }
    if size > MAX_USTAR_SIZE {
        write_record(&mut records, "size", size.to_string().as_bytes());
    }
    if !records.is_empty() {
        write_ustar(out, b"pax", b'x', 0o644, records.len() as u64, b"");
        out.extend_from_slice(&records);
        pad(out, records.len() as u64);
    }
    write_ustar(out, path, flag, mode, if size > MAX_USTAR_SIZE { 0 } else { size }, target);
}

/// Pads `written` bytes of contents to a full block.
pub fn pad(out: &mut Vec<u8>, written: u64) {
    out.resize(out.len() + padding(written), 0);
}

/// The number of zero bytes after `size` bytes.
pub fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

/// A pax record: `"<length> <key>=<value>
/// "`, where the length counts its own digits.
fn write_record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend_from_slice(format!("{length} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn write_ustar(out: &mut Vec<u8>, name: &[u8], flag: u8, mode: u32, size: u64, target: &[u8]) {
    let mut block = [0; BLOCK];
    put(&mut block[0..100], &name[..name.len().min(NAME_BYTES)]);
    put(&mut block[100..108], format!("{mode:07o}").as_bytes());
    put(&mut block[108..116], b"0000000"); // uid
    put(&mut block[116..124], b"0000000"); // gid
    put(&mut block[124..136], format!("{size:011o}").as_bytes());
    put(&mut block[136..148], b"00000000000"); // mtime
    block[156] = flag;
    put(&mut block[157..257], &target[..target.len().min(NAME_BYTES)]);
    put(&mut block[257..265], b"ustar\x0000");
    put(&mut block[329..337], b"0000000"); // device major
    put(&mut block[337..345], b"0000000"); // device minor
    // The checksum sums all bytes, with its own field read as spaces.
    let sum = block.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
    put(&mut block[148..156], format!("{sum:06o}\0 ").as_bytes());
    out.extend_from_slice(&block);
}

/// Copies `bytes` to the start of `field`; the rest stays zero.
fn put(field: &mut [u8], bytes: &[u8]) {
    field[..bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(path: &[u8], kind: HeaderKind<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        write_header(&mut out, path, kind);
        assert_eq!(out.len() % BLOCK, 0);
        out
    }

    #[test]
    fn a_file_s_header_to_the_byte() {
        let written = header(b"bin/run", HeaderKind::File { executable: true, size: 1234 });
        let mut expected = Vec::new();
        expected.extend_from_slice(b"bin/run");
        expected.resize(100, 0);
        expected.extend_from_slice(b"0000755\x000000000\x000000000\x0000000002322\x0000000000000\x00");
        expected.extend_from_slice(b"010506\0 ");
        expected.push(b'0');
        expected.resize(257, 0);
        expected.extend_from_slice(b"ustar\x0000");
        expected.resize(329, 0);
        expected.extend_from_slice(b"0000000\x000000000\x00");
        expected.resize(512, 0);
        assert_eq!(written, expected);
    }

    #[test]
    fn a_name_of_a_hundred_bytes_fits_and_one_more_needs_a_record() {
        let fits = header(&[b'n'; 100], HeaderKind::File { executable: false, size: 0 });
        assert_eq!(fits.len(), BLOCK);
        assert_eq!(fits[..101], [&[b'n'; 100][..], b"0"].concat());

        let path = [&[b'n'; 100][..], b"\xff"].concat();
        let long = header(&path, HeaderKind::File { executable: false, size: 0 });
        assert_eq!(long.len(), 3 * BLOCK);
        assert_eq!(&long[..4], b"pax\0");
        assert_eq!(&long[100..107], b"0000644");
        assert_eq!(long[156], b'x');
        assert_eq!(&long[124..135], format!("{:011o}", 111).as_bytes());
        assert_eq!(&long[512..623], [b"111 path=", &path[..], b"\n"].concat());
        assert!(long[623..1024].iter().all(|b| *b == 0));
        assert_eq!(long[1024..1124], [b'n'; 100]);
    }

    #[test]
    fn a_directory_counts_its_slash() {
        let fits = header(&[&[b'd'; 99][..], b"/"].concat(), HeaderKind::Directory);
        assert_eq!((fits.len(), fits[156]), (BLOCK, b'5'));
        let long = header(&[&[b'd'; 100][..], b"/"].concat(), HeaderKind::Directory);
        assert_eq!(long.len(), 3 * BLOCK);
        assert_eq!(long[1024..1124], [b'd'; 100], "cut to what the field takes");
    }

    #[test]
    fn a_long_link_has_both_records_in_one_pax_header() {
        let (path, target) = ([b'p'; 200], [b't'; 150]);
        let link = header(&path, HeaderKind::Symlink { target: &target });
        let records = [b"210 path=", &path[..], b"\n164 linkpath=", &target[..], b"\n"].concat();
        assert_eq!(&link[512..512 + records.len()], records);
        assert_eq!(link.len(), 3 * BLOCK);
        assert_eq!((link[1024 + 156], &link[1024 + 100..1024 + 107]), (b'2', &b"0000777"[..]));
        assert_eq!(link[1024 + 157..1024 + 257], [b't'; 100]);
        assert_eq!(link[1024 + 257], b'u');
    }

    #[test]
    fn a_record_counts_the_digits_of_its_own_length() {
        for (value, length) in [(0, 8), (1, 9), (2, 11), (90, 99), (91, 101), (989, 999), (990, 1001)] {
            let mut out = Vec::new();
            write_record(&mut out, "path", &vec![b'v'; value]);
            assert_eq!(out.len(), length, "{value}");
            assert!(out.starts_with(format!("{length} path=").as_bytes()), "{value}");
        }
    }

    #[test]
    fn a_size_needs_a_record_only_over_eight_gibibytes() {
        let fits = header(b"f", HeaderKind::File { executable: false, size: MAX_USTAR_SIZE });
        assert_eq!((fits.len(), &fits[124..136]), (BLOCK, &b"77777777777\0"[..]));
        let long = header(b"f", HeaderKind::File { executable: false, size: MAX_USTAR_SIZE + 1 });
        assert!(long[512..].starts_with(b"19 size=8589934592\n"));
        assert_eq!(&long[1024 + 124..1024 + 136], b"00000000000\0");
    }

    #[test]
    fn contents_fill_whole_blocks() {
        assert_eq!([0, 1, 511, 512, 513].map(padding), [0, 511, 1, 0, 511]);
    }
}
