//! What the `ssh` program, or the server behind it, complains about, in plain words.

use super::super::MirrorError;

/// What the complaint comes down to; nothing when there is none.
pub(crate) fn classify_stderr(step: &'static str, stderr: &str) -> Option<MirrorError> {
    let has = |words: &str| stderr.contains(words);
    let trust = |what: &str| Some(MirrorError::Trust(what.to_owned()));
    let refused = |what: &str| Some(MirrorError::Authenticate(what.to_owned()));
    let connect = |cause: &str, timeout| Some(MirrorError::Connect { cause: cause.to_owned(), timeout });
    if has("REMOTE HOST IDENTIFICATION HAS CHANGED") {
        return trust(
            "its host shows another key than the one in `ssh_known_hosts`: somebody may sit in between. If its key was \
             changed on purpose, compare the new one with what its operators publish and put it into the file",
        );
    }
    if has("host key is known for") || has("Host key verification failed") {
        return trust(
            "no key of its host is in `ssh_known_hosts`: put one there (as `ssh-keyscan HOST` prints it) after comparing \
             it with what its operators publish",
        );
    }
    if has("UNPROTECTED PRIVATE KEY FILE") || has("bad permissions") {
        return refused(
            "the file of `ssh_key` may be read by others, and `ssh` takes no such key: give it mode 0600 or 0400",
        );
    }
    if has("Load key") || has("invalid format") {
        return refused("the file of `ssh_key` holds no private key that can be used: it may have a passphrase");
    }
    if has("Permission denied (") || has("Too many authentication failures") {
        return refused("it does not accept the key in `ssh_key` for this user name");
    }
    if has("Could not resolve hostname") {
        return connect("its host name has no address", false);
    }
    if has("Connection timed out") || has("Operation timed out") {
        return connect("no connection came about in time", true);
    }
    for words in ["Connection refused", "No route to host", "Network is unreachable"] {
        if has(words) {
            return connect(words, false);
        }
    }
    let absent =
        ["does not appear to be a git repository", "Repository not found", "could not be found", "does not exist"];
    if absent.iter().any(|words| has(words)) {
        return Some(MirrorError::NotFound("its server says that there is none at this path".to_owned()));
    }
    let last = stderr.lines().rev().map(plain).find(|line| !line.is_empty())?;
    Some(MirrorError::Upstream { step, cause: format!("ssh: {last}") })
}

/// A line that came from outside, as it may be shown.
fn plain(line: &str) -> String {
    let shown: String = line.chars().filter(|c| !c.is_control()).take(200).collect();
    shown.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_complaint_says_what_to_do() {
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
            ("git@h: Permission denied (publickey).\r\n", "authenticate", "does not accept the key"),
            (
                "Load key \"/k\": error in libcrypto\r\ngit@h: Permission denied (publickey).",
                "authenticate",
                "holds no private key",
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
