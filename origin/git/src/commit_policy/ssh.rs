//! Verifies SSH signatures with `ssh-keygen -Y verify`, as `git verify-commit` does, against a file of allowed signers.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use weir_upstream::outside_program::{ProgramOutput, pinned, run};
use weir_upstream::signatures::{PROGRAM_TIMEOUT, SignatureError, SignatureFile, read_prefix};

/// Git's namespace. Signatures for files or logins have others.
const NAMESPACE: &str = "git";

/// The most principals to try for one key, which may have several lines.
const MAX_PRINCIPALS: usize = 16;

/// Verifies that an allowed and currently valid key signed the payload for Git.
pub(super) fn verify(
    allowed_signers: &Path,
    payload: &[u8],
    signature: &[u8],
    scratch: &Path,
    stop: &AtomicBool,
) -> Result<(), SignatureError> {
    read_prefix("ssh_allowed_signers", allowed_signers)?;
    let signature = SignatureFile::write(signature, scratch)?;
    let ssh_keygen = |arguments: &[&str], allowed: Option<&Path>| -> Result<ProgramOutput, SignatureError> {
        let mut command = pinned("ssh-keygen");
        command.arg("-Y").args(arguments).arg("-s").arg(signature.path());
        command.args(allowed.map(|_| "-f")).args(allowed);
        Ok(run(&mut command, payload, scratch, PROGRAM_TIMEOUT, stop)?)
    };
    // The key is identified before its permission is checked, so that the error can name it.
    let checked = ssh_keygen(&["check-novalidate", "-n", NAMESPACE], None)?;
    if !checked.success {
        let stderr = checked.error_line();
        return Err(SignatureError::Refused(format!("its SSH signature does not match, or is not for Git ({stderr})")));
    }
    let key = fingerprint(&checked.output);
    let found = ssh_keygen(&["find-principals"], Some(allowed_signers))?;
    let principals: Vec<&str> = found.output.lines().filter(|line| !line.is_empty()).take(MAX_PRINCIPALS).collect();
    if !found.success || principals.is_empty() {
        let stderr = invalid_line(&found.stderr, allowed_signers).unwrap_or_else(|| found.error_line());
        return Err(SignatureError::Refused(format!(
            "the SSH key {key} is not in `ssh_allowed_signers`, or not valid now ({stderr})"
        )));
    }
    for principal in principals {
        if ssh_keygen(&["verify", "-n", NAMESPACE, "-I", principal], Some(allowed_signers))?.success {
            return Ok(());
        }
    }
    Err(SignatureError::Refused(format!("`ssh_allowed_signers` does not allow the SSH key {key} to sign for Git")))
}

/// The first line of the file that the program could not parse, and why: from `/etc/allowed:3: invalid key`.
fn invalid_line(stderr: &str, file: &Path) -> Option<String> {
    let file = format!("{}:", file.display());
    let about = stderr.lines().find_map(|line| line.trim().strip_prefix(&file))?;
    Some(format!("its line {}", about.chars().take(200).collect::<String>()))
}

/// The fingerprint in `Good "git" signature with ED25519 key SHA256:…`.
fn fingerprint(output: &str) -> &str {
    output.split_whitespace().find(|word| word.starts_with("SHA256:")).unwrap_or("that signed it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_line_is_reported_without_the_path_of_the_file() {
        let stderr = "/etc/weir/allowed:3: invalid key\r\n/etc/weir/allowed:4: missing key\nNo principal matched.\n";
        let found = invalid_line(stderr, Path::new("/etc/weir/allowed"));
        assert_eq!(found.as_deref(), Some("its line 3: invalid key"));
        assert_eq!(invalid_line("No principal matched.\n", Path::new("/etc/weir/allowed")), None);
    }

    #[test]
    fn the_key_is_named_by_its_fingerprint() {
        assert_eq!(fingerprint("Good \"git\" signature with ED25519 key SHA256:abc\n"), "SHA256:abc");
        assert_eq!(fingerprint(""), "that signed it");
    }
}
