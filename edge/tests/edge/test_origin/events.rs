//! The event stream of an origin.

use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::mpsc;
use weir_protocol::event::{Event, EventKind};
use weir_runtime::serve::{Body, BoxError};

/// The events sent so far, and the open streams.
#[derive(Default)]
pub(super) struct Events {
    pub(super) epoch: u32,
    pub(super) sent: Vec<EventKind>,
    readers: Vec<Reader>,
}

type Reader = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

impl Events {
    fn line(&self, offset: usize, kind: EventKind) -> Bytes {
        Event { cursor: format!("{}.{offset}", self.epoch).parse().unwrap(), kind }.line().unwrap()
    }

    /// Sends an event to all readers, with the cursor of the last recorded event.
    pub(super) fn send_line(&mut self, kind: EventKind) {
        let line = self.line(self.sent.len(), kind);
        self.send(&line);
    }

    pub(super) fn send(&mut self, bytes: &Bytes) {
        self.readers.retain(|reader| reader.send(Ok(Frame::data(bytes.clone()))).is_ok());
    }

    /// Breaks the streams that are open.
    pub(super) fn cut(&mut self) {
        for reader in self.readers.drain(..) {
            let _ = reader.send(Err("as the test wants it".into()));
        }
    }

    pub(super) fn follow(&mut self, query: Option<&str>, current: Vec<Bytes>) -> Body {
        let cursor = query.and_then(|query| query.split_once("since=")).and_then(|(_, since)| since.split_once('.'));
        let known = cursor.filter(|(epoch, _)| *epoch == self.epoch.to_string());
        let mut lines = Vec::new();
        match known.and_then(|(_, offset)| offset.parse::<usize>().ok()) {
            Some(offset) => lines.extend((offset..self.sent.len()).map(|n| self.line(n + 1, self.sent[n].clone()))),
            None => {
                lines.push(self.line(usize::MAX, EventKind::Resync));
                lines.extend(current.into_iter().map(|one| self.line(usize::MAX, EventKind::Descriptor(one))));
                lines.push(self.line(self.sent.len(), EventKind::SnapshotEnd));
            }
        }
        lines.push(self.line(self.sent.len(), EventKind::Heartbeat));
        let (reader, received) = mpsc::unbounded_channel();
        lines.into_iter().for_each(|line| reader.send(Ok(Frame::data(line))).unwrap());
        self.readers.push(reader);
        let frames = stream::unfold(received, |mut received| async move { Some((received.recv().await?, received)) });
        Body::stream(StreamBody::new(Box::pin(frames)))
    }
}
