//! A hub with one agent, and the operators' commands at it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{PATIENCE, binary, free_address};

/// Processes, killed at the end.
#[derive(Default)]
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A hub with the service `shop`, and the agent `cluster-1` that follows it.
pub(crate) struct Trial {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) upstream: GitRepository,
    /// The first commit.
    pub(crate) first: String,
    /// The admin listener of the edge.
    pub(crate) edge: SocketAddr,
    _running: Running,
}

impl Trial {
    /// `more`: of the origin's file, with which the service ends.
    pub(crate) fn start(more: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let upstream = GitRepository::create(dir.path(), "shop")?;
        upstream.write("version", "1")?;
        let first = upstream.commit_and_push("one")?;
        let at = dir.path();
        weir_runtime::certificates::write(at, &[])?;
        let (origin, operators, edge) = (free_address()?, free_address()?, free_address()?);
        let edge_admin = free_address()?;
        fs::write(at.join("operator-token"), "a-token-of-operators\n")?;
        fs::write(
            at.join("origin.toml"),
            format!(
                "name = \"origin-1\"\nlisten = \"{origin}\"\noperator_listen = \"{operators}\"\ndata_dir = \"origin-data\"\n\
                 [tls]\ncertificate = \"origin.pem\"\nkey = \"origin.key\"\nclient_ca = \"ca.pem\"\n\
                 [operator_api]\noperator_token_file = \"operator-token\"\n\
                 [[repository]]\nname = \"shop\"\nurl = \"{}\"\npoll_interval = \"2s\"\n\
                 [[operator]]\nname = \"ana\"\nrole = \"deliver\"\nservices = [\"shop\"]\n\
                 token_sha256 = \"246c34675b5e7b5129944e297e17b2853131a5a4ec9a6c610d0b9701cd3e7456\"\n\
                 [[service]]\nname = \"shop\"\nrepository = \"shop\"\nref = \"main\"\n{more}",
                upstream.bare().display()
            ),
        )?;
        fs::write(at.join("ana-token"), "a-token-of-ana-alone\n")?;
        fs::write(
            at.join("edge.toml"),
            format!(
                "name = \"edge-1\"\nlisten = \"{edge}\"\nadmin_listen = \"{edge_admin}\"\n[tls]\ncertificate = \"edge.pem\"\nkey = \"edge.key\"\n\
                 [auth]\nmode = \"required\"\nkeys = [\"fleet.key.pub\"]\n\
                 [cache]\ndir = \"edge-cache\"\ndisk = \"1GiB\"\nmemory = \"64MiB\"\n\
                 [[origin]]\nurl = \"https://{origin}\"\nca = \"ca.pem\"\n\
                 client_certificate = \"edge-client.pem\"\nclient_key = \"edge-client.key\"\n"
            ),
        )?;
        fs::write(
            at.join("agent.toml"),
            format!(
                "name = \"cluster-1\"\nedges = [\"https://{edge}\"]\nca = \"ca.pem\"\ntoken_file = \"cluster-1.token\"\n\
                 root = \"agent-data\"\nservices = \"assigned\"\nspread = \"0s\"\n\
                 [[service]]\nname = \"*\"\nreport_output = true\n\
                 exec = \"test ! -e {fails} || {{ echo no namespace >&2; exit 1; }}\"\n",
                fails = at.join("fails").display(),
            ),
        )?;
        let weir = env!("CARGO_BIN_EXE_weir");
        for arguments in [
            "token key --out fleet.key",
            "token issue --key fleet.key --subject cluster-1 --service * --id first --out cluster-1.token",
        ] {
            let made = Command::new(weir).args(arguments.split(' ')).current_dir(at).output()?;
            ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        let mut running = Running::default();
        let mut begin = |program: &Path, arguments: &[&str]| -> anyhow::Result<()> {
            let mut command = Command::new(program);
            let log = fs::File::create(at.join(format!("{}.log", arguments[1].trim_end_matches(".toml"))))?;
            command.args(arguments).current_dir(at).stdin(Stdio::null()).stderr(log);
            running.0.push(command.spawn()?);
            Ok(())
        };
        begin(Path::new(weir), &["hub", "--origin", "origin.toml", "--edge", "edge.toml"])?;
        begin(&binary("weir-agent")?, &["--config", "agent.toml"])?;
        let trial = Self { dir, upstream, first, edge: edge_admin, _running: running };
        let added = format!("context add trial --server https://{operators} --ca ca.pem --token-file operator-token");
        trial.succeeds(&added)?;
        Ok(trial)
    }

    /// A command of `weir`.
    pub(crate) fn weir(&self, command: &str) -> Command {
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(command.split(' ')).current_dir(self.dir.path()).stdin(Stdio::null());
        weir.env("WEIR_CONTEXTS", self.dir.path().join("contexts.toml"));
        weir
    }

    /// Runs a command of `weir`.
    pub(crate) fn run(&self, command: &str) -> anyhow::Result<Output> {
        Ok(self.weir(command).output()?)
    }

    /// Runs a command that succeeds. Returns what it printed.
    pub(crate) fn succeeds(&self, command: &str) -> anyhow::Result<String> {
        let output = self.run(command)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(output.status.success(), "weir {command}: {} {said}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a command that fails with this status. Returns what it printed, and what it said.
    pub(crate) fn fails(&self, command: &str, status: i32) -> anyhow::Result<String> {
        let output = self.run(command)?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said)?;
        ensure!(output.status.code() == Some(status), "weir {command}: {} {said}", output.status);
        Ok(said)
    }

    /// Runs a command until it succeeds and prints this.
    pub(crate) fn until(&self, command: &str, expected: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let printed = self.succeeds(command);
            if let Ok(printed) = &printed
                && printed.contains(expected)
            {
                return Ok(printed.clone());
            }
            ensure!(Instant::now() < deadline, "weir {command} never prints {expected}: {printed:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn has(&self) -> Option<String> {
        fs::read_to_string(self.dir.path().join("agent-data/shop/current/version")).ok()
    }
}
