//! Ends work on a blocking thread when nobody waits for it any more.

use std::io::{self, Read};
use std::sync::{Arc, Weak};

/// What waits for the work holds this.
#[derive(Default)]
pub(crate) struct UntilDropped(Arc<()>);

/// What the work reads through.
#[derive(Clone)]
pub(crate) struct Awaited(Weak<()>);

impl UntilDropped {
    pub(crate) fn awaited(&self) -> Awaited {
        Awaited(Arc::downgrade(&self.0))
    }
}

impl Awaited {
    /// A reader that fails after the [`UntilDropped`] was dropped.
    pub(crate) fn reader<R: Read>(&self, inner: R) -> impl Read + use<R> {
        Reader { inner, awaited: self.clone() }
    }
}

struct Reader<R> {
    inner: R,
    awaited: Awaited,
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.awaited.0.strong_count() == 0 {
            return Err(io::Error::other("the update was abandoned"));
        }
        self.inner.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_fails_when_nobody_waits_for_it() {
        let waiting = UntilDropped::default();
        let mut reader = waiting.awaited().reader(io::repeat(1));
        reader.read_exact(&mut [0; 9]).unwrap();
        drop(waiting);
        assert!(reader.read_exact(&mut [0; 9]).is_err());
    }
}
