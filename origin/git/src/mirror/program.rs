//! A program with a socket as its standard input and output: `git upload-pack` for a local upstream, `ssh` for a remote
//! one, `git index-pack` and `git rev-list` for received packs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use weir_upstream::outside_program::{End, Running};

use super::git_session::GitSession;

/// The longest end of standard error to keep.
const MAX_STDERR_BYTES: usize = 4096;

/// The timeout for an error message after the program has failed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A running program. Killed on drop, with its children.
pub(super) struct Program {
    running: Running,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Program {
    /// Starts a program, and returns the socket to it.
    pub(super) fn start(session: &GitSession, command: Command) -> io::Result<(Self, UnixStream)> {
        Self::start_with_stderr(session, command, |_| {})
    }

    /// The same, and calls `on_line` with each line of standard error.
    pub(super) fn start_with_stderr(
        session: &GitSession,
        mut command: Command,
        on_line: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = StdStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        command.stdin(Stdio::from(theirs.try_clone()?)).stdout(Stdio::from(theirs)).stderr(Stdio::piped());
        let mut running = Running::start(&mut command)?;
        // The command also holds the other end of the socket, which must close with the program.
        drop(command);
        let stderr = running.stderr();
        let mut program = Self { running, stderr: None };
        let _entered = session.network.enter();
        ours.set_nonblocking(true)?;
        let socket = UnixStream::from_std(ours)?;
        if let Some(stderr) = stderr {
            program.stderr =
                Some(session.network.spawn(read_lines(pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?, on_line)));
        }
        Ok((program, socket))
    }

    /// The exit code, unless it was killed, and its standard error. The program must have closed its socket.
    pub(super) fn end(mut self, session: &GitSession) -> (Option<i32>, String) {
        let stderr = self.read_stderr(session);
        match self.running.wait(EXIT_TIMEOUT, session.network.interrupt()) {
            Ok(End::Itself(status)) => (status.code(), stderr),
            _ => (None, stderr),
        }
    }

    fn read_stderr(&mut self, session: &GitSession) -> String {
        let Some(stderr) = self.stderr.take() else { return String::new() };
        let stderr = session.network.wait(async { tokio::time::timeout(EXIT_TIMEOUT, stderr).await });
        let stderr = stderr.ok().and_then(Result::ok).and_then(Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&stderr).into_owned()
    }
}

/// Reads standard error to its end, so that the program never blocks, and keeps the last part. A carriage return ends a
/// line too.
async fn read_lines(mut stderr: pipe::Receiver, mut on_line: impl FnMut(&str)) -> Vec<u8> {
    let (mut tail, mut line) = (Vec::new(), Vec::new());
    let mut buffer = [0; MAX_STDERR_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        for byte in buffer[..read].iter().map(|byte| if *byte == b'\r' { b'\n' } else { *byte }) {
            tail.push(byte);
            if byte == b'\n' {
                on_line(&String::from_utf8_lossy(&line));
                line.clear();
            } else if line.len() < MAX_STDERR_BYTES {
                line.push(byte);
            }
        }
        let surplus = tail.len().saturating_sub(MAX_STDERR_BYTES);
        tail.drain(..surplus);
    }
    tail
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use weir_upstream::Upstream;
    use weir_upstream::outside_program::pinned;

    use super::*;

    #[test]
    fn children_of_a_program_end_with_it() {
        let (upstream, interrupt) = (Upstream::new("/x"), AtomicBool::new(false));
        let session = GitSession::new(&upstream, &interrupt).unwrap();
        let mut command = pinned("sh");
        command.args(["-c", "sleep 1000 & echo x; sleep 1000"]);
        let (program, mut socket) = Program::start(&session, command).unwrap();
        let mut output = [0; 16];
        assert_eq!(session.network.wait(socket.read(&mut output)).unwrap().unwrap(), 2);
        drop(program);
        // Both hold the other end of the socket.
        assert_eq!(session.network.wait(socket.read(&mut output)).unwrap().unwrap(), 0);
    }
}
