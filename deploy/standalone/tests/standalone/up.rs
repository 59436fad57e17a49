//! `weir up`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{free_address, until};
use weir_loadtest::scrape;

/// One `weir up` at a time: two that probe the default ports at the same time both find them free.
static DEFAULT_PORTS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    DEFAULT_PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weir(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("up").current_dir(dir).stdin(Stdio::null());
    command
}

fn upstream(dir: &Path) -> anyhow::Result<GitRepository> {
    let upstream = GitRepository::create(dir, "shop")?;
    upstream.write("deploy/prod/version", "1")?;
    upstream.write("README.md", "shop")?;
    upstream.commit_and_push("one")?;
    Ok(upstream)
}

/// A base of ports that are all free, as long as the listeners are kept.
fn free_ports() -> anyhow::Result<(u16, Vec<TcpListener>)> {
    loop {
        let base = free_address()?.port();
        let ports = [0, 1, 43, 90, 91, 92].map(|offset| base.checked_add(offset));
        let taken = ports.map(|port| TcpListener::bind(("127.0.0.1", port?)).ok());
        if taken.iter().all(Option::is_some) {
            return Ok((base, taken.into_iter().flatten().collect()));
        }
    }
}

#[test]
fn once_ends_with_a_release() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    let (base, listeners) = free_ports()?;
    let base_argument = base.to_string();
    let arguments = ["--repo", upstream.bare().to_str().unwrap(), "--folder", "deploy/prod", "--once", "--port-base"];
    let weir = || {
        let mut command = weir(dir.path());
        command.args(arguments).arg(&base_argument);
        command
    };
    // A port that was chosen is not exchanged for another.
    let run = weir().output()?;
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(1) && error.contains("cannot listen on"), "{error}");
    drop(listeners);
    let run = weir().output()?;
    let (out, error) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}\n{error}");
    assert!(out.contains("switched") && out.contains(&format!("https://127.0.0.1:{}", base + 43)), "{out}");
    assert!(!out.contains("idle"), "{out}");
    assert_eq!(fs::read_to_string(dir.path().join("weir-data/agent/shop/current/version"))?, "1");
    assert!(!dir.path().join("weir-data/agent/shop/current/README.md").exists());
    Ok(())
}

#[test]
fn once_ends_when_the_newest_release_is_current() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    let once = |exec: &str| -> anyhow::Result<(Option<i32>, String, String)> {
        let mut command = weir(upstream.bare());
        command.args(["--root", "../weir-data", "--exec", exec, "--once"]).env("WEIR_RUNS", dir.path().join("runs"));
        let run = command.output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((run.status.code(), text(&run.stdout), text(&run.stderr)))
    };
    let (code, out, error) = once("echo HOOK''OUT; exit 3")?;
    assert_eq!(code, Some(1), "{out}\n{error}");
    assert!(error.contains("HOOKOUT") && error.contains("weir: exec exited with exit status: 3"), "{out}\n{error}");
    assert!(out.contains("published"), "{out}");
    let (code, out, error) = once("echo HOOK''OUT")?;
    assert_eq!(code, Some(0), "{out}\n{error}");
    assert!(error.contains("HOOKOUT") && error.contains("the hooks succeeded"), "{out}\n{error}");
    // The same again: nothing to do.
    let (code, out, error) = once("echo HOOK''OUT")?;
    assert_eq!((code, error.contains("HOOKOUT")), (Some(0), false), "{out}\n{error}");
    assert!(!out.contains("switched") && !out.contains("published ") && out.contains("as before"), "{out}");
    // That another command has succeeded says nothing about this one.
    let (code, out, error) = once("exit 4")?;
    assert!(code == Some(1) && error.contains("exit status: 4"), "{out}\n{error}");
    // After a new commit the earlier publication is not taken for the newest.
    upstream.write("deploy/prod/version", "2")?;
    upstream.commit_and_push("two")?;
    let (code, out, error) = once("true")?;
    assert_eq!(code, Some(0), "{out}\n{error}");
    let current = dir.path().join("weir-data/agent/shop/current");
    assert_eq!(fs::read_to_string(current.join("deploy/prod/version"))?, "2");
    // A pending run of an older release is skipped: only the newest counts.
    for version in ["3", "4"] {
        upstream.write("deploy/prod/version", version)?;
        upstream.commit_and_push(version)?;
        let (code, _, error) = once("cat deploy/prod/version >>\"$WEIR_RUNS\"; exit 3")?;
        assert!(code == Some(1) && !error.contains("{\"timestamp\""), "the log is for people: {error}");
    }
    assert_eq!(fs::read_to_string(dir.path().join("runs"))?, "34");
    Ok(())
}

