//! An address of `https://` or `http://`, as whoever opens the connection reads it.

use reqwest::Url;

/// Reads an address. It may hold user info; who allows none looks for it.
///
/// # Errors
/// What is wrong with it, or that the other reader has `seen` another host; never any part of it.
pub(super) fn parse(text: &str, seen: &gix::Url) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "it is no address")?;
    let usual_port = match url.scheme() {
        "https" => 443,
        "http" => 80,
        _ => return Err("it is no address of `https://` or `http://`"),
    };
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or("it names no host")?;
    let same_host = seen.host().is_some_and(|seen| plain(seen).eq_ignore_ascii_case(plain(host)));
    let same_port = seen.port.unwrap_or(usual_port) == url.port().unwrap_or(usual_port);
    let same_user = seen.user().is_some() != url.username().is_empty();
    if seen.scheme.as_str() == url.scheme() && same_host && same_port && same_user {
        Ok(url)
    } else {
        Err("it can be read in more than one way: write its host with letters, digits, `.` and `-`, or as an address")
    }
}

fn plain(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Url, &'static str> {
        super::parse(text, &gix::url::parse(text).map_err(|_| "it is no address")?)
    }

    #[test]
    fn an_address_has_one_host() {
        for (text, host) in [
            ("https://git.example/acme/shop.git", "git.example"),
            ("https://GIT.example:8443/x", "git.example"),
            ("http://10.0.0.1:80/x", "10.0.0.1"),
            ("https://[2001:db8::1]:443/x", "[2001:db8::1]"),
            ("https://proxy.example:3128", "proxy.example"),
            ("https://git.example/a%20b?c#d", "git.example"),
            ("https://git.example#@evil.example/x", "git.example"),
            ("https://git.example?@evil.example/x", "git.example"),
        ] {
            assert_eq!(parse(text).map(|url| url.host_str().unwrap().to_owned()).as_deref(), Ok(host), "{text}");
        }
        for text in [
            "https://git.example\\@evil.example/x",
            "https://evil.example\\.git.example/x",
            "https://git.ex\tample/x",
            "https://git%2eexample/x",
            "https://0x7f.1/x",
            "https://2130706433/x",
            "https://127.1/x",
            "https://ｇit.example/x",
            "HTTPS://git.example#@evil.example/x",
            "https:git.example/x",
            "https:///x",
            "https://",
            "ssh://git@git.example/x",
            "git.example:x",
            "/srv/x",
            "",
        ] {
            assert!(parse(text).is_err(), "{text}: {:?}", parse(text));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_both_read_the_same(text in "https?:[/\\\\]{0,3}[a-cA-C0-9.:@%\\\\?#\\[\\]\t/]{0,24}") {
            if let Ok(url) = parse(&text) {
                let seen = gix::url::parse(&*text).unwrap();
                prop_assert_eq!(plain(seen.host().unwrap()).to_ascii_lowercase(), plain(url.host_str().unwrap()));
                prop_assert_eq!(seen.user().is_some(), !url.username().is_empty());
            }
        }
    }
}
