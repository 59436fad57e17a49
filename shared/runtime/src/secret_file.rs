//! Files that hold secrets: private keys, tokens, passwords.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::process::{Gid, getegid, getgroups};

/// Permissions that a secret must never grant: everything to other users, and write and execute to its group. Whether its
/// group may read it depends on the group, see [`is_exposed`].
pub(crate) const FORBIDDEN_PERMISSIONS: u32 = 0o037;

const GROUP_READ: u32 = 0o040;

/// A warning for each file whose mode lets others read or change the secret in it, however many keys name the file.
///
/// `named`: the keys of the configuration, with the files that they name. A file need not exist.
pub fn mode_warnings<'f>(named: impl IntoIterator<Item = (String, &'f Path)>) -> Vec<String> {
    let mut files = Vec::<(&Path, String, usize)>::new();
    let mut places = HashMap::new();
    for (key, path) in named {
        let place = *places.entry(path).or_insert(files.len());
        match files.get_mut(place) {
            Some((_, _, others)) => *others += 1,
            None => files.push((path, key, 0)),
        }
    }
    let and_others = |others: usize| if others == 0 { String::new() } else { format!(" (and {others} more keys)") };
    let warnings = files.into_iter().filter_map(|(path, key, others)| mode_warning(&(key + &and_others(others)), path));
    warnings.collect()
}

/// `None` also when there is no such file.
fn mode_warning(key: &str, path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode() & 0o7777;
    let (file, group) = (path.display(), metadata.gid());
    let groups = getgroups().unwrap_or_default().into_iter().chain([getegid()]);
    is_exposed(mode, group, groups.map(Gid::as_raw)).then(|| {
        format!(
            "{key}: {file} has mode {mode:04o} and group {group}, so others can read or change the secret in it: \
             `chmod 600 {file}`"
        )
    })
}

/// Whether a file of this mode and group is open to others than this process.
///
/// A group of the process may read it. Kubernetes mounts secrets like this for a pod with `fsGroup`: mode 0440, owner root,
/// and the group that it adds to the process. So may group 0, whose members are root, as systemd mounts credentials. Any
/// other group has members who should not read it. A check that root runs cannot know the groups of the service.
fn is_exposed(mode: u32, group: u32, mut own_groups: impl Iterator<Item = u32>) -> bool {
    let may_read = group == 0 || own_groups.any(|own| own == group || own == 0);
    mode & FORBIDDEN_PERMISSIONS != 0 || mode & GROUP_READ != 0 && !may_read
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

    #[test]
    fn a_file_that_several_keys_name_is_warned_of_once() {
        let dir = tempfile::tempdir().unwrap();
        let [shared, own] = ["shared", "own"].map(|name| dir.path().join(name));
        for file in [&shared, &own] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        let named =
            (0..30).map(|i| (format!("repository `{i}`"), shared.as_path())).chain([("key".to_owned(), own.as_path())]);
        let warnings = mode_warnings(named);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("repository `0` (and 29 more keys): ") && warnings[1].starts_with("key: "));
    }

    #[test]
    fn only_groups_of_the_process_may_read_a_secret() {
        for (mode, own_groups, exposed) in [
            (0o440, &[7, 2000][..], false),
            (0o440, &[0], false),
            (0o440, &[7], true),
            (0o640, &[], true),
            (0o600, &[], false),
            (0o460, &[2000], true),
            (0o444, &[2000], true),
        ] {
            assert_eq!(is_exposed(mode, 2000, own_groups.iter().copied()), exposed, "{mode:o} {own_groups:?}");
        }
    }
}
