//! Commit policies with real SSH and OpenPGP keys, and the git program's own signatures.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use weir_upstream::{SignedBy, VerifyConfig};

use crate::prelude::*;

/// Keys of people, and the git settings to sign with them.
pub(crate) struct Desk {
    dir: tempfile::TempDir,
}

fn run(command: &mut Command) -> String {
    let output = command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: the tests need ssh-keygen, gpg and gpgv"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Desk {
    pub(crate) fn new() -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        for home in ["alice", "mallory"] {
            fs::create_dir(desk.file(home)).unwrap();
            fs::set_permissions(desk.file(home), fs::Permissions::from_mode(0o700)).unwrap();
        }
        desk
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new SSH key: the git settings to sign with it, and its public half.
    fn ssh_key(&self, name: &str) -> (Vec<String>, String) {
        let file = self.file(&format!("{name}.ssh"));
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&file));
        let public = file.with_extension("ssh.pub");
        let signing = vec!["gpg.format=ssh".to_owned(), format!("user.signingkey={}", public.display())];
        (signing, fs::read_to_string(public).unwrap().trim().to_owned())
    }

    /// A new SSH key, alone in a file of allowed signers: the git settings to sign with it, and that file.
    fn signer(&self) -> (Vec<String>, PathBuf) {
        let ((signing, public), allowed) = (self.ssh_key("alice"), self.file("allowed_signers"));
        fs::write(&allowed, format!("* {public}\n")).unwrap();
        (signing, allowed)
    }

    pub(crate) fn gpg(&self, home: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("gpg");
        command.arg("--homedir").arg(self.file(home)).args(["--batch", "--quiet", "--no-tty"]);
        run(command.args(["--pinentry-mode", "loopback", "--passphrase", ""]).args(arguments))
    }

    /// A new PGP key in a home directory, created (and used) at a given time: the git settings to sign with it.
    pub(crate) fn pgp_key(&self, home: &str, name: &str, when: &str, expires: &str) -> Vec<String> {
        let faked = ["--faked-system-time", when];
        let time = if when.is_empty() { &[][..] } else { &faked };
        let generate = ["--quick-generate-key", name, "ed25519", "sign", expires];
        self.gpg(home, &[time, &generate].concat());
        let program = self.file(&format!("gpg-{name}"));
        let time = time.join(" ");
        let script = format!("#!/bin/sh\nexec gpg --homedir '{}' --batch {time} \"$@\"\n", self.file(home).display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        vec![format!("gpg.program={}", program.display()), format!("user.signingkey={name}")]
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for home in ["alice", "mallory"] {
            let mut command = Command::new("gpgconf");
            let _ = command.arg("--homedir").arg(self.file(home)).args(["--kill", "gpg-agent"]).output();
        }
    }
}

/// Commits to `main` and pushes. Returns the commit's id.
fn push(upstream: &Upstream, what: &str, signing: &[String]) -> String {
    fs::write(upstream.work().join("deploy/app.yaml"), what).unwrap();
    upstream.git(&["add", "--all"]);
    let mut arguments: Vec<&str> = signing.iter().flat_map(|setting| ["-c", setting]).collect();
    let sign = if signing.is_empty() { "--no-gpg-sign" } else { "--gpg-sign" };
    arguments.extend(["commit", "--quiet", sign, "--message", what]);
    upstream.git(&arguments);
    upstream.push_head()
}

/// Signs a tag and pushes it.
fn push_tag(upstream: &Upstream, name: &str, signing: &[String]) {
    let mut arguments: Vec<&str> = signing.iter().flat_map(|setting| ["-c", setting]).collect();
    arguments.extend(["tag", "--sign", "--message", "a release", name]);
    upstream.git(&arguments);
    upstream.git(&["push", "--quiet", "--force", "origin", &format!("refs/tags/{name}")]);
}

fn policy(mode: SignedBy, ssh: Option<&Path>, pgp: Option<&Path>) -> Option<VerifyConfig> {
    Some(VerifyConfig {
        mode: Some(mode),
        ssh_allowed_signers: ssh.map(Path::to_owned),
        pgp_keyring: pgp.map(Path::to_owned),
        cosign_keys: Vec::new(),
    })
}

