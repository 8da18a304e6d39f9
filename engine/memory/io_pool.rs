//! Threads for what the engine's thread never waits for: disks, leases, tokenizers, grammars. It begins a
//! task, is woken when one has ended, and polls those that it has begun.
//!
//! A pool takes its tasks in the order in which they come; one of a single thread does them one after
//! another. Reading a block also decrypts it and checks its sums, so those who wait for blocks have several
//! threads read them.

use crate::fault;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

type Task<C> = Box<dyn FnOnce(&C) + Send>;

/// Who goes first where threads want a core.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// As those that compute: somebody waits for what they do.
    Same,
    /// Those that compute go first.
    Low,
}

/// Wakes the engine's thread when a pool has done something; clones wake the same one.
#[derive(Clone, Default)]
pub(crate) struct Wake(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Wake {
    /// Sets what is called from now on.
    pub(super) fn set(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(wake));
    }

    /// Wakes it.
    pub(super) fn ring(&self) {
        self.0.get().into_iter().for_each(|wake| wake());
    }
}

/// Threads whose tasks share a context, as a rule a store. A thread is started when a task finds none idle.
pub(crate) struct IoPool<C> {
    shared: Arc<Shared<C>>,
    name: &'static str,
    max_threads: usize,
    priority: Priority,
    wake: Wake,
}

struct Shared<C> {
    context: Arc<C>,
    queue: Mutex<Queue<C>>,
    /// A task has come, or the queue is closed.
    changed: Condvar,
}

struct Queue<C> {
    tasks: VecDeque<Task<C>>,
    threads: Vec<JoinHandle<()>>,
    n_idle: usize,
    is_closed: bool,
}

impl<C> Shared<C> {
    fn queue(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does tasks until the queue is closed and empty.
    fn work(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                drop(queue);
                task(&self.context);
                queue = self.queue();
            } else if queue.is_closed {
                return;
            } else {
                queue.n_idle += 1;
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.n_idle -= 1;
            }
        }
    }
}

impl<C: Send + Sync + 'static> IoPool<C> {
    /// A pool without threads yet.
    pub(crate) fn new(
        name: &'static str,
        max_threads: usize,
        priority: Priority,
        context: &Arc<C>,
        wake: &Wake,
    ) -> Self {
        let queue = Queue { tasks: VecDeque::new(), threads: Vec::new(), n_idle: 0, is_closed: false };
        let shared = Shared { context: context.clone(), queue: Mutex::new(queue), changed: Condvar::new() };
        Self { shared: Arc::new(shared), name, max_threads, priority, wake: wake.clone() }
    }

    /// Hands a task over; `then` gets, on the task's thread, its result or the panic that ended it.
    pub(super) fn push<T>(
        &self,
        task: impl FnOnce(&C) -> T + Send + 'static,
        then: impl FnOnce(thread::Result<T>) + Send + 'static,
    ) {
        let wake = self.wake.clone();
        let task = move |context: &C| {
            then(catch_unwind(AssertUnwindSafe(|| task(context))));
            wake.ring();
        };
        self.enqueue(Box::new(task));
    }

    /// Where the system refuses the first thread, the task is done here.
    fn enqueue(&self, task: Task<C>) {
        let mut queue = self.shared.queue();
        queue.tasks.push_back(task);
        if queue.n_idle < queue.tasks.len() && queue.threads.len() < self.max_threads {
            match self.start_thread() {
                Ok(thread) => queue.threads.push(thread),
                Err(e) if queue.threads.is_empty() => {
                    tracing::warn!("can't start the thread {}, so others wait for it: {e}", self.name);
                }
                Err(e) => tracing::debug!("can't start another thread {}: {e}", self.name),
            }
        }
        if queue.threads.is_empty() {
            let task = queue.tasks.pop_front();
            drop(queue);
            task.into_iter().for_each(|task| task(&self.shared.context));
        } else {
            self.shared.changed.notify_one();
        }
    }

    fn start_thread(&self) -> std::io::Result<JoinHandle<()>> {
        let (shared, priority) = (self.shared.clone(), self.priority);
        thread::Builder::new().name(self.name.to_owned()).spawn(move || {
            if priority == Priority::Low {
                go_last();
            }
            shared.work();
        })
    }

    /// Begins a task; [`Begun::poll`] gives its result.
    pub(crate) fn begin<T: Send + 'static>(&self, task: impl FnOnce(&C) -> T + Send + 'static) -> Begun<T> {
        let ((done, end), reads, began) = (channel(), fault::reads(), Instant::now());
        let (awaited, wake) = (Arc::new(()), self.wake.clone());
        let is_awaited = Arc::downgrade(&awaited);
        self.enqueue(Box::new(move |context: &C| {
            if is_awaited.strong_count() == 0 {
                return;
            }
            reads.go_on();
            let result = catch_unwind(AssertUnwindSafe(|| task(context)));
            let _ = done.send((result, TaskTime::since(began)));
            wake.ring();
        }));
        Begun { end, _awaited: awaited }
    }

    /// Begins tasks side by side; [`Begun::poll`] gives their results, in order, once all have ended.
    pub(super) fn begin_all<T, F>(&self, tasks: Vec<F>) -> Begun<Vec<T>>
    where
        T: Send + 'static,
        F: FnOnce(&C) -> T + Send + 'static,
    {
        let ((done, end), began, awaited) = (channel(), Instant::now(), Arc::new(()));
        if tasks.is_empty() {
            let _ = done.send((Ok(Vec::new()), TaskTime::since(began)));
        }
        let results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
        let results = Arc::new(Mutex::new((results, tasks.len())));
        for (i, task) in tasks.into_iter().enumerate() {
            let (results, done, reads) = (results.clone(), done.clone(), fault::reads());
            let (is_awaited, wake) = (Arc::downgrade(&awaited), self.wake.clone());
            self.enqueue(Box::new(move |context: &C| {
                if is_awaited.strong_count() == 0 {
                    return;
                }
                reads.go_on();
                let result = catch_unwind(AssertUnwindSafe(|| task(context)));
                let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
                match result {
                    Ok(result) => results.0[i] = Some(result),
                    Err(panic) => drop(done.send((Err(panic), TaskTime::since(began)))),
                }
                results.1 -= 1;
                if results.1 == 0 {
                    let all = std::mem::take(&mut results.0).into_iter().flatten().collect();
                    let _ = done.send((Ok(all), TaskTime::since(began)));
                    wake.ring();
                }
            }));
        }
        Begun { end, _awaited: awaited }
    }
}

