//! One request: reads its stream, calls the handler, and writes the response.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode, Version, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::Semaphore;
use weir_http3::frame::{self, kind};
use weir_http3::{Code, HeadReader, RequestError, qpack, request_body};

use super::super::access_log::Record;
use super::super::body::add_content_length;
use super::super::connection_metrics::{Bound, Protocol, Transport};
use super::super::exchange::Exchange;
use super::super::minimum_rate::MinimumRateTimer;
use super::super::{
    Body, Handler, ListenerMetrics, MAX_HEADER_BYTES, Peer, RequestBody, accepts, date, timeout_unless, url_too_long,
};
use crate::shutdown::Drain;
use weir_protocol::problem::Problem;

/// How long a response may hold the permit to write, beyond two round trips. If the network is the bottleneck, some data is
/// acknowledged in that time. If the client's flow control is, the other responses wait no longer than this.
const WRITE_QUANTUM: Duration = Duration::from_millis(100);

/// A body of up to this many bytes is written together with the headers, in one buffer.
const SMALL_BODY: u64 = 16 << 10;

/// What all requests of a connection share.
pub(super) struct Context<H> {
    pub(super) handler: H,
    pub(super) metrics: ListenerMetrics,
    pub(super) peer: Arc<Peer>,
    pub(super) connection: Connection,
    pub(super) head_timeout: Duration,
    pub(super) stall_timeout: Duration,
    pub(super) drain: Drain,
    /// Whether one of its requests was accepted.
    pub(super) is_accepted: AtomicBool,
    /// One permit to write a body. quinn wakes all writers when there is room, and the first takes all of it; the permit goes
    /// round in order, so that no response starves.
    pub(super) body_writer: Semaphore,
}

impl<H> Context<H> {
    /// Resolves when the client has had no accepted request in time.
    pub(super) async fn first_accepted_timeout(&self) {
        timeout_unless(&self.is_accepted, self.head_timeout).await;
        self.metrics.limited(Transport::Quic, Bound::FirstRequest);
    }
}

/// Serves a request. Returns a small response that may not be acknowledged yet, so that a drain can wait for it.
///
/// # Errors
/// The response is not complete, and its stream was reset.
pub(super) async fn serve<H: Handler>(
    context: Arc<Context<H>>,
    sender: SendStream,
    receiver: RecvStream,
) -> Result<Option<ResponseStream>, RequestError> {
    let mut receiver = Some(receiver);
    let mut stream = ResponseStream::new(sender);
    let result = respond(&context, &mut stream, &mut receiver).await;
    match &result {
        Err(RequestError::Stream(code) | RequestError::Connection(code)) => stream.code = *code,
        Err(RequestError::Ended(_) | RequestError::Stalled) => stream.code = Code::REQUEST_CANCELLED,
        _ => {}
    }
    // The rest of the request is not read. After the end of the stream this does nothing.
    if let Some(mut receiver) = receiver {
        let _ = receiver.stop(Code::NO_ERROR.into());
    }
    result.map(|()| (!stream.is_acknowledged).then_some(stream))
}

async fn respond<H: Handler>(
    context: &Context<H>,
    stream: &mut ResponseStream,
    receiver: &mut Option<RecvStream>,
) -> Result<(), RequestError> {
    let Some(reading) = receiver.as_mut() else { return Ok(()) };
    let mut read = Box::pin(read_head(reading));
    let request = match (&mut read).now_or_never() {
        // The headers have usually arrived, and need no timer.
        Some(request) => request,
        None => {
            let request = Box::pin(tokio::time::timeout(context.head_timeout, &mut read)).await;
            request.unwrap_or(Err(RequestError::Stream(Code::REQUEST_INCOMPLETE)))
        }
    };
    drop(read);
    let begun = Instant::now();
    let mut record = None;
    let (exchange, mut response) = match request {
        Ok((mut request, rest)) => {
            let exchange = Exchange::begin(Version::HTTP_3, &mut request, begun);
            if matches!(exchange.method, Method::GET | Method::HEAD) {
                // The end of the stream has usually arrived; reading it avoids a STOP_SENDING.
                let _ = reading.read_chunk(usize::MAX, true).now_or_never();
            } else if let Some(receiver) = receiver.take() {
                *request.body_mut() = RequestBody::Http3(request_body::of(receiver, rest));
            }
            let response = match url_too_long(&request) {
                None => match context.handler.fast_path(&request, &context.peer) {
                    Some(response) => response,
                    // Boxed: the handler's future is large.
                    None => {
                        record = context.metrics.request_begun(&exchange, &context.peer, request.uri());
                        let response = Box::pin(context.handler.handle(request, context.peer.clone()));
                        stream.unless_cancelled(response).await?
                    }
                },
                Some(problem) => problem.into_response(),
            };
            (exchange, response)
        }
        Err(RequestError::HeadTooLarge) => {
            (Exchange::begin(Version::HTTP_3, &mut Request::new(()), begun), too_large())
        }
        Err(error) => return Err(error),
    };
    if accepts(response.status()) && !context.is_accepted.load(Ordering::Relaxed) {
        context.is_accepted.store(true, Ordering::Relaxed);
    }
    let mut record = context.metrics.responded(&exchange, record, &context.peer, &mut response, begun.elapsed());
    let written = write(stream, &exchange.method, response, context, record.as_deref_mut()).await;
    if matches!(written, Err(RequestError::Stalled)) {
        context.metrics.stalled(Protocol::Http3);
    }
    written
}

