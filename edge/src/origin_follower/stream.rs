//! An event stream as it is read: lines, many at a time when many are there, and a deadline for silence.

use std::time::Duration;

use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use weir_shared::event::{Event, EventError, HEARTBEAT_SECONDS, Lines};

use crate::origin_client::OriginError;

/// How long a stream may be silent: three heartbeats.
const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT_SECONDS);

/// Events that are handed on at a time. They are written to disk together.
const MAX_BATCH: usize = 512;

/// Why a stream is not followed any further.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// The origin has none.
    #[error("the origin serves no event stream")]
    NotServed,
    /// The origin could not be asked, or says no.
    #[error(transparent)]
    Refused(OriginError),
    /// The origin ended it, as it does when it stops.
    #[error("the origin has ended the stream")]
    Ended,
    /// The origin cut it off, or the connection broke.
    #[error("the stream broke off: {0}")]
    Broken(hyper::Error),
    /// Not even a heartbeat came.
    #[error("nothing came for {} s", SILENCE.as_secs())]
    Silent,
    /// What came makes no sense.
    #[error("what the stream says makes no sense: {0}")]
    Malformed(String),
    /// What it said could not be written to the table.
    #[error("what the stream said could not be applied: {0}")]
    NotApplied(String),
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
            End::NotApplied(_) => "not_applied",
        }
    }

    /// Whether what was said may have been lost or misunderstood: the stream must begin anew.
    pub(super) fn loses_the_place(&self) -> bool {
        matches!(self, End::Malformed(_) | End::NotApplied(_))
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
pub(super) struct Stream {
    body: Incoming,
    lines: Lines,
}

impl Stream {
    pub(super) fn of(body: Incoming) -> Self {
        Self { body, lines: Lines::default() }
    }

    /// The next events: at least one, and all that are there already, up to a bound. Kinds of the future are left out.
    pub(super) async fn next(&mut self) -> Result<Vec<Event>, End> {
        let mut events = Vec::new();
        loop {
            while let Some(line) = self.lines.next_line()? {
                events.extend(Event::parse(&line)?);
                if events.len() >= MAX_BATCH {
                    return Ok(events);
                }
            }
            let frame = if events.is_empty() {
                tokio::time::timeout(SILENCE, self.body.frame()).await.map_err(|_| End::Silent)?
            } else {
                // What ends the stream is met again by whoever reads on.
                match self.body.frame().now_or_never() {
                    Some(frame @ Some(Ok(_))) => frame,
                    _ => return Ok(events),
                }
            };
            match frame {
                None => return Err(End::Ended),
                Some(Err(error)) => return Err(End::Broken(error)),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.lines.push(data);
                    }
                }
            }
        }
    }
}
