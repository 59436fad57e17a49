//! One request over HTTP/2: its response is sent at once, or by a task of its own.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::super::access_log::Record;
use super::super::body::add_content_length;
use super::super::connection_metrics::Protocol;
use super::super::exchange::Exchange;
use super::super::minimum_rate::MinimumRateTimer;
use super::super::tcp_context::Shared;
use super::super::unread::{self, Http2Body, UnreadBody};
use super::super::{Body, Handler, RequestBody, date, url_too_long};
use super::MAX_SEND_BUFFER;

/// Bytes of a body in one DATA frame: with the frame's header they fill one TLS record (RFC 8446 section 5.1).
const MAX_DATA: usize = (16 << 10) - 9;

/// A response that is still to be sent. Dropping it resets its stream.
pub(super) struct PendingResponse<H> {
    shared: Arc<Shared<H>>,
    exchange: Exchange,
    /// Of a request that waits for its response.
    record: Option<Box<Record>>,
    respond: SendResponse<Bytes>,
}

impl<H: Handler> PendingResponse<H> {
    pub(super) fn new(shared: Arc<Shared<H>>, exchange: Exchange, respond: SendResponse<Bytes>) -> Self {
        Self { shared, exchange, record: None, respond }
    }

    /// Sends a response that is available at once; a task of its own sends any other. `now`: when the request is handled,
    /// and afterwards when the response was sent.
    pub(super) fn begin(mut self, request: Request<RecvStream>, now: &mut Instant) {
        let (head, body) = request.into_parts();
        let (body, unread) = Http2Body::new(body, unread::must_be_drained(&head));
        let request = Request::from_parts(head, RequestBody::Http2(body));
        let early = match url_too_long(&request) {
            Some(problem) => Some(problem.into_response()),
            None => self.shared.handler.fast_path(&request, &self.shared.peer),
        };
        match early {
            Some(response) if unread.is_some() => {
                drop(request);
                tokio::spawn(self.send_after(unread, response));
            }
            Some(response) => {
                let begun = std::mem::replace(now, Instant::now());
                if let Some(sending) = self.send(response, now.duration_since(begun)) {
                    tokio::spawn(sending.finish());
                }
            }
            None => {
                self.record = self.shared.metrics.request_begun(&self.exchange, &self.shared.peer, request.uri());
                tokio::spawn(self.wait(request, unread));
            }
        }
    }

    async fn wait(mut self, request: Request<RequestBody>, unread: Option<UnreadBody>) {
        let shared = self.shared.clone();
        let response = {
            let answering = pin!(shared.handler.handle(request, shared.peer.clone()));
            tokio::select! {
                biased;
                response = answering => response,
                // The client cancelled the request, or has gone.
                _ = poll_fn(|cx| self.respond.poll_reset(cx)) => return,
            }
        };
        self.send_after(unread, response).await;
    }

    /// Sends a response after the rest of the request was read, within limits.
    async fn send_after(mut self, unread: Option<UnreadBody>, response: Response<Body>) {
        let took = self.exchange.begun.elapsed();
        // Dropping it before the response is sent would reset the stream.
        let _rest = match unread {
            None => None,
            Some(unread) => tokio::select! {
                biased;
                rest = unread.take() => rest,
                _ = poll_fn(|cx| self.respond.poll_reset(cx)) => return,
            },
        };
        if let Some(sending) = self.send(response, took) {
            sending.finish().await;
        }
    }

