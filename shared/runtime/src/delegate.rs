//! Delegation of methods for streams that wrap another one.

/// Methods of `AsyncRead` and `AsyncWrite` that call those of the field `stream`.
macro_rules! delegate {
    (poll_read) => {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(cx, buffer)
        }
    };
    (writes) => {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(cx, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
        }
    };
    (is_write_vectored) => {
        fn is_write_vectored(&self) -> bool {
            self.stream.is_write_vectored()
        }
    };
    // `poll_flush` and `poll_shutdown`.
    ($method:ident) => {
        fn $method(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).$method(cx)
        }
    };
    ($($method:ident),+) => {
        $(delegate!($method);)+
    };
}

pub(super) use delegate;
