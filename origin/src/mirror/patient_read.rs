//! Reading from a socket that may fall silent: bounded, and ended when somebody asks to stop.

use std::io::{self, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How soon a request to stop is seen while nothing comes.
const GLANCE: Duration = Duration::from_millis(200);

/// A socket whose reads can be bounded in time.
pub(super) trait BoundedSocket: Read {
    /// Sets how long one read may wait.
    fn bound_reads(&self, wait: Duration) -> io::Result<()>;
}

impl BoundedSocket for TcpStream {
    fn bound_reads(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }
}

impl BoundedSocket for UnixStream {
    fn bound_reads(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }
}

/// Reads until nothing came for `stall_timeout` (then `TimedOut`) or `interrupt` is set.
pub(super) struct PatientRead<'a, S> {
    socket: S,
    stall_timeout: Duration,
    interrupt: &'a AtomicBool,
}

impl<'a, S: BoundedSocket> PatientRead<'a, S> {
    pub(super) fn new(socket: S, stall_timeout: Duration, interrupt: &'a AtomicBool) -> io::Result<Self> {
        socket.bound_reads(GLANCE.min(stall_timeout).max(Duration::from_millis(1)))?;
        Ok(Self { socket, stall_timeout, interrupt })
    }
}

impl<S: BoundedSocket> Read for PatientRead<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = Instant::now();
        loop {
            if self.interrupt.load(Ordering::Relaxed) {
                // Not `Interrupted`, which the standard library takes as "try again".
                return Err(io::Error::other("interrupted"));
            }
            match self.socket.read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    if start.elapsed() >= self.stall_timeout {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the upstream fell silent"));
                    }
                }
                result => return result,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_comes_is_read_and_silence_ends_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let interrupt = AtomicBool::new(false);
        let mut read = PatientRead::new(ours, Duration::from_millis(1), &interrupt).unwrap();
        theirs.write_all(b"abc").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(read.read(&mut buffer).unwrap(), 3);
        assert_eq!(read.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        assert_eq!(read.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_request_to_stop_is_seen_in_silence() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let interrupt = AtomicBool::new(false);
        let mut read = PatientRead::new(ours, Duration::from_secs(3600), &interrupt).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || read.read(&mut [0; 8]).unwrap_err().to_string());
            interrupt.store(true, Ordering::Relaxed);
            assert_eq!(reader.join().unwrap(), "interrupted");
        });
    }
}
