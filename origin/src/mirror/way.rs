//! By which way an upstream is asked: its URL says so, and what names none is no upstream. Pure.

use gix::url::Scheme;

/// How an upstream is talked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `https://` and `http://`.
    Http,
    /// `git://`.
    Daemon,
    /// `file://` or a path: by a program on this machine.
    Local,
    /// `ssh://` or `user@host:path`.
    Ssh,
}

/// The way to a URL.
///
/// # Errors
/// What is wrong with it; never any part of it.
pub(crate) fn way(url: &gix::Url) -> Result<Way, &'static str> {
    let way = match url.scheme {
        Scheme::Https | Scheme::Http => Way::Http,
        Scheme::Git => Way::Daemon,
        Scheme::File => Way::Local,
        Scheme::Ssh => Way::Ssh,
        _ => return Err("the scheme is none of https, http, ssh, git and file"),
    };
    match way {
        Way::Daemon if url.host().is_none() => Err("it names no host"),
        // No Git server asks for one, and what people put there is a token.
        Way::Http if url.path.contains(&b'?') => Err(
            "it holds a query (`?…`), which whoever may see the URL may see: a password or token belongs into a file, \
             named by `password_file` or `token_file`",
        ),
        way => Ok(way),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_url_has_a_way_or_is_refused() {
        for (url, expected) in [
            ("https://git.example/acme/shop.git", Ok(Way::Http)),
            ("http://127.0.0.1:80/x", Ok(Way::Http)),
            ("git://git.example/x", Ok(Way::Daemon)),
            ("ssh://git@git.example/x", Ok(Way::Ssh)),
            ("git@git.example:x", Ok(Way::Ssh)),
            ("/srv/what?.git", Ok(Way::Local)),
            ("file:///srv/x", Ok(Way::Local)),
            ("ftp://git.example/x", Err("scheme")),
            ("svn://git.example/x", Err("scheme")),
            ("ext::sh -c id", Err("scheme")),
            ("bogus::x", Err("scheme")),
            ("https://git.example/x?private_token=s3cret", Err("password_file")),
            ("http://git.example?private_token=s3cret", Err("password_file")),
        ] {
            match (way(&gix::url::parse(url).unwrap()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{url}"),
                (Err(reason), Err(word)) => assert!(reason.contains(word) && !reason.contains("s3cret"), "{url}"),
                (found, _) => panic!("{url}: {found:?}"),
            }
        }
    }
}
