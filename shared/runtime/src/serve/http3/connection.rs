//! One connection: its requests, its control streams, and its end.

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

use super::control::{self, Opened, Outgoing};
use super::error::{Code, RequestError};
use super::request::{self, Answer, Context};
use crate::serve::Handler;

/// How long a drained connection is kept after its last answer arrived, so that the client can be the one who closes.
const LINGER: Duration = Duration::from_millis(100);

/// The first GOAWAY of two: no stream has a higher id, so it refuses nothing yet (RFC 9114 section 5.2).
const NO_STREAM_REFUSED: u64 = (1 << 62) - 4;

/// Small answers whose arrival is still looked for, for each connection. A client that keeps to the protocol rarely has
/// more than one; of more than these the oldest is taken for arrived.
const MAX_SENT: usize = 256;

/// Requests that are begun in one go, so that their answers leave together. Other things then have their turn.
const MAX_AT_ONCE: usize = 64;

/// Serves a connection until it ends; gives the error to close it with.
///
/// Requests are answered side by side in this one task: what a poll costs is mostly handing it from task to task. An
/// answer that takes processor time or blocks does that elsewhere, as everywhere in an async program.
pub(super) async fn serve<H: Handler>(
    connection: &Connection,
    mut control: Outgoing,
    context: Arc<Context<H>>,
) -> Code {
    let mut opened = Opened::default();
    let mut identified = FuturesUnordered::new();
    let mut watched = FuturesUnordered::new();
    let mut requests = FuturesUnordered::new();
    let mut sent = Sent::default();
    let mut arriving = FuturesUnordered::new();
    let mut next_stream = 0;
    let mut phase = Phase::Open;
    let mut draining = pin!(context.drain.begun());
    let mut timer = pin!(tokio::time::sleep(Duration::ZERO));
    loop {
        tokio::select! {
            Some(ended) = requests.next(), if !requests.is_empty() => {
                if phase == Phase::Refusing {
                    timer.as_mut().reset(Instant::now() + LINGER);
                }
                match unconfirmed(ended, &context) {
                    Ok(answer) if phase == Phase::Open => sent.extend(answer),
                    Ok(Some(answer)) => arriving.push(arrival(answer)),
                    Ok(None) => {}
                    Err(code) => return code,
                }
            }
            accepted = connection.accept_bi() => {
                let Ok(accepted) = accepted else { return Code::NO_ERROR };
                let mut first = Some(accepted);
                let at_hand = from_fn(|| first.take().or_else(|| connection.accept_bi().now_or_never()?.ok()));
                for (mut sender, mut receiver) in at_hand.take(MAX_AT_ONCE) {
                    if phase == Phase::Refusing {
                        let _ = receiver.stop(Code::REQUEST_REJECTED.into());
                        let _ = sender.reset(Code::REQUEST_REJECTED.into());
                        continue;
                    }
                    next_stream = u64::from(quinn::VarInt::from(sender.id())) + 4;
                    let request = request::serve(context.clone(), sender, receiver);
                    let mut request = Box::pin(AssertUnwindSafe(request).catch_unwind());
                    // A poll is answered here and now; who has to wait does that beside the others.
                    match (phase == Phase::Open).then(|| (&mut request).now_or_never()).flatten() {
                        Some(ended) => match unconfirmed(ended, &context) {
                            Ok(answer) => sent.extend(answer),
                            Err(code) => return code,
                        },
                        None => requests.push(request),
                    }
                }
            }
            accepted = connection.accept_uni() => match accepted {
                Ok(stream) => identified.push(control::identify(stream)),
                Err(_) => return Code::NO_ERROR,
            },
            Some((found, reader)) = identified.next(), if !identified.is_empty() => match opened.admit(found, reader) {
                Ok(incoming) => watched.push(incoming.watch()),
                Err(code) => return code,
            },
            Some(broken) = watched.next(), if !watched.is_empty() => {
                if let Some(code) = broken {
                    return code;
                }
            }
            written = control.write(), if control.has_unsent() => {
                if let Err(code) = written {
                    return code;
                }
            }
            Some(()) = arriving.next(), if !arriving.is_empty() => {
                if phase == Phase::Refusing {
                    timer.as_mut().reset(Instant::now() + LINGER);
                }
            }
            () = draining.as_mut(), if phase == Phase::Open => {
                control.go_away(NO_STREAM_REFUSED);
                phase = Phase::GoingAway;
                arriving.extend(sent.take().map(arrival));
                // A request that the client sent before it could know is still answered.
                timer.as_mut().reset(Instant::now() + 2 * connection.rtt() + LINGER);
            }
            () = timer.as_mut(), if phase == Phase::GoingAway
                || phase == Phase::Refusing && requests.is_empty() && arriving.is_empty() =>
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

/// What a request that ended leaves to be seen to arrive.
///
/// # Errors
/// It broke the protocol in a way that ends the connection.
fn unconfirmed<H>(
    ended: std::thread::Result<Result<Option<Answer>, RequestError>>,
    context: &Context<H>,
) -> Result<Option<Answer>, Code> {
    match ended {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(RequestError::Connection(code))) => Err(code),
        Ok(Err(error)) => {
            tracing::debug!(%error, address = %context.peer.address, "an HTTP/3 request ended with an error");
            Ok(None)
        }
        // The panic has been told already; it is this request's alone, whose answer was reset.
        Err(_) => Ok(None),
    }
}

async fn arrival(answer: Answer) {
    answer.arrived().await;
}

/// Small answers that may not have arrived yet. To wait for each would cost a poll as much as answering it; to close
/// the connection before they have would lose them. So they are looked at now and then, and waited for in the drain.
#[derive(Default)]
struct Sent(VecDeque<Answer>);

impl Sent {
    fn extend(&mut self, answer: Option<Answer>) {
        let Some(answer) = answer else { return };
        while self.0.front().is_some_and(|oldest| oldest.arrived().now_or_never().is_some()) {
            self.0.pop_front();
        }
        if self.0.len() == MAX_SENT {
            self.0.pop_front();
        }
        self.0.push_back(answer);
    }

    fn take(&mut self) -> impl Iterator<Item = Answer> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// How far a connection's shutdown is (RFC 9114 section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not begun.
    Open,
    /// The client was told; what is on its way to us is still answered.
    GoingAway,
    /// What comes now is refused; what is under way is finished.
    Refusing,
}
