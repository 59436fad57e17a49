//! `weir hub`.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{binary, free_address};

/// Killed when the test fails.
struct Hub(Child);

impl Drop for Hub {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// What a process says to systemd, which always reads.
fn service_manager(path: &Path) -> anyhow::Result<mpsc::Receiver<String>> {
    let socket = UnixDatagram::bind(path)?;
    let (said, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut message = [0; 100];
        while let Ok(length) = socket.recv(&mut message) {
            let line = String::from_utf8_lossy(&message[..length]).trim_end().to_owned();
            if said.send(line).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[test]
fn a_hub_serves_an_agent_and_drains_on_a_signal() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let upstream = GitRepository::create(dir.path(), "shop")?;
    upstream.write("version", "1")?;
    upstream.commit_and_push("one")?;
    weir_runtime::certificates::write(dir.path(), &[])?;
    let (origin, edge) = (free_address()?, free_address()?);
    fs::write(
        dir.path().join("origin.toml"),
        format!(
            "name = \"origin-1\"\nlisten = \"{origin}\"\ndata_dir = \"origin-data\"\n\
             [tls]\ncertificate = \"origin.pem\"\nkey = \"origin.key\"\nclient_ca = \"ca.pem\"\n\
             [[repository]]\nname = \"shop\"\nurl = \"{}\"\n\
             [[service]]\nname = \"shop\"\nrepository = \"shop\"\nref = \"main\"\n",
            upstream.bare().display()
        ),
    )?;
    fs::write(
        dir.path().join("edge.toml"),
        format!(
            "name = \"edge-1\"\nlisten = \"{edge}\"\n[tls]\ncertificate = \"edge.pem\"\nkey = \"edge.key\"\n\
             [auth]\nmode = \"open\"\n[cache]\ndir = \"edge-cache\"\ndisk = \"1GiB\"\nmemory = \"64MiB\"\n\
             [[origin]]\nurl = \"https://{origin}\"\nca = \"ca.pem\"\n\
             client_certificate = \"edge-client.pem\"\nclient_key = \"edge-client.key\"\n"
        ),
    )?;
    let check = || {
        let arguments = ["hub", "--origin", "origin.toml", "--edge", "edge.toml", "--check-config"];
        Command::new(env!("CARGO_BIN_EXE_weir")).args(arguments).current_dir(dir.path()).output()
    };
    let checked = check()?;
    assert!(checked.status.success() && checked.stdout == b"configuration ok\n", "{checked:?}");
    let edge_file = fs::read_to_string(dir.path().join("edge.toml"))?;
    fs::write(dir.path().join("edge.toml"), edge_file.replace("edge.key", "none.key"))?;
    let checked = check()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.code() == Some(2) && said.contains("weir: edge: ") && said.contains("none.key"), "{said}");
    fs::write(dir.path().join("edge.toml"), edge_file)?;
    let socket = dir.path().join("notify");
    let said = service_manager(&socket)?;
    let next = || said.recv_timeout(Duration::from_secs(60));
    let mut hub = Hub(Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["hub", "--origin", "origin.toml", "--edge", "edge.toml"])
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "200000")
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .spawn()?);
    assert_eq!(next()?, "READY=1");
    assert_eq!([next()?, next()?], ["WATCHDOG=1", "WATCHDOG=1"]);
    let edge = format!("https://{edge}");
    let agent = Command::new(binary("weir-agent")?)
        .args(["--edge", &edge, "--ca", "ca.pem", "--service", "shop", "--root", "agent-data", "--once"])
        .args(["--once-timeout", "60s"])
        .current_dir(dir.path())
        .output()?;
    assert!(agent.status.success(), "{}", String::from_utf8_lossy(&agent.stderr));
    assert_eq!(fs::read_to_string(dir.path().join("agent-data/shop/current/version"))?, "1");
    kill_process(Pid::from_child(&hub.0), Signal::TERM)?;
    while next()? != "STOPPING=1" {}
    assert!(hub.0.wait()?.success());
    Ok(())
}