    /// Sends the headers, and the bytes of the body that are available and that flow control allows. Returns the rest.
    fn send(mut self, mut response: Response<Body>, took: Duration) -> Option<BodySender<H>> {
        let mut record = self.shared.responded(&self.exchange, self.record, &mut response, took);
        let (mut head, mut body) = response.into_parts();
        head.headers.entry(header::DATE).or_insert_with(|| date::at(SystemTime::now()));
        add_content_length(&mut head, &body);
        if self.exchange.method == Method::HEAD {
            body = Body::Empty;
        }
        let is_empty = body.is_end_stream();
        let stream = match self.respond.send_response(Response::from_parts(head, ()), is_empty) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "a response could not be sent");
                self.respond.send_reset(Reason::INTERNAL_ERROR);
                return None;
            }
        };
        if is_empty {
            record.iter_mut().for_each(|record| record.complete());
            return None;
        }
        let minimum_rate = MinimumRateTimer::new(self.shared.options.stall_timeout);
        let mut sending = BodySender { shared: self.shared, stream, body, unsent: Bytes::new(), minimum_rate, record };
        if let Body::Full(bytes) = &mut sending.body {
            sending.unsent = std::mem::take(bytes);
            if sending.send_allowed() {
                return None;
            }
        }
        Some(sending)
    }
}

/// Sends the body of a response.
struct BodySender<H> {
    shared: Arc<Shared<H>>,
    stream: SendStream<Bytes>,
    body: Body,
    /// Bytes of the body for which flow control has no room yet.
    unsent: Bytes,
    minimum_rate: MinimumRateTimer,
    record: Option<Box<Record>>,
}

impl<H: Handler> BodySender<H> {
    /// Sends the rest of the body as fast as the client accepts it; resets the stream below the minimum rate.
    async fn finish(mut self) {
        loop {
            while !self.unsent.is_empty() {
                if !self.is_allowed().await || self.send_allowed() {
                    return;
                }
            }
            let next = async {
                tokio::select! {
                    biased;
                    frame = self.body.frame() => Some(frame),
                    _ = poll_fn(|cx| self.stream.poll_reset(cx)) => None,
                }
            };
            let Some(frame) = self.minimum_rate.next_part(next).await else { return };
            match frame {
                Some(Ok(frame)) => self.unsent = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    tracing::debug!(%error, "the body of a response could not be read to its end");
                    return self.stream.send_reset(Reason::INTERNAL_ERROR);
                }
                None => {
                    let _ = self.stream.send_data(Bytes::new(), true);
                    self.record.iter_mut().for_each(|record| record.complete());
                    return;
                }
            }
        }
    }

    /// Waits until flow control allows some of the unsent bytes. False: the client is too slow or has gone, or the body has
    /// failed meanwhile.
    async fn is_allowed(&mut self) -> bool {
        self.stream.reserve_capacity(self.unsent.len().min(MAX_SEND_BUFFER));
        if self.stream.capacity() > 0 {
            return true;
        }
        let allowed = tokio::select! {
            biased;
            allowed = self.minimum_rate.wait(poll_fn(|cx| self.stream.poll_capacity(cx))) => allowed,
            () = self.body.failed() => {
                self.stream.send_reset(Reason::INTERNAL_ERROR);
                return false;
            }
        };
        match allowed {
            Some(allowed) => matches!(allowed, Some(Ok(_))),
            None => {
                self.shared.metrics.stalled(Protocol::Http2);
                self.stream.send_reset(Reason::CANCEL);
                false
            }
        }
    }

    /// Sends as much of the unsent bytes as flow control allows. True: the stream has ended.
    fn send_allowed(&mut self) -> bool {
        self.stream.reserve_capacity(self.unsent.len().min(MAX_SEND_BUFFER));
        while !self.unsent.is_empty() {
            let allowed = self.stream.capacity();
            if allowed == 0 {
                return false;
            }
            let part = self.unsent.split_to(self.unsent.len().min(allowed).min(MAX_DATA));
            let length = part.len();
            self.minimum_rate.accepted(length);
            let is_last = self.unsent.is_empty() && self.body.is_end_stream();
            if self.stream.send_data(part, is_last).is_err() {
                return true;
            }
            if let Some(record) = &mut self.record {
                record.sent(length);
            }
            if is_last {
                self.record.iter_mut().for_each(|record| record.complete());
                return true;
            }
        }
        false
    }
}
