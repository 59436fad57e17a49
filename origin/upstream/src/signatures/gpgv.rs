//! Verifies OpenPGP signatures with `gpgv`, which trusts only the keys of the given keyring.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::packet::signature_packet;
use super::{PROGRAM_TIMEOUT, SignatureError, SignatureFile};
use crate::outside_program::{Bounds, pinned_within, run};

/// What gpgv may use. It streams the keyring.
const BOUNDS: Bounds = Bounds { memory: 256 << 20, file: 1 << 20 };

/// Broken digests by their OpenPGP numbers (RFC 4880 section 9.4): MD5, SHA-1, RIPEMD-160.
const WEAK_DIGESTS: [&str; 3] = ["1", "2", "3"];

/// Verifies that a key of the keyring signed the payload. The signature may be armored.
pub fn verify(
    keyring: &Path,
    payload: &[u8],
    signature: &[u8],
    scratch: &Path,
    stop: &AtomicBool,
) -> Result<(), SignatureError> {
    let prefix = super::read_prefix("pgp_keyring", keyring)?;
    if prefix.starts_with(b"-----BEGIN") {
        return Err(SignatureError::Unusable(
            "`pgp_keyring` is armoured, and gpgv reads binary keyrings only: `gpg --export KEY… > keyring.gpg`, without \
             --armor"
                .to_owned(),
        ));
    }
    let packet = signature_packet(signature).map_err(|reason| SignatureError::Refused(reason.to_owned()))?;
    let signature = SignatureFile::write(&packet, scratch)?;
    let mut command = pinned_within("gpgv", BOUNDS);
    // An empty home, so that only the keyring counts; an absolute path, because gpgv resolves others in its home.
    command.args(["--homedir", "/nonexistent", "--status-fd", "1", "--keyring"]);
    command.arg(std::path::absolute(keyring).unwrap_or_else(|_| keyring.to_owned()));
    command.arg("--").arg(signature.path()).arg("-");
    let result = run(&mut command, payload, scratch, PROGRAM_TIMEOUT, stop)?;
    let verdict = verdict(&result.output);
    match verdict {
        Ok(()) if !result.success => {
            Err(SignatureError::Refused("gpgv reports a good signature and a failure".to_owned()))
        }
        Err(None) => {
            Err(SignatureError::Unusable(format!("gpgv cannot verify the signature: {}", result.error_line())))
        }
        Err(Some(reason)) => Err(SignatureError::Refused(reason)),
        Ok(()) => Ok(()),
    }
}

