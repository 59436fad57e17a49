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

/// Whether a symlink at `link` (a path relative to the root) may point at `target`.
///
/// Refused: an absolute target; one that climbs above the root (`../x` from the top); one that goes up after it went down
/// (`a/../b`), because `a` may itself be a symlink, and what stands above it is elsewhere than it looks; an empty one, one
/// with a NUL, one over [`MAX_LINK_TARGET_BYTES`]. So a link only ever goes up from the real directory that it lies in, and
/// no chain of links leaves the root.
pub fn is_safe_link(link: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains(&0) || target[0] == b'/' {
        return false;
    }
    let above = link.iter().filter(|b| **b == b'/').count();
    let is_up = |name: &&[u8]| *name == b"..";
    let components = || target.split(|b| *b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    components().take_while(is_up).count() <= above && !components().skip_while(is_up).any(|name| is_up(&name))
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
    fn a_link_goes_up_first_and_not_above_the_root() {
        for (link, target) in [
            (&b"a"[..], &b"b"[..]),
            (b"a/b", b"../c"),
            (b"a/b/c", b"../../d"),
            (b"a", b"."),
            (b"a", b"b/c/"),
            (b"a/b", b".."),
            (b"a/b", b".//../c"),
        ] {
            assert!(is_safe_link(link, target), "{link:?} -> {target:?}");
        }
        for (link, target) in [
            (&b"a"[..], &b"/etc/passwd"[..]),
            (b"a", b".."),
            (b"a", b"../x"),
            (b"a/b", b"../../a/b"),
            (b"a", b"b/../../root/a"),
            (b"a", b"b/../c"),
            (b"a/b", b"../c/.."),
            (b"a", b""),
            (b"a", b"x\0y"),
            (b"a", &[b'x'; 4096]),
        ] {
            assert!(!is_safe_link(link, target), "{link:?} -> {target:?}");
        }
    }

    #[test]
    fn what_a_link_looks_like_is_not_where_it_leads() {
        // Each `l` looks like a step down and is none.
        assert!(is_safe_link(b"sub/l", b"."));
        assert!(!is_safe_link(b"a", b"sub/l/l/l/l/../../../../../outside"));
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
        fn no_chain_of_safe_links_leaves_the_root(
            links in proptest::collection::vec(("[a-c]{1}(/[a-c]){0,2}", "([.]{1,2}/|[a-c]/){1,6}"), 1..12)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            for name in ["a", "b", "c"] {
                // What a link that leaves the root would find.
                std::fs::create_dir_all(root.join(name).join(name)).unwrap();
            }
            let root = root.join("a/a");
            for (link, target) in &links {
                let parent = root.join(link).parent().unwrap().to_owned();
                let mut above = parent.ancestors().take_while(|above| *above != root);
                if above.all(|above| !above.is_symlink())
                    && is_safe_link(link.as_bytes(), target.as_bytes())
                    && std::fs::create_dir_all(parent).is_ok()
                {
                    // One that is there already stays.
                    let _ = std::os::unix::fs::symlink(target, root.join(link));
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
