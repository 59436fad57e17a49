//! One connection: its requests, its control streams, and its shutdown.

use std::collections::VecDeque;
use std::iter::from_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quinn::Connection;
use tokio::time::Instant;
use weir_http3::{Code, ControlSender, CriticalStreams, RequestError, identify};

use super::request::{self, Context, ResponseStream};
use crate::serve::Handler;

/// How long a drained connection stays open after its last response was acknowledged, so that the client can close first.
const LINGER: Duration = Duration::from_millis(100);

/// The stream id in the first of two GOAWAYs, the highest there is: it refuses no request yet (RFC 9114 section 5.2).
const NO_STREAM_REFUSED: u64 = (1 << 62) - 4;

/// Small responses of a connection that are tracked until they are acknowledged. There is rarely more than one; of more than
/// these the oldest counts as acknowledged.
const MAX_UNACKNOWLEDGED: usize = 256;

/// Requests that are begun together, so that their responses leave together, before other events are handled.
const MAX_BATCH: usize = 64;

/// Serves a connection until it ends. Returns the code to close it with.
///
/// All requests run concurrently in this one task: most of what a poll costs is passing it between tasks. A handler must not
/// block or compute for long here, as everywhere in an async program.
#[expect(clippy::too_many_lines, reason = "one arm for each event of the connection")]
pub(super) async fn serve<H: Handler>(
    connection: &Connection,
    mut control: ControlSender,
    context: Arc<Context<H>>,
) -> Code {
    let mut critical = CriticalStreams::default();
    let mut identified = FuturesUnordered::new();
    let mut watched = FuturesUnordered::new();
    let mut requests = FuturesUnordered::new();
    let mut unacknowledged = Unacknowledged::default();
    let mut acknowledgments = FuturesUnordered::new();
    let mut next_stream = 0;
    let mut phase = Phase::Open;
    let mut draining = pin!(async {
        tokio::select! {
            () = context.drain.begun() => {}
            // A client without an accepted request is drained: its requests in flight still get responses.
            () = context.first_accepted_timeout() => {}
        }
    });
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        tokio::select! {
            Some(ended) = requests.next(), if !requests.is_empty() => {
                if phase == Phase::Refusing {
                    timer.as_mut().reset(Instant::now() + LINGER);
                }
                match unconfirmed(ended, &context) {
                    Ok(response) if phase == Phase::Open => unacknowledged.extend(response),
                    Ok(Some(response)) => acknowledgments.push(acknowledgment(response)),
                    Ok(None) => {}
                    Err(code) => return code,
                }
            }
            accepted = connection.accept_bi() => {
                let Ok(accepted) = accepted else { return Code::NO_ERROR };
                let mut first = Some(accepted);
                let opened = from_fn(|| first.take().or_else(|| connection.accept_bi().now_or_never()?.ok()));
                for (mut sender, mut receiver) in opened.take(MAX_BATCH) {
                    if phase == Phase::Refusing {
                        let _ = receiver.stop(Code::REQUEST_REJECTED.into());
                        let _ = sender.reset(Code::REQUEST_REJECTED.into());
                        continue;
                    }
                    next_stream = u64::from(quinn::VarInt::from(sender.id())) + 4;
                    let request = request::serve(context.clone(), sender, receiver);
                    let mut request = Box::pin(AssertUnwindSafe(request).catch_unwind());
                    // A poll gets its response at once; a request that waits joins the others.
                    match (phase == Phase::Open).then(|| (&mut request).now_or_never()).flatten() {
                        Some(ended) => match unconfirmed(ended, &context) {
                            Ok(response) => unacknowledged.extend(response),
                            Err(code) => return code,
                        },
                        None => requests.push(request),
                    }
                }
            }
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => identified.push(identify(stream)),
                Err(_) => return Code::NO_ERROR,
            },
            Some((kind, reader)) = identified.next(), if !identified.is_empty() => match critical.open(kind, reader) {
                Ok(incoming) => watched.push(incoming.watch()),
                Err(code) => return code,
            },
            Some(violation) = watched.next(), if !watched.is_empty() => {
                if let Some(code) = violation {
                    return code;
                }
            }
            written = control.write(), if control.has_unsent() => {
                if let Err(code) = written {
                    return code;
                }
            }
            Some(()) = acknowledgments.next(), if !acknowledgments.is_empty() => {
                if phase == Phase::Refusing {
                    timer.as_mut().reset(Instant::now() + LINGER);
                }
            }
            () = draining.as_mut(), if phase == Phase::Open => {
                control.go_away(NO_STREAM_REFUSED);
                phase = Phase::GoingAway;
                acknowledgments.extend(unacknowledged.take().map(acknowledgment));
                // A request that the client sent before the GOAWAY arrived still gets a response.
                timer.as_mut().reset(Instant::now() + 2 * connection.rtt() + LINGER);
            }
            () = timer.as_mut(), if phase == Phase::GoingAway
                || phase == Phase::Refusing && requests.is_empty() && acknowledgments.is_empty() =>
            {
                if phase == Phase::Refusing {
                    return Code::NO_ERROR;
                }
                control.go_away(next_stream);
                phase = Phase::Refusing;
                timer.as_mut().reset(Instant::now() + LINGER);
            }
        }
    }
}

/// The response of a finished request, if it may not be acknowledged yet.
///
/// # Errors
/// The request violated the protocol in a way that ends the connection.
fn unconfirmed<H>(
    ended: std::thread::Result<Result<Option<ResponseStream>, RequestError>>,
    context: &Context<H>,
) -> Result<Option<ResponseStream>, Code> {
    match ended {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(RequestError::Connection(code))) => Err(code),
        Ok(Err(error)) => {
            tracing::debug!(%error, address = %context.peer.address, "an HTTP/3 request ended with an error");
            Ok(None)
        }
        // The panic hook has logged the panic. It reset this response alone.
        Err(_) => Ok(None),
    }
}

async fn acknowledgment(response: ResponseStream) {
    response.acknowledged().await;
}

/// Small responses that may not be acknowledged yet. Awaiting each would double the cost of a poll, and closing the connection
/// earlier would lose them. So they are checked when another one joins, and awaited in the drain.
#[derive(Default)]
struct Unacknowledged(VecDeque<ResponseStream>);

impl Unacknowledged {
    fn extend(&mut self, response: Option<ResponseStream>) {
        let Some(response) = response else { return };
        while self.0.front().is_some_and(|oldest| oldest.acknowledged().now_or_never().is_some()) {
            self.0.pop_front();
        }
        if self.0.len() == MAX_UNACKNOWLEDGED {
            self.0.pop_front();
        }
        self.0.push_back(response);
    }

    fn take(&mut self) -> impl Iterator<Item = ResponseStream> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// The phases of a connection's shutdown (RFC 9114 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The shutdown has not begun.
    Open,
    /// The first GOAWAY was sent; new requests still get responses.
    GoingAway,
    /// The second GOAWAY was sent: new requests are refused, earlier ones are finished.
    Refusing,
}
