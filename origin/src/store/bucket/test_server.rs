//! Servers that tests start on loopback. The tests of the programs include this file too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

/// A server on a free port. It ends when dropped.
pub(crate) struct TestServer {
    child: Child,
    /// `http://127.0.0.1:<port>`
    pub(crate) endpoint: String,
}

impl TestServer {
    /// moto, an independent implementation of S3 with correct conditional writes.
    pub(crate) fn moto() -> Option<Self> {
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        Self::start(command, "`pip install 'moto[server]'` brings it")
    }

    /// Starts a server that prints its URL. `None`: it is not installed; `hint` says how it is.
    ///
    /// # Panics
    /// If it is not installed and `CI` is set: a skipped test must not look like a passed one.
    pub(crate) fn start(mut command: Command, hint: &str) -> Option<Self> {
        let program = command.get_program().display().to_string();
        let (output, writer) = std::io::pipe().unwrap();
        let mut child = match command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn() {
            Ok(child) => child,
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{program} cannot be started: {error}");
                eprintln!("SKIPPED: {program} cannot be started ({error}); {hint}");
                return None;
            }
        };
        // It holds the other end of the pipe.
        drop(command);
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        let endpoint = lines.find_map(|line| line.find("http://").map(|start| line[start..].trim_end().to_owned()));
        let Some(endpoint) = endpoint else { panic!("{program} ended: {:?}", child.wait()) };
        // The server logs each request, and would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Some(Self { child, endpoint })
    }

    /// Creates a bucket of S3.
    pub(crate) async fn create_bucket(&self, name: &str) {
        // An error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let created = reqwest::Client::new().put(format!("{}/{name}", self.endpoint)).send().await;
        created.unwrap().error_for_status().unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
