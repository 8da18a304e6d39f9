//! Work for many threads: numbered tasks for a pool, and outputs that they share.
//!
//! A decoded token is some hundred jobs of 50 to 500 µs, one after another: what counts is how soon the
//! others begin. Members of a pool wait for the next job spinning, for `SPIN`, and sleep only then; a job
//! costs them one atomic operation a task. (rayon's sleep sooner.) Without a pool, in tests and small tools,
//! a job is a loop.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time for which a member without work stays awake: longer than the gap between two jobs of a pass, shorter
/// than a noticeable pause.
const SPIN: Duration = Duration::from_micros(200);

/// Threads that work on one job at a time, the caller among them.
pub struct ThreadPool {
    board: Arc<Board>,
    members: Vec<JoinHandle<()>>,
}

/// State that the members share.
struct Board {
    /// Number of the job (high half) and of its next task (low half).
    state: AtomicU64,
    /// The job: valid while `state` holds its number and tasks are left.
    job: AtomicUsize,
    n_tasks: AtomicUsize,
    /// Tasks of the job that are done.
    done: AtomicUsize,
    closing: AtomicBool,
    sleeping: AtomicUsize,
    /// Members, to be woken.
    threads: Mutex<Vec<Thread>>,
    n_threads: usize,
    /// Payload of the first task that panicked.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// A job as it is on the caller's stack.
struct PoolJob<'a>(&'a (dyn Fn(usize) + Sync));

thread_local! {
    /// The pool that this thread's jobs go to; without one, they are done here.
    static POOL: RefCell<Option<Arc<Board>>> = const { RefCell::new(None) };
}

impl ThreadPool {
    /// A pool of `n_threads`, the caller included.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn new(n_threads: usize) -> std::io::Result<Self> {
        let board = Arc::new(Board {
            state: AtomicU64::new(0),
            job: AtomicUsize::new(0),
            n_tasks: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            threads: Mutex::new(Vec::new()),
            n_threads: n_threads.max(1),
            panic: Mutex::new(None),
        });
        let mut pool = Self { board, members: Vec::new() };
        for i in 1..n_threads {
            let board = pool.board.clone();
            let member = std::thread::Builder::new().name(format!("greenroom-{i}"));
            pool.members.push(member.spawn(move || board.serve())?);
        }
        let threads = pool.members.iter().map(|m| m.thread().clone()).collect();
        *pool.board.threads.lock().unwrap_or_else(|e| e.into_inner()) = threads;
        Ok(pool)
    }

    /// Runs `body` on this thread; jobs in it go to the pool. The board holds one job at a time, so nobody
    /// else may give it one meanwhile: hence `&mut`.
    pub fn install<T>(&mut self, body: impl FnOnce() -> T) -> T {
        struct Restore(Option<Arc<Board>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                POOL.set(self.0.take());
            }
        }
        let pool = (!self.members.is_empty()).then(|| self.board.clone());
        let _restore = Restore(POOL.replace(pool));
        body()
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.board.closing.store(true, Ordering::SeqCst);
        for member in self.members.drain(..) {
            member.thread().unpark();
            let _ = member.join();
        }
    }
}

