//! Parses both notations of an SSH upstream: `ssh://user@host:port/path` and `user@host:path`.

/// The default user name. The name of the process's user would depend on the machine.
const DEFAULT_USER: &str = "git";

/// The address of an SSH upstream. No part can be an option of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshAddress {
    /// Letters, digits and `._+-`, without `-` at the start.
    pub user: String,
    /// A name or an IP address, without brackets.
    pub host: String,
    /// `None`: 22.
    pub port: Option<u16>,
    /// As sent to the server: absolute, or relative to the user's home.
    pub path: String,
}

/// Parses either notation.
///
/// # Errors
/// It is invalid, or the other parser (`gix_url`) reads another host. The reason has no part of the text.
pub(super) fn parse(url: &str, gix_url: &gix_url::Url) -> Result<SshAddress, &'static str> {
    let address = read(url)?;
    let host = gix_url.host().unwrap_or_default().trim_matches(['[', ']']);
    match host.eq_ignore_ascii_case(&address.host) && gix_url.port == address.port {
        true => Ok(address),
        false => Err("its host is ambiguous"),
    }
}

fn read(url: &str) -> Result<SshAddress, &'static str> {
    let rest = url.strip_prefix("ssh://");
    let decoded;
    let (authority, path) = match rest {
        Some(rest) => {
            let slash = rest.find('/').ok_or("it has no path")?;
            let (authority, path) = rest.split_at(slash);
            // A decoded `%2f` or `%40` would end the host elsewhere.
            if authority.contains('%') {
                return Err("it has a percent sign before the path");
            }
            decoded = decode(path)?;
            // `ssh://host/~user/x` is below a user's home.
            (authority, if decoded.starts_with("/~") { &decoded[1..] } else { &decoded[..] })
        }
        None if url.contains("://") => return Err("it is not an SSH address"),
        None => {
            let colon = end_of_host(url).ok_or("it has no path")?;
            (&url[..colon], &url[colon + 1..])
        }
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or((DEFAULT_USER, authority));
    let (host, port) = if rest.is_some() { split_port(host)? } else { (host, None) };
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or("its host has no closing bracket")?,
        None => host,
    };
    if user.is_empty()
        || user.starts_with('-')
        || !user.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c))
    {
        return Err("its user name may only have letters, digits and `._+-`, and must not start with `-`");
    }
    if host.is_empty()
        || host.starts_with('-')
        || !host.chars().all(|c| c.is_ascii_alphanumeric() || "._:-".contains(c))
    {
        return Err("its host is not a valid name or IP address");
    }
    if path.is_empty() || path.starts_with('-') || path.chars().any(char::is_control) {
        return Err("its path is empty, starts with `-`, or contains control characters");
    }
    Ok(SshAddress { user: user.to_owned(), host: host.to_owned(), port, path: path.to_owned() })
}

/// Decodes percent signs like Git does: an invalid escape stays as it is.
fn decode(url: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(url.len());
    let mut rest = url.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = (*first == b'%').then(|| after.get(..2)).flatten();
        let hex = hex.filter(|hex| hex.iter().all(u8::is_ascii_hexdigit)).and_then(|hex| str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => (bytes.push(byte), rest = &after[2..]),
            None => (bytes.push(*first), rest = after),
        };
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8")
}

/// The end of the host in `user@host:path`: the first colon outside of brackets.
fn end_of_host(url: &str) -> Option<usize> {
    let bracket = url.find('[').filter(|at| !url[..*at].contains(':'));
    let from = bracket.map_or(Some(0), |at| url[at..].find(']').map(|end| at + end))?;
    url[from..].find(':').map(|at| from + at)
}