#[test]
fn a_closed_pipe_ends_up_without_an_error() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    let mut child = weir(upstream.work()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    drop(child.stdout.take());
    let run = child.wait_with_output()?;
    assert_eq!((run.status.code(), String::from_utf8_lossy(&run.stderr).as_ref()), (Some(0), ""));
    Ok(())
}

#[test]
fn once_fails_with_the_reason_of_the_repository() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    let closed = format!("https://{}/shop.git", free_address()?);
    for (arguments, reason) in [
        (vec!["--repo", &*closed], "connect"),
        (vec!["--repo", upstream.bare().to_str().unwrap(), "--ref", "no-such-branch"], "no-such-branch"),
        (vec!["--repo", upstream.bare().to_str().unwrap(), "--folder", "no/such/folder"], "no/such/folder"),
        (vec!["--repo", "no/such/place"], "no/such/place"),
        (vec![], "--repo"),
    ] {
        let root = tempfile::tempdir_in(dir.path())?;
        let run = weir(root.path()).args(&arguments).arg("--once").output()?;
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{arguments:?}: {error}");
        assert!(error.contains(reason), "{arguments:?}: {error}");
        let is_logged = ["no-such-branch", "no/such/folder"].contains(&reason);
        assert_eq!(error.contains("the service cannot follow its ref"), is_logged, "{arguments:?}: {error}");
        let out = String::from_utf8_lossy(&run.stdout);
        assert!(!out.contains(error.trim_start_matches("weir: ").trim()), "it is reported once: {out}");
    }
    Ok(())
}

