//! `weir token`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use weir_protocol::access_list::AccessList;
use weir_protocol::token::UnverifiedToken;

struct Run {
    code: Option<i32>,
    out: String,
    error: String,
}

/// A folder to run `weir token` in.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With a key pair, and a token of it in `one.token` whose id is `one`.
    fn with_a_token() -> Self {
        let desk = Self::new();
        desk.run(&["key", "--out", "fleet.key"]);
        let issue = ["--key", "fleet.key", "--subject", "cluster-1", "--service", "shop-*", "--service", "bank"];
        desk.run(&[&["issue", "--id", "one", "--out", "one.token", "--expires", "90d"][..], &issue].concat());
        desk
    }

    fn try_run(&self, arguments: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.arg("token").args(arguments).current_dir(self.0.path()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let run = self.try_run(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.error);
        run
    }

    fn refused(&self, arguments: &[&str], reason: &str) {
        let run = self.try_run(arguments);
        assert!(run.code.is_some_and(|code| code != 0), "{arguments:?}: {}", run.out);
        assert!(run.error.contains(reason), "{arguments:?}: {}", run.error);
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn keys(desk: &Desk) -> AccessList {
    let mut keys = AccessList::default();
    keys.add_key_file(&desk.read("fleet.key.pub")).unwrap();
    keys
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_key_is_made_once_and_kept_private() {
    let desk = Desk::new();
    let made = desk.run(&["key", "--out", "fleet.key"]);
    assert_eq!((mode(&desk.path("fleet.key")), desk.read("fleet.key.pub")), (0o600, made.out.clone()));
    // What is printed is named, and no part of the private key is printed.
    for named in ["public key of fleet.key", "fleet.key.pub", "fleet.key is the private key"] {
        assert!(made.error.contains(named), "{named}: {}", made.error);
    }
    let before = desk.read("fleet.key");
    let secret = before.lines().nth(1).unwrap();
    assert!(secret.len() > 20 && !made.out.contains(secret) && !made.error.contains(secret));
    let again = desk.try_run(&["key", "--out", "fleet.key"]);
    assert_eq!((again.code, again.error.matches("is never overwritten").count()), (Some(1), 1), "{}", again.error);
    fs::remove_file(desk.path("fleet.key.pub")).unwrap();
    desk.refused(&["key", "--out", "fleet.key"], "is never overwritten");
    assert_eq!(desk.read("fleet.key"), before);
    let openssl = Command::new("openssl").args(["pkey", "-noout", "-text", "-in"]).arg(desk.path("fleet.key")).output();
    if let Ok(run) = openssl {
        assert!(run.status.success() && String::from_utf8_lossy(&run.stdout).contains("ED25519"), "{run:?}");
    }
}

#[test]
fn a_token_is_issued_and_verifies() {
    let desk = Desk::with_a_token();
    assert_eq!(mode(&desk.path("one.token")), 0o600);
    let keys = keys(&desk);
    let token = desk.read("one.token");
    let claims = UnverifiedToken::parse(token.trim()).unwrap().verify(keys.keys().next().unwrap()).unwrap();
    let services: Vec<_> = claims.services.iter().map(|glob| glob.as_str()).collect();
    assert_eq!(
        (claims.subject.as_str(), claims.id.as_ref().unwrap().as_str(), &services[..]),
        ("cluster-1", "one", &["shop-*", "bank"][..])
    );
    assert_eq!(claims.expires - claims.issued_at.unwrap(), 90 * 24 * 3600);

    let issue = ["issue", "--key", "fleet.key", "--subject", "cluster-1"];
    desk.refused(&[&issue[..], &["--service", "*", "--out", "one.token"]].concat(), "is never overwritten");
    desk.refused(&issue, "--service");
    desk.refused(&[&issue[..], &["--service", "*", "--label", "ring"]].concat(), "KEY=VALUE");
    let labelled = desk.run(&[&issue[..], &["--service", "*", "--label", "ring=canary"]].concat()).out;
    let claims = UnverifiedToken::parse(labelled.trim()).unwrap().verify(keys.keys().next().unwrap()).unwrap();
    assert_eq!(claims.labels.iter().collect::<Vec<_>>(), [("ring", "canary")]);
    desk.refused(&[&issue[..], &["--service", "Shop"]].concat(), "is not a pattern");
    desk.refused(&[&issue[..], &["--service", "*", "--expires", "20y"]].concat(), "ten years");
    desk.refused(&["issue", "--key", "fleet.key.pub", "--subject", "a", "--service", "*"], "BEGIN PRIVATE KEY");
}

#[test]
fn the_printed_deny_line_revokes_the_token() {
    let desk = Desk::with_a_token();
    let issued = desk.run(&["issue", "--key", "fleet.key", "--subject", "cluster-1", "--service", "*"]);
    let line = issued.error.lines().last().unwrap();
    let mut denied = AccessList::default();
    denied.add_deny_file(line).unwrap();
    let token = UnverifiedToken::parse(issued.out.trim()).unwrap();
    let claims = token.verify(keys(&desk).keys().next().unwrap()).unwrap();
    let revoked = |now| denied.denied_tokens(now).any(|id| Some(id) == claims.id.as_ref());
    assert!(revoked(claims.expires) && !revoked(claims.expires + 3600), "{line}");
}

#[test]
fn the_commands_in_the_help_work() {
    let desk = Desk::new();
    let help = desk.run(&["--help"]).out;
    let steps: Vec<&str> =
        help.lines().filter(|line| ["  weir token ", "  echo "].iter().any(|step| line.starts_with(step))).collect();
    assert_eq!(steps.len(), 4, "{help}");
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    let path = std::env::join_paths([binary.parent().unwrap(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    for step in steps {
        let mut shell = Command::new("sh");
        let run = shell.args(["-c", step]).env("PATH", &path).current_dir(desk.path("")).stdin(Stdio::null()).output();
        let run = run.unwrap();
        assert!(run.status.success(), "{step}: {}", String::from_utf8_lossy(&run.stderr));
    }
    let token = desk.read("cluster-1.token");
    let claims = UnverifiedToken::parse(token.trim()).unwrap().verify(keys(&desk).keys().next().unwrap()).unwrap();
    let mut denied = AccessList::default();
    denied.add_deny_file(&desk.read("denied")).unwrap();
    assert!(denied.denied_tokens(0).any(|id| Some(id) == claims.id.as_ref()));
}

#[test]
fn a_token_is_shown_and_its_key_checked() {
    let desk = Desk::with_a_token();
    let issue = ["issue", "--key", "fleet.key", "--subject", "a", "--service", "shop-*", "--label", "ring=canary"];
    assert!(desk.run(&[&issue[..], &["--out", "a.token"]].concat()).error.contains("issued a token for a"));
    let shown = desk.run(&["inspect", "a.token", "--key", "fleet.key.pub"]).out;
    for part in ["verified with fleet.key.pub", "subject     a", "shop-*", "canary", " days"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    desk.run(&["key", "--out", "other.key"]);
    desk.refused(&["inspect", "a.token", "--key", "other.key.pub"], "no key of other.key.pub");
    desk.refused(&["inspect", "fleet.key"], "this is no token");
}

#[test]
fn a_token_is_not_printed_on_a_terminal() {
    let desk = Desk::with_a_token();
    let terminal = fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap();
    let issue = |more: &[&str]| {
        let mut issue = Command::new(env!("CARGO_BIN_EXE_weir"));
        issue.args(["token", "issue", "--key", "fleet.key", "--subject", "a", "--service", "*"]).args(more);
        issue.current_dir(desk.path("")).stdout(terminal.try_clone().unwrap()).output().unwrap()
    };
    let run = issue(&[]);
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(1) && error.contains("terminal") && error.contains("--out"), "{error}");
    assert!(issue(&["--out", "two.token"]).status.success());
}

#[test]
fn a_closed_pipe_is_no_error() {
    let desk = Desk::with_a_token();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut issue = Command::new(env!("CARGO_BIN_EXE_weir"));
    issue.args(["token", "issue", "--key", "fleet.key", "--subject", "a", "--service", "*"]);
    let run = issue.current_dir(desk.path("")).stdout(writer).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
}
