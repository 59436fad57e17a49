//! One task per key, whoever asks: everybody who asks while it runs gets its one result.
//!
//! The task belongs to nobody: it runs on when the one who began it goes away. Its result is cloned to all. When it
//! panics or is cut, all get [`Abandoned`], and the next to ask begins anew.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_runtime::shutdown::Drain;

/// The tasks under way, at most `limit` of them.
#[derive(Clone)]
pub(crate) struct SingleFlight<K, V> {
    flights: Flights<K, V>,
    limit: usize,
    drain: Drain,
}

type Flights<K, V> = Arc<Mutex<HashMap<K, Flight<V>>>>;

#[derive(Clone)]
struct Flight<V> {
    result: watch::Receiver<Option<V>>,
    begun: Instant,
}

/// A place among those who wait for a task.
pub(crate) struct Seat<V> {
    flight: Flight<V>,
    /// The task was under way already: this caller did not begin it.
    pub(crate) collapsed: bool,
}

/// The task ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task that was to answer ended without a result")]
pub(crate) struct Abandoned;

/// As many tasks as are allowed are under way for other keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many tasks are under way")]
pub(crate) struct Full;

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// `limit`: tasks under way at a time. They run as tasks of `drain`.
    pub(crate) fn new(limit: usize, drain: &Drain) -> Self {
        Self { flights: Flights::default(), limit, drain: drain.clone() }
    }

    /// Joins the task of this key, or begins it with the future that `begin` makes.
    ///
    /// # Errors
    /// [`Full`]: it is not under way, and no further task is allowed.
    pub(crate) fn join<F>(&self, key: &K, begin: impl FnOnce() -> F) -> Result<Seat<V>, Full>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(key) {
            return Ok(Seat { flight: flight.clone(), collapsed: true });
        }
        if flights.len() >= self.limit {
            return Err(Full);
        }
        let (sender, result) = watch::channel(None);
        let flight = Flight { result, begun: Instant::now() };
        flights.insert(key.clone(), flight.clone());
        drop(flights);
        // The landing clears the key also when the future panics or is dropped; dropping the sender then tells all.
        let mut landing = Some(Landing { flights: self.flights.clone(), key: key.clone() });
        let (future, drain) = (begin(), self.drain.clone());
        self.drain.spawn(async move {
            let deserted = async {
                // A drain waits for those who wait, and not for what nobody will have.
                drain.begun().await;
                landing.take();
                sender.closed().await;
            };
            let value = tokio::select! {
                value = future => value,
                () = deserted => return,
            };
            landing.take();
            sender.send_replace(Some(value));
        });
        Ok(Seat { flight, collapsed: false })
    }

    /// Tasks that are under way.
    pub(crate) fn len(&self) -> usize {
        lock(&self.flights).len()
    }

    /// Tasks under way whose keys match. Goes through all.
    pub(crate) fn count(&self, matches: impl Fn(&K) -> bool) -> usize {
        lock(&self.flights).keys().filter(|key| matches(key)).count()
    }

    /// Whether the task of this key is under way.
    pub(crate) fn is_under_way(&self, key: &K) -> bool {
        lock(&self.flights).contains_key(key)
    }
}

impl<V: Clone> Seat<V> {
    /// How long the task has been under way.
    pub(crate) fn under_way(&self) -> Duration {
        self.flight.begun.elapsed()
    }

    /// Waits for the task's result.
    pub(crate) async fn result(mut self) -> Result<V, Abandoned> {
        let landed = self.flight.result.wait_for(Option::is_some).await.map_err(|_| Abandoned)?;
        Ok(landed.clone().expect("waited for it to be there"))
    }
}

struct Landing<K: Eq + Hash, V> {
    flights: Flights<K, V>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for Landing<K, V> {
    fn drop(&mut self) {
        lock(&self.flights).remove(&self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that can panic runs while it is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    fn flights() -> (SingleFlight<&'static str, u32>, Arc<Semaphore>, Drain) {
        let drain = Drain::new();
        (SingleFlight::new(2, &drain), Arc::new(Semaphore::new(0)), drain)
    }

    #[tokio::test]
    async fn a_panic_is_an_error_for_all_and_the_next_one_begins_anew() {
        let (flights, gate, _drain) = flights();
        let wait = gate.clone();
        let first = flights
            .join(&"a", || async move {
                let _ = wait.acquire().await;
                panic!("as the test wants it")
            })
            .unwrap();
        let second = flights.join(&"a", || async { 2 }).unwrap();
        gate.add_permits(1);
        assert_eq!(first.result().await, Err(Abandoned));
        assert_eq!(second.result().await, Err(Abandoned));
        assert_eq!(flights.join(&"a", || async { 3 }).unwrap().result().await, Ok(3));
    }

    #[tokio::test]
    async fn a_drain_waits_for_those_who_wait_only() {
        let (flights, gate, drain) = flights();
        let deserted = flights.join(&"a", std::future::pending).unwrap();
        let wait = gate.clone();
        let awaited = flights
            .join(&"b", || async move {
                let _ = wait.acquire().await;
                2
            })
            .unwrap();
        let draining = tokio::spawn(async move { drain.finish(Duration::from_secs(60)).await });
        let result = tokio::spawn(awaited.result());
        drop(deserted);
        gate.add_permits(1);
        assert_eq!(result.await.unwrap(), Ok(2));
        assert!(draining.await.unwrap(), "nothing was cut");
    }

    #[tokio::test]
    async fn the_number_of_tasks_is_bounded_and_a_cut_tells_all() {
        let (flights, _gate, drain) = flights();
        let one = flights.join(&"a", std::future::pending).unwrap();
        let _two = flights.join(&"b", std::future::pending).unwrap();
        assert_eq!(flights.join(&"c", std::future::pending).err(), Some(Full));
        assert!(flights.join(&"b", std::future::pending).unwrap().collapsed);
        drain.cut().await;
        assert_eq!(one.result().await, Err(Abandoned));
        assert!(!flights.is_under_way(&"a"));
    }
}