fn too_large() -> Response<Body> {
    let detail = format!("The headers of a request may have {MAX_HEADER_BYTES} bytes; these have more.");
    Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "The headers are too large", detail)
        .into_response()
}

/// Reads up to the end of the first HEADERS frame. Returns what followed, too.
async fn read_head(receiver: &mut RecvStream) -> Result<(Request<RequestBody>, Bytes), RequestError> {
    let mut reader = HeadReader::new(MAX_HEADER_BYTES);
    loop {
        let chunk = receiver.read_chunk(usize::MAX, true).await?;
        let chunk = chunk.ok_or(RequestError::Stream(Code::REQUEST_INCOMPLETE))?;
        if let Some(request) = reader.take(chunk.bytes)? {
            return Ok((request.map(|()| RequestBody::Empty), reader.into_rest()));
        }
    }
}

async fn write<H>(
    stream: &mut ResponseStream,
    method: &Method,
    response: Response<Body>,
    context: &Context<H>,
    mut record: Option<&mut Record>,
) -> Result<(), RequestError> {
    let (mut head, mut body) = response.into_parts();
    // hyper sets these over HTTP/1.1.
    head.headers.entry(header::DATE).or_insert_with(|| date::at(SystemTime::now()));
    add_content_length(&mut head, &body);
    if method == Method::HEAD {
        body = Body::Empty;
    }

    let mut sent = 0;
    let mut out = Vec::with_capacity(512);
    frame::write_frame(kind::HEADERS, &mut out, |out| qpack::encode(head.status.as_u16(), &head.headers, out));
    if let Body::Full(bytes) = &body
        && bytes.len() as u64 <= SMALL_BODY
    {
        frame::write_head(kind::DATA, bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        sent = bytes.len();
        body = Body::Empty;
    }
    let is_small = body.is_end_stream();
    stream.write(&mut [out.into()], context.stall_timeout).await?;
    record.iter_mut().for_each(|record| record.sent(sent));
    let mut minimum_rate = MinimumRateTimer::new(context.stall_timeout);
    while let Some(part) = stream.unless_cancelled(body.frame()).await? {
        let Ok(data) = part.map_err(RequestError::Body)?.into_data() else { continue };
        let mut head = Vec::with_capacity(16);
        let length = data.len();
        frame::write_head(kind::DATA, length as u64, &mut head);
        let mut parts = [head.into(), data];
        tokio::select! {
            biased;
            written = stream.write_fairly(&mut parts, context, &mut minimum_rate) => written?,
            () = body.failed() => return Err(RequestError::Body("the body has failed".into())),
        }
        record.iter_mut().for_each(|record| record.sent(length));
    }
    let _ = stream.sender.finish();
    stream.is_complete = true;
    record.iter_mut().for_each(|record| record.complete());
    if !is_small {
        // quinn buffers megabytes for a slow client: a response is in flight until the client has acknowledged it.
        stream.acknowledged().await;
        stream.is_acknowledged = true;
    }
    Ok(())
}

/// The stream of a response. It is reset if it is dropped before it is complete; quinn would finish it cleanly.
pub(super) struct ResponseStream {
    sender: SendStream,
    code: Code,
    is_complete: bool,
    is_acknowledged: bool,
}

impl ResponseStream {
    fn new(sender: SendStream) -> Self {
        Self { sender, code: Code::INTERNAL_ERROR, is_complete: false, is_acknowledged: false }
    }

    /// Writes all parts. Fails when the client accepts nothing for `stall_timeout`.
    async fn write(&mut self, mut parts: &mut [Bytes], stall_timeout: Duration) -> Result<(), RequestError> {
        while !parts.is_empty() {
            let written = tokio::time::timeout(stall_timeout, self.sender.write_chunks(parts)).await;
            let written = written.map_err(|_| RequestError::Stalled)??;
            parts = &mut parts[written.chunks..];
        }
        Ok(())
    }

    /// Writes all parts, sharing the connection's send window fairly with its other responses.
    async fn write_fairly<H>(
        &mut self,
        mut parts: &mut [Bytes],
        context: &Context<H>,
        minimum_rate: &mut MinimumRateTimer,
    ) -> Result<(), RequestError> {
        while !parts.is_empty() {
            let permit = context.body_writer.acquire().await.ok();
            let quantum =
                tokio::time::timeout(2 * context.connection.rtt() + WRITE_QUANTUM, self.sender.write_chunks(parts));
            // The quantum counts against the minimum rate: a client that accepts a byte in each must not go on forever.
            let written = minimum_rate.wait(quantum).await;
            drop(permit);
            let written = match written.ok_or(RequestError::Stalled)? {
                Ok(written) => written?,
                // Without the permit, until the client accepts some of it.
                Err(_) => minimum_rate.wait(self.sender.write_chunks(parts)).await.ok_or(RequestError::Stalled)??,
            };
            minimum_rate.accepted(written.bytes);
            parts = &mut parts[written.chunks..];
        }
        Ok(())
    }

    /// Awaits a future, unless the client cancels the request.
    async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Result<T, RequestError> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            stopped = self.sender.stopped() => Err(RequestError::Ended(match stopped {
                Ok(_) => "it stopped reading".to_owned(),
                Err(error) => error.to_string(),
            })),
        }
    }

    /// Waits until the client has acknowledged the whole response, or stopped reading it.
    pub(super) async fn acknowledged(&self) {
        let _ = self.sender.stopped().await;
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if !self.is_complete {
            let _ = self.sender.reset(self.code.into());
        }
    }
}