fn split_port(host: &str) -> Result<(&str, Option<u16>), &'static str> {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => {
            let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or("its port is not a number")?;
            Ok((name, Some(port)))
        }
        _ => Ok((host, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gix_url::Scheme;
    use proptest::prelude::*;

    fn parse(url: &str) -> Result<SshAddress, &'static str> {
        let seen = gix_url::parse(url).ok().filter(|seen| seen.scheme == Scheme::Ssh);
        super::parse(url, &seen.ok_or("it is not an SSH address")?)
    }

    #[test]
    fn both_notations_are_parsed() {
        for (url, user, host, port, path) in [
            ("ssh://me@git.example:2222/a/b.git", "me", "git.example", Some(2222), "/a/b.git"),
            ("ssh://git.example/a%20b%252", "git", "git.example", None, "/a b%2"),
            ("ssh://git.example/~me/a", "git", "git.example", None, "~me/a"),
            ("ssh://git@[::1]:22/a", "git", "::1", Some(22), "/a"),
            ("ssh://[fe80::1]/a", "git", "fe80::1", None, "/a"),
            ("git@git.example:acme/shop.git", "git", "git.example", None, "acme/shop.git"),
            ("git.example:/abs", "git", "git.example", None, "/abs"),
        ] {
            let expected = SshAddress { user: user.into(), host: host.into(), port, path: path.into() };
            assert_eq!(parse(url), Ok(expected), "{url}");
        }
    }

    #[test]
    fn no_part_can_be_an_option() {
        for url in [
            "ssh://-oProxyCommand=x/a",
            "ssh://%2doProxyCommand=x/a",
            "ssh://127.0.0.1:2299%2f@github.com/acme/x",
            "ssh://github.com%2f@127.0.0.1/acme/x",
            "ssh://git%40127.0.0.1%2f@github.com/x",
            "ssh://host/a%0ab",
            "ssh://host/a%2",
            "ssh://host/a%ff",
            "ssh://me@-oProxyCommand=x/a",
            "ssh://-l@host/a",
            "-oProxyCommand=x:a",
            "git@-x:a",
            "host:-upload",
            "ssh://host",
            "ssh://host:x/a",
            "ssh://host:0/a",
            "ssh://host:+1/a",
            "ssh://me:pw@host/a",
            "ssh://ho st/a",
            "ssh://[::1/a",
            "git@host:",
            "host:a\nb",
            "me@[::1]:a:b",
            "https://host/a",
            "host",
            "",
        ] {
            assert!(parse(url).is_err(), "{url}");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_address_is_within_its_bounds(url in "(ssh://)?[-a-z@:\\[\\]/~%$ ]{0,20}") {
            check(&url);
        }

        #[test]
        fn both_parsers_agree_on_the_host(url in "(ssh://)?([ab1.:@#?\\\\\\[\\]]|%2f|%40|%3a|%){0,12}/[a%]{0,3}(@[ab]{1,3}/)?") {
            if let (Ok(address), Ok(seen)) = (parse(&url), gix_url::parse(&*url)) {
                let host = seen.host().unwrap().trim_matches(['[', ']']);
                prop_assert!(seen.scheme == Scheme::Ssh && host.eq_ignore_ascii_case(&address.host), "{seen:?} {address:?}");
            }
        }
    }

    fn check(url: &str) {
        if let Ok(address) = parse(url) {
            assert!(!address.host.starts_with('-') && !address.user.starts_with('-') && !address.path.starts_with('-'));
            let host = if address.host.contains(':') { format!("[{}]", address.host) } else { address.host.clone() };
            // `host:/~x` has no `ssh://` notation.
            let absolute = address.path.starts_with('/') && !address.path.starts_with("/~");
            if absolute || address.path.starts_with('~') {
                let port = address.port.map(|port| format!(":{port}")).unwrap_or_default();
                let slash = if address.path.starts_with('/') { "" } else { "/" };
                let path = address.path.replace('%', "%25").replace(' ', "%20");
                let again = format!("ssh://{}@{host}{port}{slash}{path}", address.user);
                assert_eq!(parse(&again), Ok(address), "{again}");
            }
        }
    }
}
