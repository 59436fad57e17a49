//! Reads an event stream in batches of lines, with a timeout.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use weir_cache::OriginError;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::event::{Event, EventError, HEARTBEAT_SECONDS, Lines};
use weir_runtime::serve::BoxError;

/// The read timeout: three heartbeats.
const READ_TIMEOUT: Duration = Duration::from_secs(3 * HEARTBEAT_SECONDS);

/// The most events of a batch. They are written to disk together.
const MAX_BATCH_EVENTS: usize = 512;

/// The size of lines that ends a batch: a single line may have 16 MiB.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Why a stream ended.
#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub(super) enum StreamEnd {
    /// The origin has no event stream.
    #[error("the origin has no event stream")]
    NotServed,
    /// The request failed.
    #[error(transparent)]
    Refused(OriginError),
    /// The origin ended the stream, as it does when it stops.
    #[error("the origin ended the stream")]
    Ended,
    /// The connection broke.
    #[error("the stream was cut off: {0}")]
    Broken(BoxError),
    /// Not even a heartbeat arrived.
    #[error("no data for {} s", READ_TIMEOUT.as_secs())]
    Silent,
    /// The data is malformed.
    #[error("the stream is malformed: {0}")]
    Malformed(String),
}

impl StreamEnd {
    /// Whether events may have been misread: the stream must restart without a cursor.
    pub(super) fn invalidates_cursor(&self) -> bool {
        matches!(self, StreamEnd::Malformed(_))
    }
}

impl From<OriginError> for StreamEnd {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::NotFound => StreamEnd::NotServed,
            error => StreamEnd::Refused(error),
        }
    }
}

impl From<EventError> for StreamEnd {
    fn from(error: EventError) -> Self {
        StreamEnd::Malformed(error.to_string())
    }
}

/// An event stream.
pub(super) struct Stream<B = Incoming> {
    body: B,
    lines: Lines,
    clock: Clock,
    /// A lower bound of the arrival time of buffered data: the last wait, or the last batch.
    arrived_after: Option<Moment>,
}

/// Events that arrived together.
#[derive(Debug)]
pub(super) struct EventBatch {
    pub(super) events: Vec<Event>,
    /// A lower bound of their arrival time, when their content was current. A slow reader must not make them look newer.
    pub(super) at: Moment,
}

impl<B> Stream<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn of(body: B, clock: Clock) -> Self {
        Self { body, lines: Lines::default(), clock, arrived_after: None }
    }

    /// The next batch: at least one event, and all that have arrived, up to a bound. Unknown kinds are skipped.
    pub(super) async fn next(&mut self) -> Result<EventBatch, StreamEnd> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        // Buffered data may have arrived any time since the last wait.
        let mut at = self.arrived_after;
        loop {
            while let Some(line) = self.lines.next_line()? {
                bytes += line.len();
                events.extend(Event::parse(&line)?);
                if events.len() >= MAX_BATCH_EVENTS || bytes >= MAX_BATCH_BYTES {
                    return Ok(self.batch(events, at));
                }
            }
            let frame = match self.body.frame().now_or_never() {
                // An end of the stream is returned by the next call.
                Some(frame) if events.is_empty() || matches!(frame, Some(Ok(_))) => frame,
                _ if !events.is_empty() => return Ok(self.batch(events, at)),
                _ => {
                    let frame =
                        tokio::time::timeout(READ_TIMEOUT, self.body.frame()).await.map_err(|_| StreamEnd::Silent)?;
                    at = Some(self.clock.now());
                    frame
                }
            };
            match frame {
                None => return Err(StreamEnd::Ended),
                Some(Err(error)) => return Err(StreamEnd::Broken(error.into())),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.lines.push(data);
                    }
                }
            }
        }
    }

    fn batch(&mut self, events: Vec<Event>, at: Option<Moment>) -> EventBatch {
        let now = self.clock.now();
        self.arrived_after = Some(now);
        EventBatch { events, at: at.unwrap_or(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;
    use weir_protocol::event::EventKind;

    type Part = Result<Frame<Bytes>, BoxError>;

    fn line(kind: EventKind) -> Bytes {
        Event { cursor: "a.1".parse().unwrap(), kind }.line().unwrap()
    }

    fn stream() -> (mpsc::UnboundedSender<Part>, Stream<impl Body<Data = Bytes, Error = BoxError> + Unpin>) {
        #[expect(clippy::disallowed_methods, reason = "ends with the test")]
        let (parts, received) = mpsc::unbounded_channel::<Part>();
        let parts_of = |mut received: mpsc::UnboundedReceiver<Part>| {
            futures_util::stream::poll_fn(move |context| received.poll_recv(context))
        };
        (parts, Stream::of(StreamBody::new(parts_of(received)), Clock::start()))
    }

    #[tokio::test]
    async fn buffered_events_are_dated_to_the_previous_read() {
        let (parts, mut stream) = stream();
        let send = |kind| parts.send(Ok(Frame::data(line(kind)))).unwrap();
        send(EventKind::Resync);
        let begun = stream.next().await.unwrap();
        let looked = stream.clock.now();
        send(EventKind::Heartbeat);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let batch = stream.next().await.unwrap();
        assert!(begun.at <= batch.at && batch.at <= looked, "{begun:?} {batch:?} {looked:?}");
        let (waited, ()) = tokio::join!(stream.next(), async { send(EventKind::Heartbeat) });
        assert!(waited.unwrap().at > looked, "one that was waited for came just now");
    }

    #[tokio::test]
    async fn a_batch_is_bounded_in_events_and_in_bytes() {
        let (parts, mut stream) = stream();
        let large = line(EventKind::Descriptor(format!("\"{}\"", "x".repeat(MAX_BATCH_BYTES / 3)).into()));
        let small = line(EventKind::Heartbeat);
        for part in [large.repeat(4), small.repeat(MAX_BATCH_EVENTS + 6)] {
            parts.send(Ok(Frame::data(part.into()))).unwrap();
        }
        let sizes = [stream.next().await.unwrap(), stream.next().await.unwrap(), stream.next().await.unwrap()];
        assert_eq!(sizes.map(|batch| batch.events.len()), [3, MAX_BATCH_EVENTS, 7]);
        drop(parts);
        assert!(matches!(stream.next().await, Err(StreamEnd::Ended)));
    }
}
