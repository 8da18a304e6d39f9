//! Threads for the disk: those that compute neither read nor wait for a write to be synced.
//!
//! A crew takes its tasks in the order in which they come; one of a single thread does them one after
//! another. Reading a block also decrypts it and checks its sums, so those who wait for blocks have several
//! threads read them.

use crate::store::Store;
use crate::{Error, ErrorKind, Result, fault};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

type Task = Box<dyn FnOnce(&Store) + Send>;

/// Who goes first where threads want a core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Priority {
    /// As those that compute: somebody waits for what they do.
    Same,
    /// Those that compute go first.
    Low,
}

/// Threads that work on one store.
pub(super) struct IoPool {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl IoPool {
    /// So many threads with nothing to do.
    ///
    /// # Errors
    /// One can't be started.
    pub(super) fn new(name: &str, n_threads: usize, priority: Priority, store: &Arc<Store>) -> Result<Self> {
        let (tasks, todo) = channel::<Task>();
        let todo = Arc::new(Mutex::new(todo));
        let mut io_pool = Self { tasks: Some(tasks), threads: Vec::new() };
        for _ in 0..n_threads {
            let (todo, store) = (todo.clone(), store.clone());
            let body = move || {
                if priority == Priority::Low {
                    go_last();
                }
                loop {
                    let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(task) = next else { return };
                    task(&store);
                }
            };
            let thread = thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|e| {
                Error::new(ErrorKind::Closed, format!("can't start a thread for the cache folder: {e}"))
            });
            io_pool.threads.push(thread?);
        }
        Ok(io_pool)
    }

    /// Hands a task over; `then` is told, on the task's thread, what came of it or which panic ended it.
    pub(super) fn push<T>(
        &self,
        task: impl FnOnce(&Store) -> T + Send + 'static,
        then: impl FnOnce(thread::Result<T>) + Send + 'static,
    ) {
        let task = move |store: &Store| then(catch_unwind(AssertUnwindSafe(|| task(store))));
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(Box::new(task)); // the threads end after this, never before
        }
    }

    /// Begins a task; [`Begun::wait`] gives what came of it.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        task: impl FnOnce(&Store) -> T + Send + 'static,
    ) -> Begun<T> {
        let ((done, result), reads) = (channel(), fault::reads());
        let task = move |store: &Store| {
            reads.go_on();
            task(store)
        };
        self.push(task, move |result| drop(done.send(result)));
        Begun(result)
    }

    /// Waits for a task and gives what came of it.
    pub(super) fn one<T: Send + 'static>(&self, task: impl FnOnce(&Store) -> T + Send + 'static) -> T {
        self.begin(task).wait()
    }

    /// Waits for tasks that are done side by side, and gives what came of them, in order.
    pub(super) fn all<T, F>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<T>
    where
        T: Send + 'static,
        F: FnOnce(&Store) -> T + Send + 'static,
    {
        let begun: Vec<Begun<T>> = tasks.into_iter().map(|task| self.begin(task)).collect();
        begun.into_iter().map(Begun::wait).collect()
    }
}

/// Lowers this thread's priority: on a core that a thread which computes wants too, it gets a quarter of the
/// time (nice 5). Only Linux has priorities by thread.
fn go_last() {
    #[cfg(target_os = "linux")]
    if let Err(e) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 5) {
        tracing::debug!("a thread's priority can't be lowered: {e}");
    }
}

/// A task that was begun.
pub(super) struct Begun<T>(Receiver<thread::Result<T>>);

impl<T> Begun<T> {
    /// Waits for its end.
    pub(super) fn wait(self) -> T {
        let result = self.0.recv().expect("every task has an end");
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for IoPool {
    /// Waits until all tasks are done, so that the cache folder is free again.
    fn drop(&mut self) {
        self.tasks = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::in_memory::InMemory;
    use std::sync::Barrier;

    fn io_pool(n_threads: usize) -> IoPool {
        let store = Arc::new(Store::on(Arc::new(InMemory::default()), None));
        IoPool::new("crew", n_threads, Priority::Low, &store).expect("threads")
    }

    #[test]
    fn tasks_are_done_side_by_side_and_their_results_stay_in_order() {
        let io_pool = io_pool(3);
        let (together, caller) = (Arc::new(Barrier::new(3)), thread::current().id());
        let task = |i: usize| {
            let together = together.clone();
            move |_: &Store| {
                together.wait(); // or this never ends
                (i, thread::current().id())
            }
        };
        let done = io_pool.all((0..3).map(task));
        assert!(done.iter().map(|(i, _)| *i).eq(0..3) && done.iter().all(|(_, thread)| *thread != caller));
        assert_eq!(io_pool.all((0..100).map(|i| move |_: &Store| i)), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn one_thread_keeps_the_order_and_ends_after_its_last_task() {
        let io_pool = io_pool(1);
        let done = Arc::new(Mutex::new(Vec::new()));
        for i in 0..50 {
            let done = done.clone();
            io_pool.push(move |_| thread::yield_now(), move |_| done.lock().expect("a list").push(i));
        }
        drop(io_pool);
        assert!(done.lock().expect("a list").iter().copied().eq(0..50));
    }

    #[test]
    fn a_panic_reaches_whoever_waits_and_the_crew_goes_on() {
        let io_pool = io_pool(2);
        let seven = |i: usize| move |_: &Store| assert!(i != 7, "seven");
        assert!(catch_unwind(AssertUnwindSafe(|| io_pool.all((0..9).map(seven)))).is_err());
        assert_eq!(io_pool.one(|_| 1), 1);
    }
}
