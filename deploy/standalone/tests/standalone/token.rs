//! `weir token`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// The id of a key: some begin with what an option begins with.
const OLD_KEY: &str = "-old-01234567890123456789012345678901234567";

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

    fn try_run(&self, arguments: &[&str], input: &str) -> Run {
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
            .arg("token")
            .args(arguments)
            .current_dir(self.0.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may end without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
    }

    fn run(&self, arguments: &[&str]) -> Run {
        let run = self.try_run(arguments, "");
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.error);
        run
    }

    fn refused(&self, arguments: &[&str], reason: &str) {
        let run = self.try_run(arguments, "");
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

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_key_is_made_once_and_kept_private() {
    let desk = Desk::new();
    let made = desk.run(&["key", "--out", "fleet.key"]);
    assert_eq!((mode(&desk.path("fleet.key")), desk.read("fleet.key.pub")), (0o600, made.out));
    let before = desk.read("fleet.key");
    let again = desk.try_run(&["key", "--out", "fleet.key"], "");
    assert_eq!((again.code, again.error.matches("is not written over").count()), (Some(1), 1), "{}", again.error);
    fs::remove_file(desk.path("fleet.key.pub")).unwrap();
    desk.refused(&["key", "--out", "fleet.key"], "is not written over");
    assert_eq!(desk.read("fleet.key"), before);
    let openssl = Command::new("openssl").args(["pkey", "-noout", "-text", "-in"]).arg(desk.path("fleet.key")).output();
    if let Ok(run) = openssl {
        assert!(run.status.success() && String::from_utf8_lossy(&run.stdout).contains("ED25519"), "{run:?}");
    }
}

#[test]
fn a_token_is_issued_and_inspected() {
    let desk = Desk::with_a_token();
    assert_eq!(mode(&desk.path("one.token")), 0o600);
    let key_id = desk.read("fleet.key.pub").split(' ').next().unwrap().to_owned();
    let shown = desk.run(&["inspect", "one.token"]).out;
    for line in ["subject   cluster-1", "services  shop-* bank", "id        one", &key_id, " days", "verified  no"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let piped = desk.try_run(&["inspect", "--keys", "fleet.key.pub"], &desk.read("one.token"));
    assert!(piped.code == Some(0) && piped.out.contains("verified  yes"), "{} {}", piped.out, piped.error);

    desk.run(&["key", "--out", "other.key"]);
    desk.refused(&["inspect", "one.token", "--keys", "other.key.pub"], "none of these keys");
    let bare = desk.run(&["issue", "--key", "other.key", "--subject", "a", "--service", "*", "--expires", "1s"]);
    assert!(bare.error.contains("in 1 second") && bare.out.lines().count() == 1, "{} {}", bare.out, bare.error);
    let mixed = format!(
        "{}.{}",
        bare.out.trim().rsplit_once('.').unwrap().0,
        desk.read("one.token").trim().rsplit_once('.').unwrap().1
    );
    desk.refused(&["inspect", &mixed, "--keys", "other.key.pub"], "signature is wrong");

    let issue = ["issue", "--key", "fleet.key", "--subject", "cluster-1"];
    desk.refused(&[&issue[..], &["--service", "*", "--out", "one.token"]].concat(), "is not written over");
    desk.refused(&issue, "--service");
    desk.refused(&[&issue[..], &["--service", "Shop"]].concat(), "is not a pattern");
    desk.refused(&[&issue[..], &["--service", "*", "--expires", "20y"]].concat(), "ten years");
    desk.refused(&["issue", "--key", "fleet.key.pub", "--subject", "a", "--service", "*"], "BEGIN PRIVATE KEY");
    desk.refused(&["inspect", "fleet.key"], "fleet.key holds no token");
    desk.refused(&["inspect", "nowhere.token"], "cannot read nowhere.token: No such file");
}

#[test]
fn tokens_and_keys_are_revoked_in_a_file_that_is_kept() {
    let desk = Desk::with_a_token();
    let token = desk.read("one.token");
    let ends = desk.run(&["inspect", "one.token"]).out;
    let ends = ends.lines().find_map(|line| line.strip_prefix("ends      ")?.split(',').next()).unwrap();
    fs::write(desk.path("denied"), "# of the fleet\ntoken zero").unwrap();
    desk.run(&["revoke", "--deny", "denied", "--id", "two", "one.token", "--key-id", OLD_KEY]);
    assert_eq!(desk.read("denied"), format!("# of the fleet\ntoken zero\ntoken one\ntoken two\nkey {OLD_KEY}\n"));
    let piped = desk.try_run(&["revoke", "--deny", "denied", "--keys", "fleet.key.pub", "-"], &token);
    assert_eq!(piped.out, format!("token one {ends}\n"));
    assert!(desk.read("denied").ends_with(&format!("key {OLD_KEY}\ntoken one {ends}\n")));
    let before = desk.read("denied");
    let again = desk.run(&["revoke", "--deny", "denied", "--id", "two", "--key-id", OLD_KEY]);
    assert!(again.out.is_empty() && again.error.contains("denied says so already: token two"), "{}", again.error);
    assert_eq!(desk.read("denied"), before);
    desk.run(&["revoke", "--deny", "new", "--id", "-three"]);
    assert_eq!(desk.read("new"), "token -three\n");

    desk.refused(&["revoke", "--deny", "denied"], "TOKEN");
    desk.refused(&["revoke", "--deny", "denied", "--id", "no id"], "--id");
    // Whoever thinks that a token is revoked has to be right.
    let before = desk.read("denied");
    desk.refused(&["revoke", "--deny", "denied", "--id", "four", "gone.token"], "gone.token");
    desk.refused(&["revoke", "--deny", "denied", "one.token", "fleet.key"], "fleet.key holds no token");
    fs::create_dir(desk.path("folder.token")).unwrap();
    desk.refused(&["revoke", "--deny", "denied", "folder.token"], "nothing was revoked");
    assert_eq!(desk.read("denied"), before);
    fs::write(desk.path("denied"), "tokn one\n").unwrap();
    desk.refused(&["revoke", "--deny", "denied", "--id", "two"], "is no deny file");
}

#[test]
fn the_way_that_help_teaches_can_be_walked() {
    let desk = Desk::new();
    let help = desk.run(&["--help"]).out;
    assert!(help.contains("To change keys"), "{help}");
    let steps: Vec<&str> = help.lines().filter(|line| line.starts_with("  weir token ")).collect();
    assert_eq!(steps.len(), 4, "{help}");
    let binary = Path::new(env!("CARGO_BIN_EXE_weir"));
    let path = std::env::join_paths([binary.parent().unwrap(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    let mut said = Vec::new();
    for step in steps {
        let mut shell = Command::new("sh");
        let run = shell.args(["-c", step]).env("PATH", &path).current_dir(desk.path("")).stdin(Stdio::null()).output();
        let run = run.unwrap();
        assert!(run.status.success(), "{step}: {}", String::from_utf8_lossy(&run.stderr));
        said.push(String::from_utf8(run.stdout).unwrap());
    }
    assert!(said[2].contains("verified  yes"), "{said:?}");
    assert_eq!(desk.read("denied"), said[3]);
    assert!(said[3].starts_with("token ") && said[3].trim().split(' ').count() == 3, "with its end: {said:?}");
}

#[test]
fn what_names_no_key_revokes_none_and_what_is_revoked_does_not_verify() {
    let desk = Desk::with_a_token();
    desk.refused(&["revoke", "--deny", "denied", "--key-id", "fleet.key"], "is not the id of a key");
    assert!(!desk.path("denied").exists());
    fs::write(desk.path("named"), format!("fleet {}", desk.read("fleet.key.pub").split(' ').nth(1).unwrap())).unwrap();
    desk.run(&["revoke", "--deny", "denied", "--keys", "named", "--key-id", "fleet"]);

    let inspect = ["inspect", "one.token", "--keys", "fleet.key.pub", "--deny", "denied"];
    desk.run(&inspect);
    desk.run(&["revoke", "--deny", "denied", "one.token"]);
    desk.refused(&inspect, "it is revoked");
    fs::remove_file(desk.path("denied")).unwrap();
    let key_id = desk.read("fleet.key.pub").split(' ').next().unwrap().to_owned();
    desk.run(&["revoke", "--deny", "denied", "--key-id", &key_id]);
    desk.refused(&inspect, "its key is revoked");
}

#[test]
fn nobody_has_to_read_all_that_is_printed() {
    let desk = Desk::with_a_token();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_weir"));
    inspect.args(["token", "inspect", "one.token"]).current_dir(desk.0.path()).stdout(writer).stderr(Stdio::piped());
    let run = inspect.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!((run.status.code(), String::from_utf8_lossy(&run.stderr).as_ref()), (Some(0), ""));
}
