//! The transport over SSH: the `ssh` program with only the configured key and known hosts.
//!
//! No system or user configuration is read, no agent is used, nothing is forwarded, unknown hosts are refused, and
//! there are no prompts.

mod errors;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weir_upstream::outside_program::pinned;
use weir_upstream::{RepositoryConfig, SshAddress, UpstreamError};

pub(super) use self::errors::classify_stderr;
use super::MirrorError;
use super::git_session::GitSession;

/// The most addresses of a host name to try.
const MAX_ADDRESSES: usize = 8;

/// The default port of SSH.
const PORT: u16 = 22;

/// Options for all upstreams.
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

/// An address to connect to, with its timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// The address that the egress policy has checked. `None`: the program resolves the name and tries all addresses.
    checked: Option<IpAddr>,
    /// The longest time to connect.
    connect_timeout: Duration,
}

/// The targets of a host name. With an egress policy each checked address is one, and they share the timeout.
pub(super) fn targets(session: &GitSession, address: &SshAddress) -> Result<Vec<Target>, UpstreamError> {
    let egress = &session.upstream.egress;
    egress.check_host(&address.host)?;
    let connect_timeout = session.network.connect_timeout();
    if !egress.public_only {
        return Ok(vec![Target { checked: None, connect_timeout }]);
    }
    let resolved = session.network.wait(egress.resolve(&address.host, address.port.unwrap_or(PORT)))??;
    Ok(split_timeout(&resolved, connect_timeout))
}

fn split_timeout(resolved: &[SocketAddr], connect_timeout: Duration) -> Vec<Target> {
    let tried = &resolved[..resolved.len().min(MAX_ADDRESSES)];
    let connect_timeout = connect_timeout / u32::try_from(tried.len()).unwrap_or(1).max(1);
    tried.iter().map(|address| Target { checked: Some(address.ip()), connect_timeout }).collect()
}

/// Tries targets until one connects, and returns its result, or the error of the last one. `has_received`: the server
/// has sent something, so the connection succeeded, whatever its messages say.
pub(super) fn try_each<T>(
    targets: impl IntoIterator<Item = Target>,
    has_received: impl Fn() -> bool,
    mut connect: impl FnMut(Target) -> Result<T, MirrorError>,
) -> Result<T, MirrorError> {
    let no_address = "its host name has no address".to_owned();
    let mut last = MirrorError::from(UpstreamError::Connect { cause: no_address, timeout: false });
    for target in targets {
        match connect(target) {
            Err(error @ MirrorError::Upstream(UpstreamError::Connect { .. })) if !has_received() => last = error,
            ended => return ended,
        }
    }
    Err(last)
}

/// The command that runs `git-upload-pack` on the upstream's host.
pub(super) fn upload_pack(
    session: &GitSession,
    address: &SshAddress,
    target: Target,
) -> Result<Command, UpstreamError> {
    let RepositoryConfig { ssh_key, ssh_known_hosts, .. } = &session.upstream.config;
    let missing = |what| UpstreamError::Authenticate(format!("SSH needs {what}"));
    let key = ssh_key.as_deref().ok_or_else(|| missing("a private key (`ssh_key`)"))?;
    let known = ssh_known_hosts.as_deref();
    let known = known.ok_or_else(|| missing("a file with the host's keys (`ssh_known_hosts`)"))?;
    let mut command = pinned("ssh");
    command.args(["-F", "none", "-T", "-a", "-x"]);
    for option in OPTIONS {
        command.args(["-o", option]);
    }
    command.arg("-o").arg(format!("ConnectTimeout={}", target.connect_timeout.as_secs().max(1)));
    command.arg("-o").arg(format!("UserKnownHostsFile={}", quoted(known, "ssh_known_hosts")?));
    command.arg("-o").arg(format!("IdentityFile={}", quoted(key, "ssh_key")?));
    command.args(["-o", "SetEnv=GIT_PROTOCOL=version=2"]);
    if let Some(checked) = target.checked {
        // Connects to the checked address, but verifies the host key by name.
        let port = address.port.unwrap_or(PORT);
        let alias = if port == PORT { address.host.clone() } else { format!("[{}]:{port}", address.host) };
        command.arg("-o").arg(format!("HostName={checked}"));
        command.arg("-o").arg(format!("HostKeyAlias={alias}"));
    }
    if let Some(port) = address.port {
        command.arg("-p").arg(port.to_string());
    }
    command.arg("-l").arg(&address.user).arg("--").arg(&address.host);
    command.arg(format!("git-upload-pack {}", for_shell(&address.path)));
    Ok(command)
}

