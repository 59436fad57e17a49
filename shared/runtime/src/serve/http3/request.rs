//! One request: its stream is read, it is answered, the answer is written.

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

use super::super::body::add_length;
use super::super::connection_metrics::Protocol;
use super::super::minimum_rate::MinimumRateTimer;
use super::super::{Body, Handler, ListenerMetrics, MAX_HEADER_BYTES, Peer, RequestBody, date, too_long};
use super::error::{Code, RequestError};
use super::frame::{self, kind};
use super::head_reader::HeadReader;
use super::qpack;
use crate::shutdown::Drain;
use weir_protocol::problem::Problem;

/// How long a turn to write is kept beyond two round trips: in that time some of what is on its way arrives, if the line
/// is what holds an answer back. One that its client holds back holds up the others by no more than that, whenever some of
/// it was taken.
const TURN: Duration = Duration::from_millis(100);

/// A body up to this many bytes is sent together with the head: one buffer, one packet or few.
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
    /// Whether the client has ever asked for anything.
    pub(super) was_asked: AtomicBool,
    pub(super) turns: Turns,
}

/// Whose turn it is to write of a body. quinn wakes all writers when the client has taken some, and the first of them
/// takes all the room there is; those who came between the first and the last get none, for as long as it goes on.
#[derive(Debug)]
pub(super) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(1))
    }
}

/// Reads and answers a request. A small answer may still be on its way to the client: then it is given back, to be
/// seen to arrive when that matters.
///
/// # Errors
/// It was not answered to its end; the stream has been reset.
pub(super) async fn serve<H: Handler>(
    context: Arc<Context<H>>,
    sender: SendStream,
    mut receiver: RecvStream,
) -> Result<Option<Answer>, RequestError> {
    let mut answer = Answer::begin(sender);
    let done = respond(&context, &mut answer, &mut receiver).await;
    match &done {
        Err(RequestError::Stream(code) | RequestError::Connection(code)) => answer.code = *code,
        Err(RequestError::Ended(_) | RequestError::Stalled) => answer.code = Code::REQUEST_CANCELLED,
        _ => {}
    }
    // What the client still sends is not wanted. After the end of its stream this does nothing.
    let _ = receiver.stop(Code::NO_ERROR.into());
    done.map(|()| (!answer.has_arrived).then_some(answer))
}

async fn respond<H: Handler>(
    context: &Context<H>,
    answer: &mut Answer,
    receiver: &mut RecvStream,
) -> Result<(), RequestError> {
    let mut read = Box::pin(read_head(receiver));
    let request = match (&mut read).now_or_never() {
        // It is there, as a rule: no timer is needed.
        Some(request) => request,
        None => {
            let request = Box::pin(tokio::time::timeout(context.head_timeout, &mut read)).await;
            request.unwrap_or(Err(RequestError::Stream(Code::REQUEST_INCOMPLETE)))
        }
    };
    drop(read);
    let begun = Instant::now();
    let (method, response) = match request {
        Ok(request) => {
            context.was_asked.store(true, Ordering::Relaxed);
            // The end of the stream is here already, as a rule: then the client is not told to stop.
            let _ = receiver.read_chunk(usize::MAX, true).now_or_never();
            let method = request.method().clone();
            let response = match too_long(&request) {
                None => match context.handler.fast_path(&request, &context.peer) {
                    Some(response) => response,
                    // Apart: what waits is large.
                    None => {
                        let answering = Box::pin(context.handler.handle(request, context.peer.clone()));
                        answer.unless_stopped(answering).await?
                    }
                },
                Some(problem) => problem.into_response(),
            };
            (method, response)
        }
        Err(RequestError::HeadTooLarge) => (Method::GET, too_large()),
        Err(error) => return Err(error),
    };
    context.metrics.answered(Version::HTTP_3, &method, response.status(), begun.elapsed());
    let written = write(answer, &method, response, context).await;
    if matches!(written, Err(RequestError::Stalled)) {
        context.metrics.stalled(Protocol::Http3);
    }
    written
}

fn too_large() -> Response<Body> {
    let detail = format!("The header fields take more than the {MAX_HEADER_BYTES} bytes that are read.");
    Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers-too-large", "The header is too large", detail)
        .into_response()
}

/// Reads up to the end of the first HEADERS frame.
async fn read_head(receiver: &mut RecvStream) -> Result<Request<RequestBody>, RequestError> {
    let mut reader = HeadReader::default();
    loop {
        let chunk = receiver.read_chunk(usize::MAX, true).await?;
        let chunk = chunk.ok_or(RequestError::Stream(Code::REQUEST_INCOMPLETE))?;
        if let Some(request) = reader.take(chunk.bytes)? {
            return Ok(request);
        }
    }
}

