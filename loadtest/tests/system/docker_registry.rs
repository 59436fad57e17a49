//! Debian's `docker-registry`, a process of its own, and pushes into it as `flux push artifact` and `oras push` make them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_loadtest::processes::{free_address, until};

/// A running registry, without credentials, over plain HTTP. It ends when it is dropped.
pub(crate) struct DockerRegistry {
    dir: TempDir,
    pub(crate) address: SocketAddr,
    process: Child,
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        self.stop();
    }
}

impl DockerRegistry {
    /// `None`: there is no docker-registry.
    pub(crate) async fn start() -> anyhow::Result<Option<Self>> {
        let (dir, address) = (tempfile::tempdir()?, free_address()?);
        let config = json!({
            "version": 0.1,
            "log": { "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": dir.path().join("registry") } },
            "http": { "addr": address.to_string() },
        });
        // JSON is YAML.
        fs::write(dir.path().join("config.yml"), config.to_string())?;
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(dir.path().join("config.yml")).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            ensure!(std::env::var_os("CI").is_none(), "there is no docker-registry");
            eprintln!("SKIPPED: there is no docker-registry, which Debian's package of this name brings");
            return Ok(None);
        };
        let registry = Self { dir, address, process };
        until("the registry answers", async || registry.request("GET", "/v2/", &[], b"").is_ok()).await?;
        Ok(Some(registry))
    }

    pub(crate) fn stop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Pushes an artifact with one archive of a folder. Returns the digest of its manifest.
    pub(crate) fn push(&self, name: &str, tag: &str, files: &[(&str, &str)]) -> anyhow::Result<String> {
        let folder = self.dir.path().join("pushed");
        fs::create_dir_all(&folder)?;
        for (file, contents) in files {
            fs::create_dir_all(folder.join(file).parent().context("a file is in a folder")?)?;
            fs::write(folder.join(file), contents)?;
        }
        let archive = tar(&folder)?;
        fs::remove_dir_all(&folder)?;
        let layer = self.push_blob(name, "application/vnd.cncf.flux.content.v1.tar+gzip", &archive)?;
        let config = self.push_blob(name, "application/vnd.cncf.flux.config.v1+json", b"{}")?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": [layer],
            "annotations": { "org.opencontainers.image.revision": "main@sha1:ab", "org.opencontainers.image.source": "x" },
        });
        let bytes = manifest.to_string().into_bytes();
        self.request("PUT", &format!("/v2/{name}/manifests/{tag}"), &[("content-type", media_type)], &bytes)?;
        Ok(sha256(&bytes))
    }

    /// Returns the blob's descriptor.
    fn push_blob(&self, name: &str, media_type: &str, bytes: &[u8]) -> anyhow::Result<Value> {
        let head = self.request("POST", &format!("/v2/{name}/blobs/uploads/"), &[], b"")?;
        let location =
            head.lines().find_map(|line| line.strip_prefix("Location: ")).context("an upload has a location")?;
        let target = location.trim().split_once(&self.address.to_string()).context("its location is the registry")?.1;
        let digest = sha256(bytes);
        let headers = [("content-type", "application/octet-stream")];
        self.request("PUT", &format!("{target}&digest={}", digest.replace(':', "%3A")), &headers, bytes)?;
        Ok(json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() }))
    }

    /// Sends a request. Returns the head of its answer, which is a success.
    fn request(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> anyhow::Result<String> {
        let mut socket = TcpStream::connect(self.address)?;
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let (host, length) = (self.address, body.len());
        let fixed = format!("host: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n");
        write!(socket, "{method} {target} HTTP/1.1\r\n{fixed}{headers}\r\n")?;
        socket.write_all(body)?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if !answer.starts_with("HTTP/1.1 2") {
            bail!("{method} {target}: {answer}");
        }
        Ok(answer)
    }
}

/// A folder as an archive with gzip.
fn tar(folder: &Path) -> anyhow::Result<Vec<u8>> {
    let packed = Command::new("tar").args(["-cz", "-C"]).arg(folder).arg(".").output().context("tar")?;
    ensure!(packed.status.success(), "tar: {}", String::from_utf8_lossy(&packed.stderr));
    Ok(packed.stdout)
}

/// `sha256:` and the digest.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