/// Quotes a file name for an option of `ssh`, which would expand some characters.
fn quoted(file: &Path, what: &'static str) -> Result<String, UpstreamError> {
    let unsupported = |why| UpstreamError::UnsupportedUrl { url: format!("the file of `{what}`"), reason: why };
    let text = file.to_str().ok_or_else(|| unsupported("its name is not UTF-8"))?;
    if text.chars().any(|c| c.is_control() || "\"\\$%~".contains(c)) {
        return Err(unsupported("its name contains one of `\" \\ $ % ~`, which `ssh` would expand"));
    }
    // `ssh` would look below the working directory, or ignore a missing file.
    std::fs::metadata(file).map_err(UpstreamError::unread(what, file))?;
    Ok(format!("\"{text}\""))
}

/// Quotes a word for the server's shell.
fn for_shell(word: &str) -> String {
    let mut quoted = String::from("'");
    for c in word.chars() {
        match c {
            // Some shells expand `!` even in quotes.
            '\'' | '!' => quoted.extend(["'\\", &c.to_string(), "'"]),
            other => quoted.push(other),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use weir_upstream::{Address, Upstream};

    use super::*;

    #[test]
    fn a_path_is_quoted_as_one_shell_word() {
        for (path, expected) in [("/a b", "'/a b'"), ("a'b!c", "'a'\\''b'\\!'c'"), ("$(x)`y`", "'$(x)`y`'")] {
            assert_eq!(for_shell(path), expected);
        }
    }

    #[test]
    fn addresses_are_tried_until_one_connects() {
        let resolved = ["[::1]:22", "127.0.0.1:22"].map(|address| address.parse().unwrap());
        let targets = split_timeout(&resolved, Duration::from_secs(20));
        let (checked, connect_timeout) = (|address: &str| Some(address.parse().unwrap()), Duration::from_secs(10));
        assert_eq!(targets, [checked("::1"), checked("127.0.0.1")].map(|checked| Target { checked, connect_timeout }));
        assert_eq!(split_timeout(&[resolved[0]; 100], Duration::from_secs(20)).len(), MAX_ADDRESSES);
        let refused = || {
            let cause = "Connection refused".to_owned();
            MirrorError::from(UpstreamError::Connect { cause, timeout: false })
        };
        let ask = |ended: &[Result<u8, MirrorError>]| {
            let mut ended = ended.iter().cloned();
            let result = try_each(targets.clone(), || false, |_| ended.next().unwrap());
            (result.map_err(|error| error.to_string()), ended.len())
        };
        assert_eq!(ask(&[Err(refused()), Ok(7)]), (Ok(7), 0));
        assert_eq!(ask(&[Ok(7), Ok(8)]), (Ok(7), 1));
        assert_eq!(ask(&[Err(refused()), Err(refused())]), (Err(refused().to_string()), 0));
        // The server was reached and refused: no other address is tried.
        let trust = MirrorError::from(UpstreamError::Trust("another key".to_owned()));
        assert_eq!(ask(&[Err(trust.clone()), Ok(7)]), (Err(trust.to_string()), 1));
        // Nor if the server's message equals the program's message for a failed connection.
        let mut ended = [Err(refused()), Ok(7)].into_iter();
        assert!(try_each(targets, || true, |_| ended.next().unwrap()).is_err());
    }

    #[test]
    fn options_end_before_configured_words() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            std::fs::write(dir.path().join(name), "").unwrap();
            Some(dir.path().join(name))
        };
        let mut upstream = Upstream::new("ssh://me@git.example:2222/x");
        let interrupt = AtomicBool::new(false);
        let build = |upstream: &Upstream| {
            let Ok(Address::Ssh(address)) = upstream.config.url.address() else { panic!("{upstream:?}") };
            let session = GitSession::new(upstream, &interrupt).unwrap();
            let targets = targets(&session, address)?;
            upload_pack(&session, address, targets[0])
        };
        assert!(build(&upstream).unwrap_err().to_string().contains("`ssh_key`"));
        upstream.config.ssh_key = file("key of mine");
        assert!(build(&upstream).unwrap_err().to_string().contains("`ssh_known_hosts`"));
        upstream.config.ssh_known_hosts = file("known");
        let command = build(&upstream).unwrap();
        let words = command.get_args().map(|word| word.to_str().unwrap());
        let words: Vec<_> = words.skip_while(|word| *word != "ssh").skip(1).collect();
        assert!(words.starts_with(&["-F", "none", "-T", "-a", "-x", "-o"]), "{words:?}");
        assert!(words.ends_with(&["-p", "2222", "-l", "me", "--", "git.example", "git-upload-pack '/x'"]), "{words:?}");
        assert!(words.iter().any(|word| word.starts_with("IdentityFile=\"") && word.ends_with("key of mine\"")));
        upstream.config.ssh_key = file("100%");
        assert!(build(&upstream).unwrap_err().to_string().contains("would expand"));
        upstream.config.ssh_key = Some(dir.path().join("none"));
        assert!(matches!(build(&upstream).unwrap_err(), UpstreamError::File { key: "ssh_key", .. }));
    }
}