fn with_policy(home: &Home, upstream: &Upstream, verify: Option<VerifyConfig>) -> Config {
    let mut config = home.config(&upstream.url());
    config.repositories[0].verify = verify;
    config
}

/// Why nothing new is published, after a poll.
async fn refused(node: &Node) -> String {
    node.poll().await;
    match node.running.condition(&service()).unwrap().borrow().clone() {
        Condition::Unhealthy { step: "verify", reason, .. } => reason,
        other => panic!("it is not refused: {other:?}"),
    }
}

async fn published(node: &Node, commit: &str) {
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), commit);
    let condition = node.running.condition(&service()).unwrap().borrow().clone();
    assert_eq!(condition, Condition::Following);
}

#[tokio::test]
async fn only_commits_by_listed_ssh_keys_are_published_and_the_last_valid_one_stays() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::small());
    let ((alice, alice_public), (mallory, mallory_public)) = (desk.ssh_key("alice"), desk.ssh_key("mallory"));
    let allowed = desk.file("allowed_signers");
    let allow = |lines: &[String]| fs::write(&allowed, lines.join("\n") + "\n").unwrap();
    allow(&[format!("alice@example.com namespaces=\"git\" {alice_public}")]);
    let node = home.start(with_policy(&home, &upstream, policy(SignedBy::Commit, Some(&allowed), None))).await;
    let reason = refused(&node).await;
    assert!(reason.contains("is not signed"), "{reason}");
    assert_eq!(node.get("/v1/services/shop-prod").await.status, 502, "nothing was ever published");

    let first = push(&upstream, "first", &alice);
    published(&node, &first).await;
    // Its parent is signed, but the commit is not.
    push(&upstream, "second", &[]);
    let reason = refused(&node).await;
    assert!(reason.contains("is not signed"), "{reason}");
    push(&upstream, "third", &mallory);
    let reason = refused(&node).await;
    assert!(reason.contains("SHA256:") && reason.contains("ssh_allowed_signers"), "{reason}");
    assert_eq!(commit_of(&node.descriptor().await), first);
    assert!(node.metric("weir_origin_verifications_total{repository=\"shop\",result=\"refused\"}").await >= 3.0);
    assert_eq!(node.metric("weir_origin_services_unhealthy").await, 1.0);

    // The file is read each time. Keys with another namespace or validity sign no commits.
    for option in ["namespaces=\"file\"", "valid-before=\"20200101\"", "valid-after=\"20990101\""] {
        allow(&[format!("mallory@example.com {option} {mallory_public}")]);
        let reason = refused(&node).await;
        assert!(reason.contains("SHA256:"), "{option}: {reason}");
    }
    allow(&["mallory@example.com ssh-ed25519 AAAA".to_owned()]);
    let reason = refused(&node).await;
    assert!(reason.contains("its line 1: "), "{reason}");
    fs::remove_file(&allowed).unwrap();
    let reason = refused(&node).await;
    assert!(reason.contains("cannot be read"), "{reason}");
    allow(&[
        format!("alice@example.com {alice_public}"),
        format!("mallory@example.com namespaces=\"git\",valid-after=\"20200101\" {mallory_public}"),
    ]);
    let third = upstream.git(&["rev-parse", "HEAD"]);
    published(&node, &third).await;
    // A signature of other content.
    let object = upstream.git(&["cat-file", "commit", "HEAD"]).replace("third", "forged");
    let forged = upstream.hash_object("commit", &format!("{object}\n"));
    upstream.git(&["push", "--quiet", "--force", "origin", &format!("{forged}:refs/heads/main")]);
    let reason = refused(&node).await;
    assert!(reason.contains("does not match"), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn a_tag_is_published_only_under_its_signed_name() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::small());
    let (alice, allowed) = desk.signer();
    let tag = |name: &str| push_tag(&upstream, name, &alice);
    let old = upstream.git(&["rev-parse", "HEAD"]);
    tag("v1");
    let mut config = with_policy(&home, &upstream, policy(SignedBy::Tag, Some(&allowed), None));
    config.services[0].followed_ref = "v1".parse().unwrap();
    let node = home.start(config.clone()).await;
    published(&node, &old).await;
    node.stop().await;

    // The signed tag of an old release under a new name.
    push(&upstream, "fixed", &[]);
    upstream.git(&["push", "--quiet", "origin", "refs/tags/v1:refs/tags/v2"]);
    config.services[0].followed_ref = "v2".parse().unwrap();
    let node = home.start(config.clone()).await;
    let reason = refused(&node).await;
    assert!(reason.contains("was signed as `v1`"), "{reason}");
    upstream.git(&["push", "--quiet", "--force", "origin", "HEAD:refs/tags/v2"]);
    let reason = refused(&node).await;
    assert!(reason.contains("light"), "{reason}");
    tag("v2");
    published(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;

    // A branch is not a tag; with `either` its commit may be signed instead.
    config.services[0].followed_ref = "main".parse().unwrap();
    let node = home.start(config.clone()).await;
    let reason = refused(&node).await;
    assert!(reason.contains("not a tag"), "{reason}");
    node.stop().await;
    config.repositories[0].verify = policy(SignedBy::Either, Some(&allowed), None);
    let node = home.start(config).await;
    let reason = refused(&node).await;
    assert!(reason.contains("not a tag") && reason.contains("is not signed"), "{reason}");
    let signed = push(&upstream, "signed", &alice);
    published(&node, &signed).await;
    node.stop().await;
}

