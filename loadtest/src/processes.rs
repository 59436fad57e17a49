//! Runs the roles as processes: their binaries with a configuration file each, signals, and their logs.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::scrape;

/// The timeout of every wait. Generous: it is reached only when something is broken. On a busy machine an emulator of S3 takes
/// a minute to prove itself to three origins at once.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Whether tests run at their full size, with all rounds: `WEIR_NIGHTLY` is set.
pub fn nightly() -> bool {
    std::env::var_os("WEIR_NIGHTLY").is_some()
}

/// A binary of this build, found next to the running test.
///
/// # Errors
/// It has not been built.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let candidates = own.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    candidates.into_iter().find(|path| path.is_file()).with_context(|| {
        format!(
            "the binary {name} has not been built: run `cargo test --workspace`, or `cargo build --workspace` first"
        )
    })
}

/// A loopback address whose port is free for TCP and UDP. It is outside of the range of outgoing connections, so it
/// stays free.
///
/// # Errors
/// No port is free.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests run in parallel, also in other processes: each process starts at another port.
    let begin = std::process::id().wrapping_mul(61);
    for _ in 0..PORTS.len() {
        let number = begin.wrapping_add(u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % PORTS.len() as u32;
        let address = SocketAddr::from(([127, 0, 0, 1], PORTS.start + number as u16));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no port of loopback in {PORTS:?} is free for both TCP and UDP")
}

/// The range of outgoing connections starts at 32,768 on Linux.
const PORTS: Range<u16> = 12_000..32_000;

/// One role as a process. Killed when dropped.
#[derive(Debug)]
pub struct Node {
    binary: PathBuf,
    config: PathBuf,
    admin: SocketAddr,
    log: PathBuf,
    /// The process whose network it uses.
    network_of: Option<u32>,
    /// Its `WEIR_LOG`, if not the default.
    pub log_filter: Option<&'static str>,
    child: Option<Child>,
}

impl Node {
    /// Prepares a process of the role `weir-<role>`. Its configuration is written to `<dir>/<role>.toml`, and its log
    /// to `<dir>/<role>.log`.
    ///
    /// # Errors
    /// The binary is missing or the file cannot be written.
    pub fn new(dir: &Path, role: &str, admin: SocketAddr, config: &str) -> anyhow::Result<Self> {
        let file = dir.join(format!("{role}.toml"));
        fs::write(&file, config)?;
        let binary = binary(&format!("weir-{}", role.split('_').next().unwrap_or(role)))?;
        Ok(Self {
            binary,
            config: file,
            admin,
            log: dir.join(format!("{role}.log")),
            network_of: None,
            log_filter: None,
            child: None,
        })
    }

    /// Lets it use the network of a process.
    #[must_use]
    pub fn in_network_of(mut self, process: u32) -> Self {
        self.network_of = Some(process);
        self
    }

    /// Starts the process and waits for its admin listener.
    ///
    /// # Errors
    /// It exits, or does not respond; the error contains its log.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.binary.display());
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = match self.network_of {
            // It becomes the program: the process id is the program's.
            Some(process) => {
                let mut command = Command::new("nsenter");
                command.args(["--net", "--target", &process.to_string()]).arg(&self.binary);
                command
            }
            None => Command::new(&self.binary),
        };
        command.arg("--config").arg(&self.config).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Without the environment of the tests.
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.log_filter.map(|filter| ("WEIR_LOG", filter)));
        self.child = Some(command.spawn().with_context(|| format!("cannot start {}", self.binary.display()))?);
        let deadline = Instant::now() + PATIENCE;
        loop {
            // An origin has its admin listener before it has read its store.
            if scrape::get(self.admin, "/readyz").await.is_ok_and(|(_, said)| !said.contains("is starting")) {
                return Ok(());
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                self.child = None;
                bail!("{} ended with {status}:\n{}", self.binary.display(), self.log());
            }
            ensure!(Instant::now() < deadline, "{} does not answer:\n{}", self.binary.display(), self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// It is not running.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the process runs")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits for the end of the drain. The exit must be clean.
    ///
    /// # Errors
    /// It is not running, does not exit, or exits with another status than 0.
    pub async fn terminate(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("the process runs")?;
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM)?;
        let status = tokio::task::spawn_blocking(move || child.wait()).await??;
        ensure!(status.success(), "it ended with {status} (signal {:?}):\n{}", status.signal(), self.log());
        Ok(())
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends SIGHUP.
    ///
    /// # Errors
    /// It is not running.
    pub fn hang_up(&self) -> anyhow::Result<()> {
        self.signal(Signal::HUP)
    }

    /// Stops the process where it is (SIGSTOP), or lets it go on (SIGCONT).
    ///
    /// # Errors
    /// It is not running.
    pub fn pause(&self, on: bool) -> anyhow::Result<()> {
        self.signal(if on { Signal::STOP } else { Signal::CONT })
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("the process runs")?;
        Ok(kill_process(Pid::from_child(child), signal)?)
    }

    /// The address of the admin listener.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The log of the process.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Polls a condition outside of this process, where no event can be awaited.
///
/// # Errors
/// The condition is not met within [`PATIENCE`].
pub async fn until<F, Fut>(what: &str, mut condition: F) -> anyhow::Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        ensure!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
