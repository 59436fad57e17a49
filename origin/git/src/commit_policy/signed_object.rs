//! Splits a commit or tag into its signature and the signed bytes. Pure.

/// The largest commit or tag to verify, in bytes.
pub(super) const MAX_OBJECT_BYTES: u64 = 1 << 20;

/// The format of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureFormat {
    /// OpenSSH's `SSHSIG`.
    Ssh,
    /// A detached OpenPGP signature.
    Pgp,
}

/// A signature and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signed {
    /// The signed bytes: the object without its signature.
    pub(crate) payload: Vec<u8>,
    /// The signature in ASCII armor.
    pub(crate) signature: Vec<u8>,
    /// The signature's format.
    pub(crate) standard: SignatureFormat,
}

/// Why there is no signature to verify.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSigned {
    /// There is no signature.
    #[error("is not signed")]
    Unsigned,
    /// There are several, and it is ambiguous which one counts.
    #[error("has more than one signature")]
    Multiple,
    /// The format is not supported.
    #[error("is signed with X.509 (S/MIME), which is not supported: sign with SSH or OpenPGP")]
    X509,
    /// The object is malformed.
    #[error("is malformed: {0}")]
    Malformed(&'static str),
}

/// The first lines of signatures.
const SSH: &[u8] = b"-----BEGIN SSH SIGNATURE-----";
const PGP: &[u8] = b"-----BEGIN PGP SIGNATURE-----";
const X509: &[u8] = b"-----BEGIN SIGNED MESSAGE-----";

/// The headers of signatures in the two object formats.
const SHA1_HEADER: &[u8] = b"gpgsig";
const SHA256_HEADER: &[u8] = b"gpgsig-sha256";

/// Parses a commit. `sha256`: the repository's object format is SHA-256.
///
/// # Errors
/// There is no signature to verify.
pub(crate) fn parse_commit(object: &[u8], sha256: bool) -> Result<Signed, NotSigned> {
    let (rest, headers) = without_signature_headers(object)?;
    let own = if sha256 { SHA256_HEADER } else { SHA1_HEADER };
    let mut signatures = headers.into_iter().filter(|(name, _)| *name == own).map(|(_, value)| value);
    match (signatures.next(), signatures.next()) {
        (None, _) => Err(NotSigned::Unsigned),
        (Some(signature), None) => signed(rest, signature),
        (Some(_), Some(_)) => Err(NotSigned::Multiple),
    }
}

/// Parses a tag. Returns the signed name and the signature.
///
/// # Errors
/// There is no name, or no signature to verify.
pub(crate) fn parse_tag(object: &[u8]) -> Result<(String, Signed), NotSigned> {
    let body = object.windows(2).position(|pair| pair == b"\n\n").ok_or(NotSigned::Unsigned)? + 2;
    let mut names = object[..body].split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"tag "));
    let (Some(name), None) = (names.next(), names.next()) else {
        return Err(NotSigned::Malformed("it must have one tag name"));
    };
    let name = std::str::from_utf8(name).map_err(|_| NotSigned::Malformed("its tag name is not UTF-8"))?.to_owned();
    // Git takes the last signature; earlier ones are a part of the message.
    let mut at = body;
    let mut begin = None;
    for line in object[body..].split_inclusive(|byte| *byte == b'\n') {
        if [SSH, PGP, X509].iter().any(|beginning| line.starts_with(beginning)) {
            begin = Some(at);
        }
        at += line.len();
    }
    let begin = begin.ok_or(NotSigned::Unsigned)?;
    let (payload, _) = without_signature_headers(&object[..begin])?;
    Ok((name, signed(payload, object[begin..].to_vec())?))
}

fn signed(payload: Vec<u8>, signature: Vec<u8>) -> Result<Signed, NotSigned> {
    let standard = match () {
        () if signature.starts_with(SSH) => SignatureFormat::Ssh,
        () if signature.starts_with(PGP) => SignatureFormat::Pgp,
        () if signature.starts_with(X509) => return Err(NotSigned::X509),
        () => return Err(NotSigned::Malformed("its signature is neither SSH nor OpenPGP")),
    };
    Ok(Signed { payload, signature, standard })
}

type Header<'a> = (&'a [u8], Vec<u8>);

/// Splits an object into the rest and its signature headers with unfolded values.
fn without_signature_headers(object: &[u8]) -> Result<(Vec<u8>, Vec<Header<'_>>), NotSigned> {
    let mut rest = Vec::with_capacity(object.len());
    let mut taken: Vec<Header<'_>> = Vec::new();
    let mut within = false;
    let mut lines = object.split_inclusive(|byte| *byte == b'\n');
    for line in lines.by_ref() {
        if line == b"\n" {
            rest.extend_from_slice(line);
            break;
        }
        if let Some(more) = line.strip_prefix(b" ") {
            match taken.last_mut().filter(|_| within) {
                Some((_, value)) => value.extend_from_slice(more),
                None => rest.extend_from_slice(line),
            }
            continue;
        }
        let (name, value) = match line.iter().position(|byte| *byte == b' ') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => (line, &b""[..]),
        };
        within = name == SHA1_HEADER || name == SHA256_HEADER;
        if within {
            taken.push((name, value.to_vec()));
        } else if line.starts_with(SHA1_HEADER) {
            // Git excludes it from verification, so it could hide unsigned data.
            return Err(NotSigned::Malformed("it has an unknown signature header"));
        } else {
            rest.extend_from_slice(line);
        }
    }
    lines.for_each(|line| rest.extend_from_slice(line));
    Ok((rest, taken))
}

