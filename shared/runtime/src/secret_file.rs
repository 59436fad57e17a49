//! Files that hold secrets: private keys, tokens, passwords.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What nobody but the owner may do with a secret, as permission bits: its group may read it (that is how Kubernetes mounts
/// a secret), and nobody else anything.
pub(crate) const FORBIDDEN_PERMISSIONS: u32 = 0o037;

/// A warning about a file whose mode lets others read or change the secret in it. `None` also when there is no such file.
///
/// `key`: what names the file in the configuration.
pub fn mode_warning(key: &str, path: &Path) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o7777;
    let file = path.display();
    (mode & FORBIDDEN_PERMISSIONS != 0).then(|| {
        format!("{key}: {file} has mode {mode:04o}, so others can read or change the secret in it: `chmod 600 {file}`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_others_can_read_or_change_is_warned_of() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert_eq!(mode_warning("token_file", &path), None);
        fs::write(&path, "").unwrap();
        for (mode, is_warned) in [(0o600, false), (0o440, false), (0o644, true), (0o660, true), (0o604, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let warning = mode_warning("token_file", &path);
            assert_eq!(warning.is_some(), is_warned, "{mode:o}");
            assert!(
                warning.is_none_or(|text| text.contains(&format!("{mode:04o}")) && text.starts_with("token_file: "))
            );
        }
    }
}
