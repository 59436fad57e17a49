//! Fetching over SSH: the `ssh` program, with a key and the hosts' keys that the configuration names, and nothing else.
//!
//! No configuration of the machine or of a user is read, no agent is asked, nothing is forwarded, no host is trusted
//! that is not known, and nobody is ever asked anything.

mod complaint;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) use self::complaint::complaint;
use super::MirrorError;
use super::attempt::Attempt;
use crate::outside_program::pinned;
use crate::source::{SshAddress, Upstream};

/// Of so many addresses of a name one has to connect.
const MOST_ADDRESSES: usize = 8;

/// The port of SSH.
const PORT: u16 = 22;

/// What is the same for all upstreams.
const OPTIONS: [&str; 22] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "GlobalKnownHostsFile=/dev/null",
    "UpdateHostKeys=no",
    "VerifyHostKeyDNS=no",
    "CanonicalizeHostname=no",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "PreferredAuthentications=publickey",
    "PasswordAuthentication=no",
    "KbdInteractiveAuthentication=no",
    "NumberOfPasswordPrompts=0",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "ProxyCommand=none",
    "ControlMaster=no",
    "ControlPath=none",
    "RequestTTY=no",
    "EscapeChar=none",
    "LogLevel=ERROR",
];

/// How a host is asked: in one of the ways that follow each other until one of them connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Try {
    /// The address that was judged. Absent: the program looks the name up, and tries all that it finds.
    judged: Option<IpAddr>,
    /// How long the connection may take to come about.
    connect_timeout: Duration,
}

/// The ways to a host. Where addresses are judged, each of them is one, and they share the time for a connection.
pub(super) fn tries(attempt: &Attempt, address: &SshAddress) -> Result<Vec<Try>, MirrorError> {
    let egress = &attempt.upstream.egress;
    egress.check_host(&address.host)?;
    let connect_timeout = attempt.connect_timeout();
    if !egress.public_only {
        return Ok(vec![Try { judged: None, connect_timeout }]);
    }
    let resolved = attempt.wait(egress.resolve(&address.host, address.port.unwrap_or(PORT)))??;
    Ok(share(&resolved, connect_timeout))
}

fn share(resolved: &[SocketAddr], connect_timeout: Duration) -> Vec<Try> {
    let tried = &resolved[..resolved.len().min(MOST_ADDRESSES)];
    let connect_timeout = connect_timeout / u32::try_from(tried.len()).unwrap_or(1).max(1);
    tried.iter().map(|address| Try { judged: Some(address.ip()), connect_timeout }).collect()
}

/// The first that connects, whatever comes of it then; or why the last of them did not. Whoever has `heard` something of
/// the server has connected, whatever the server says.
pub(super) fn in_turn<T>(
    tries: impl IntoIterator<Item = Try>,
    heard: impl Fn() -> bool,
    mut ask: impl FnMut(Try) -> Result<T, MirrorError>,
) -> Result<T, MirrorError> {
    let mut last = MirrorError::Connect { cause: "its host name has no address".to_owned(), timeout: false };
    for each in tries {
        match ask(each) {
            Err(error @ MirrorError::Connect { .. }) if !heard() => last = error,
            ended => return ended,
        }
    }
    Err(last)
}

/// The program that talks to the upstream's host.
pub(super) fn upload_pack(attempt: &Attempt, address: &SshAddress, each: Try) -> Result<Command, MirrorError> {
    let Upstream { ssh_key, ssh_known_hosts, .. } = attempt.upstream;
    let missing = |what| MirrorError::Authenticate(format!("SSH needs {what}"));
    let key = ssh_key.as_deref().ok_or_else(|| missing("the file of a private key (`ssh_key`)"))?;
    let known = ssh_known_hosts.as_deref();
    let known = known.ok_or_else(|| missing("a file with the keys of its host (`ssh_known_hosts`)"))?;
    let mut command = pinned("ssh");
    command.args(["-F", "none", "-T", "-a", "-x"]);
    for option in OPTIONS {
        command.args(["-o", option]);
    }
    command.arg("-o").arg(format!("ConnectTimeout={}", each.connect_timeout.as_secs().max(1)));
    command.arg("-o").arg(format!("UserKnownHostsFile={}", quoted(known, "ssh_known_hosts")?));
    command.arg("-o").arg(format!("IdentityFile={}", quoted(key, "ssh_key")?));
    command.args(["-o", "SetEnv=GIT_PROTOCOL=version=2"]);
    if let Some(judged) = each.judged {
        // The address that was judged is the one that is asked; the keys are still those of the name.
        let port = address.port.unwrap_or(PORT);
        let alias = if port == PORT { address.host.clone() } else { format!("[{}]:{port}", address.host) };
        command.arg("-o").arg(format!("HostName={judged}"));
        command.arg("-o").arg(format!("HostKeyAlias={alias}"));
    }
    if let Some(port) = address.port {
        command.arg("-p").arg(port.to_string());
    }
    command.arg("-l").arg(&address.user).arg("--").arg(&address.host);
    command.arg(format!("git-upload-pack {}", for_shell(&address.path)));
    Ok(command)
}

