//! Writes the output of a command to the log, within bounds.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use weir_protocol::name::ServiceName;

/// The most bytes logged per run and stream; the rest is dropped.
const MAX_LOGGED: usize = 64 << 10;

/// The longest line of the log, in bytes.
const MAX_LINE: usize = 2 << 10;

/// How long output is read after the command has ended: a background process may keep it open.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Logs a stream to its end, and keeps the last line that was logged.
pub(super) async fn log(
    stream: Option<impl AsyncRead + Unpin>,
    what: &'static str,
    service: ServiceName,
    name: &'static str,
    last: &Mutex<String>,
) {
    let Some(mut stream) = stream else { return };
    let put = |line: &str| {
        tracing::info!(%service, stream = name, "{what}: {line}");
        line.clone_into(&mut last.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut lines = Lines::default();
    let mut buffer = vec![0; 4 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        lines.push(&buffer[..read], put);
    }
    lines.finish(put);
}

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    logged: usize,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut put: impl FnMut(&str)) {
        for byte in bytes {
            if self.logged >= MAX_LOGGED {
                return;
            }
            self.logged += 1;
            if *byte != b'\n' {
                self.line.push(*byte);
            }
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                self.flush(&mut put);
            }
            if self.logged == MAX_LOGGED {
                self.flush(&mut put);
                put("… the rest of this output is not logged");
            }
        }
    }

    fn finish(&mut self, mut put: impl FnMut(&str)) {
        self.flush(&mut put);
    }

    fn flush(&mut self, put: &mut impl FnMut(&str)) {
        if !self.line.is_empty() {
            put(String::from_utf8_lossy(&self.line).trim_end());
            self.line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_the_whole_is_bounded() {
        let mut lines = Lines::default();
        let mut logged = Vec::new();
        lines.push(b"one\n\nt", |line| logged.push(line.to_owned()));
        lines.push(b"wo", |line| logged.push(line.to_owned()));
        lines.finish(|line| logged.push(line.to_owned()));
        assert_eq!(logged, ["one", "two"]);

        let (mut lines, mut logged) = (Lines::default(), Vec::new());
        for _ in 0..100 {
            lines.push(&[b'x'; MAX_LINE], |line| logged.push(line.len()));
        }
        assert_eq!(logged.len(), MAX_LOGGED / MAX_LINE + 1);
        assert!(logged.iter().all(|length| *length <= MAX_LINE));
    }
}
