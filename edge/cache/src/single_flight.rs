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
pub struct SingleFlight<K, V> {
    tasks: Tasks<K, V>,
    limit: usize,
    drain: Drain,
}

type Tasks<K, V> = Arc<Mutex<HashMap<K, Task<V>>>>;

#[derive(Clone)]
struct Task<V> {
    result: watch::Receiver<Option<V>>,
    started: Instant,
}

/// Waits for the result of a task.
pub struct Waiter<V> {
    task: Task<V>,
    /// Another request had started the task.
    pub collapsed: bool,
}

/// The task panicked or was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task ended without a result")]
pub struct Abandoned;

/// The limit of tasks is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many tasks are in flight")]
pub struct Overloaded;

impl<K, V> SingleFlight<K, V>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// `limit`: the most tasks in flight. They run as tasks of `drain`.
    pub fn new(limit: usize, drain: &Drain) -> Self {
        Self { tasks: Tasks::default(), limit, drain: drain.clone() }
    }

    /// Joins the task of this key, or starts it with the future that `begin` makes.
    ///
    /// # Errors
    /// [`Overloaded`]: the task is not in flight, and `limit` is reached.
    pub fn join<F>(&self, key: &K, begin: impl FnOnce() -> F) -> Result<Waiter<V>, Overloaded>
    where
        F: Future<Output = V> + Send + 'static,
    {
        let mut tasks = lock(&self.tasks);
        if let Some(task) = tasks.get(key) {
            return Ok(Waiter { task: task.clone(), collapsed: true });
        }
        if tasks.len() >= self.limit {
            return Err(Overloaded);
        }
        let (sender, result) = watch::channel(None);
        let task = Task { result, started: Instant::now() };
        tasks.insert(key.clone(), task.clone());
        drop(tasks);
        // The guard removes the key also when the future panics or is dropped. Dropping the sender then wakes all
        // waiters.
        let mut guard = Some(InFlightGuard { tasks: self.tasks.clone(), key: key.clone() });
        let (future, drain) = (begin(), self.drain.clone());
        self.drain.spawn(async move {
            let abandoned = async {
                // A drain waits for tasks with waiters only.
                drain.begun().await;
                guard.take();
                sender.closed().await;
            };
            let value = tokio::select! {
                value = future => value,
                () = abandoned => return,
            };
            guard.take();
            sender.send_replace(Some(value));
        });
        Ok(Waiter { task, collapsed: false })
    }

    /// The number of tasks in flight.
    pub fn in_flight(&self) -> usize {
        lock(&self.tasks).len()
    }

    /// The number of tasks in flight whose keys match, by a scan over all.
    pub fn count(&self, matches: impl Fn(&K) -> bool) -> usize {
        lock(&self.tasks).keys().filter(|key| matches(key)).count()
    }

    /// Whether the task of this key is in flight.
    pub fn is_in_flight(&self, key: &K) -> bool {
        lock(&self.tasks).contains_key(key)
    }
}

impl<V: Clone> Waiter<V> {
    /// The time since the task started.
    pub fn elapsed(&self) -> Duration {
        self.task.started.elapsed()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`Abandoned`]: there will be none.
    pub async fn result(mut self) -> Result<V, Abandoned> {
        let value = self.task.result.wait_for(Option::is_some).await.map_err(|_| Abandoned)?;
        Ok(value.clone().expect("waited for it to be there"))
    }
}

struct InFlightGuard<K: Eq + Hash, V> {
    tasks: Tasks<K, V>,
    key: K,
}

impl<K: Eq + Hash, V> Drop for InFlightGuard<K, V> {
    fn drop(&mut self) {
        lock(&self.tasks).remove(&self.key);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::Semaphore;

    fn tasks() -> (SingleFlight<&'static str, u32>, Arc<Semaphore>, Drain) {
        let drain = Drain::new();
        (SingleFlight::new(2, &drain), Arc::new(Semaphore::new(0)), drain)
    }

    #[tokio::test]
    async fn a_panic_fails_all_waiters_and_the_next_request_starts_a_new_task() {
        let (tasks, gate, _drain) = tasks();
        let wait = gate.clone();
        let first = tasks
            .join(&"a", || async move {
                let _ = wait.acquire().await;
                panic!("as the test wants it")
            })
            .unwrap();
        let second = tasks.join(&"a", || async { 2 }).unwrap();
        gate.add_permits(1);
        assert_eq!(first.result().await, Err(Abandoned));
        assert_eq!(second.result().await, Err(Abandoned));
        assert_eq!(tasks.join(&"a", || async { 3 }).unwrap().result().await, Ok(3));
    }

    #[tokio::test]
    async fn a_drain_waits_for_tasks_with_waiters_only() {
        let (tasks, gate, drain) = tasks();
        let abandoned = tasks.join(&"a", std::future::pending).unwrap();
        let wait = gate.clone();
        let awaited = tasks
            .join(&"b", || async move {
                let _ = wait.acquire().await;
                2
            })
            .unwrap();
        let draining = tokio::spawn(async move { drain.finish(Duration::from_secs(60)).await });
        let result = tokio::spawn(awaited.result());
        drop(abandoned);
        gate.add_permits(1);
        assert_eq!(result.await.unwrap(), Ok(2));
        assert!(draining.await.unwrap(), "nothing was cut");
    }

    #[tokio::test]
    async fn tasks_are_bounded_and_cancellation_wakes_all_waiters() {
        let (tasks, _gate, drain) = tasks();
        let one = tasks.join(&"a", std::future::pending).unwrap();
        let _two = tasks.join(&"b", std::future::pending).unwrap();
        assert_eq!(tasks.join(&"c", std::future::pending).err(), Some(Overloaded));
        assert!(tasks.join(&"b", std::future::pending).unwrap().collapsed);
        drain.cut().await;
        assert_eq!(one.result().await, Err(Abandoned));
        assert!(!tasks.is_in_flight(&"a"));
    }
}
