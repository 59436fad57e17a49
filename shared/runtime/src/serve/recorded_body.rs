//! The body of a response over HTTP/1.1, which hyper sends: it tells the record of the request what was taken of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::access_log::Record;
use super::{Body, BoxError};

/// A body with the record of its request, if it is logged.
pub(super) struct RecordedBody {
    pub(super) body: Body,
    pub(super) record: Option<Box<Record>>,
}

impl HttpBody for RecordedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { body, record } = self.get_mut();
        let frame = Pin::new(&mut *body).poll_frame(cx);
        if let (Some(record), Poll::Ready(frame)) = (record, &frame) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            record.sent(data.map_or(0, Bytes::len));
            // hyper does not always ask for the end of a body whose length it knows.
            if frame.is_none() || matches!(frame, Some(Ok(_))) && body.is_end_stream() {
                record.complete();
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
