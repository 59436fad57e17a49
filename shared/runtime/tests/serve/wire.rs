//! HTTP/3 in bytes.

pub(crate) const DATA: u64 = 0x0;
pub(crate) const HEADERS: u64 = 0x1;
pub(crate) const SETTINGS: u64 = 0x4;
pub(crate) const GOAWAY: u64 = 0x7;
/// Reserved to be unknown (RFC 9114 section 7.2.8).
pub(crate) const GREASE: u64 = 0x21 + 0x1f * 7;

pub(crate) const CONTROL: u64 = 0x0;
pub(crate) const ENCODER: u64 = 0x2;
pub(crate) const DECODER: u64 = 0x3;

pub(crate) fn integer(value: u64) -> Vec<u8> {
    match value {
        0..0x40 => vec![value as u8],
        0x40..0x4000 => (value as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..0x4000_0000 => (value as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (value | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

pub(crate) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    [&integer(kind), &integer(payload.len() as u64), payload].concat()
}

/// A section of literal fields, none of them coded.
pub(crate) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    fn text(flags: u8, prefix_bits: u32, text: &str, out: &mut Vec<u8>) {
        let most = (1usize << prefix_bits) - 1;
        match text.len() {
            length if length < most => out.push(flags | length as u8),
            length => {
                out.push(flags | most as u8);
                let mut rest = length - most;
                while rest >= 128 {
                    out.push(rest as u8 | 128);
                    rest >>= 7;
                }
                out.push(rest as u8);
            }
        }
        out.extend(text.as_bytes());
    }
    let mut section = vec![0, 0];
    for (name, value) in fields {
        text(0b0010_0000, 3, name, &mut section);
        text(0, 7, value, &mut section);
    }
    section
}

pub(crate) fn head(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    frame(HEADERS, &section(&[&fields[..], more].concat()))
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    head("GET", path, &[])
}

pub(crate) fn read_integer(bytes: &mut &[u8]) -> Option<u64> {
    let length = 1usize << (bytes.first()? >> 6);
    let (mine, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(mine[1..].iter().fold(u64::from(mine[0] & 0x3f), |value, &byte| value << 8 | u64::from(byte)))
}

/// The frames of a stream, which has to end with the last.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let kind = read_integer(&mut bytes).unwrap();
        let length = read_integer(&mut bytes).unwrap();
        let (payload, rest) = bytes.split_at(length as usize);
        frames.push((kind, payload.to_vec()));
        bytes = rest;
    }
    frames
}

/// The status that a section of a response begins with.
pub(crate) fn status(section: &[u8]) -> u16 {
    match section[2..] {
        [0xd9, ..] => 200,
        [0xdb, ..] => 404,
        [0x5f, 9, 3, ..] => std::str::from_utf8(&section[5..8]).unwrap().parse().unwrap(),
        _ => panic!("a status of another form: {section:?}"),
    }
}
