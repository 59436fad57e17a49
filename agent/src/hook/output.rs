//! Writes the output of a command to the log, within bounds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::MAX_OUTPUT_BYTES;
use weir_protocol::plain_text::make_plain;

/// The most bytes logged per run and stream; the rest is read and dropped.
const MAX_LOGGED: usize = 64 << 10;

/// The longest line of the log, in bytes.
const MAX_LINE: usize = 2 << 10;

/// How long output is read after the command has ended: a background process may keep it open.
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// The last whole lines of a stream, of at most [`MAX_OUTPUT_BYTES`] together; of one that is longer its beginning.
#[derive(Debug, Default)]
pub(super) struct Tail {
    lines: VecDeque<String>,
    length: usize,
}

impl Tail {
    fn push(&mut self, line: &str) {
        let mut line = line.to_owned();
        make_plain(&mut line, MAX_OUTPUT_BYTES);
        line.truncate(line.floor_char_boundary(MAX_OUTPUT_BYTES));
        // With the line break before it.
        self.length += line.len() + 1;
        self.lines.push_back(line);
        while self.length > MAX_OUTPUT_BYTES + 1 {
            self.length -= self.lines.pop_front().map_or(self.length, |first| first.len() + 1);
        }
    }

    /// The lines as one text.
    pub(super) fn into_text(self) -> String {
        Vec::from(self.lines).join("\n")
    }
}

/// Logs a stream to its end, and keeps its last lines.
pub(super) async fn log(
    stream: Option<impl AsyncRead + Unpin>,
    what: &'static str,
    service: ServiceName,
    name: &'static str,
    last: &Mutex<Tail>,
) {
    let Some(mut stream) = stream else { return };
    let put = |line: &str, is_logged: bool| {
        if is_logged {
            tracing::info!(%service, stream = name, "{what}: {line}");
        }
        last.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    };
    let mut lines = Lines::default();
    let mut buffer = vec![0; 4 << 10];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        lines.push(&buffer[..read], put);
    }
    lines.flush(&put);
    if lines.length > MAX_LOGGED {
        tracing::info!(%service, stream = name, "{what}: … {} bytes were not all logged", lines.length);
    }
}

#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// The bytes so far.
    length: usize,
}

impl Lines {
    /// Gives each line to `put`, and whether it is logged.
    fn push(&mut self, bytes: &[u8], put: impl Fn(&str, bool)) {
        for byte in bytes {
            self.length = self.length.saturating_add(1);
            if *byte != b'\n' {
                self.line.push(*byte);
            }
            if *byte == b'\n' || self.line.len() >= MAX_LINE {
                self.flush(&put);
            }
        }
    }

    fn flush(&mut self, put: &impl Fn(&str, bool)) {
        let text = String::from_utf8_lossy(&self.line);
        let text = text.trim_end();
        if !text.is_empty() {
            put(text, self.length <= MAX_LOGGED);
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_last_lines_are_kept() {
        let tail = |lines: &[&str]| {
            let mut tail = Tail::default();
            lines.iter().for_each(|line| tail.push(line));
            tail.into_text()
        };
        assert_eq!((tail(&[]), tail(&["one", "two"])), (String::new(), "one\ntwo".to_owned()));
        let (most, half) = ("x".repeat(MAX_OUTPUT_BYTES), "y".repeat(MAX_OUTPUT_BYTES / 2));
        assert_eq!(tail(&["one", &most]), most);
        assert_eq!(tail(&["one", &half, &half[1..]]), [&half, &half[1..]].join("\n"));
        let red = tail(&["\u{1b}[31mno gate", &half]);
        assert_eq!(red, ["\\u{1b}[31mno gate", &half].join("\n"), "edges find nothing to change");
        assert_eq!(tail(&[&half, &half]), half, "with its line break the first has no room");
        assert_eq!(tail(&[&"é".repeat(MAX_OUTPUT_BYTES)]), "é".repeat(MAX_OUTPUT_BYTES / 2));
    }

    #[test]
    fn lines_are_cut_and_the_whole_is_bounded() {
        let put = RefCell::new(Vec::new());
        let mut lines = Lines::default();
        lines.push(b"one\n \nt", |line, is_logged| put.borrow_mut().push((line.to_owned(), is_logged)));
        lines.push(b"wo", |line, is_logged| put.borrow_mut().push((line.to_owned(), is_logged)));
        lines.flush(&|line: &str, is_logged| put.borrow_mut().push((line.to_owned(), is_logged)));
        assert_eq!(put.take(), [("one".to_owned(), true), ("two".to_owned(), true)]);

        let mut lines = Lines::default();
        for _ in 0..100 {
            lines.push(&[b'x'; MAX_LINE], |line, is_logged| put.borrow_mut().push((line.to_owned(), is_logged)));
        }
        lines.push(b"why\n", |line, is_logged| put.borrow_mut().push((line.to_owned(), is_logged)));
        let put = put.take();
        assert!(put.iter().all(|(line, _)| line.len() <= MAX_LINE));
        assert_eq!(put.iter().filter(|(_, is_logged)| *is_logged).count(), MAX_LOGGED / MAX_LINE);
        assert_eq!(put.last().unwrap(), &("why".to_owned(), false), "the last line is known");
    }
}
