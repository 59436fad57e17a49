//! HTTP/3 to one edge: one long-lived connection, replaced when it is dead, or old.
//!
//! 0-RTT is not used: it can be replayed and saves nothing measurable. `stop_sending` is never called, because h3-quinn
//! panics on it while a read is pending; an unwanted stream is dropped.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use h3::error::StreamError;
use http::{Method, Request};

use super::error::RequestError;
use super::h3_dialer::{Connection, Dialer, KEEP_ALIVE};
use super::h3_stream::{Http3Stream, request_error};
use super::http3_state::Http3State;
use super::response::{Protocol, Response, ResponseBody};

/// UDP counts as dead when no datagram arrives for this long after a request. A slow edge acknowledges.
const UDP_TIMEOUT: Duration = Duration::from_secs(3);

/// The same after an acknowledgement: then only responses to keep-alives need to arrive.
const ACKNOWLEDGED_UDP_TIMEOUT: Duration = KEEP_ALIVE.saturating_add(UDP_TIMEOUT);

pub(super) struct Http3 {
    dialer: Arc<Dialer>,
    state: Arc<Http3State>,
    idle_timeout: Duration,
    max_age: Duration,
    handshake: Arc<Mutex<Option<Handshake>>>,
}

/// A connection, or the attempt to open one. A task of its own drives it to its end, whoever waits.
#[derive(Clone)]
struct Handshake {
    began: Instant,
    result: Shared<BoxFuture<'static, Result<Connection, RequestError>>>,
}

impl Handshake {
    /// The connection. `patience`: how long after its begin a handshake is waited for; `None`: to its end.
    async fn connection(self, patience: Option<Duration>) -> Result<Connection, RequestError> {
        let Some(patience) = patience else { return self.result.await };
        let waited = tokio::time::timeout_at((self.began + patience).into(), self.result).await;
        waited.unwrap_or_else(|_| Err(RequestError::Connect(format!("no QUIC handshake within {patience:?}"))))
    }

    fn is_usable(&self, max_age: Duration) -> bool {
        let is_open = match self.result.peek() {
            None => true,
            Some(Ok(connection)) => connection.quic.close_reason().is_none(),
            Some(Err(_)) => false,
        };
        is_open && self.began.elapsed() < max_age
    }
}

impl Http3 {
    /// `max_age`: after this, new requests use a new connection.
    pub(super) fn new(dialer: Dialer, state: Arc<Http3State>, idle_timeout: Duration, max_age: Duration) -> Self {
        Self { dialer: dialer.into(), state, idle_timeout, max_age, handshake: Arc::default() }
    }

    /// Sends a request and waits at most `timeout` for the response's head. A pooled connection that turns out to be
    /// dead is replaced once. `patience`: how long to wait for the handshake of a connection, which goes on after that;
    /// `None`: to its end.
    pub(super) async fn request(
        &self,
        request: &Request<Bytes>,
        timeout: Duration,
        patience: Option<Duration>,
    ) -> Result<Response, RequestError> {
        let mut is_second = false;
        loop {
            let (handshake, is_new) = self.handshake_or_begin();
            let renew_at = handshake.began + self.max_age;
            let connection = handshake.connection(patience).await?;
            let error = match self.send_on(connection.clone(), request, timeout, renew_at).await {
                Err(error) if error.is_transport_error() => error,
                // A response, or a broken one: UDP works.
                answer => {
                    self.state.succeeded();
                    return answer;
                }
            };
            tracing::debug!(edge = %self.state.url(), %error, is_new, "an HTTP/3 connection is dead");
            self.discard(&connection);
            if is_new || is_second {
                self.state.failed(Instant::now());
                return Err(error);
            }
            is_second = true;
        }
    }

    /// Opens a connection, unless there is one.
    pub(super) async fn handshake(&self) -> Result<(), RequestError> {
        self.handshake_or_begin().0.connection(None).await.map(drop)
    }

    /// The open connection for new requests.
    pub(super) fn connection_id(&self) -> Option<usize> {
        let slot = self.slot();
        let open = slot.as_ref()?.result.peek()?.as_ref().ok()?;
        open.quic.close_reason().is_none().then(|| open.quic.stable_id())
    }

