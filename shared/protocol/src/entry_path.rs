//! Which names and symlinks a tarball may hold: one rule, the same at the origin that writes and the agent that unpacks.

use std::fmt::Write;

/// The longest component of a path, in bytes (what common file systems take).
pub const MAX_COMPONENT_BYTES: usize = 255;

/// The longest target of a symlink, in bytes (`PATH_MAX` without its NUL).
pub const MAX_LINK_TARGET_BYTES: usize = 4095;

/// Whether one component of a path is safe to create in a directory: not empty, not `.`, `..` or any case of `.git`, no
/// `/` and no NUL in it, at most [`MAX_COMPONENT_BYTES`].
pub fn is_safe_component(component: &[u8]) -> bool {
    !component.is_empty()
        && component != b"."
        && component != b".."
        && !component.eq_ignore_ascii_case(b".git")
        && component.len() <= MAX_COMPONENT_BYTES
        && !component.contains(&0)
        && !component.contains(&b'/')
}

/// Whether every component of a relative path is safe; one trailing `/` (a directory's) is allowed.
pub fn is_safe_path(path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.split(|b| *b == b'/').all(is_safe_component)
}

/// The most times that a symlink's target may go down and up again.
pub const MAX_TURNING_POINTS: usize = 8;

/// Where the target of a symlink at `link` (a path relative to the root) goes up after it went down: `a` for `a/../b`. None
/// of these paths may be or lead through a symlink, or else what stands above it is elsewhere than it looks. Where that
/// holds of all links, each goes up from real directories only, and no chain of them leaves the root.
///
/// `None`: it must not be, whatever else there is. It is absolute; or its lexical resolution climbs above the root at any
/// prefix (`a/../../b` from the top does, although it comes back); or it is empty, has a NUL, more than
/// [`MAX_LINK_TARGET_BYTES`], or more than [`MAX_TURNING_POINTS`].
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

/// A path as text: bytes that are not UTF-8, controls, and `%` are percent-encoded, so that it can be decoded again.
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
    fn a_link_may_not_leave_the_root_even_for_a_moment() {
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

        /// The kernel follows them, each through all others.
        #[test]
        fn no_chain_of_links_leaves_the_root_where_no_turning_point_is_one(
            links in proptest::collection::vec(("[a-c]{1}(/[a-c]){0,2}", "([.]{1,2}/|[a-c]/){1,6}"), 1..12)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            for name in ["a", "b", "c"] {
                // What a link that leaves the root would find.
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
                    // One that is there already stays.
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
