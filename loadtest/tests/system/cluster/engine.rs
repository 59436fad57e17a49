//! The engine of a cluster's records, on machines of its own: moto as a bucket, or three members of etcd.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;

use super::network::Machine;

const S3_PORT: u16 = 5000;
const ETCD_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;
const ETCD_METRICS_PORT: u16 = 2381;

/// The kinds of engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineKind {
    Bucket,
    Etcd,
}

/// A running engine.
pub(crate) struct Engine {
    kind: EngineKind,
    pub(crate) members: Vec<Member>,
    dir: PathBuf,
}

impl Engine {
    /// Starts it. `None`: the program is not installed.
    ///
    /// # Errors
    /// It fails; or it is not installed, and `CI` is set.
    pub(crate) async fn start(kind: EngineKind, dir: &Path) -> anyhow::Result<Option<Self>> {
        let (program, count) = match kind {
            EngineKind::Bucket => ("moto_server", 1),
            EngineKind::Etcd => ("etcd", 3),
        };
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found.is_err() {
            ensure!(std::env::var_os("CI").is_none(), "there is no {program}");
            eprintln!("SKIPPED: there is no {program}");
            return Ok(None);
        }
        let machines = (0..count).map(|index| Machine::join(31 + index)).collect::<anyhow::Result<Vec<_>>>()?;
        let addresses: Vec<Ipv4Addr> = machines.iter().map(|machine| machine.address).collect();
        let mut members = Vec::new();
        for machine in machines {
            let arguments = match kind {
                EngineKind::Bucket => {
                    ["-H", &machine.address.to_string(), "-p", &S3_PORT.to_string()].map(str::to_owned).into()
                }
                EngineKind::Etcd => etcd_arguments(machine.address, &addresses, dir),
            };
            let log = dir.join(format!("{program}-{}.log", machine.address));
            let mut member = Member { program, arguments, log, child: None, machine };
            member.start()?;
            members.push(member);
        }
        let engine = Self { kind, members, dir: dir.to_owned() };
        match kind {
            EngineKind::Bucket => {
                let at = (engine.members[0].machine.address, S3_PORT).into();
                until("the server of S3 listens", async || TcpStream::connect(at).await.is_ok()).await?;
                create_bucket(at).await?;
            }
            EngineKind::Etcd => {
                std::fs::create_dir(engine.objects())?;
                until("etcd has a leader", async || engine.leader().await.is_some()).await?;
            }
        }
        Ok(Some(engine))
    }

    /// `[store]` and the keys of `[cluster]` that belong to the engine.
    pub(crate) fn config(&self) -> (String, String) {
        match self.kind {
            EngineKind::Bucket => {
                let endpoint = format!("http://{}:{S3_PORT}", self.members[0].machine.address);
                let store = format!(
                    "url = \"s3://weir/nemesis\"\nendpoint = \"{endpoint}\"\nallow_http = true\n\
                     access_key_id_file = \"s3-id\"\nsecret_access_key_file = \"s3-secret\"\n"
                );
                (store, "engine = \"bucket\"\n".to_owned())
            }
            EngineKind::Etcd => {
                let addresses = self.members.iter().map(|member| member.machine.address);
                let endpoints: Vec<_> = addresses.map(|address| format!("\"http://{address}:{ETCD_PORT}\"")).collect();
                let etcd = format!("etcd = {{ endpoints = [{}], allow_http = true }}", endpoints.join(", "));
                let store = format!("url = \"file://{}\"\n", self.objects().display());
                (store, format!("engine = \"etcd\"\n{etcd}\n"))
            }
        }
    }

    /// The folder of the objects beside etcd.
    fn objects(&self) -> PathBuf {
        self.dir.join("objects")
    }

    /// The member of etcd that leads.
    pub(crate) async fn leader(&self) -> Option<usize> {
        for (index, member) in self.members.iter().enumerate() {
            let at = SocketAddr::from((member.machine.address, ETCD_METRICS_PORT));
            if Metrics::read(at).await.is_ok_and(|metrics| metrics.sum("etcd_server_is_leader", &[]) == 1.0) {
                return Some(index);
            }
        }
        None
    }

    /// Stops all members where they are, or lets them go on.
    pub(crate) fn pause(&self, on: bool) -> anyhow::Result<()> {
        self.members.iter().try_for_each(|member| member.pause(on))
    }
}

/// A member of the engine. It ends when dropped.
pub(crate) struct Member {
    program: &'static str,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
    pub(crate) machine: Machine,
}

impl Member {
    /// Starts it, also again.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = self.machine.command(self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // moto: its conditional writes are atomic with this.
        let moto = concat!(env!("CARGO_MANIFEST_DIR"), "/../origin/store/tests/moto");
        command.env("PYTHONPATH", moto).env("PYTHONDONTWRITEBYTECODE", "1");
        self.child = Some(command.spawn()?);
        Ok(())
    }

    /// Sends SIGKILL.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        let mut child = self.child.take().context("it runs")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn pause(&self, on: bool) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("it runs")?;
        Ok(kill_process(Pid::from_child(child), if on { Signal::STOP } else { Signal::CONT })?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.child.is_some() {
            let _ = self.kill();
        }
    }
}

fn etcd_arguments(own: Ipv4Addr, all: &[Ipv4Addr], dir: &Path) -> Vec<String> {
    let url = |address, port| format!("http://{address}:{port}");
    let cluster: Vec<_> = all.iter().map(|other| format!("{other}={}", url(*other, ETCD_PEER_PORT))).collect();
    let data = dir.join(format!("etcd-{own}")).display().to_string();
    let (client, peer) = (url(own, ETCD_PORT), url(own, ETCD_PEER_PORT));
    [
        ("--name", own.to_string()),
        ("--initial-cluster", cluster.join(",")),
        ("--listen-client-urls", client.clone()),
        ("--advertise-client-urls", client),
        ("--listen-peer-urls", peer.clone()),
        ("--initial-advertise-peer-urls", peer),
        ("--listen-metrics-urls", url(own, ETCD_METRICS_PORT)),
        ("--data-dir", data),
    ]
    .into_iter()
    .flat_map(|(name, value)| [name.to_owned(), value])
    .collect()
}

async fn create_bucket(at: SocketAddr) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(at).await?;
    let request = format!("PUT /weir HTTP/1.1\r\nhost: {at}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    if !answer.contains(" 200 ") {
        bail!("no bucket was created: {answer}");
    }
    Ok(())
}