/// For the fuzzer: a payload has no signature left, and the signature has a supported format.
#[cfg(feature = "fuzzing")]
pub fn fuzz_signed_object(bytes: &[u8]) {
    let begins = |signed: &Signed| signed.signature.starts_with(SSH) || signed.signature.starts_with(PGP);
    for sha256 in [false, true] {
        let Ok(signed) = parse_commit(bytes, sha256) else { continue };
        assert!(begins(&signed) && signed.payload.len() + signed.signature.len() < bytes.len());
        assert_eq!(parse_commit(&signed.payload, sha256), Err(NotSigned::Unsigned), "no part of a signature is left");
    }
    if let Ok((name, signed)) = parse_tag(bytes) {
        assert!(begins(&signed) && bytes.ends_with(&signed.signature) && !name.contains('\n'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COMMIT: &str =
        "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n";
    const SIGNATURE: &str = "-----BEGIN SSH SIGNATURE-----\nU1NI\n\nx\n-----END SSH SIGNATURE-----\n";

    fn folded(header: &str) -> String {
        format!("{header} {}", SIGNATURE.trim_end().replace('\n', "\n ")) + "\n"
    }

    #[test]
    fn a_commit_is_split_into_payload_and_signature() {
        let message = "\nwords\n\ngpgsig in the message is one of its words\n";
        let object = format!("{COMMIT}{}encoding x\n{message}", folded("gpgsig"));
        let read = parse_commit(object.as_bytes(), false).unwrap();
        assert_eq!(String::from_utf8(read.payload.clone()).unwrap(), format!("{COMMIT}encoding x\n{message}"));
        assert_eq!(String::from_utf8(read.signature.clone()).unwrap(), SIGNATURE);
        assert_eq!(parse_commit(object.as_bytes(), true), Err(NotSigned::Unsigned), "of the other format");
        let both = format!("{COMMIT}{}{}encoding x\n{message}", folded("gpgsig-sha256"), folded("gpgsig"));
        for sha256 in [false, true] {
            assert_eq!(parse_commit(both.as_bytes(), sha256), Ok(read.clone()));
        }
    }

    #[test]
    fn ambiguous_signatures_are_refused() {
        let of = |object: String| parse_commit(object.as_bytes(), false);
        assert_eq!(of(format!("{COMMIT}\nwords\n")), Err(NotSigned::Unsigned));
        assert_eq!(of(COMMIT.to_owned()), Err(NotSigned::Unsigned));
        assert_eq!(of(format!("{COMMIT}\n{}", folded("gpgsig"))), Err(NotSigned::Unsigned), "in the message");
        let twice = format!("{COMMIT}{0}{0}\nwords", folded("gpgsig"));
        assert_eq!(of(twice), Err(NotSigned::Multiple));
        for header in ["gpgsig2", "gpgsig-sha512", "gpgsigx"] {
            assert!(matches!(of(format!("{COMMIT}{}\n", folded(header))), Err(NotSigned::Malformed(_))), "{header}");
        }
        assert!(matches!(of(format!("{COMMIT}gpgsig\n\n")), Err(NotSigned::Malformed(_))));
        assert!(matches!(of(format!("{COMMIT}gpgsig none\n\n")), Err(NotSigned::Malformed(_))));
        let smime = folded("gpgsig").replace("SSH SIGNATURE", "SIGNED MESSAGE");
        assert_eq!(of(format!("{COMMIT}{smime}\nwords")), Err(NotSigned::X509));
    }

    #[test]
    fn a_tag_ends_in_its_signature_and_has_a_name() {
        let head = "object 1\ntype commit\ntag v1\ntagger A <a@b> 1 +0000\n";
        let (name, read) = parse_tag(format!("{head}\nwords\n{SIGNATURE}").as_bytes()).unwrap();
        assert_eq!((name.as_str(), read.payload), ("v1", format!("{head}\nwords\n").into_bytes()));
        let quoted = format!("{head}\n{SIGNATURE}words\n");
        let (_, read) = parse_tag(format!("{quoted}{SIGNATURE}").as_bytes()).unwrap();
        assert_eq!((read.payload, read.signature.as_slice()), (quoted.into_bytes(), SIGNATURE.as_bytes()));
        let (_, read) = parse_tag(format!("{head}{}\nwords\n{SIGNATURE}", folded("gpgsig-sha256")).as_bytes()).unwrap();
        assert_eq!(read.payload, format!("{head}\nwords\n").into_bytes());
        assert_eq!(parse_tag(format!("{head}\nwords\n").as_bytes()), Err(NotSigned::Unsigned));
        assert_eq!(parse_tag(head.as_bytes()), Err(NotSigned::Unsigned));
        for wrong in ["", "tag v1\ntag v2\n"] {
            let object = head.replace("tag v1\n", wrong);
            let read = parse_tag(format!("{object}\nwords\n{SIGNATURE}").as_bytes());
            assert!(matches!(read, Err(NotSigned::Malformed(_))), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn an_inserted_signature_is_split_off(message in "(\n|[a-z ]){0,60}", header in "[a-f]{1,8} [a-z\n]{0,20}") {
            let header = header.replace('\n', "\n ");
            let plain = format!("{COMMIT}{header}\n\n{message}");
            let object = format!("{COMMIT}{}{header}\n\n{message}", folded("gpgsig"));
            let read = parse_commit(object.as_bytes(), false).unwrap();
            prop_assert_eq!(read.payload, plain.into_bytes());
            prop_assert_eq!(read.signature, SIGNATURE.as_bytes());
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(text in "((tag |gpgsig |gpgsig-sha256 | |object )?[a-z-]{0,9}\n){0,12}", bytes: Vec<u8>) {
            for object in [text.as_bytes(), &bytes] {
                let _ = (parse_commit(object, false), parse_commit(object, true), parse_tag(object));
            }
        }
    }
}
