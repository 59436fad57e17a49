//! Machines on one network: each is a network namespace, all are joined by a bridge, and links between two of them can be
//! cut in one direction.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};

/// Where the test itself is, with the Git server.
pub(crate) const HARNESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Set within the namespaces of a test.
const INSIDE: &str = "WEIR_IN_NAMESPACES";

/// What makes namespaces in which the caller is root: network, mounts and processes. All of them end with their first
/// process, and that one with the caller.
const UNSHARE: [&str; 10] = [
    "--pdeathsig",
    "KILL",
    "unshare",
    "--map-root-user",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// A part of a test, and its name.
pub(crate) type Part<'a> = (&'a str, fn() -> anyhow::Result<()>);

/// Held while a part runs. Several clusters at once keep two processors so busy that sessions of seconds end by themselves.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the parts of a test in namespaces of their own, by starting this program there for each of them, one after another
/// and none beside those of other tests. `test`: its full name.
///
/// # Errors
/// A part fails; or namespaces cannot be made, and `CI` is set: a skipped test must not look like a passed one.
pub(crate) fn isolated(test: &str, parts: &[Part<'_>]) -> anyhow::Result<()> {
    if let Some(part) = std::env::var_os(INSIDE) {
        create_bridge()?;
        let body = parts.iter().find(|(name, _)| part == *name).context("it is a part of the test")?.1;
        return body();
    }
    if let Some(reason) = missing()? {
        ensure!(std::env::var_os("CI").is_none(), "no network namespace can be made: {reason}");
        eprintln!("SKIPPED: {test} needs util-linux, iproute2 and namespaces of users and networks: {reason}");
        return Ok(());
    }
    parts.iter().try_for_each(|(part, _)| run_part(test, part))
}

/// Why no namespaces can be made.
fn missing() -> anyhow::Result<Option<String>> {
    match unshare().args(["ip", "link", "add", "trial", "type", "bridge"]).output() {
        Ok(output) if output.status.success() => Ok(None),
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some("there is no setpriv".to_owned())),
        Err(error) => Err(error.into()),
    }
}

fn run_part(test: &str, part: &str) -> anyhow::Result<()> {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let run = unshare()
        .arg(std::env::current_exe()?)
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, part)
        .stdin(Stdio::null())
        .output()?;
    let [printed, errors] = [run.stdout, run.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    println!("{part}:\n{printed}{errors}");
    ensure!(run.status.success(), "{part}: {}", run.status);
    Ok(())
}

fn unshare() -> Command {
    let mut command = Command::new("setpriv");
    command.args(UNSHARE);
    command
}

fn create_bridge() -> anyhow::Result<()> {
    sh(&format!(
        "ip link set lo up
        ip link add bridge0 type bridge
        ip address add {HARNESS}/24 dev bridge0
        ip link set bridge0 up"
    ))
}

/// A machine. It ends when dropped, after the processes in it.
#[derive(Debug)]
pub(crate) struct Machine {
    holder: Child,
    pub(crate) address: Ipv4Addr,
}

impl Machine {
    /// Joins a new machine to the bridge, at the address that ends in `number`.
    pub(crate) fn join(number: u8) -> anyhow::Result<Self> {
        let address = Ipv4Addr::new(10, 77, 0, number);
        let holder = Command::new("unshare").args(["--net", "sleep", "infinity"]).spawn()?;
        let machine = Self { holder, address };
        let (own, process) = (fs::read_link("/proc/self/ns/net")?, machine.process());
        while fs::read_link(format!("/proc/{process}/ns/net"))? == own {
            std::thread::yield_now();
        }
        let card = card(address);
        sh(&format!(
            "ip link add port{number} type veth peer name eth0 address {card} netns {process}
            ip link set port{number} master bridge0 up
            nsenter --net --target {process} sh -ec '
                ip link set lo up
                ip address add {address}/24 dev eth0
                ip link set eth0 up'"
        ))?;
        Ok(machine)
    }

    /// The process whose network is that of the machine.
    pub(crate) fn process(&self) -> u32 {
        self.holder.id()
    }

    /// A program on it. The process id of what is started is the program's.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.process().to_string(), program]);
        command
    }

    /// Loses what this machine sends to another, or no longer: it is sent to a card that nobody has.
    pub(crate) fn cut(&self, to: &Machine, on: bool) -> anyhow::Result<()> {
        let card = if on { "02:ff:ff:ff:ff:ff".to_owned() } else { card(to.address) };
        let (process, to) = (self.process(), to.address);
        sh(&format!("nsenter --net --target {process} ip neighbour replace {to} lladdr {card} dev eth0 nud permanent"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The hardware address of the machine at an address.
fn card(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// Runs a script of the shell that ends at its first error.
pub(crate) fn sh(script: &str) -> anyhow::Result<()> {
    let output = Command::new("sh").args(["-ec", script]).output().context("there is no sh")?;
    if !output.status.success() {
        bail!("{script}\nfailed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// What arrives is shown by datagrams, which are not sent again.
#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::ChildStdout;

    use super::*;

    /// Receives datagrams as lines.
    fn listen(machine: &Machine) -> (Child, BufReader<ChildStdout>) {
        let script = "import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.bind(('', 7))\n\
                      print('ready', flush=True)\nwhile 1: print(s.recv(99).decode(), flush=True)";
        let mut child =
            machine.command("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("python3 runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped"));
        assert_eq!(next(&mut lines), "ready");
        (child, lines)
    }

    fn next(lines: &mut BufReader<ChildStdout>) -> String {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn send(from: &Machine, to: &Machine, text: &str) {
        let script =
            format!("import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'{text}', ('{}', 7))", to.address);
        assert!(from.command("python3").args(["-c", &script]).status().unwrap().success());
    }

    #[test]
    fn a_cut_loses_one_direction_until_it_heals() -> anyhow::Result<()> {
        let name = "cluster::network::tests::a_cut_loses_one_direction_until_it_heals";
        let cut = || {
            let (a, b, c) = (Machine::join(11)?, Machine::join(12)?, Machine::join(13)?);
            let ((mut at_a, mut a_hears), (mut at_b, mut b_hears)) = (listen(&a), listen(&b));
            a.cut(&b, true)?;
            send(&a, &b, "lost");
            send(&b, &a, "back");
            assert_eq!(next(&mut a_hears), "back");
            send(&c, &b, "other");
            assert_eq!(next(&mut b_hears), "other");
            a.cut(&b, false)?;
            send(&a, &b, "healed");
            assert_eq!(next(&mut b_hears), "healed");
            for listener in [&mut at_a, &mut at_b] {
                listener.kill()?;
                listener.wait()?;
            }
            Ok(())
        };
        isolated(name, &[("cut", cut)])
    }
}
