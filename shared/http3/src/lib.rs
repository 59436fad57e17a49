//! HTTP/3 (RFC 9114) on the streams of quinn, as a server speaks it. Frames, field sections (QPACK, RFC 9204), the streams
//! that control a connection, heads and bodies of requests; and how an endpoint of QUIC is set up.
//!
//! The framing is our own, for two reasons that were measured. The response to a poll is a few hundred bytes of headers: in
//! the usual libraries encoding it, and passing it between tasks, costs several times what QUIC does. And a response must be
//! complete or reset, and counts as in flight until the client has all of it, which needs access to the streams. There is no
//! dynamic table, no push and no `CONNECT`.
//!
//! The crate knows bytes and streams. It knows no handler, no drain and no metric: `weir_runtime::serve` accepts connections,
//! answers requests and writes responses. Begin at [`HeadReader`], [`ControlSender`] and [`CriticalStreams`].

mod control;
mod control_frames;
mod endpoint;
mod error;
pub mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod head;
mod head_reader;
pub mod qpack;
pub mod request_body;

pub use control::{ControlSender, CriticalStreams, identify};
pub use endpoint::{endpoint_config, transport_config};
pub use error::{Code, RequestError};
pub use head_reader::HeadReader;
