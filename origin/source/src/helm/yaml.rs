//! YAML as a stream of events. What nobody asked for is skipped in constant memory, whatever it is.

use std::io::{self, Bytes, Read};

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError};
use weir_upstream::shown;

/// The most anchors and tags: the parser remembers the names of anchors, and tags take long.
const MAX_ANCHORS: usize = 100_000;

/// The fewest characters for each node, once there are many. A node takes about as long as 50 characters of a text, so nodes of
/// two characters would take ten times as long as an index of the same size. Those have at least six.
const MIN_NODE_CHARS: usize = 5;
const MANY_NODES: usize = 100_000;

/// The longest reason, in characters: it may have text of the document.
const MAX_REASON_CHARS: usize = 300;

/// The events of one document.
pub(super) struct Yaml<R: Read> {
    parser: Parser<'static, granit_parser::FallibleBufferedInput<Chars<R>>>,
    anchors: usize,
    nodes: usize,
    line: usize,
    /// The characters before the last event.
    position: usize,
}

/// A node, of which a collection is to be read further.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A list. Its items follow, and then [`Node::End`].
    List,
    /// A map. Its keys and values follow by turns, and then [`Node::End`].
    Map,
    End,
    Text(String),
    Null,
    /// What an anchor stands for. It is not looked up.
    Alias,
}

impl<R: Read> Yaml<R> {
    /// Begins the document.
    pub(super) fn open(input: R) -> Result<Self, String> {
        let options = granit_parser::options! { emit_comments: false };
        let parser = Parser::new_from_fallible_iter_with_options(Chars::new(input), options);
        let mut yaml = Self { parser, anchors: 0, nodes: 0, line: 1, position: 0 };
        match (yaml.event()?, yaml.event()?) {
            (Event::StreamStart, Event::DocumentStart(..)) => Ok(yaml),
            _ => Err("it is empty".to_owned()),
        }
    }

    /// Ends the document: nothing may follow.
    pub(super) fn finish(mut self) -> Result<(), String> {
        self.finish_document()?;
        match self.event()? {
            Event::StreamEnd => Ok(()),
            _ => Err(self.wrong("it has a second document")),
        }
    }

    /// Ends the document. Another one may follow, and is not read.
    pub(super) fn finish_document(&mut self) -> Result<(), String> {
        match self.event()? {
            Event::DocumentEnd => Ok(()),
            _ => Err(self.wrong("it does not end here")),
        }
    }

    pub(super) fn node(&mut self) -> Result<Node, String> {
        let event = self.event()?;
        let (node, has_name) = match event {
            Event::Scalar(text, ScalarStyle::Plain, anchor, None) if matches!(&*text, "" | "~" | "null") => {
                (Node::Null, anchor > 0)
            }
            Event::Scalar(text, _, anchor, tag) => (Node::Text(text.into_owned()), anchor > 0 || tag.is_some()),
            Event::SequenceStart(_, anchor, tag) => (Node::List, anchor > 0 || tag.is_some()),
            Event::MappingStart(_, anchor, tag) => (Node::Map, anchor > 0 || tag.is_some()),
            Event::SequenceEnd | Event::MappingEnd => (Node::End, false),
            Event::Alias(_) => (Node::Alias, false),
            _ => return Err(self.wrong("it ends too early")),
        };
        self.nodes += usize::from(node != Node::End);
        self.anchors += usize::from(has_name);
        if self.anchors > MAX_ANCHORS {
            return Err(self.wrong(&format!("it has more than {MAX_ANCHORS} anchors and tags")));
        }
        if self.nodes > MANY_NODES && self.nodes > self.position / MIN_NODE_CHARS {
            return Err(self.wrong(&format!("it has more than a node for every {MIN_NODE_CHARS} characters")));
        }
        Ok(node)
    }

    /// Skips what remains of a node.
    pub(super) fn skip(&mut self, node: &Node) -> Result<(), String> {
        let mut depth = usize::from(matches!(node, Node::List | Node::Map));
        while depth > 0 {
            match self.node()? {
                Node::List | Node::Map => depth += 1,
                Node::End => depth -= 1,
                Node::Text(_) | Node::Null | Node::Alias => {}
            }
        }
        Ok(())
    }

    /// The reason for what is wrong here, with the line.
    pub(super) fn wrong(&self, what: &str) -> String {
        at_line(self.line, what)
    }

