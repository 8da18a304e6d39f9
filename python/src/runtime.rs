//! Waiting: futures as awaitables of Python, and blocking calls that Ctrl-C ends.
//!
//! The runtime's threads do not survive a fork of the process, so a child has a runtime of its own.

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3_async_runtimes::TaskLocals;
use pyo3_async_runtimes::generic::{self, ContextExt};
use std::cell::OnceCell;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::task::{JoinError, JoinHandle};

/// A lock, waited for with the interpreter free: its holder may need that.
pub(crate) fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    Python::attach(|py| lock.lock_py_attached(py)).unwrap_or_else(PoisonError::into_inner)
}

/// How often a blocking call looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// The runtime of a process, by its id.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process, which lives as long as it.
pub(crate) fn runtime() -> &'static Runtime {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    match *runtime {
        Some((process, runtime)) if process == std::process::id() => runtime,
        _ => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let new = builder.worker_threads(2).thread_name("greenroom-python").enable_all().build();
            let new: &'static Runtime = Box::leak(Box::new(new.expect("threads can be started")));
            *runtime = Some((std::process::id(), new));
            new
        }
    }
}

/// What a channel gives, waited for with the interpreter free, until it is time to look for Ctrl-C.
fn received<T: Send>(py: Python<'_>, receiver: &mut Receiver<T>) -> Result<T, RecvTimeoutError> {
    py.detach(move || receiver.recv_timeout(SIGNALS))
}

/// The result of a future; the interpreter is free meanwhile, and an interrupt drops the future.
pub(crate) fn wait<T: Send + 'static>(
    py: Python<'_>,
    future: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    let task = runtime().spawn(async move {
        let _ = sender.send(future.await);
    });
    loop {
        match received(py, &mut receiver) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| task.abort())?,
            Err(RecvTimeoutError::Disconnected) => return Err(crate::errors::internal("a task was lost")),
        }
    }
}

/// The result of work that blocks, done on a thread of its own. An interrupt calls `stop`, and is raised when the
/// work has ended.
pub(crate) fn work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    stop: impl Fn(),
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(1);
    std::thread::Builder::new().name("greenroom-call".to_owned()).spawn(move || {
        let _ = sender.send(work());
    })?;
    let mut interrupted = None;
    loop {
        match received(py, &mut receiver) {
            Ok(result) => return interrupted.map_or(Ok(result), Err),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals() {
                    stop();
                    interrupted = Some(interrupt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err(crate::errors::internal("a call was lost")),
        }
    }
}

/// A future as an awaitable; if that is cancelled, the future is dropped.
pub(crate) fn awaitable<'py, T>(
    py: Python<'py>,
    future: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    generic::future_into_py::<OfProcess, _, T>(py, future)
}

struct OfProcess;

tokio::task_local! {
    static LOCALS: OnceCell<TaskLocals>;
}

impl generic::Runtime for OfProcess {
    type JoinError = JoinError;
    type JoinHandle = JoinHandle<()>;

    fn spawn<F: Future<Output = ()> + Send + 'static>(future: F) -> Self::JoinHandle {
        runtime().spawn(future)
    }

    fn spawn_blocking<F: FnOnce() + Send + 'static>(work: F) -> Self::JoinHandle {
        runtime().spawn_blocking(work)
    }
}

impl ContextExt for OfProcess {
    fn scope<F, R>(locals: TaskLocals, future: F) -> Pin<Box<dyn Future<Output = R> + Send>>
    where
        F: Future<Output = R> + Send + 'static,
    {
        Box::pin(LOCALS.scope(OnceCell::from(locals), future))
    }

    fn get_task_locals() -> Option<TaskLocals> {
        LOCALS.try_with(|locals| locals.get().cloned()).unwrap_or_default()
    }
}