async fn write<H>(
    answer: &mut Answer,
    method: &Method,
    response: Response<Body>,
    context: &Context<H>,
) -> Result<(), RequestError> {
    let (mut head, mut body) = response.into_parts();
    // What hyper writes by itself over the other versions of HTTP: the date, and a length that is known.
    head.headers.entry(header::DATE).or_insert_with(|| date::at(SystemTime::now()));
    add_length(&mut head, &body);
    if method == Method::HEAD {
        body = Body::Empty;
    }

    let mut out = Vec::with_capacity(512);
    frame::write_frame(kind::HEADERS, &mut out, |out| qpack::encode(head.status.as_u16(), &head.headers, out));
    if let Body::Full(bytes) = &body
        && bytes.len() as u64 <= SMALL_BODY
    {
        frame::write_head(kind::DATA, bytes.len() as u64, &mut out);
        out.extend_from_slice(bytes);
        body = Body::Empty;
    }
    let is_all = body.is_end_stream();
    answer.write(&mut [out.into()], context.stall_timeout).await?;
    let mut minimum_rate = MinimumRateTimer::new(context.stall_timeout);
    while let Some(part) = answer.unless_stopped(body.frame()).await? {
        let Ok(data) = part.map_err(RequestError::Body)?.into_data() else { continue };
        let mut head = Vec::with_capacity(16);
        frame::write_head(kind::DATA, data.len() as u64, &mut head);
        answer.write_in_turn(&mut [head.into(), data], context, &mut minimum_rate).await?;
    }
    let _ = answer.sender.finish();
    answer.is_whole = true;
    if !is_all {
        // quinn takes megabytes ahead of a slow reader: an answer is under way until the client has all of it.
        answer.arrived().await;
        answer.has_arrived = true;
    }
    Ok(())
}

/// An answer that is reset when this is dropped before it is whole. quinn by itself would end it cleanly.
pub(super) struct Answer {
    sender: SendStream,
    code: Code,
    is_whole: bool,
    has_arrived: bool,
}

impl Answer {
    fn begin(sender: SendStream) -> Self {
        Self { sender, code: Code::INTERNAL_ERROR, is_whole: false, has_arrived: false }
    }

    /// Writes all of it, for as long as the client takes some of it now and then.
    async fn write(&mut self, mut parts: &mut [Bytes], stall_timeout: Duration) -> Result<(), RequestError> {
        while !parts.is_empty() {
            let written = tokio::time::timeout(stall_timeout, self.sender.write_chunks(parts)).await;
            let written = written.map_err(|_| RequestError::Stalled)??;
            parts = &mut parts[written.chunks..];
        }
        Ok(())
    }

    /// Writes all of it, sharing what room there is with the other answers of the connection.
    async fn write_in_turn<H>(
        &mut self,
        mut parts: &mut [Bytes],
        context: &Context<H>,
        minimum_rate: &mut MinimumRateTimer,
    ) -> Result<(), RequestError> {
        while !parts.is_empty() {
            let turn = context.turns.0.acquire().await.ok();
            let at_once = tokio::time::timeout(2 * context.connection.rtt() + TURN, self.sender.write_chunks(parts));
            // The turn is waited for as well: who takes a byte in each would never be cut.
            let written = minimum_rate.wait(at_once).await;
            drop(turn);
            let written = match written.ok_or(RequestError::Stalled)? {
                Ok(written) => written?,
                // It waits by itself until the client takes some of it, and has its turns again.
                Err(_) => minimum_rate.wait(self.sender.write_chunks(parts)).await.ok_or(RequestError::Stalled)??,
            };
            minimum_rate.took(written.bytes);
            parts = &mut parts[written.chunks..];
        }
        Ok(())
    }

    /// Waits for something, unless the client wants no answer any more.
    async fn unless_stopped<T>(&self, wanted: impl Future<Output = T>) -> Result<T, RequestError> {
        tokio::select! {
            biased;
            found = wanted => Ok(found),
            stopped = self.sender.stopped() => Err(RequestError::Ended(match stopped {
                Ok(_) => "it wants no answer any more".to_owned(),
                Err(error) => error.to_string(),
            })),
        }
    }

    /// Waits until the client has all of it, or wants no more of it.
    pub(super) async fn arrived(&self) {
        let _ = self.sender.stopped().await;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.is_whole {
            let _ = self.sender.reset(self.code.into());
        }
    }
}