/// Milliseconds since a moment.
pub(super) fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// When a task was begun, and when it ended.
#[derive(Clone, Copy)]
pub(crate) struct TaskTime {
    pub(super) began: Instant,
    pub(super) ended: Instant,
}

impl TaskTime {
    fn since(began: Instant) -> Self {
        Self { began, ended: Instant::now() }
    }
}

/// A task that was begun, or several; dropped, those of them are left that no thread has taken yet.
pub(crate) struct Begun<T> {
    end: Receiver<(thread::Result<T>, TaskTime)>,
    _awaited: Arc<()>,
}

impl<T> Begun<T> {
    /// Its result, and when it began and ended; `None`: it has not ended. A panic goes on here. The result is
    /// given once.
    pub(crate) fn poll(&self) -> Option<(T, TaskTime)> {
        match self.end.try_recv() {
            Ok((result, span)) => Some((result.unwrap_or_else(|panic| resume_unwind(panic)), span)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => unreachable!("every task ends, and its result is taken once"),
        }
    }

    /// Waits for its end.
    #[cfg(test)]
    pub(super) fn wait(self) -> T {
        let (result, _) = self.end.recv().expect("every task has an end");
        result.unwrap_or_else(|panic| resume_unwind(panic))
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

impl<C> Drop for IoPool<C> {
    /// Waits until all tasks are done, so that the cache folder is free again.
    fn drop(&mut self) {
        let threads = {
            let mut queue = self.shared.queue();
            queue.is_closed = true;
            std::mem::take(&mut queue.threads)
        };
        self.shared.changed.notify_all();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn io_pool(n_threads: usize) -> IoPool<()> {
        IoPool::new("pool", n_threads, Priority::Low, &Arc::new(()), &Wake::default())
    }

    #[test]
    fn tasks_are_done_side_by_side_and_their_results_stay_in_order() {
        let io_pool = io_pool(3);
        let (together, caller) = (Arc::new(Barrier::new(3)), thread::current().id());
        let task = |i: usize| {
            let together = together.clone();
            move |_: &()| {
                together.wait(); // or this never ends
                (i, thread::current().id())
            }
        };
        let done = io_pool.begin_all((0..3).map(task).collect()).wait();
        assert!(done.iter().map(|(i, _)| *i).eq(0..3) && done.iter().all(|(_, thread)| *thread != caller));
        let all = io_pool.begin_all((0..100).map(|i| move |_: &()| i).collect()).wait();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(io_pool.begin_all(Vec::<fn(&()) -> u8>::new()).wait().is_empty());
    }

    #[test]
    fn threads_are_started_for_tasks_that_find_none_idle() {
        let io_pool = io_pool(3);
        let n_threads = || io_pool.shared.queue().threads.len();
        assert_eq!(n_threads(), 0);
        for _ in 0..20 {
            io_pool.begin(|_| ()).wait();
            while io_pool.shared.queue().n_idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(n_threads(), 1);
        io_pool.begin_all(vec![|_: &()| (); 50]).wait();
        assert!(n_threads() <= 3);
    }

    #[test]
    fn without_a_thread_its_caller_does_the_tasks_in_order() {
        let (io_pool, caller) = (io_pool(0), thread::current().id());
        let task = |i: usize| move |_: &()| (i, thread::current().id());
        let done = io_pool.begin_all((0..3).map(task).collect()).wait();
        assert!(done.into_iter().eq((0..3).map(|i| (i, caller))));
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
    fn what_nobody_waits_for_is_left() {
        let (io_pool, (opened, gate)) = (io_pool(1), channel::<()>());
        let fails = |_: &()| -> u8 { panic!("nobody waits for it") };
        let first = io_pool.begin(move |_| gate.recv().is_ok());
        drop((io_pool.begin(fails), io_pool.begin_all(vec![fails, fails])));
        let last = io_pool.begin(|_| 1);
        drop(opened);
        first.wait();
        assert_eq!(last.wait(), 1);
    }

    #[test]
    fn a_panic_reaches_its_waiter_and_the_pool_goes_on() {
        let io_pool = io_pool(2);
        let seven = |i: usize| move |_: &()| assert!(i != 7, "seven");
        let all = || io_pool.begin_all((0..9).map(seven).collect()).wait();
        assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
        assert_eq!(io_pool.begin(|_| 1).wait(), 1);
    }
}
