//! Classifies error messages of the `ssh` program, and of the server behind it.

use weir_upstream::UpstreamError;

/// The error for the standard error of `ssh`; `None` if it is empty.
pub(crate) fn classify_stderr(step: &'static str, stderr: &str) -> Option<UpstreamError> {
    let has = |words: &str| stderr.contains(words);
    let trust = |what: &str| Some(UpstreamError::Trust(what.to_owned()));
    let refused = |what: &str| Some(UpstreamError::Authenticate(what.to_owned()));
    let connect = |cause: &str, timeout| Some(UpstreamError::Connect { cause: cause.to_owned(), timeout });
    if has("REVOKED HOST KEY DETECTED") || has("is marked as revoked") {
        return trust("the key of its host is marked as `@revoked` in `ssh_known_hosts`: somebody else may have it");
    }
    if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        return trust(
            "its host has another key than in `ssh_known_hosts`, which may be an attack. If the key was changed on purpose, \
             compare the new one with the key that its operators publish, and put it into the file",
        );
    }
    if has("host key is known for") || has("Host key verification failed") {
        return trust(
            "no key of its host is in `ssh_known_hosts`: add the output of `ssh-keyscan HOST`, after comparing it with the \
             key that its operators publish",
        );
    }
    if has("UNPROTECTED PRIVATE KEY FILE") || has("bad permissions") {
        return refused(
            "the file of `ssh_key` is readable by others, and `ssh` refuses such keys: set its mode to 0600 or 0400",
        );
    }
    if has("Load key") || has("invalid format") {
        return refused("the file of `ssh_key` is not a usable private key: it may have a passphrase");
    }
    if has("Permission denied (") || has("Too many authentication failures") {
        return refused("it does not accept the key in `ssh_key` for this user name");
    }
    if has("Could not resolve hostname") {
        return connect("its host name has no address", false);
    }
    if has("Connection timed out") || has("Operation timed out") {
        return connect("the connection timed out", true);
    }
    for words in ["Connection refused", "No route to host", "Network is unreachable"] {
        if has(words) {
            return connect(words, false);
        }
    }
    let absent =
        ["does not appear to be a git repository", "Repository not found", "could not be found", "does not exist"];
    if absent.iter().any(|words| has(words)) {
        return Some(UpstreamError::NotFound { step, cause: "its server reports none at this path".to_owned() });
    }
    let last = stderr.lines().rev().map(plain).find(|line| !line.is_empty())?;
    Some(UpstreamError::Protocol { step, cause: format!("ssh: {last}") })
}

/// A line from outside for display.
fn plain(line: &str) -> String {
    let shown: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    shown.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        for (stderr, step, part) in [
            (
                "No ED25519 host key is known for [h]:22 and you have requested strict checking.\r\nHost key verification failed.\r\n",
                "connect",
                "no key of its host",
            ),
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                "connect",
                "another key",
            ),
            (
                "@ WARNING: REVOKED HOST KEY DETECTED! @\nThe ED25519 host key for [h]:22 is marked as revoked.\nHost key verification failed.",
                "connect",
                "marked as `@revoked`",
            ),
            ("git@h: Permission denied (publickey).\r\n", "authenticate", "does not accept the key"),
            (
                "Load key \"/k\": error in libcrypto\r\ngit@h: Permission denied (publickey).",
                "authenticate",
                "not a usable private key",
            ),
            ("ssh: connect to host h port 22: Connection refused\r\n", "connect", "Connection refused"),
            ("ERROR: Repository not found.\nfatal: x", "list refs", "no such repository"),
            (
                "kex_exchange_identification: \u{1b}[31mread: reset\r\n",
                "list refs",
                "ssh: kex_exchange_identification: [31mread: reset",
            ),
        ] {
            let error = classify_stderr("list refs", stderr).unwrap();
            assert_eq!(error.step(), step, "{stderr}");
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(classify_stderr("fetch", " \r\n").is_none());
    }
}
