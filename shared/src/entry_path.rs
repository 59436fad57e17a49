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
/// Refused: an absolute target; one whose lexical resolution climbs above the root at any prefix (`a/../../b` from the
/// top does, although it comes back); an empty one, one with a NUL, one over [`MAX_LINK_TARGET_BYTES`].
pub fn is_safe_link(link: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || target.len() > MAX_LINK_TARGET_BYTES || target.contains(&0) || target[0] == b'/' {
        return false;
    }
    let mut depth = link.split(|b| *b == b'/').count() - 1;
    for component in target.split(|b| *b == b'/') {
        match component {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(up) => depth = up,
                None => return false,
            },
            _ => depth += 1,
        }
    }
    true
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
        for (link, target) in [
            (&b"a"[..], &b"b"[..]),
            (b"a/b", b"../c"),
            (b"a/b/c", b"../../d"),
            (b"a", b"."),
            (b"a", b"b/../c"),
            (b"a/b", b".."),
        ] {
            assert!(is_safe_link(link, target), "{link:?} -> {target:?}");
        }
        for (link, target) in [
            (&b"a"[..], &b"/etc/passwd"[..]),
            (b"a", b".."),
            (b"a", b"../x"),
            (b"a/b", b"../../a/b"),
            (b"a", b"b/../../root/a"),
            (b"a", b""),
            (b"a", b"x\0y"),
            (b"a", &[b'x'; 4096]),
        ] {
            assert!(!is_safe_link(link, target), "{link:?} -> {target:?}");
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

        #[test]
        fn a_safe_link_resolves_below_the_root(link in "[a-c]{1}(/[a-c]){0,3}", target in "([.]{1,2}|[a-c]|/){1,8}") {
            if is_safe_link(link.as_bytes(), target.as_bytes()) {
                let mut at: Vec<&str> = link.split('/').collect();
                at.pop();
                for component in target.split('/') {
                    match component { "" | "." => {}, ".." => prop_assert!(at.pop().is_some()), name => at.push(name) }
                }
            }
        }
    }
}
