//! An OpenSSH server on loopback.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::prelude::*;

/// A running server, until the process ends.
pub(crate) struct SshServer {
    pub(crate) address: SocketAddr,
    dir: PathBuf,
}

impl SshServer {
    /// Lets clients with the key `dir/key` in as the user of this process.
    pub(crate) fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).unwrap();
        // sshd needs this directory; on Debian the service creates it.
        let _ = fs::create_dir_all("/run/sshd");
        for name in ["host", "key"] {
            keygen(&dir.join(name));
        }
        let config = format!(
            "HostKey {0}/host\nAuthorizedKeysFile {0}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin yes\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nAcceptEnv GIT_PROTOCOL\nLogLevel ERROR\n",
            dir.display()
        );
        fs::write(dir.join("sshd_config"), config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { address: listener.local_addr().unwrap(), dir: dir.to_owned() };
        let config = dir.join("sshd_config");
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let socket = socket.unwrap();
                let mut sshd = Command::new("/usr/sbin/sshd");
                sshd.arg("-i").arg("-e").arg("-f").arg(&config);
                sshd.stdin(OwnedFd::from(socket.try_clone().unwrap()))
                    .stdout(OwnedFd::from(socket))
                    .stderr(Stdio::null());
                let mut sshd = sshd.spawn().expect("the tests need sshd (openssh-server)");
                std::thread::spawn(move || sshd.wait());
            }
        });
        server
    }

    /// The client's private key.
    pub(crate) fn key(&self) -> PathBuf {
        self.dir.join("key")
    }

    /// A `known_hosts` with the server's key, or with that of a file.
    pub(crate) fn known_hosts(&self, host_key: Option<&Path>) -> PathBuf {
        let key = fs::read_to_string(host_key.unwrap_or(&self.dir.join("host.pub"))).unwrap();
        let mut words = key.split(' ');
        let (kind, key) = (words.next().unwrap(), words.next().unwrap());
        let file = self.dir.join("known_hosts");
        fs::write(&file, format!("[{}]:{} {kind} {}\n", self.address.ip(), self.address.port(), key.trim())).unwrap();
        file
    }

    pub(crate) fn url(&self, path: &Path) -> String {
        format!("ssh://{}@{}{}", user(), self.address, path.display()).replace(' ', "%20")
    }
}

/// Creates a key pair.
pub(crate) fn keygen(file: &Path) {
    let made =
        Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(file).status();
    assert!(made.expect("the tests need ssh-keygen").success());
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
