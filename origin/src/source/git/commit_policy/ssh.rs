//! Signatures of SSH keys, verified by `ssh-keygen -Y verify`: the program that `git verify-commit` asks, and the same file
//! of allowed signers.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::signature_file::SignatureFile;
use super::{PROGRAM_TIMEOUT, VerifyError};
use crate::outside_program::{ProgramOutput, pinned, run};

/// What Git signs for. A signature for a file, or for a login, is none of a commit.
const NAMESPACE: &str = "git";

/// Principals that are tried for one key: a key may stand in several lines.
const MAX_PRINCIPALS: usize = 16;

/// Verifies that a key of the allowed signers that is valid now signed the payload for Git.
pub(super) fn verify(
    allowed_signers: &Path,
    payload: &[u8],
    signature: &[u8],
    scratch: &Path,
    stop: &AtomicBool,
) -> Result<(), VerifyError> {
    super::read_prefix("ssh_allowed_signers", allowed_signers)?;
    let signature = SignatureFile::write(signature, scratch)?;
    let ask = |arguments: &[&str], allowed: Option<&Path>| -> Result<ProgramOutput, VerifyError> {
        let mut command = pinned("ssh-keygen");
        command.arg("-Y").args(arguments).arg("-s").arg(signature.path());
        command.args(allowed.map(|_| "-f")).args(allowed);
        Ok(run(&mut command, payload, scratch, PROGRAM_TIMEOUT, stop)?)
    };
    // Whose it is, before it is asked whether he may: so that the reason can be told.
    let whole = ask(&["check-novalidate", "-n", NAMESPACE], None)?;
    if !whole.success {
        let said = whole.error_line();
        return Err(VerifyError::Refused(format!("its SSH signature is not of these bytes, or not for Git ({said})")));
    }
    let key = fingerprint(&whole.output);
    let found = ask(&["find-principals"], Some(allowed_signers))?;
    let principals: Vec<&str> = found.output.lines().filter(|line| !line.is_empty()).take(MAX_PRINCIPALS).collect();
    if !found.success || principals.is_empty() {
        let said = bad_line(&found.stderr, allowed_signers).unwrap_or_else(|| found.error_line());
        return Err(VerifyError::Refused(format!(
            "the SSH key {key} is not one of `ssh_allowed_signers`, or not at this time ({said})"
        )));
    }
    for principal in principals {
        if ask(&["verify", "-n", NAMESPACE, "-I", principal], Some(allowed_signers))?.success {
            return Ok(());
        }
    }
    Err(VerifyError::Refused(format!("`ssh_allowed_signers` does not allow the SSH key {key} to sign for Git")))
}

/// The first line of the file that the program could not read, and why, in `/etc/allowed:3: invalid key`.
fn bad_line(complaint: &str, file: &Path) -> Option<String> {
    let file = format!("{}:", file.display());
    let about = complaint.lines().find_map(|line| line.trim().strip_prefix(&file))?;
    Some(format!("its line {}", about.chars().take(200).collect::<String>()))
}

/// The fingerprint in `Good "git" signature with ED25519 key SHA256:…`.
fn fingerprint(said: &str) -> &str {
    said.split_whitespace().find(|word| word.starts_with("SHA256:")).unwrap_or("that signed it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_cannot_be_read_is_named_without_the_file_s_path() {
        let complaint = "/etc/weir/allowed:3: invalid key\r\n/etc/weir/allowed:4: missing key\nNo principal matched.\n";
        let found = bad_line(complaint, Path::new("/etc/weir/allowed"));
        assert_eq!(found.as_deref(), Some("its line 3: invalid key"));
        assert_eq!(bad_line("No principal matched.\n", Path::new("/etc/weir/allowed")), None);
    }

    #[test]
    fn the_key_is_named_by_its_fingerprint() {
        assert_eq!(fingerprint("Good \"git\" signature with ED25519 key SHA256:abc\n"), "SHA256:abc");
        assert_eq!(fingerprint(""), "that signed it");
    }
}
