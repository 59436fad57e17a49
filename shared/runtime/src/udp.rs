//! UDP sockets for QUIC, with room for the packets that arrive while a thread is busy. What has no room is lost, and sent again.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Once;

use socket2::SockRef;

/// The wanted buffer of a socket in each direction, in bytes: at 1 Gbit/s it holds 32 ms. The default of Linux is 208 KiB.
const BUFFER: usize = 4 << 20;

/// The log says it once.
static TOLD: Once = Once::new();

/// Binds a socket.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let options = SockRef::from(&socket);
    // Linux counts its own overhead, and says twice as much as was asked for.
    let size = |size: io::Result<usize>| size.map_or(0, |size| if cfg!(target_os = "linux") { size / 2 } else { size });
    // A kernel gives what its limits allow, and some say that it was too much: a smaller buffer works too.
    if size(options.recv_buffer_size()) < BUFFER {
        let _ = options.set_recv_buffer_size(BUFFER);
    }
    if size(options.send_buffer_size()) < BUFFER {
        let _ = options.set_send_buffer_size(BUFFER);
    }
    let (receive, send) = (size(options.recv_buffer_size()), size(options.send_buffer_size()));
    if receive < BUFFER || send < BUFFER {
        TOLD.call_once(|| {
            tracing::info!(
                receive,
                send,
                wanted = BUFFER,
                "the kernel gives UDP sockets smaller buffers, so HTTP/3 may lose packets under load: raise net.core.rmem_max \
                 and net.core.wmem_max"
            );
        });
    }
    Ok(socket)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_the_buffers_that_the_kernel_allows() {
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let plain = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let (options, plain) = (SockRef::from(&socket), SockRef::from(&plain));
        plain.set_recv_buffer_size(BUFFER).unwrap();
        plain.set_send_buffer_size(BUFFER).unwrap();
        assert!(options.recv_buffer_size().unwrap() >= plain.recv_buffer_size().unwrap());
        assert!(options.send_buffer_size().unwrap() >= plain.send_buffer_size().unwrap());
        assert!(options.recv_buffer_size().unwrap() > 212_992, "the default of Linux");
    }
}