#[test]
fn ctrl_c_ends_once_during_its_first_poll() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    // An upstream that accepts connections and never responds.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("https://{}/shop.git", silent.local_addr()?);
    let mut command = weir(dir.path());
    let mut child = command.args(["--repo", &url, "--once"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut stderr = child.stderr.take().context("stderr is piped")?;
    let (tell, told) = mpsc::channel();
    let connected = tell.clone();
    thread::spawn(move || connected.send(silent.accept().map(|connection| (Some(connection), String::new()))));
    thread::spawn(move || {
        let mut error = String::new();
        tell.send(stderr.read_to_string(&mut error).map(|_| (None, error)))
    });
    let (connection, error) = told.recv()??;
    assert!(connection.is_some(), "it ended before it asked the upstream: {error}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
    let (_, error) = told.recv()??;
    assert_eq!(child.wait()?.code(), Some(1), "{error}");
    assert!(error.contains("interrupted before the newest release was current"), "{error}");
    Ok(())
}

/// The lines of what a child prints and logs, as they come.
fn lines(child: &mut Child) -> anyhow::Result<Receiver<String>> {
    let (tell, lines) = mpsc::channel();
    let out = child.stdout.take().context("stdout is piped")?;
    let log = child.stderr.take().context("stderr is piped")?;
    for stream in [Box::new(out) as Box<dyn Read + Send>, Box::new(log)] {
        let tell = tell.clone();
        thread::spawn(move || {
            BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
    }
    Ok(lines)
}

/// `/status` of a role.
async fn status(admin: SocketAddr) -> anyhow::Result<serde_json::Value> {
    Ok(serde_json::from_str(&scrape::get(admin, "/status").await?.1)?)
}

struct Up {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Up {
    /// Reads its output up to a line with this text.
    fn until(&mut self, text: &str) -> anyhow::Result<String> {
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(60)) {
            self.seen.push(line.clone());
            if line.contains(text) {
                return Ok(line);
            }
        }
        anyhow::bail!("no line with `{text}` in:\n{}", self.seen.join("\n"))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_serves_the_enclosing_checkout_until_ctrl_c() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    // Deltas are worth it: each is added to its publication later.
    let mut incompressible = Vec::new();
    fs::File::open("/dev/urandom")?.take(1 << 20).read_to_end(&mut incompressible)?;
    upstream.write("data", incompressible)?;
    upstream.commit_and_push("data")?;
    // Commits are noticed without a poll.
    let mut command = weir(&upstream.work().join("deploy"));
    command.args(["--poll-interval", "1h"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let lines = lines(&mut child)?;
    let mut up = Up { child, lines, seen: Vec::new() };

    // The curl that is printed works as printed.
    let curl = up.until("curl ")?;
    up.until("published")?;
    let switched = up.until("switched")?;
    assert!(switched.contains("shop"), "{switched}");
    let root = upstream.work().join("deploy/weir-data");
    assert_eq!(fs::read_to_string(root.join("agent/shop.work/current/deploy/prod/version"))?, "1");
    if Command::new("curl").arg("--version").output().is_ok_and(|curl| curl.status.success()) {
        let run = Command::new("sh").args(["-ec", curl.trim()]).current_dir(upstream.work().join("deploy")).output()?;
        let printed = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && printed.contains("deploy/prod/version"), "{curl}: {printed}");
        // The token opens what the page of the fleet asks.
        let fleet =
            up.seen.iter().find_map(|line| line.trim().split_once(" shows the fleet")).context("it is printed")?;
        let whoami = format!(
            "curl -s --cacert {0}/certificates/ca.pem -H \"Authorization: Bearer $(cat {0}/operator-token)\" {1}v1/whoami",
            root.display(),
            fleet.0
        );
        let run = Command::new("sh").args(["-ec", &whoami]).output()?;
        let printed = String::from_utf8_lossy(&run.stdout);
        assert!(printed.contains("\"role\": \"admin\""), "{whoami}: {printed}");
    }

    // The agent has an identity: the edge knows it, and nothing fails.
    let admin = |role: &str| {
        let line = up.seen.iter().find(|line| line.contains(&format!("/status of the {role}")));
        let address =
            line.and_then(|line| line.trim().strip_prefix("http://")?.split_once('/')).context("it is printed")?;
        anyhow::Ok(address.0.parse()?)
    };
    let (edge, agent) = (admin("edge")?, admin("agent")?);
    tokio::runtime::Runtime::new()?.block_on(async {
        until("the agent reports", async || status(edge).await.is_ok_and(|status| status["agents"]["reporting"] == 1))
            .await?;
        let status = status(agent).await?;
        assert_eq!(status["services"]["shop.work"]["errors"], 0, "{status}");
        anyhow::Ok(())
    })?;

    // A missing repository is reported in the log.
    let away = upstream.work().with_extension("away");
    fs::rename(upstream.work().join(".git"), &away)?;
    up.until("the upstream cannot be polled")?;
    fs::rename(&away, upstream.work().join(".git"))?;

    // Commits are followed, and the files in the root are ignored.
    for version in ["2", "3", "4"] {
        fs::write(upstream.work().join("deploy/prod/version"), version)?;
        upstream.git(["commit", "--quiet", "--all", "--message", version])?;
        let commit = upstream.git(["rev-parse", "--short=12", "HEAD"])?;
        up.until(&format!("commit {}", commit.trim()))?;
        up.until("switched")?;
        assert_eq!(fs::read_to_string(root.join("agent/shop.work/current/deploy/prod/version"))?, version);
    }
    assert_eq!(upstream.git(["status", "--porcelain"])?, "");

    let interrupted = Command::new("kill").args(["-INT", &up.child.id().to_string()]).status()?;
    assert!(interrupted.success());
    assert!(up.child.wait()?.success());
    up.seen.extend(up.lines.iter());
    let published = up.seen.iter().filter(|line| line.contains("published")).count();
    assert_eq!(published, 4, "each publication has one line: {:#?}", up.seen);
    Ok(())
}

#[test]
fn a_second_up_names_the_first() -> anyhow::Result<()> {
    let _alone = alone();
    let dir = tempfile::tempdir()?;
    let upstream = upstream(dir.path())?;
    let mut child = weir(upstream.work()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let lines = lines(&mut child)?;
    let mut first = Up { child, lines, seen: Vec::new() };
    let edge = first.until("  edge  ")?;
    let edge = edge.split_whitespace().nth(1).context("the line has an address")?;
    first.until("switched")?;
    let root = upstream.work().join("weir-data").canonicalize()?;
    let certificate = || fs::read(root.join("certificates/edge.pem"));
    let before = certificate()?;

    let second = weir(upstream.work()).output()?;
    let error = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{error}");
    let process = format!("process {}", first.child.id());
    for named in ["runs already", &root.display().to_string(), edge, &process, "--root"] {
        assert!(error.contains(named), "{named}: {error}");
    }
    assert_eq!(certificate()?, before, "the second one leaves the files of the first one alone");

    // A killed one is not taken for one that runs.
    first.child.kill()?;
    first.child.wait()?;
    let third = weir(upstream.work()).arg("--once").output()?;
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
    Ok(())
}