#[tokio::test]
async fn pgp_keys_must_be_listed_valid_and_not_revoked() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::small());
    let alice = desk.pgp_key("alice", "alice", "", "never");
    let expired = desk.pgp_key("alice", "expired", "20200101T000000", "1d");
    let revoked = desk.pgp_key("alice", "revoked", "", "never");
    let mallory = desk.pgp_key("mallory", "mallory", "", "never");
    let keyring = desk.file("keyring.gpg");
    let export = |arguments: &[&str]| {
        fs::remove_file(&keyring).ok();
        desk.gpg("alice", &[arguments, &["--output", keyring.to_str().unwrap(), "--export"]].concat());
    };
    export(&[]);
    let good = push(&upstream, "good", &alice);
    let node = home.start(with_policy(&home, &upstream, policy(SignedBy::Commit, None, Some(&keyring)))).await;
    published(&node, &good).await;
    let by_revoked = push(&upstream, "not revoked yet", &revoked);
    published(&node, &by_revoked).await;

    push(&upstream, "mallory", &mallory);
    let reason = refused(&node).await;
    assert!(reason.contains("not in `pgp_keyring`"), "{reason}");
    push(&upstream, "expired", &expired);
    let reason = refused(&node).await;
    assert!(reason.contains("has expired"), "{reason}");
    push(&upstream, "revoked", &revoked);
    let fingerprints = desk.gpg("alice", &["--with-colons", "--list-keys", "revoked"]);
    let fingerprint =
        fingerprints.lines().find_map(|line| line.strip_prefix("fpr:")).unwrap().trim_matches(':').to_owned();
    let certificate = desk.file("alice/openpgp-revocs.d").join(format!("{fingerprint}.rev"));
    let armed = fs::read_to_string(&certificate).unwrap().replace(":-----BEGIN", "-----BEGIN");
    fs::write(&certificate, armed).unwrap();
    desk.gpg("alice", &["--import", certificate.to_str().unwrap()]);
    export(&[]);
    let reason = refused(&node).await;
    assert!(reason.contains("revoked"), "{reason}");
    assert_eq!(commit_of(&node.descriptor().await), by_revoked);

    // A malformed signature is the author's error, not the keyring's.
    let object = upstream.git(&["cat-file", "commit", "HEAD"]);
    let (before, after) = object.split_once("-----BEGIN PGP SIGNATURE-----").unwrap();
    let (_, after) = after.split_once("-----END PGP SIGNATURE-----").unwrap();
    let none = "-----BEGIN PGP SIGNATURE-----\n \n aGVsbG8=\n =abcd\n -----END PGP SIGNATURE-----";
    let forged = upstream.hash_object("commit", &format!("{before}{none}{after}\n"));
    upstream.git(&["push", "--quiet", "--force", "origin", &format!("{forged}:refs/heads/main")]);
    let failed = "weir_origin_verifications_total{repository=\"shop\",result=\"failed\"}";
    let before = node.metric(failed).await;
    let reason = refused(&node).await;
    assert!(reason.contains("its PGP signature is malformed"), "{reason}");
    assert_eq!(node.metric(failed).await, before);

    // An SSH key without a configured list, and a keyring that gpgv cannot read.
    let (ssh, _) = desk.ssh_key("alice");
    push(&upstream, "ssh", &ssh);
    let reason = refused(&node).await;
    assert!(reason.contains("ssh_allowed_signers"), "{reason}");
    let last = push(&upstream, "last", &alice);
    export(&["--armor"]);
    let reason = refused(&node).await;
    assert!(reason.contains("--armor"), "{reason}");
    export(&[]);
    published(&node, &last).await;
    node.stop().await;
}