/// A file's name as it stands in an option of `ssh`, which would expand some characters.
fn quoted(file: &Path, what: &'static str) -> Result<String, MirrorError> {
    let wrong = |why| MirrorError::UnsupportedUrl { url: format!("the file of `{what}`"), reason: why };
    let text = file.to_str().ok_or_else(|| wrong("its name is no UTF-8"))?;
    if text.chars().any(|c| c.is_control() || "\"\\$%~".contains(c)) {
        return Err(wrong("its name holds one of `\" \\ $ % ~`, which `ssh` would not take literally"));
    }
    // It would be looked for below the working directory, or be quietly taken for none.
    std::fs::metadata(file).map_err(MirrorError::unread(what, file))?;
    Ok(format!("\"{text}\""))
}

/// A word as the shell of the server reads it.
fn for_shell(word: &str) -> String {
    let mut quoted = String::from("'");
    for c in word.chars() {
        match c {
            // `!` means something to some shells even in quotes.
            '\'' | '!' => quoted.extend(["'\\", &c.to_string(), "'"]),
            other => quoted.push(other),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::source::Address;

    #[test]
    fn a_path_is_one_word_for_the_shell() {
        for (path, expected) in [("/a b", "'/a b'"), ("a'b!c", "'a'\\''b'\\!'c'"), ("$(x)`y`", "'$(x)`y`'")] {
            assert_eq!(for_shell(path), expected);
        }
    }

    #[test]
    fn each_address_has_its_turn_until_one_connects() {
        let resolved = ["[::1]:22", "127.0.0.1:22"].map(|address| address.parse().unwrap());
        let tries = share(&resolved, Duration::from_secs(20));
        let (judged, connect_timeout) = (|address: &str| Some(address.parse().unwrap()), Duration::from_secs(10));
        assert_eq!(tries, [judged("::1"), judged("127.0.0.1")].map(|judged| Try { judged, connect_timeout }));
        assert_eq!(share(&[resolved[0]; 100], Duration::from_secs(20)).len(), MOST_ADDRESSES);
        let refused = || MirrorError::Connect { cause: "Connection refused".to_owned(), timeout: false };
        let ask = |ended: &[Result<u8, MirrorError>]| {
            let mut ended = ended.iter().cloned();
            let result = in_turn(tries.clone(), || false, |_| ended.next().unwrap());
            (result.map_err(|error| error.to_string()), ended.len())
        };
        assert_eq!(ask(&[Err(refused()), Ok(7)]), (Ok(7), 0));
        assert_eq!(ask(&[Ok(7), Ok(8)]), (Ok(7), 1));
        assert_eq!(ask(&[Err(refused()), Err(refused())]), (Err(refused().to_string()), 0));
        // Who was connected to has said no: nobody else is asked.
        let trust = MirrorError::Trust("another key".to_owned());
        assert_eq!(ask(&[Err(trust.clone()), Ok(7)]), (Err(trust.to_string()), 1));
        // Nor when the server says itself what the program says of those that refuse.
        let mut ended = [Err(refused()), Ok(7)].into_iter();
        assert!(in_turn(tries, || true, |_| ended.next().unwrap()).is_err());
    }

    #[test]
    fn options_end_before_what_the_configuration_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            std::fs::write(dir.path().join(name), "").unwrap();
            Some(dir.path().join(name))
        };
        let mut upstream = Upstream::new("ssh://me@git.example:2222/x");
        let interrupt = AtomicBool::new(false);
        let build = |upstream: &Upstream| {
            let Ok(Address::Ssh(address)) = upstream.url.address() else { panic!("{upstream:?}") };
            let attempt = Attempt::new(upstream, &interrupt).unwrap();
            let tries = tries(&attempt, address)?;
            upload_pack(&attempt, address, tries[0])
        };
        assert!(build(&upstream).unwrap_err().to_string().contains("`ssh_key`"));
        upstream.ssh_key = file("key of mine");
        assert!(build(&upstream).unwrap_err().to_string().contains("`ssh_known_hosts`"));
        upstream.ssh_known_hosts = file("known");
        let command = build(&upstream).unwrap();
        let words = command.get_args().map(|word| word.to_str().unwrap());
        let words: Vec<_> = words.skip_while(|word| *word != "ssh").skip(1).collect();
        assert!(words.starts_with(&["-F", "none", "-T", "-a", "-x", "-o"]), "{words:?}");
        assert!(words.ends_with(&["-p", "2222", "-l", "me", "--", "git.example", "git-upload-pack '/x'"]), "{words:?}");
        assert!(words.iter().any(|word| word.starts_with("IdentityFile=\"") && word.ends_with("key of mine\"")));
        upstream.ssh_key = file("100%");
        assert!(build(&upstream).unwrap_err().to_string().contains("literally"));
        upstream.ssh_key = Some(dir.path().join("none"));
        assert!(matches!(build(&upstream).unwrap_err(), MirrorError::File { key: "ssh_key", .. }));
    }
}