impl Board {
    /// Publishes a job, takes part in it, and returns when all of it is done.
    fn run(&self, n: usize, task: &(dyn Fn(usize) + Sync)) {
        let job = PoolJob(task);
        // First the old job is closed, so that a member who is late can't take a task of the new one by the
        // old number.
        let old = self.state.fetch_or(u64::from(u32::MAX), Ordering::AcqRel) >> 32;
        self.done.store(0, Ordering::Release);
        self.n_tasks.store(n, Ordering::Release);
        self.job.store(std::ptr::from_ref(&job).expose_provenance(), Ordering::Release);
        let number = old.wrapping_add(1) & u64::from(u32::MAX);
        self.state.store(number << 32, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            self.threads.lock().unwrap_or_else(|e| e.into_inner()).iter().for_each(Thread::unpark);
        }
        self.work(number);
        let waiting_since = Instant::now();
        while self.done.load(Ordering::Acquire) < n {
            if waiting_since.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now(); // the others are not active: somebody else has their cores
            }
        }
        if let Some(panic) = self.panic.lock().unwrap_or_else(|e| e.into_inner()).take() {
            resume_unwind(panic);
        }
    }

    /// Takes tasks of job `number` until none is left.
    fn work(&self, number: u64) {
        loop {
            let state = self.state.load(Ordering::Acquire);
            let (job, n) = (self.job.load(Ordering::Acquire), self.n_tasks.load(Ordering::Acquire));
            let task = (state & u64::from(u32::MAX)) as usize;
            if state >> 32 != number || task >= n {
                return;
            }
            if self
                .state
                .compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            // SAFETY: `job` and `n` were read while `state` held this job's number (the exchange says so),
            // and `run` does not return, nor its job go away, before the task that was just taken is counted
            // as done.
            let PoolJob(call) = unsafe { &*std::ptr::with_exposed_provenance::<PoolJob<'_>>(job) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| call(task))) {
                self.panic.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(panic);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// A member's life.
    fn serve(&self) {
        let mut seen = 0;
        let mut idle_since = Instant::now();
        while !self.closing.load(Ordering::SeqCst) {
            let number = self.state.load(Ordering::Acquire) >> 32;
            if number != seen {
                self.work(number);
                seen = number;
                idle_since = Instant::now();
            } else if idle_since.elapsed() < SPIN {
                (0..64).for_each(|_| std::hint::spin_loop());
            } else {
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                if self.state.load(Ordering::SeqCst) >> 32 == seen && !self.closing.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
                idle_since = Instant::now();
            }
        }
    }
}

/// Threads that jobs of this thread are shared by.
pub fn n_threads() -> usize {
    POOL.with_borrow(|pool| pool.as_ref().map_or(1, |board| board.n_threads))
}

/// Runs `task(0) .. task(n - 1)` on this thread's pool, in no particular order.
///
/// Tasks write to places of their own and never add to a common sum: which thread runs which changes nothing.
pub fn for_each(n: usize, task: impl Fn(usize) + Sync) {
    // A task's own jobs are done where it runs: the pool is taken off while it works.
    let pool = if n > 1 { POOL.take() } else { None };
    match pool {
        None => (0..n).for_each(task),
        Some(board) => {
            let _restore = Installed(board.clone());
            board.run(n, &task);
        }
    }
}

/// Puts a pool back, also after a panic.
struct Installed(Arc<Board>);

impl Drop for Installed {
    fn drop(&mut self) {
        POOL.set(Some(self.0.clone()));
    }
}

/// Runs a task for each item.
pub fn for_items<T: Send>(items: &mut [T], task: impl Fn(usize, &mut T) + Sync) {
    let shared = SharedSlice::new(items);
    for_each(shared.len, |i| {
        // SAFETY: each task has its own item.
        let item = unsafe { shared.part(i..i + 1) };
        task(i, &mut item[0]);
    });
}

/// Collects the results of `task(0) .. task(n - 1)`, in order.
pub fn map<T: Send>(n: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut out: Vec<Option<T>> = (0..n).map(|_| None).collect();
    for_items(&mut out, |i, place| *place = Some(task(i)));
    out.into_iter().map(|x| x.expect("every task has run")).collect()
}

/// Cuts `n` items into ranges, about eight for each thread, of at least `least` items.
pub fn for_ranges(n: usize, least: usize, task: impl Fn(Range<usize>) + Sync) {
    let pieces = (8 * n_threads()).min(n / least.max(1)).max(1);
    let start = |piece: usize| n * piece / pieces;
    for_each(pieces, |piece| task(start(piece)..start(piece + 1)));
}

/// Cuts slices of `n_rows` rows each at the same rows, into about eight ranges for each thread, of at least
/// `least` rows, and runs `task` on them: the rows' numbers, and these rows of each slice.
pub fn for_rows<T: Send, const N: usize>(
    slices: [&mut [T]; N],
    n_rows: usize,
    least: usize,
    task: impl Fn(Range<usize>, [&mut [T]; N]) + Sync,
) {
    let widths = slices.each_ref().map(|slice| slice.len() / n_rows.max(1));
    assert!(slices.iter().zip(widths).all(|(slice, width)| slice.len() == n_rows * width), "rows are whole");
    let slices = slices.map(SharedSlice::new);
    for_ranges(n_rows, least, |rows| {
        let parts = std::array::from_fn(|i| {
            let width = widths[i];
            // SAFETY: each row belongs to one range.
            unsafe { slices[i].part(rows.start * width..rows.end * width) }
        });
        task(rows, parts);
    });
}

/// A slice that several tasks write to, each to parts of its own.
pub struct SharedSlice<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: parts are handed out by `part` alone, whose callers promise that no two overlap.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Shares a slice.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Elements `range`.
    ///
    /// # Safety
    /// While the part lives, no other part overlaps it.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's promise
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a part lies inside of its slice");
        // SAFETY: in bounds by the assertion, unshared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_however_many_threads_and_jobs() {
        for n_threads in [1, 2, 3, 5] {
            let mut pool = ThreadPool::new(n_threads).expect("threads");
            pool.install(|| {
                assert_eq!(super::n_threads(), n_threads);
                for n in (0..2000).map(|i| i % 37) {
                    let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
                    for_each(n, |i| {
                        // Jobs of a task are done where it runs.
                        for_each(3, |_| {
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 3));
                }
                std::thread::sleep(2 * SPIN); // members fall asleep
                for_each(1, |_| ()); // a job for one leaves the pool where it is
                assert_eq!(super::n_threads(), n_threads);
                assert_eq!(map(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let mut pool = ThreadPool::new(2).expect("threads");
        pool.install(|| {
            let caught = catch_unwind(|| for_each(10, |i| assert!(i != 7, "seven")));
            assert!(caught.is_err());
            assert_eq!(map(4, |i| i), [0, 1, 2, 3]);
        });
    }
}