/// Evaluates the status lines of gpgv: accepts exactly one good signature by a valid key over a strong digest.
/// `Err(None)`: there is no result.
fn verdict(status: &str) -> Result<(), Option<String>> {
    let mut good = 0;
    let mut valid = Vec::new();
    for line in status.lines().filter_map(|line| line.strip_prefix("[GNUPG:] ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let key = words.get(1).copied().unwrap_or("?");
        let refused = |reason: String| Err(Some(reason));
        match words[0] {
            // Later lines do not concern the signature.
            "ERROR" if key == "add_keyblock_resource" => return Err(None),
            "NODATA" | "UNEXPECTED" => return refused("its PGP signature is malformed".to_owned()),
            "GOODSIG" => good += 1,
            "VALIDSIG" => valid.push(words),
            "BADSIG" => return refused(format!("the signature of the PGP key {key} does not match")),
            "EXPSIG" => return refused(format!("the signature of the PGP key {key} has expired")),
            "EXPKEYSIG" => return refused(format!("the PGP key {key} has expired")),
            "REVKEYSIG" => return refused(format!("the PGP key {key} was revoked")),
            "NO_PUBKEY" => return refused(format!("the PGP key {key} is not in `pgp_keyring`")),
            "ERRSIG" if words.get(6) == Some(&"9") => {
                return refused(format!("the PGP key {key} is not in `pgp_keyring`"));
            }
            "ERRSIG" => return refused(format!("gpgv does not support the algorithm of the PGP key {key}")),
            _ => {}
        }
    }
    match (good, &valid[..]) {
        (0, []) => Err(None),
        (1, [words]) if words.get(8).is_some_and(|digest| !WEAK_DIGESTS.contains(digest)) => Ok(()),
        (1, [_]) => Err(Some("its signature uses a broken digest (SHA-1 or older)".to_owned())),
        _ => Err(Some("it has more than one signature".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::super::ClearSigned;
    use super::*;

    const GOOD: &str = "[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG 0A1B A U Thor <a@b>\n[GNUPG:] VALIDSIG FFFF 2026-11-21 1795 0 4 0 22 10 00 FFFF\n";

    #[test]
    fn only_one_good_signature_of_a_valid_key_is_accepted() {
        assert_eq!(verdict(GOOD), Ok(()));
        assert_eq!(verdict(""), Err(None));
        assert_eq!(verdict("gpgv: [GNUPG:] GOODSIG 0A1B"), Err(None), "a status starts its line");
        let reason = |status: &str| verdict(status).unwrap_err().unwrap();
        assert!(reason(&GOOD.repeat(2)).contains("more than one"));
        assert!(reason(&GOOD.replace("22 10 00", "22 2 00")).contains("SHA-1"));
        assert!(reason("[GNUPG:] GOODSIG 0A1B x\n").contains("more than one"), "good without valid");
        assert!(reason("[GNUPG:] NODATA 3\n[GNUPG:] NODATA 4\n").contains("malformed"));
        assert_eq!(verdict("[GNUPG:] ERROR add_keyblock_resource 33587281\n[GNUPG:] NODATA 4\n"), Err(None));
        for (word, expected) in [
            ("BADSIG 0A1B x", "does not match"),
            ("EXPSIG 0A1B x", "signature of the PGP key 0A1B has expired"),
            ("EXPKEYSIG 0A1B x", "key 0A1B has expired"),
            ("REVKEYSIG 0A1B x", "revoked"),
            ("NO_PUBKEY 0A1B", "not in `pgp_keyring`"),
            ("ERRSIG 0A1B 22 10 00 1795 9 FFFF", "not in `pgp_keyring`"),
            ("ERRSIG 0A1B 22 10 00 1795 4 FFFF", "algorithm"),
        ] {
            for status in [format!("{GOOD}[GNUPG:] {word}\n"), format!("[GNUPG:] {word}\n{GOOD}")] {
                assert!(reason(&status).contains(expected), "{word}: {}", reason(&status));
            }
        }
    }

    /// Written by helm 4.1.4, and the key that signed it.
    const PROVENANCE: &str = "-----BEGIN PGP SIGNED MESSAGE-----
Hash: SHA512

apiVersion: v2
maintainers:
- - name: Alice
name: shop
version: 1.0.0

...
files:
  shop-1.0.0.tgz: sha256:322ec893ee7980facb014032c07e38a5a6b4fc5996292b42dc7b7ea10b8a7e59

-----BEGIN PGP SIGNATURE-----

wrsEARYKAG0FgmsIcfoJEIqtZsD1x4zCRRQAAAAAABwAIHNhbHRAbm90YXRpb25z
Lm9wZW5wZ3Bqcy5vcmf+lkNs+PU9FV6mQ8XLL65/lLfSZUDpRN+dv6mmQ44ChxYh
BELlK8brNOdxlw0DuYqtZsD1x4zCAACa/AD/brCVuFU3+fBqEXXd38MbvbDSamXR
Os4tO240HjXZtnMA+wQsU8e4xBZU+8BPaQEZb2Gk/QQJ+ZS22Bhr7fb7wV0I
-----END PGP SIGNATURE-----";
    const KEYRING: &str = "\
mDMEawhveBYJKwYBBAHaRw8BAQdAhZrFrlWnJUZn2e2FrMAH0e9qK8Hnu5Ry6HjvDA6kNa60E0VkIDxlZEBleGFtcGxlLmNvbT6I\
kAQTFggAOBYhBELlK8brNOdxlw0DuYqtZsD1x4zCBQJrCG94AhsDBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAAAoJEIqtZsD1x4zC\
rpcBANky6UvdY7ERaQv0rv10L/JIqvw2Bonl8q7axybvlh52AQC19y4c4D0zYPcP6T8Ys+HKJaTkmLrK0yZzcEQ0Vs4KAQ==";

    #[test]
    fn a_text_is_verified_that_helm_signed() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = dir.path().join("keyring.gpg");
        std::fs::write(&keyring, STANDARD.decode(KEYRING).unwrap()).unwrap();
        let verified = |document: &str| {
            let ClearSigned { text, signature } = ClearSigned::parse(document).unwrap();
            verify(&keyring, text.as_bytes(), &signature, dir.path(), &AtomicBool::new(false))
        };
        verified(PROVENANCE).unwrap();
        verified(&format!("before\n{PROVENANCE}\nafter")).unwrap();
        for edited in [PROVENANCE.replace("1.0.0", "1.0.1"), PROVENANCE.replace("\n...", "\n\n...")] {
            let error = verified(&edited).unwrap_err();
            assert_eq!(error.to_string(), "the signature of the PGP key 8AAD66C0F5C78CC2 does not match");
        }
        // The same signature within compressed data (of no compression), which gpgv would accept.
        let ClearSigned { text, signature } = ClearSigned::parse(PROVENANCE).unwrap();
        let packed = [&[0xa3, 0][..], &signature].concat();
        let verify = |signature: &[u8]| {
            verify(&keyring, text.as_bytes(), signature, dir.path(), &AtomicBool::new(false))
                .map_err(|it| it.to_string())
        };
        let armored = format!("-----BEGIN PGP SIGNATURE-----\n\n{}\n", STANDARD.encode(&packed));
        for packed in [&packed[..], armored.as_bytes()] {
            assert_eq!(verify(packed), Err("its PGP signature is malformed".to_owned()));
        }
        assert_eq!(verify(armored.replace(&STANDARD.encode(&packed), &STANDARD.encode(&signature)).as_bytes()), Ok(()));
    }
}