    /// HTTP/3 failed in the middle of a body: the next request opens a new connection. Responses in progress continue.
    pub(super) fn drop_connection(&self) {
        let dropped = self.slot().take_if(|handshake| handshake.result.peek().is_some());
        if dropped.is_some() {
            self.state.failed(Instant::now());
        }
    }

    fn discard(&self, dead: &Connection) {
        let is_dead = |handshake: &mut Handshake| {
            let is_it = |open: &Connection| open.quic.stable_id() == dead.quic.stable_id();
            handshake.result.peek().is_some_and(|result| result.as_ref().is_ok_and(is_it))
        };
        self.slot().take_if(is_dead);
    }

    /// The connection, or its handshake; and whether that begins now.
    fn handshake_or_begin(&self) -> (Handshake, bool) {
        let mut slot = self.slot();
        if let Some(handshake) = slot.as_ref().filter(|handshake| handshake.is_usable(self.max_age)) {
            return (handshake.clone(), false);
        }
        self.state.handshake_began();
        let (dialer, state) = (self.dialer.clone(), self.state.clone());
        let result = async move {
            let result = dialer.connect().await;
            state.handshake_ended(result.as_ref().err(), Instant::now());
            result
        };
        let handshake = Handshake { began: Instant::now(), result: result.boxed().shared() };
        tokio::spawn(keep(handshake.clone(), Arc::downgrade(&self.handshake), self.max_age));
        (slot.insert(handshake).clone(), true)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Handshake>> {
        self.handshake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send_on(
        &self,
        connection: Connection,
        request: &Request<Bytes>,
        timeout: Duration,
        renew_at: Instant,
    ) -> Result<Response, RequestError> {
        let Connection { quic, mut requests } = connection;
        let (held_open, connection_id) = (requests.clone(), quic.stable_id());
        let answer = async {
            let (head, body) = request.clone().into_parts();
            let mut stream = requests.send_request(Request::from_parts(head, ())).await?;
            if !body.is_empty() {
                stream.send_data(body).await?;
            }
            stream.finish().await?;
            let head = stream.recv_response().await?;
            if request.method() == Method::HEAD {
                // Read to the end of the stream: dropping it earlier would send STOP_SENDING.
                stream.recv_data().await?;
            }
            Ok::<_, StreamError>((head, stream))
        };
        let mut answer = pin!(answer);
        let deadline = tokio::time::Instant::now() + timeout;
        let at_start = quic.stats().udp_rx.datagrams;
        let mut received = at_start;
        let (head, stream) = loop {
            let allowed = if received == at_start { UDP_TIMEOUT } else { ACKNOWLEDGED_UDP_TIMEOUT };
            let until = deadline.min(tokio::time::Instant::now() + allowed);
            match tokio::time::timeout_at(until, answer.as_mut()).await {
                Ok(answer) => break answer.map_err(|error| request_error(&error))?,
                Err(_) => {
                    let now = quic.stats().udp_rx.datagrams;
                    if until == deadline && now != at_start {
                        return Err(RequestError::Slow(timeout));
                    }
                    if until == deadline || now == received {
                        return Err(RequestError::Silent(allowed.min(timeout)));
                    }
                    received = now;
                }
            }
        };
        let (head, ()) = head.into_parts();
        let stream = Box::new(Http3Stream::new(stream, held_open));
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body: ResponseBody::h3(stream, self.idle_timeout),
            protocol: Protocol::H3,
            connection_id: Some(connection_id),
            renew_at,
        })
    }
}

/// Drives a handshake to its end, and drops the connection when it is old: keep-alives would hold it open for ever at an edge
/// that is no longer asked.
async fn keep(handshake: Handshake, slot: Weak<Mutex<Option<Handshake>>>, max_age: Duration) {
    let Handshake { began, result } = handshake;
    if result.await.is_err() {
        return;
    }
    tokio::time::sleep_until((began + max_age).into()).await;
    if let Some(slot) = slot.upgrade() {
        slot.lock().unwrap_or_else(PoisonError::into_inner).take_if(|handshake| handshake.began == began);
    }
}