    fn event(&mut self) -> Result<Event<'static>, String> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                (self.line, self.position) = (span.start.line(), span.start.index());
                Ok(event)
            }
            Some(Err(error)) => Err(describe(&error)),
            None => Err(self.wrong("it ends too early")),
        }
    }
}

fn describe(error: &ScanError) -> String {
    at_line(error.marker().line(), &error.info())
}

fn at_line(line: usize, what: &str) -> String {
    format!("line {line}: {}", shown(what, MAX_REASON_CHARS))
}

/// The characters of UTF-8.
struct Chars<R: Read>(Bytes<io::BufReader<R>>);

impl<R: Read> Chars<R> {
    fn new(input: R) -> Self {
        Self(io::BufReader::with_capacity(64 << 10, input).bytes())
    }
}

impl<R: Read> Iterator for Chars<R> {
    type Item = Result<char, ErrorKind>;

    fn next(&mut self) -> Option<Self::Item> {
        let wrong = |message: &str| Some(Err(ErrorKind::InputDecoding { message: message.to_owned() }));
        let failed = |error| Some(Err(ErrorKind::InputIo { error: granit_parser::InputIoError::from_io(error) }));
        let mut buffer = [0; 4];
        buffer[0] = match self.0.next()? {
            Ok(byte) => byte,
            Err(error) => return failed(error),
        };
        let length = match buffer[0] {
            // The parser takes it for the end.
            0 => return wrong("it has a NUL byte"),
            1..0x80 => return Some(Ok(char::from(buffer[0]))),
            0x80..0xe0 => 2,
            0xe0..0xf0 => 3,
            _ => 4,
        };
        for byte in &mut buffer[1..length] {
            match self.0.next() {
                Some(Ok(next)) => *byte = next,
                Some(Err(error)) => return failed(error),
                None => return wrong("it is not UTF-8"),
            }
        }
        match std::str::from_utf8(&buffer[..length]).ok().and_then(|text| text.chars().next()) {
            Some(char) => Some(Ok(char)),
            None => wrong("it is not UTF-8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &[u8]) -> Result<Vec<Node>, String> {
        let (mut yaml, mut nodes, mut depth) = (Yaml::open(text)?, Vec::new(), 0);
        loop {
            let node = yaml.node()?;
            depth += i32::from(matches!(node, Node::List | Node::Map)) - i32::from(node == Node::End);
            nodes.push(node);
            if depth == 0 {
                return yaml.finish().map(|()| nodes);
            }
        }
    }

    #[test]
    fn nodes_are_read_as_they_are_written() {
        let text = |text: &str| Node::Text(text.to_owned());
        let read = nodes("{ü: 1.0, k: [~, '~', &a €, *a, 12e4567, 𝄞]}\n".as_bytes()).unwrap();
        let list = [Node::Null, text("~"), text("€"), Node::Alias, text("12e4567"), text("𝄞"), Node::End];
        let start = [Node::Map, text("ü"), text("1.0"), text("k"), Node::List];
        assert_eq!(read, start.into_iter().chain(list).chain([Node::End]).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_document_is_refused_with_its_line() {
        let many = format!("[{}]", "&a word,".repeat(MAX_ANCHORS + 1));
        let deep = "[".repeat(5000);
        // Each takes as long as 500 bytes of a text.
        let [short, tagged] = ["a,", "!a 'text of a tag',"].map(|node| format!("[{}]", node.repeat(150_000)));
        for (text, reason) in [
            (&b""[..], "empty"),
            (b"a: [1\n", "line 1: unclosed bracket"),
            (b"a: \xff\n", "not UTF-8"),
            (b"a: \xc3", "not UTF-8"),
            (b"a: \xed\xa0\x80\n", "not UTF-8"),
            (b"a: 1\nb: \0\n", "NUL"),
            (b"a: 1\n---\nb: 2\n", "line 2: it has a second document"),
            (b"a: *b\n", "line 1: "),
            (many.as_bytes(), "more than 100000 anchors"),
            (deep.as_bytes(), "line 1: "),
            (short.as_bytes(), "line 1: it has more than a node for every 5 characters"),
            (tagged.as_bytes(), "line 1: it has more than 100000 anchors and tags"),
        ] {
            let error = nodes(text).map(drop).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    #[test]
    fn an_error_of_the_reader_is_not_the_end() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("reset"))
            }
        }
        let Err(error) = Yaml::open(b"a: 1\n".chain(Broken)).and_then(|mut yaml| yaml.node()) else { panic!() };
        assert!(error.contains("reset"), "{error}");
    }
}
