//! Parses an `https://` or `http://` URL with the parser of the HTTP client.

use reqwest::Url;

/// Parses a URL, which may contain user info.
///
/// # Errors
/// It is invalid, or the other parser (`gix_url`) reads another host. The reason has no part of the text.
pub(super) fn parse(text: &str, gix_url: &gix_url::Url) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "it is not a valid address")?;
    let default_port = match url.scheme() {
        "https" => 443,
        "http" => 80,
        _ => return Err("it is not an `https://` or `http://` URL"),
    };
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or("it has no host")?;
    let same_host = gix_url
        .host()
        .is_some_and(|host_of_gix| without_brackets(host_of_gix).eq_ignore_ascii_case(without_brackets(host)));
    let same_port = gix_url.port.unwrap_or(default_port) == url.port().unwrap_or(default_port);
    let same_user = gix_url.user().is_some() != url.username().is_empty();
    if gix_url.scheme.as_str() == url.scheme() && same_host && same_port && same_user {
        Ok(url)
    } else {
        Err("it is ambiguous: write its host with letters, digits, `.` and `-`, or as an IP address")
    }
}

fn without_brackets(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Url, &'static str> {
        super::parse(text, &gix_url::parse(text).map_err(|_| "it is not a valid address")?)
    }

    #[test]
    fn a_url_has_one_host() {
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
        fn both_parsers_agree_on_every_valid_url(text in "https?:[/\\\\]{0,3}[a-cA-C0-9.:@%\\\\?#\\[\\]\t/]{0,24}") {
            if let Ok(url) = parse(&text) {
                let seen = gix_url::parse(&*text).unwrap();
                prop_assert_eq!(without_brackets(seen.host().unwrap()).to_ascii_lowercase(), without_brackets(url.host_str().unwrap()));
                prop_assert_eq!(seen.user().is_some(), !url.username().is_empty());
            }
        }
    }
}
