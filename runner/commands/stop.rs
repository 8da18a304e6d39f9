//! Stopping a run: the first Ctrl-C (or SIGTERM, or the terminal's end) requests it, the second ends the
//! program whatever it is doing.

use super::Exit;
use crate::tools;
use std::convert::Infallible;
use std::io;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// Ready when the program was asked to stop. From this call on, a separate thread catches signals, because
/// the run may be busy for a while, or stuck.
pub(super) fn stopped() -> impl Future<Output = ()> {
    let (ask, asked) = oneshot::channel();
    let (ready, is_ready) = mpsc::channel::<Infallible>();
    let watch = std::thread::Builder::new().name("greenroom-stop".into());
    // If signals are not available, only the shell can stop the run.
    let _ = watch.spawn(move || listen(ask, ready));
    // The caller's runtime also receives signals from the system, and drops those without a listener.
    let _ = is_ready.recv();
    async {
        if asked.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn listen(ask: oneshot::Sender<()>, ready: mpsc::Sender<Infallible>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::new()?;
        drop(ready);
        signals.next().await?;
        let _ = ask.send(());
        signals.next().await?;
        tools::end_all();
        std::process::exit(Exit::Stopped as i32)
    })
}

#[cfg(unix)]
struct Signals([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = kinds.map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn next(&mut self) -> io::Result<()> {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        Ok(())
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> io::Result<()> {
        tokio::signal::ctrl_c().await
    }
}
