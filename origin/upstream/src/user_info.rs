//! The user info of URLs, which may be secret.

/// Removes the user info from every URL in a text.
pub fn without_user_info(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme) = rest.find("://") {
        let (before, after) = rest.split_at(scheme + 3);
        out.push_str(before);
        let authority = after.find(|c: char| c == '/' || c.is_whitespace() || "\"'`?#)>".contains(c));
        let authority = &after[..authority.unwrap_or(after.len())];
        // The last `@` ends the user info, even if a password has an unencoded one.
        let user_info = authority.rfind('@').map_or(0, |at| at + 1);
        rest = &after[user_info..];
    }
    // `user@host:path`, the other notation of an SSH URL.
    if out.is_empty()
        && let Some((user, host)) = rest.split_once('@')
        && host.contains(':')
        && !user.contains(['/', ' '])
    {
        rest = host;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_info_is_never_shown() {
        for (text, expected) in [
            ("https://git.example/a.git", "https://git.example/a.git"),
            ("https://me:secret@git.example/a.git", "https://git.example/a.git"),
            ("https://token@git.example", "https://git.example"),
            ("https://me:p@ss@git.example/a@b", "https://git.example/a@b"),
            ("see (https://me:x@h/a) and git://u@h2/b", "see (https://h/a) and git://h2/b"),
            ("git@git.example:a.git", "git.example:a.git"),
            ("/srv/git/a@b.git", "/srv/git/a@b.git"),
            ("file:///srv/a@b", "file:///srv/a@b"),
        ] {
            assert_eq!(without_user_info(text), expected);
        }
    }
}
