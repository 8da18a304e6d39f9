//! `run --watch`: shows a run on a page in this machine's browser, in addition to the terminal.

use super::stop::stopped;
use crate::run::Performed;
use crate::scenario::{Scenario, TurnId};
use crate::server::{RunReporter, Watched, watch};
use crate::stage::{Control, End, Scene, Watch};
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// What the page calls its run.
const RUN: &str = "watched";

/// A page that shows a run; it ends when this is dropped.
pub(super) struct WatchPage {
    watched: Arc<Watched>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl WatchPage {
    /// Serves it at an address, on a separate thread.
    ///
    /// # Errors
    /// The program can't listen at the address.
    pub(super) fn open(address: SocketAddr, control: Control) -> anyhow::Result<Self> {
        let ip = address.ip();
        ensure!(
            ip.is_loopback(),
            "{ip} can be reached from other machines, but the page needs no key; use 127.0.0.1"
        );
        let watched = Watched::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address));
        let listener = listener.with_context(|| format!("can't listen on {address}"))?;
        eprintln!("the run is shown at http://{}/", listener.local_addr()?);
        let (end, ended) = tokio::sync::oneshot::channel();
        let shown = watched.clone();
        let server = std::thread::Builder::new().name("greenroom-page".to_owned()).spawn(move || {
            let stop = async {
                let _ = ended.await;
            };
            if let Err(error) = runtime.block_on(watch(shown, control, listener, stop)) {
                tracing::warn!("the run's page failed: {error}");
            }
        })?;
        Ok(Self { watched, end: Some(end), server: Some(server) })
    }

    /// Also shows on it what another watcher sees.
    pub(super) fn beside(&self, scenario: &Arc<Scenario>, other: Box<dyn Watch>) -> Box<dyn Watch> {
        let watched = self.watched.clone();
        let tell = move |name: &'static str, data: Value| watched.tell(name, &data);
        Box::new(Beside { other, page: RunReporter::begin(scenario.clone(), RUN, tell) })
    }

    /// Says how the run has ended.
    pub(super) fn say_end(&self, performed: &anyhow::Result<Performed>) {
        match performed {
            Ok(Performed { end: End::Complete(_), .. }) => self.watched.tell("done", &json!({})),
            Ok(stopped) => self.watched.tell("stopped", &json!({ "turns": stopped.n_written })),
            Err(error) => self.watched.tell("error", &json!({ "message": format!("{error:#}") })),
        }
    }

    /// On a terminal the page stays until the user stops it.
    pub(super) fn end(self) -> anyhow::Result<()> {
        if console::Term::stderr().is_term() {
            let stop = stopped(); // signals are caught before the line that asks for one
            eprintln!("the page stays available until Ctrl-C");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(stop);
        }
        Ok(())
    }
}

impl Drop for WatchPage {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Two watchers.
struct Beside<T> {
    other: Box<dyn Watch>,
    page: RunReporter<T>,
}

impl<T: FnMut(&'static str, Value)> Watch for Beside<T> {
    fn see(&mut self, id: TurnId, scene: Scene<'_>) {
        self.page.see(id, scene);
        self.other.see(id, scene);
    }
}