#[tokio::test]
async fn sha_256_commits_and_tags_are_verified() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::of_format("sha256"));
    let (alice, allowed) = desk.signer();
    fs::create_dir(upstream.work().join("deploy")).unwrap();
    let signed = push(&upstream, "signed", &alice);
    assert!(upstream.git(&["cat-file", "commit", "HEAD"]).contains("\ngpgsig-sha256 -----BEGIN SSH"));
    let mut config = with_policy(&home, &upstream, policy(SignedBy::Commit, Some(&allowed), None));
    let node = home.start(config.clone()).await;
    published(&node, &signed).await;
    push(&upstream, "unsigned", &[]);
    let reason = refused(&node).await;
    assert!(reason.contains("is not signed"), "{reason}");
    node.stop().await;

    push_tag(&upstream, "v1.2.0", &alice);
    config.repositories[0].verify = policy(SignedBy::Tag, Some(&allowed), None);
    config.services[0].followed_ref = "semver:^1".parse().unwrap();
    let node = home.start(config).await;
    published(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}

#[tokio::test]
async fn a_new_policy_keeps_published_commits_and_reports_it() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::small());
    let (alice, allowed) = desk.signer();
    let (node, unsigned) = home.start_published(&upstream).await;
    node.stop().await;
    let node = home.start(with_policy(&home, &upstream, policy(SignedBy::Commit, Some(&allowed), None))).await;
    let reason = refused(&node).await;
    assert!(reason.contains("is not signed") && reason.contains("stays published"), "{reason}");
    assert_eq!(node.descriptor().await.bytes(), unsigned.bytes());
    node.tarball(&unsigned).await;
    let signed = push(&upstream, "signed", &alice);
    published(&node, &signed).await;
    assert!(node.metric("weir_origin_verifications_total{repository=\"shop\",result=\"verified\"}").await >= 1.0);
    node.stop().await;
}

/// Failed services are resolved again with each poll, others only after a change.
#[tokio::test]
async fn a_poll_without_changes_verifies_no_commit_again() {
    let (desk, home, upstream) = (Desk::new(), Home::new(), Upstream::small());
    let (alice, allowed) = desk.signer();
    let signed = push(&upstream, "signed", &alice);
    let mut config = with_policy(&home, &upstream, policy(SignedBy::Commit, Some(&allowed), None));
    also(&mut config, "missing").followed_ref = "later".parse().unwrap();
    let node = home.start(config).await;
    published(&node, &signed).await;
    let verified = "weir_origin_verifications_total{repository=\"shop\",result=\"verified\"}";
    let before = node.metric(verified).await;
    for _ in 0..3 {
        published(&node, &signed).await;
        let condition = node.running.condition(&"missing".parse().unwrap()).unwrap().borrow().clone();
        assert!(matches!(condition, Condition::Unhealthy { step: "resolve", .. }), "{condition:?}");
    }
    assert_eq!(node.metric(verified).await, before);
    node.stop().await;
}
