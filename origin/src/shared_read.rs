//! One read for all who need it at the same time.

use std::time::Duration;

use tokio::time::Instant;

/// A read that all share who need it at the same time.
#[derive(Debug)]
pub(crate) struct SharedRead<T, E>(tokio::sync::Mutex<Option<LastRead<T, E>>>);

#[derive(Debug)]
struct LastRead<T, E> {
    began: Instant,
    ended: Instant,
    result: Result<T, E>,
}

impl<T, E> Default for SharedRead<T, E> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::default())
    }
}

impl<T: Clone, E: Clone> SharedRead<T, E> {
    /// Reads, or returns the result of a read that began at most `max_age` ago. Callers share a failure if they waited for
    /// it.
    pub(crate) async fn run(&self, max_age: Duration, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        let is_shared = |last: &&LastRead<T, E>| match last.result {
            Ok(_) => last.began + max_age >= asked,
            Err(_) => last.ended >= asked,
        };
        if let Some(last) = last.as_ref().filter(is_shared) {
            return last.result.clone();
        }
        let began = Instant::now();
        let result = read.await;
        *last = Some(LastRead { began, ended: Instant::now(), result: result.clone() });
        result
    }
}
