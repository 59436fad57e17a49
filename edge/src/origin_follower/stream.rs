//! An event stream as it is read: lines, many at a time when many are there, and a deadline for silence.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use weir_protocol::event::{Event, EventError, HEARTBEAT_SECONDS, Lines};
use weir_runtime::serve::BoxError;

use crate::clock::{Clock, Moment};
use crate::origin_client::OriginError;

/// How long a stream may be silent: three heartbeats.
const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT_SECONDS);

/// Events that are handed on at a time. They are written to disk together.
const MAX_BATCH_EVENTS: usize = 512;

/// Bytes of their lines after which no further event is added: a single line may have 16 MiB.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// Why a stream is not followed any further.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The origin has none.
    #[error("the origin serves no event stream")]
    NotServed,
    /// The origin could not be reached, or refuses.
    #[error(transparent)]
    Refused(OriginError),
    /// The origin ended it, as it does when it stops.
    #[error("the origin has ended the stream")]
    Ended,
    /// The origin cut it off, or the connection broke.
    #[error("the stream broke off: {0}")]
    Broken(BoxError),
    /// Not even a heartbeat came.
    #[error("nothing came for {} s", SILENCE.as_secs())]
    Silent,
    /// What came makes no sense.
    #[error("what the stream says makes no sense: {0}")]
    Malformed(String),
}

impl End {
    /// The value of a metric's label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            End::NotServed => "not_served",
            End::Refused(_) => "refused",
            End::Ended => "ended",
            End::Broken(_) => "broken",
            End::Silent => "silent",
            End::Malformed(_) => "malformed",
        }
    }

    /// Whether something may have been misunderstood: the stream must begin again, without a cursor.
    pub(super) fn voids_the_cursor(&self) -> bool {
        matches!(self, End::Malformed(_))
    }
}

impl From<OriginError> for End {
    fn from(error: OriginError) -> Self {
        match error {
            OriginError::NotFound => End::NotServed,
            error => End::Refused(error),
        }
    }
}

impl From<EventError> for End {
    fn from(error: EventError) -> Self {
        End::Malformed(error.to_string())
    }
}

/// The events of a body.
pub(super) struct Stream<B = Incoming> {
    body: B,
    lines: Lines,
    clock: Clock,
    /// What comes next came after this at the earliest: when the last frame was waited for, or the last events were
    /// handed on.
    came_after: Option<Moment>,
}

/// Events that came together.
#[derive(Debug)]
pub(super) struct Batch {
    /// At least one.
    pub(super) events: Vec<Event>,
    /// None of them came before this, and what they say was so by then. Whoever is slow to deal with them, or with those
    /// before them, makes nothing younger.
    pub(super) at: Moment,
}

impl<B> Stream<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn of(body: B, clock: Clock) -> Self {
        Self { body, lines: Lines::default(), clock, came_after: None }
    }

    /// The next events: at least one, and all that are there already, up to a bound. Kinds of the future are left out.
    pub(super) async fn next(&mut self) -> Result<Batch, End> {
        let (mut events, mut bytes) = (Vec::new(), 0);
        // What is here already may have come at any time since it was last looked.
        let mut at = self.came_after;
        loop {
            while let Some(line) = self.lines.next_line()? {
                bytes += line.len();
                events.extend(Event::parse(&line)?);
                if events.len() >= MAX_BATCH_EVENTS || bytes >= MAX_BATCH_BYTES {
                    return Ok(self.batch(events, at));
                }
            }
            let frame = match self.body.frame().now_or_never() {
                // What ends the stream is met again by whoever reads on.
                Some(frame) if events.is_empty() || matches!(frame, Some(Ok(_))) => frame,
                _ if !events.is_empty() => return Ok(self.batch(events, at)),
                _ => {
                    let frame = tokio::time::timeout(SILENCE, self.body.frame()).await.map_err(|_| End::Silent)?;
                    at = Some(self.clock.now());
                    frame
                }
            };
            match frame {
                None => return Err(End::Ended),
                Some(Err(error)) => return Err(End::Broken(error.into())),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.lines.push(data);
                    }
                }
            }
        }
    }

    fn batch(&mut self, events: Vec<Event>, at: Option<Moment>) -> Batch {
        let now = self.clock.now();
        self.came_after = Some(now);
        Batch { events, at: at.unwrap_or(now) }
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
        let (parts, received) = mpsc::unbounded_channel::<Part>();
        let parts_of = |mut received: mpsc::UnboundedReceiver<Part>| {
            futures_util::stream::poll_fn(move |context| received.poll_recv(context))
        };
        (parts, Stream::of(StreamBody::new(parts_of(received)), Clock::begin()))
    }

    #[tokio::test]
    async fn what_came_while_nobody_looked_is_no_younger_than_the_last_look() {
        let (parts, mut stream) = stream();
        let send = |kind| parts.send(Ok(Frame::data(line(kind)))).unwrap();
        send(EventKind::Resync);
        let begun = stream.next().await.unwrap();
        let looked = stream.clock.now();
        send(EventKind::Heartbeat);
        // As long as a slow disk takes for the events before.
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
        assert!(matches!(stream.next().await, Err(End::Ended)));
    }
}
