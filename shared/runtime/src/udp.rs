//! UDP sockets for QUIC, with room for the packets that arrive while a thread is busy. What has no room is lost, and sent again.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::SockRef;

/// The wanted buffer of a socket in each direction, in bytes: at 1 Gbit/s it holds 32 ms. The default of Linux is 208 KiB.
const BUFFER: usize = 4 << 20;

/// Binds a socket.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let options = SockRef::from(&socket);
    // The kernel gives what its limits allow, without an error.
    options.set_recv_buffer_size(BUFFER)?;
    options.set_send_buffer_size(BUFFER)?;
    // Linux counts its own overhead, and says twice as much as was wanted.
    let given = |size: io::Result<usize>| size.map(|size| if cfg!(target_os = "linux") { size / 2 } else { size });
    let (receive, send) = (given(options.recv_buffer_size())?, given(options.send_buffer_size())?);
    if receive < BUFFER || send < BUFFER {
        tracing::info!(
            receive,
            send,
            wanted = BUFFER,
            "the kernel gives UDP sockets smaller buffers, so HTTP/3 may lose packets under load: raise net.core.rmem_max and \
             net.core.wmem_max"
        );
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_buffers_that_the_kernel_allows() {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let options = SockRef::from(&socket);
        for (direction, size) in [("r", options.recv_buffer_size()), ("w", options.send_buffer_size())] {
            let limit = std::fs::read_to_string(format!("/proc/sys/net/core/{direction}mem_max"));
            // In a namespace of its own a process does not see it.
            let limit = limit.ok().and_then(|limit| limit.trim().parse().ok()).unwrap_or(BUFFER);
            assert!(size.unwrap() >= 2 * BUFFER.min(limit), "{direction}: {limit}");
        }
    }
}
