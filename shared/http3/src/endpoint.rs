//! How an endpoint of QUIC is set up: windows, ids of connections, stateless resets.

use std::sync::Arc;
use std::time::Duration;

use quinn::{EndpointConfig, TransportConfig, VarIntBoundsExceeded};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;

/// The receive window of a stream, in bytes: the headers of a request fit, and bodies are small.
const STREAM_WINDOW: u32 = 32 << 10;

/// Bytes of responses that a connection buffers, and so the memory that a slow client costs. With a round-trip time of 100 ms
/// it allows 160 Mbit/s.
const SEND_WINDOW: u64 = 2 << 20;

/// The time between two stateless resets at least. Thousands of clients of a restarted server need one each.
const MIN_RESET_INTERVAL: Duration = Duration::from_millis(1);

/// The limits of connections: how long one may be idle, and its concurrent requests.
///
/// # Errors
/// The time is too long for QUIC.
pub fn transport_config(max_idle: Duration, max_requests: u32) -> Result<TransportConfig, VarIntBoundsExceeded> {
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(max_idle.try_into()?))
        .max_concurrent_bidi_streams(max_requests.into())
        .max_concurrent_uni_streams(16u32.into())
        .stream_receive_window(STREAM_WINDOW.into())
        // Datagrams are not used.
        .datagram_receive_buffer_size(None)
        .send_window(SEND_WINDOW);
    Ok(transport)
}

/// An endpoint whose ids of connections and stateless resets outlive the process with `reset_key`. `None`: they do not.
pub fn endpoint_config(reset_key: Option<&[u8; 32]>) -> EndpointConfig {
    let Some(key) = reset_key else { return EndpointConfig::default() };
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    // Packets with ids of other generators are dropped without a reset.
    let ids = hmac::sign(&key, b"connection ids");
    let ids = ids.as_ref().first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
    let mut config = EndpointConfig::new(Arc::new(key));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config.min_reset_interval(MIN_RESET_INTERVAL);
    config
}
