//! Servers that tests start on loopback.

use std::io::{BufRead, BufReader, Lines, PipeReader};
use std::process::{Child, Command};

/// A server. It ends when dropped.
pub struct TestServer {
    /// The process.
    pub child: Child,
    /// `http://127.0.0.1:<port>`
    pub endpoint: String,
    /// What it prints, until it is ready.
    lines: Option<Lines<BufReader<PipeReader>>>,
}

impl TestServer {
    /// moto, an independent implementation of S3. `tests/moto` makes its conditional writes atomic.
    pub fn moto() -> Option<Self> {
        let mut command = Command::new("moto_server");
        command.args(["-H", "127.0.0.1", "-p", "0"]);
        command.env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let mut server = Self::spawn(command, "`pip install 'moto[server]'` brings it")?;
        server.wait_for_url();
        Some(server)
    }

    /// Starts a server. `None`: it is not installed; `hint` says how it is.
    ///
    /// # Panics
    /// If it is not installed and `CI` is set: a skipped test must not look like a passed one.
    pub fn spawn(mut command: Command, hint: &str) -> Option<Self> {
        let program = command.get_program().display().to_string();
        let (output, writer) = std::io::pipe().unwrap();
        match command.stdout(writer.try_clone().unwrap()).stderr(writer).spawn() {
            Ok(child) => {
                let lines = Some(BufReader::new(output).lines());
                Some(Self { child, endpoint: String::new(), lines })
            }
            Err(error) => {
                assert!(std::env::var_os("CI").is_none(), "{program} cannot be started: {error}");
                eprintln!("SKIPPED: {program} cannot be started ({error}); {hint}");
                None
            }
        }
    }

    /// Waits until it prints a text. Returns the rest of that line, from the text on.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut lines = self.lines.take().expect("it is waited for once").map_while(Result::ok);
        let mut printed = String::new();
        let found = lines.find_map(|line| {
            printed += &format!("{line}\n");
            line.find(text).map(|start| line[start..].trim_end().to_owned())
        });
        // The server logs each request, and would block on a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        found.unwrap_or_else(|| panic!("the server ended: {printed}"))
    }

    /// Waits until it prints its URL.
    pub fn wait_for_url(&mut self) {
        self.endpoint = self.wait_for("http://");
    }

    /// Creates a bucket of S3.
    pub async fn create_bucket(&self, name: &str) {
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
