//! The status over a Unix socket in a role's own folder, for who may look into it: `weir-edge status` in an image without a
//! shell, and where there is no admin listener.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::spawn_blocking;

use super::Admin;
use crate::status_page;

/// The socket's name in the folder of an origin or an edge. Agents may share a folder.
pub const STATUS_SOCKET: &str = "status.sock";

/// How long an answer may take, at either end.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long the listener pauses after an `accept` that failed, most often because no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(200);

impl Admin {
    /// Writes all pages of `/status` to each who connects to the socket at `path`, which is this process's alone, one after
    /// the other, until the drain has ended. Without the socket the role works on, and says why.
    pub fn listen_at(&self, path: &Path) {
        let path = path.to_owned();
        let listener = match bind(&path) {
            Ok(listener) => listener,
            Err(error) => {
                return tracing::warn!(socket = %path.display(), %error, "`status` cannot ask this process");
            }
        };
        let (admin, drain) = (self.clone(), self.drain.last().clone());
        self.drain.last().spawn(async move {
            loop {
                let stream = tokio::select! { accepted = listener.accept() => accepted, () = drain.begun() => break };
                match stream {
                    // Whoever takes nothing is left after the time.
                    Ok((stream, _)) => tokio::select! {
                        _ = tokio::time::timeout(TIMEOUT, answer(&admin, stream)) => {}
                        () = drain.begun() => break,
                    },
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
            let _ = std::fs::remove_file(path);
        });
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    // That of a process that was killed.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

async fn answer(admin: &Admin, mut stream: UnixStream) -> io::Result<()> {
    let mut query = String::new();
    loop {
        let status = admin.status.clone();
        let page = spawn_blocking(move || status(&query).unwrap_or_else(Value::String));
        let page = page.await.map_err(io::Error::other)?;
        stream.write_all(&serde_json::to_vec(&page)?).await?;
        let Some(next) = page["next_after"].as_str() else { return stream.shutdown().await };
        query = format!("after={next}");
    }
}

/// Why a process does not say how it is.
#[derive(Debug, thiserror::Error)]
#[error("no process answers at {}: {cause}. It must run with this configuration, and be asked by its own user or by root", socket.display())]
pub struct NotAnswered {
    socket: PathBuf,
    cause: io::Error,
}

/// The document of `/status` of the process at a socket, with the lists of all its pages.
///
/// # Errors
/// No process listens there, it does not answer in ten seconds, or it ends before its last page.
pub async fn status_at(socket: &Path) -> Result<Value, NotAnswered> {
    let asked = async {
        let (mut stream, mut answer) = (UnixStream::connect(socket).await?, Vec::new());
        stream.read_to_end(&mut answer).await?;
        let mut pages = serde_json::Deserializer::from_slice(&answer).into_iter::<Value>();
        let mut document = pages.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        for page in pages {
            status_page::join(&mut document, page?);
        }
        // The process ended between two pages.
        if document.get("next_after").is_some_and(|next| !next.is_null()) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before its last page"));
        }
        Ok(document)
    };
    let timeout = |_| io::Error::new(io::ErrorKind::TimedOut, "it did not answer in 10 s");
    let answered = tokio::time::timeout(TIMEOUT, asked).await.map_err(timeout).and_then(|answered| answered);
    answered.map_err(|cause| NotAnswered { socket: socket.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use weir_protocol::name::ServiceName;

    use super::super::Readiness;
    use super::*;
    use crate::shutdown::Drain;
    use crate::status_page::StatusPage;

    #[tokio::test]
    async fn all_pages_are_one_document() {
        let page = |query: &str| {
            let at = StatusPage::<ServiceName>::parse(query).unwrap().after.map_or(0, |at| at.as_str().len());
            let next = (at < 2).then(|| "s".repeat(at + 1));
            Ok(
                json!({ "ready": true, "services": [at], "cluster": { "owned": [at], "others": [7] }, "next_after": next }),
            )
        };
        let (folder, drain) = (tempfile::tempdir().unwrap(), Drain::new());
        let socket = folder.path().join(STATUS_SOCKET);
        let ready = Arc::new(|| Readiness::Ready);
        let registry = prometheus::Registry::new();
        Admin { registry, ready, status: Arc::new(page), page: None, metrics_token: None, drain: drain.clone() }
            .listen_at(&socket);
        let all = json!({
            "ready": true, "services": [0, 1, 2], "cluster": { "owned": [0, 1, 2], "others": [7] }, "next_after": null,
        });
        assert_eq!(status_at(&socket).await.unwrap(), all);
        assert!(drain.finish(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn a_part_of_the_pages_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join(STATUS_SOCKET);
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(br#"{"services":[0],"next_after":"s"}"#).await.unwrap();
        };
        let ((), answered) = tokio::join!(answer, status_at(&socket));
        assert!(answered.unwrap_err().to_string().contains("before its last page"));
    }
}
