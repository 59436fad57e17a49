//! Single flight: at most one task per key at a time. Requests that arrive while it runs share its result.
//!
//! The task is detached: it continues when the request that started it goes away. When it panics or is cancelled, all
//! waiters get [`Abandoned`], and the next request starts a new one.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_runtime::shutdown::Drain;

/// The tasks in flight, at most `limit` of them.
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

/// Waits for the result of a task.
pub(crate) struct Seat<V> {
    flight: Flight<V>,
    /// Another request had started the task.
    pub(crate) collapsed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task that was to answer ended without a result")]
pub(crate) struct Abandoned;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many tasks are under way")]
pub(crate) struct Full;

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// `limit`: the most tasks in flight. They run as tasks of `drain`.
    pub(crate) fn new(limit: usize, drain: &Drain) -> Self {
        Self { flights: Flights::default(), limit, drain: drain.clone() }
    }

    /// Joins the task of this key, or starts it with the future that `begin` makes.
    ///
    /// # Errors
    /// [`Full`]: the task is not in flight, and `limit` is reached.
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
        // The guard removes the key also when the future panics or is dropped. Dropping the sender then wakes all
        // waiters.
        let mut landing = Some(Landing { flights: self.flights.clone(), key: key.clone() });
        let (future, drain) = (begin(), self.drain.clone());
        self.drain.spawn(async move {
            let deserted = async {
                // A drain waits for tasks with waiters only.
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

    pub(crate) fn len(&self) -> usize {
        lock(&self.flights).len()
    }

    /// The number of tasks in flight whose keys match, by a scan over all.
    pub(crate) fn count(&self, matches: impl Fn(&K) -> bool) -> usize {
        lock(&self.flights).keys().filter(|key| matches(key)).count()
    }

    pub(crate) fn is_under_way(&self, key: &K) -> bool {
        lock(&self.flights).contains_key(key)
    }
}

impl<V: Clone> Seat<V> {
    /// The time since the task started.
    pub(crate) fn under_way(&self) -> Duration {
        self.flight.begun.elapsed()
    }

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
