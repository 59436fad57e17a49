//! Verifies OpenPGP signatures with `gpgv`, which trusts only the keys of the given keyring.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::signature_file::SignatureFile;
use super::{PROGRAM_TIMEOUT, VerifyError};
use crate::outside_program::{pinned, run};

/// Broken digests by their OpenPGP numbers (RFC 4880 section 9.4): MD5, SHA-1, RIPEMD-160.
const WEAK_DIGESTS: [&str; 3] = ["1", "2", "3"];

/// Verifies that a key of the keyring signed the payload.
pub(super) fn verify(
    keyring: &Path,
    payload: &[u8],
    signature: &[u8],
    scratch: &Path,
    stop: &AtomicBool,
) -> Result<(), VerifyError> {
    let prefix = super::read_prefix("pgp_keyring", keyring)?;
    if prefix.starts_with(b"-----BEGIN") {
        return Err(VerifyError::Unusable(
            "`pgp_keyring` is armoured, and gpgv reads binary keyrings only: `gpg --export KEY… > keyring.gpg`, without \
             --armor"
                .to_owned(),
        ));
    }
    let signature = SignatureFile::write(signature, scratch)?;
    let mut command = pinned("gpgv");
    // An empty home, so that only the keyring counts; an absolute path, because gpgv resolves others in its home.
    command.args(["--homedir", "/nonexistent", "--status-fd", "1", "--keyring"]);
    command.arg(std::path::absolute(keyring).unwrap_or_else(|_| keyring.to_owned()));
    command.arg("--").arg(signature.path()).arg("-");
    let result = run(&mut command, payload, scratch, PROGRAM_TIMEOUT, stop)?;
    let verdict = verdict(&result.output);
    match verdict {
        Ok(()) if !result.success => {
            Err(VerifyError::Refused("gpgv reports a good signature and a failure".to_owned()))
        }
        Err(None) => Err(VerifyError::Unusable(format!("gpgv cannot verify the signature: {}", result.error_line()))),
        Err(Some(reason)) => Err(VerifyError::Refused(reason)),
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
}
