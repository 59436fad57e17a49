//! The header of a Git bundle: its object format, the objects that it builds on, and all refs.

use std::collections::BTreeSet;
use std::fmt::Write;

use gix::ObjectId;
use gix::bstr::ByteSlice;
use gix::hash::Kind;

use super::refs::Refs;
use crate::revision::{DEFAULT_BRANCH_REF, OWN_REFS};

const V2: &str = "# v2 git bundle";
const V3: &str = "# v3 git bundle";
const OBJECT_FORMAT: &str = "@object-format=";

/// The header of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BundleHeader {
    pub(super) format: Kind,
    /// Commits that the reader must have. Weir applies bundles in order, and does not read them.
    pub(super) prerequisites: BTreeSet<ObjectId>,
    pub(super) refs: Refs,
}

impl BundleHeader {
    pub(crate) fn has_same_refs(&self, other: &Self) -> bool {
        self.refs == other.refs
    }

    /// The header, with the empty line before the pack.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = match self.format {
            Kind::Sha1 => format!("{V2}\n"),
            other => format!("{V3}\n{OBJECT_FORMAT}{other}\n"),
        };
        for id in &self.prerequisites {
            let _ = writeln!(text, "-{id}");
        }
        let mut bytes = text.into_bytes();
        let mut refs: Vec<_> = self.refs.iter().collect();
        refs.sort_unstable();
        for (name, id) in refs {
            bytes.extend_from_slice(id.to_hex().to_string().as_bytes());
            bytes.push(b' ');
            bytes.extend_from_slice(name);
            bytes.push(b'\n');
        }
        bytes.push(b'\n');
        bytes
    }

    /// Parses a header, with at most `max_refs` refs.
    ///
    /// # Errors
    /// It is malformed, or has a ref that a mirror does not follow.
    pub(crate) fn parse(bytes: &[u8], max_refs: usize) -> Result<Self, String> {
        let body = bytes.strip_suffix(b"\n\n").ok_or("it has no end")?;
        let mut lines = body.split(|byte| *byte == b'\n').peekable();
        let format = match lines.next() {
            Some(line) if line == V2.as_bytes() => Kind::Sha1,
            Some(line) if line == V3.as_bytes() => {
                let name = lines.next().and_then(|line| line.strip_prefix(OBJECT_FORMAT.as_bytes()));
                let name = name.and_then(|name| name.to_str().ok()).ok_or("it has no object format")?;
                name.parse().map_err(|_| format!("its object format `{name}` is unknown"))?
            }
            _ => return Err("it is no Git bundle".to_owned()),
        };
        let id = |hex: &[u8]| {
            let id = ObjectId::from_hex(hex).map_err(|error| error.to_string())?;
            if id.kind() == format { Ok(id) } else { Err("an object id has another format".to_owned()) }
        };
        let mut header = Self { format, prerequisites: BTreeSet::new(), refs: Refs::new() };
        while let Some(hex) = lines.peek().and_then(|line| line.strip_prefix(b"-")) {
            header.prerequisites.insert(id(hex)?);
            lines.next();
        }
        for line in lines {
            let (hex, name) = line.split_once_str(" ").ok_or("a ref has no name")?;
            let own = name.starts_with(OWN_REFS.as_bytes()) && name != DEFAULT_BRANCH_REF.as_bytes();
            if own || !name.starts_with(b"refs/") {
                return Err(format!("a mirror has no ref `{}`", name.as_bstr()));
            }
            header.refs.insert(name.into(), id(hex)?);
            if header.refs.len() > max_refs {
                return Err(format!("it has more refs than `[upstreams] max_refs` = {max_refs}"));
            }
        }
        if header.refs.is_empty() { Err("it has no refs".to_owned()) } else { Ok(header) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: &str, kind: Kind) -> ObjectId {
        ObjectId::from_hex(digit.repeat(kind.len_in_hex()).as_bytes()).unwrap()
    }

    #[test]
    fn a_header_is_read_back_in_both_formats() {
        for (kind, begin) in
            [(Kind::Sha1, "# v2 git bundle\n-2"), (Kind::Sha256, "# v3 git bundle\n@object-format=sha256\n-2")]
        {
            let refs = [("refs/heads/main", "1"), ("refs/tags/v1", "3"), (DEFAULT_BRANCH_REF, "1")];
            let refs = refs.iter().map(|(name, digit)| ((*name).into(), id(digit, kind))).collect();
            let header = BundleHeader { format: kind, prerequisites: [id("2", kind)].into(), refs };
            let bytes = header.to_bytes();
            assert!(bytes.starts_with(begin.as_bytes()), "{}", bytes.as_bstr());
            assert_eq!(BundleHeader::parse(&bytes, 3), Ok(header));
            assert!(BundleHeader::parse(&bytes, 2).unwrap_err().contains("max_refs"));
        }
    }

    #[test]
    fn a_hostile_header_is_refused() {
        let one = "1".repeat(40);
        for (text, why) in [
            ("", "no end"),
            ("PACK\n\n", "no Git bundle"),
            ("# v3 git bundle\n@filter=blob:none\n\n", "no object format"),
            ("# v3 git bundle\n@object-format=md5\n\n", "md5"),
            ("# v2 git bundle\n\n", "no refs"),
            (&format!("# v2 git bundle\n{one} HEAD\n\n"), "`HEAD`"),
            (&format!("# v2 git bundle\n{one} ../../HEAD\n\n"), "no ref"),
            (&format!("# v2 git bundle\n{one} refs/weir/kept/1\n\n"), "no ref"),
            (&format!("# v2 git bundle\n{one}{} refs/heads/a\n\n", "1".repeat(24)), "another format"),
            (&format!("# v2 git bundle\n{one}\n\n"), "no name"),
        ] {
            let error = BundleHeader::parse(text.as_bytes(), 9).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
