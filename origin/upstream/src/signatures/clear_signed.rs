//! A text with an OpenPGP signature below it (RFC 9580, section 7): `gpg --clearsign`. Pure.
//!
//! gpgv gets the text and the signature apart, without the armor of either. So the text that counts is the one that was
//! verified, whatever surrounds it; and gpgv 2.2 rejects an armored signature without a checksum, which helm 4 writes.

use super::packet::{BEGIN as SIGNATURE, decode_armor};

const TEXT: &str = "-----BEGIN PGP SIGNED MESSAGE-----";

/// The longest line that gpgv reads. It cuts longer ones.
const MAX_LINE_BYTES: usize = 19_995;

/// The first signed text of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClearSigned {
    /// As it is signed: its lines end in CR LF, except for the last, and have no blanks before that.
    pub text: String,
    /// In binary.
    pub signature: Vec<u8>,
}

impl ClearSigned {
    /// Finds the text and its signature.
    ///
    /// # Errors
    /// There is none, or it cannot be verified: the end of a sentence that begins with the name of the document.
    pub fn parse(document: &str) -> Result<Self, String> {
        let signed = Self::find(document);
        let signed = signed.ok_or("is not a signed text: sign it with `helm package --sign`")?;
        match signed.text.split("\r\n").position(|line| line.len() > MAX_LINE_BYTES) {
            None => Ok(signed),
            Some(at) => Err(format!(
                "has more than {MAX_LINE_BYTES} bytes in line {} of its signed text, which gpgv cannot verify",
                at + 1
            )),
        }
    }

    fn find(document: &str) -> Option<Self> {
        let mut lines = document.lines().map(|line| line.trim_end_matches([' ', '\t', '\r']));
        lines.find(|line| *line == TEXT)?;
        // The names of hashes.
        lines.find(|line| line.is_empty())?;
        let mut text: Option<String> = None;
        loop {
            let line = lines.next()?;
            if line == SIGNATURE {
                break;
            }
            let line = line.strip_prefix("- ").unwrap_or(line);
            text = Some(text.map_or_else(String::new, |text| text + "\r\n") + line);
        }
        Some(Self { text: text?, signature: decode_armor(lines)? })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    const END: &str = "-----END PGP SIGNATURE-----";

    fn document(text: &str, signature: &str) -> String {
        format!("{TEXT}\nHash: SHA512\n\n{text}\n{SIGNATURE}\n{signature}\n{END}")
    }

    #[test]
    fn the_text_and_the_signature_are_taken_out_of_their_armor() {
        let parse = |document: &str| ClearSigned::parse(document).ok().map(|signed| (signed.text, signed.signature));
        let expected = Some(("a: 1\r\n\r\n- b\r\n...".to_owned(), b"abcd".to_vec()));
        let plain = document("a: 1 \t\n\n- - b\n...", "\nYWJj\nZA==");
        let others = [
            document("a: 1\n\n- - b\n...", "Version: 1\nComment: x\n\nYWJj\nZA==\n=xyzw"),
            format!("before\n{plain}\nafter\n{plain}"),
            plain.replace('\n', "\r\n"),
        ];
        assert_eq!(parse(&plain), expected);
        for other in others {
            assert_eq!(parse(&other), expected, "{other}");
        }
        for wrong in ["", "a: 1", TEXT, &plain.replace("ZA==", "Z!"), &plain.replace(SIGNATURE, ""), &plain[1..]] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_line_that_gpgv_would_cut_is_refused() {
        let parse = |bytes: usize| ClearSigned::parse(&document(&format!("a: 1\n{}", "b".repeat(bytes)), "\nYWJj"));
        assert!(parse(19_995).is_ok());
        let error = "has more than 19995 bytes in line 2 of its signed text, which gpgv cannot verify";
        assert_eq!(parse(19_996).unwrap_err(), error);
    }

    proptest! {
        #[test]
        fn no_document_is_too_odd(lines in prop::collection::vec("-----BEGIN PGP SIGNED MESSAGE-----|-----BEGIN PGP SIGNATURE-----|-----END PGP SIGNATURE-----|[ -~]{0,9}|\\PC{0,9}", 0..20)) {
            let _ = ClearSigned::parse(&lines.join("\n"));
        }

        #[test]
        fn a_text_is_read_as_it_was_signed(lines in prop::collection::vec("[ -~]{0,9}", 1..20), signature: Vec<u8>) {
            let escaped: Vec<String> = lines.iter().map(|line| if line.starts_with('-') { format!("- {line}") } else { line.clone() }).collect();
            let signed = ClearSigned::parse(&document(&escaped.join("\n"), &format!("\n{}", STANDARD.encode(&signature)))).unwrap();
            let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
            prop_assert_eq!(signed, ClearSigned { text: lines.join("\r\n"), signature });
        }
    }
}
