//! The names and symlinks that a tarball may contain. Origins apply the rules when they write it, agents when they
//! unpack it.

use std::fmt::Write;

/// The longest component of a path, in bytes (the limit of common file systems).
pub const MAX_COMPONENT_BYTES: usize = 255;

/// The longest target of a symlink, in bytes (`PATH_MAX` without the NUL).
pub const MAX_LINK_TARGET_BYTES: usize = 4095;

/// Whether a path component is safe to create in a directory: not empty, not `.`, `..` or any case of `.git`, without
/// `/` and NUL, at most [`MAX_COMPONENT_BYTES`].
pub fn is_safe_component(component: &[u8]) -> bool {
    !component.is_empty()
        && component != b"."
        && component != b".."
        && !component.eq_ignore_ascii_case(b".git")
        && component.len() <= MAX_COMPONENT_BYTES
        && !component.contains(&0)
        && !component.contains(&b'/')
}

/// Whether every component of a relative path is safe; one trailing `/` (of a directory) is allowed.
pub fn is_safe_path(path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.split(|b| *b == b'/').all(is_safe_component)
}

/// The most turning points of a symlink's target.
pub const MAX_TURNING_POINTS: usize = 8;

/// The turning points of a symlink: the paths where its target goes up (`..`) after it went down, such as `a` for
/// `a/../b`. `link` is the path of the symlink relative to the root.
///
/// A turning point must not be a symlink or lie below one, because `..` would then lead elsewhere than the text
/// suggests. When that holds for all symlinks, no chain of them leaves the root.
///
/// `None`: the target is never allowed. It is absolute; or a prefix of it leaves the root (as `a/../../b` at the top);
/// or it is empty, has a NUL, or exceeds [`MAX_LINK_TARGET_BYTES`] or [`MAX_TURNING_POINTS`].
pub fn turning_points(link: &[u8], target: &[u8]) -> Option<Vec<Vec<u8>>> {
    if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains(&0) || target[0] == b'/' {
        return None;
    }
    let mut at: Vec<&[u8]> = link.split(|b| *b == b'/').collect();
    at.pop();
    let (mut turning_points, mut went_down) = (Vec::new(), false);
    for component in target.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                if std::mem::take(&mut went_down) {
                    turning_points.push(at.join(&b'/'));
                }
                at.pop()?;
            }
            name => {
                at.push(name);
                went_down = true;
            }
        }
    }
    (turning_points.len() <= MAX_TURNING_POINTS).then_some(turning_points)
}

/// A path as reversible text: `%`, control characters and bytes that are not UTF-8 are percent-encoded.
pub fn percent_encode(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '%' || c.is_control() {
                let mut buffer = [0; 4];
                for byte in c.encode_utf8(&mut buffer).bytes() {
                    write!(out, "%{byte:02X}").expect("a String takes all");
                }
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            write!(out, "%{byte:02X}").expect("a String takes all");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unsafe_names() {
        for name in [&b""[..], b".", b"..", b".git", b".GIT", b".gIt", b"a\0b", b"a/b", &[b'x'; 256]] {
            assert!(!is_safe_component(name), "{name:?}");
        }
        for name in [&b"..."[..], b".gitignore", b"git", b" ", b"\xff\xfe", b"a\nb", b"-rf", &[b'x'; 255]] {
            assert!(is_safe_component(name), "{name:?}");
        }
        assert!(is_safe_path(b"a/b/"));
        for path in [&b"/a"[..], b"a//b", b"a/../b", b"", b"/", b"a/.git/b"] {
            assert!(!is_safe_path(path), "{path:?}");
        }
    }

    #[test]
    fn no_prefix_of_a_target_leaves_the_root() {
        for (link, target, expected) in [
            (&b"a"[..], &b"b"[..], &[][..]),
            (b"a/b", b"../c", &[]),
            (b"a/b/c", b"../../d", &[]),
            (b"a", b".", &[]),
            (b"a", b"b/c/", &[]),
            (b"a/b", b"..", &[]),
            (b"a", b"b/../c", &[&b"b"[..]]),
            (b"a/b", b"c/.//d/../../../e", &[b"a/c/d"]),
            (b"a/b", b"../c/../d/e/..", &[b"c", b"d/e"]),
        ] {
            assert_eq!(turning_points(link, target).unwrap(), expected, "{link:?} -> {target:?}");
        }
        let often = b"b/../".repeat(MAX_TURNING_POINTS + 1);
        assert!(turning_points(b"a", &often[5..]).is_some());
        for (link, target) in [
            (&b"a"[..], &b"/etc/passwd"[..]),
            (b"a", b".."),
            (b"a", b"../x"),
            (b"a/b", b"../../a/b"),
            (b"a", b"b/../../root/a"),
            (b"a", b""),
            (b"a", b"x\0y"),
            (b"a", &[b'x'; 4096]),
            (b"a", &often),
        ] {
            assert_eq!(turning_points(link, target), None, "{link:?} -> {target:?}");
        }
    }

    #[test]
    fn paths_as_text() {
        assert_eq!(percent_encode("käse/50%".as_bytes()), "käse/50%25");
        assert_eq!(percent_encode(b"a\xff\nb"), "a%FF%0Ab");
    }

    proptest! {
        #[test]
        fn percent_encoding_can_be_undone(path in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = percent_encode(&path);
            let mut decoded = Vec::new();
            let mut bytes = text.bytes();
            while let Some(byte) = bytes.next() {
                if byte == b'%' {
                    let hex = [bytes.next().unwrap(), bytes.next().unwrap()];
                    decoded.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
                } else {
                    decoded.push(byte);
                }
            }
            prop_assert_eq!(decoded, path);
        }

        /// The kernel resolves the symlinks, each through all others.
        #[test]
        fn no_chain_of_symlinks_leaves_the_root_when_turning_points_are_directories(
            links in proptest::collection::vec(("[a-c]{1}(/[a-c]){0,2}", "([.]{1,2}/|[a-c]/){1,6}"), 1..12)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            for name in ["a", "b", "c"] {
                // A target for symlinks that leave the root.
                std::fs::create_dir_all(root.join(name).join(name)).unwrap();
            }
            let root = root.join("a/a");
            let through_link = |path: &std::path::Path| path.ancestors().any(|above| root.join(above).is_symlink());
            for (link, target) in &links {
                let path = std::path::Path::new(link);
                let parent = path.parent().unwrap();
                if turning_points(link.as_bytes(), target.as_bytes()).is_some()
                    && !through_link(parent)
                    && std::fs::create_dir_all(root.join(parent)).is_ok()
                {
                    // An existing one stays.
                    let _ = std::os::unix::fs::symlink(target, root.join(path));
                }
            }
            for (link, target) in &links {
                let turns = turning_points(link.as_bytes(), target.as_bytes()).unwrap_or_default();
                let text = |turn: &Vec<u8>| String::from_utf8(turn.clone()).unwrap();
                if root.join(link).is_symlink() && turns.iter().any(|turn| through_link(text(turn).as_ref())) {
                    std::fs::remove_file(root.join(link)).unwrap();
                }
            }
            for (link, _) in &links {
                if let Ok(found) = root.join(link).canonicalize() {
                    prop_assert!(found.starts_with(&root), "{link} of {links:?} leads to {}", found.display());
                }
            }
        }
    }
}
