//! Faults on demand, in builds with debug assertions: what tests have in place of a crash, a full disk or a
//! broken kernel.
//!
//! `GREENROOM_FAULT=KIND:N`, N counted from 1:
//!
//! | kind | what happens |
//! |---|---|
//! | `kill` | at the N-th point that a write passes the process ends |
//! | `full` | from the N-th point that a write passes the disk is full |
//! | `unread` | the N-th read of the store fails |
//! | `fail` | from the N-th pass on every pass fails |
//! | `trip` | the N-th pass fails |
//! | `panic` | the N-th pass panics |
//! | `stall` | the N-th pass never ends |

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static WRITES: AtomicU64 = AtomicU64::new(0);
static READS: AtomicU64 = AtomicU64::new(0);
static PASSES: AtomicU64 = AtomicU64::new(0);

/// A write passes a point.
///
/// # Errors
/// The disk is full, on demand.
pub(crate) fn write_point() -> io::Result<()> {
    match met(&WRITES) {
        Some(("kill", 0)) => std::process::abort(),
        Some(("full", _)) => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

/// The store reads.
///
/// # Errors
/// The read fails, on demand.
pub(crate) fn read_point() -> io::Result<()> {
    #[cfg(test)]
    if reads().0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) == Ok(1) {
        return Err(io::Error::other("a read failed on demand"));
    }
    match met(&READS) {
        Some(("unread", 0)) => Err(io::Error::other("a read failed on demand")),
        _ => Ok(()),
    }
}

/// The store opens a file to read it.
///
/// # Errors
/// The read fails, on demand.
pub(crate) fn open_point(#[cfg_attr(not(test), expect(unused))] path: &std::path::Path) -> io::Result<()> {
    #[cfg(test)]
    if unreadable().iter().any(|unreadable| unreadable == path) {
        return Err(io::Error::other("a file can't be read on demand"));
    }
    read_point()
}

/// A pass begins.
///
/// # Errors
/// It fails, on demand.
pub(crate) fn pass() -> Result<(), &'static str> {
    match met(&PASSES) {
        Some(("panic", 0)) => panic!("this pass panics on demand"),
        Some(("stall", 0)) => loop {
            std::thread::park();
        },
        Some(("fail", _) | ("trip", 0)) => Err("this pass fails on demand"),
        _ => Ok(()),
    }
}

/// A request of an agent is about to be rendered and tokenized.
pub(crate) fn encode_point(#[cfg_attr(not(test), expect(unused))] agent: &str) {
    #[cfg(test)]
    held::pass(agent);
}

#[cfg(test)]
pub(crate) use held::hold_encoding;

#[cfg(test)]
mod held {
    use std::sync::{Condvar, Mutex};

    /// Agents whose requests are not encoded for now, and whether one waits.
    static HELD: Mutex<Vec<(&str, bool)>> = Mutex::new(Vec::new());
    static CHANGED: Condvar = Condvar::new();

    /// No request of an agent is encoded until it is dropped.
    pub(crate) struct Held(&'static str);

    /// Holds up the encoding of an agent's requests, in all tests: its name is this test's alone.
    pub(crate) fn hold_encoding(agent: &'static str) -> Held {
        HELD.lock().expect("names").push((agent, false));
        Held(agent)
    }

    pub(super) fn pass(agent: &str) {
        let mut held = HELD.lock().expect("names");
        while let Some((_, waits)) = held.iter_mut().find(|(held, _)| *held == agent) {
            *waits = true;
            CHANGED.notify_all();
            held = CHANGED.wait(held).expect("names");
        }
    }

    impl Held {
        /// Waits until a request waits.
        pub(crate) fn until_it_is_needed(&self) {
            let held = HELD.lock().expect("names");
            drop(CHANGED.wait_while(held, |held| !held.contains(&(self.0, true))).expect("names"));
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.lock().expect("names").retain(|(agent, _)| *agent != self.0);
            CHANGED.notify_all();
        }
    }
}

/// The planned kind of fault, and how often its place was passed since its turn.
fn met(passed: &AtomicU64) -> Option<(&'static str, u64)> {
    let (kind, at) = plan()?;
    let n = passed.fetch_add(1, Ordering::Relaxed) + 1;
    Some((kind, n.checked_sub(at)?))
}

#[cfg(not(debug_assertions))]
fn plan() -> Option<(&'static str, u64)> {
    None
}

#[cfg(debug_assertions)]
fn plan() -> Option<(&'static str, u64)> {
    static PLAN: std::sync::OnceLock<Option<(String, u64)>> = std::sync::OnceLock::new();
    let read = || {
        let plan = std::env::var("GREENROOM_FAULT").ok()?;
        let (kind, at) = plan.split_once(':')?;
        Some((kind.to_owned(), at.parse().ok()?))
    };
    PLAN.get_or_init(read).as_ref().map(|(kind, at)| (kind.as_str(), *at))
}

/// Count of a thread's reads, which other threads that read for it go on with.
#[derive(Clone)]
pub(crate) struct Reads(#[cfg(test)] std::sync::Arc<AtomicU64>);

impl Reads {
    /// Counts this thread's reads from now on too.
    pub(crate) fn go_on(self) {
        #[cfg(test)]
        TO_FAIL.set(self.0);
    }
}

/// The count of this thread's reads.
pub(crate) fn reads() -> Reads {
    Reads(
        #[cfg(test)]
        TO_FAIL.with_borrow(Clone::clone),
    )
}

#[cfg(test)]
thread_local! {
    /// Number of the read of this thread that fails, counted from now; 0: none.
    static TO_FAIL: std::cell::RefCell<std::sync::Arc<AtomicU64>> = std::cell::RefCell::default();
}

#[cfg(test)]
fn unreadable() -> std::sync::MutexGuard<'static, Vec<std::path::PathBuf>> {
    static UNREADABLE: std::sync::Mutex<Vec<std::path::PathBuf>> = std::sync::Mutex::new(Vec::new());
    UNREADABLE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Lets a file be unreadable, for all threads, or readable again.
#[cfg(test)]
pub(crate) fn let_be_unreadable(path: &std::path::Path, is_unreadable: bool) {
    unreadable().retain(|other| other != path);
    if is_unreadable {
        unreadable().push(path.to_owned());
    }
}

/// Lets the `n`-th read of this thread, or of one that reads for it, fail from now on (0: none); returns what
/// was left of the count before.
#[cfg(test)]
pub(crate) fn fail_read(n: u64) -> u64 {
    reads().0.swap(n, Ordering::Relaxed)
}
