//! One request over HTTP/2: it is answered at once, or by a task that waits.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response, Version, header};
use http_body::Body as _;
use http_body_util::BodyExt;

use super::super::body::add_length;
use super::super::connection_metrics::Protocol;
use super::super::minimum_rate::MinimumRateTimer;
use super::super::tcp::Shared;
use super::super::unread::{self, Http2Body, Unread};
use super::super::{Body, Handler, RequestBody, date, too_long};
use super::MAX_SEND_BUFFER;

/// Bytes of a body in one DATA frame: with the frame's head they fill one TLS record (RFC 8446 section 5.1).
const FRAME: usize = (16 << 10) - 9;

/// An answer that is still to be sent. Its stream is reset when it is dropped before.
pub(super) struct Answer<H> {
    shared: Arc<Shared<H>>,
    method: Method,
    respond: SendResponse<Bytes>,
}

impl<H: Handler> Answer<H> {
    pub(super) fn new(shared: Arc<Shared<H>>, method: Method, respond: SendResponse<Bytes>) -> Self {
        Self { shared, method, respond }
    }

    /// Answers what needs no waiting. What does goes on in a task. `now`: when it begins, and afterwards when it was
    /// answered.
    pub(super) fn begin(self, request: Request<RecvStream>, now: &mut Instant) {
        let (head, body) = request.into_parts();
        let (body, unread) = Http2Body::new(body, unread::is_waited_for(&head));
        let request = Request::from_parts(head, RequestBody::Http2(body));
        let early = match too_long(&request) {
            Some(problem) => Some(problem.into_response()),
            None => self.shared.handler.fast_path(&request, &self.shared.peer),
        };
        match early {
            Some(response) if unread.is_some() => {
                drop(request);
                let answered = *now;
                tokio::spawn(self.send_after(unread, response, answered));
            }
            Some(response) => {
                let begun = std::mem::replace(now, Instant::now());
                if let Some(sending) = self.send(response, now.duration_since(begun)) {
                    tokio::spawn(sending.finish());
                }
            }
            None => {
                tokio::spawn(self.wait(request, unread, *now));
            }
        }
    }

    async fn wait(mut self, request: Request<RequestBody>, unread: Option<Unread>, begun: Instant) {
        let shared = self.shared.clone();
        let response = {
            let answering = pin!(shared.handler.handle(request, shared.peer.clone()));
            tokio::select! {
                biased;
                response = answering => response,
                // The client wants it no longer, or has gone.
                _ = poll_fn(|cx| self.respond.poll_reset(cx)) => return,
            }
        };
        self.send_after(unread, response, begun).await;
    }

    /// Sends an answer once the client has, as a rule, sent all of its request.
    async fn send_after(mut self, unread: Option<Unread>, response: Response<Body>, begun: Instant) {
        let took = begun.elapsed();
        // Until the answer is on its way: without it the stream is reset.
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

    /// Sends the head, and of the body what is at hand and wanted. Gives what is left to do.
    fn send(mut self, response: Response<Body>, took: Duration) -> Option<Sending<H>> {
        self.shared.metrics.answered(Version::HTTP_2, &self.method, response.status(), took);
        let (mut head, mut body) = response.into_parts();
        head.headers.entry(header::DATE).or_insert_with(|| date::at(SystemTime::now()));
        add_length(&mut head, &body);
        if self.method == Method::HEAD {
            body = Body::Empty;
        }
        let is_all = body.is_end_stream();
        let stream = match self.respond.send_response(Response::from_parts(head, ()), is_all) {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "an answer could not be sent");
                self.respond.send_reset(Reason::INTERNAL_ERROR);
                return None;
            }
        };
        if is_all {
            return None;
        }
        let minimum_rate = MinimumRateTimer::new(self.shared.options.stall_timeout);
        let mut sending = Sending { shared: self.shared, stream, body, unsent: Bytes::new(), minimum_rate };
        if let Body::Full(bytes) = &mut sending.body {
            sending.unsent = std::mem::take(bytes);
            if sending.send_allowed() {
                return None;
            }
        }
        Some(sending)
    }
}

/// The body of an answer on its way.
struct Sending<H> {
    shared: Arc<Shared<H>>,
    stream: SendStream<Bytes>,
    body: Body,
    /// What the body gave and the client has not allowed yet.
    unsent: Bytes,
    minimum_rate: MinimumRateTimer,
}

impl<H: Handler> Sending<H> {
    /// Sends the rest of the body as fast as the client takes it, but for one that takes nothing, or next to nothing, for too
    /// long.
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
            let Some(frame) = self.minimum_rate.caught_up(next).await else { return };
            match frame {
                Some(Ok(frame)) => self.unsent = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    tracing::debug!(%error, "a body breaks off");
                    return self.stream.send_reset(Reason::INTERNAL_ERROR);
                }
                None => {
                    let _ = self.stream.send_data(Bytes::new(), true);
                    return;
                }
            }
        }
    }

    /// Waits until the client allows some of what is unsent. False: it does not, and the stream has ended.
    async fn is_allowed(&mut self) -> bool {
        self.stream.reserve_capacity(self.unsent.len().min(MAX_SEND_BUFFER));
        if self.stream.capacity() > 0 {
            return true;
        }
        let allowed = self.minimum_rate.wait(poll_fn(|cx| self.stream.poll_capacity(cx))).await;
        match allowed {
            Some(allowed) => matches!(allowed, Some(Ok(_))),
            None => {
                self.shared.metrics.stalled(Protocol::Http2);
                self.stream.send_reset(Reason::CANCEL);
                false
            }
        }
    }

    /// Sends what the client allows of what is unsent. True: that was the end of the body.
    fn send_allowed(&mut self) -> bool {
        self.stream.reserve_capacity(self.unsent.len().min(MAX_SEND_BUFFER));
        while !self.unsent.is_empty() {
            let allowed = self.stream.capacity();
            if allowed == 0 {
                return false;
            }
            let part = self.unsent.split_to(self.unsent.len().min(allowed).min(FRAME));
            self.minimum_rate.took(part.len());
            let is_last = self.unsent.is_empty() && self.body.is_end_stream();
            if self.stream.send_data(part, is_last).is_err() || is_last {
                return true;
            }
        }
        false
    }
}
