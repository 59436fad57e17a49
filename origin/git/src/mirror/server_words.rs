//! The words with which a server explains a failure: `ERR` lines, the side bands 2 and 3, and text in place of Git's
//! protocol. gix reports only that the protocol was violated.

use gix::protocol::RemoteProgress;
use weir_upstream::one_line;

/// The longest part of a line to keep.
const MAX_BYTES: usize = 300;

/// Follows the received bytes of a session, line by line of the protocol.
#[derive(Debug, Default)]
pub(super) struct ServerWords {
    state: State,
    /// The length of the current line, as far as it was received.
    length: Vec<u8>,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// What was read as the length of the session's first line, until that line ended.
    first_length: Option<Vec<u8>>,
    has_lines: bool,
    /// By side band: messages and errors. `ERR` lines are errors too.
    message: Option<String>,
    error: Option<String>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the length of a line.
    #[default]
    Length,
    /// Within a line, with so many bytes to come.
    Line(usize),
    /// The server sends something else.
    Other,
}

impl ServerWords {
    /// A response starts.
    pub(super) fn start_response(&mut self) {
        self.state = State::Length;
        self.length.clear();
        self.line.clear();
    }

    pub(super) fn received(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.state {
                State::Length => {
                    let (digits, rest) = bytes.split_at((4 - self.length.len()).min(bytes.len()));
                    self.length.extend_from_slice(digits);
                    bytes = rest;
                    self.read_length();
                }
                State::Line(left) => {
                    let (part, rest) = bytes.split_at(left.min(bytes.len()));
                    self.keep(part);
                    bytes = rest;
                    self.state = State::Line(left - part.len());
                    if part.len() == left {
                        self.end_line();
                    }
                }
                State::Other => return self.keep(bytes),
            }
        }
    }

    fn read_length(&mut self) {
        let digits = std::str::from_utf8(&self.length).ok().filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.map(|digits| usize::from_str_radix(digits, 16)) {
            Some(_) if self.length.len() < 4 => {}
            // Flushes, delimiters and empty lines.
            Some(Ok(0..=4)) => self.start_response(),
            Some(Ok(length)) => {
                self.first_length = (!self.has_lines).then(|| std::mem::take(&mut self.length));
                self.start_response();
                self.state = State::Line(length - 4);
            }
            _ => {
                self.state = State::Other;
                self.line = std::mem::take(&mut self.length);
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = MAX_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end_line(&mut self) {
        self.has_lines = true;
        match &*self.line {
            [2, text @ ..] if RemoteProgress::from_bytes(text).is_none() => {
                self.message = one_line(text).or(self.message.take());
            }
            [3, text @ ..] | [b'E', b'R', b'R', b' ', text @ ..] => self.error = one_line(text).or(self.error.take()),
            _ => {}
        }
        self.start_response();
    }

    pub(super) fn has_error(&self) -> bool {
        self.error.is_some()
    }

    /// Why the server failed, in its words, for an error with this cause.
    pub(super) fn explain(&self, cause: String) -> String {
        let other = || match (&self.first_length, self.state) {
            (_, State::Other) => one_line(&self.line).filter(|_| !self.line.starts_with(b"PACK")),
            // Words that begin like a length, such as "Access denied".
            (Some(length), State::Line(1..)) if !self.has_lines => one_line(&[&**length, &self.line].concat()),
            _ => None,
        };
        match (&self.error, &self.message) {
            (Some(error), _) => format!("the server reports: {error}"),
            (None, Some(message)) => format!("{cause}; the server reports: {message}"),
            (None, None) => {
                other().map_or(cause, |text| format!("the server does not speak Git's protocol, it sent: {text}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        format!("{:04x}{text}", text.len() + 4)
    }

    #[test]
    fn words_are_found_wherever_a_response_is_divided() {
        let refs = line(&format!("{} HEAD\n", "1".repeat(40)));
        for (response, expected) in [
            (line("ERR access\tdenied\u{1b}[2J\n"), "the server reports: access denied[2J"),
            (format!("{refs}0000{}", line("\u{3}out of memory\n")), "the server reports: out of memory"),
            (
                format!("{}{}0000", line("\u{2}Counting objects: 50% (1/2)\r"), line("\u{2}quota\n")),
                "x; the server reports: quota",
            ),
            (line("\u{2}Counting objects: 50% (1/2)\r"), "x"),
            (format!("{refs}00000001"), "x"),
            ("<h1>Log in</h1>\n".to_owned(), "the server does not speak Git's protocol, it sent: <h1>Log in</h1>"),
            (format!("{}PACK1234", line("NAK\n")), "x"),
            ("Access denied\n".to_owned(), "the server does not speak Git's protocol, it sent: Access denied"),
            ("no".to_owned(), "the server does not speak Git's protocol, it sent: no"),
            (String::new(), "x"),
        ] {
            for size in 1..response.len().max(2) {
                let mut words = ServerWords::default();
                response.as_bytes().chunks(size).for_each(|bytes| words.received(bytes));
                assert_eq!(words.explain("x".to_owned()), expected, "{response:?} in parts of {size}");
            }
        }
        let mut words = ServerWords::default();
        words.received("x".repeat(5000).as_bytes());
        assert!(words.explain("x".to_owned()).len() < 400);
    }
}
