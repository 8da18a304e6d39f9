//! What a program brings that calls a command (the Python module): an opened model, an eye on the run, answers for
//! humans, and tools.

use super::stop::stopped;
use crate::backend::{Backend, BoxFuture};
use crate::scenario::Scenario;
use crate::server::RunReporter;
use crate::stage::{Control, Watch};
use crate::tools::ToolFunctions;
use serde_json::Value;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Receives the events of a run: their names and data are those of `POST /v1/runs`.
pub type EventSink = Arc<dyn Fn(&'static str, Value) + Send + Sync>;
/// Receives the folder of each complete run of an experiment.
pub type RunSink = Arc<dyn Fn(&Path) -> anyhow::Result<()> + Send + Sync>;

/// What a program brings that calls a command; by default, nothing.
#[derive(Clone, Default)]
pub struct Host {
    /// The opened model, which answers instead of the one that the flags name.
    pub backend: Option<Arc<dyn Backend>>,
    /// Controls runs, and answers for humans.
    pub control: Option<Control>,
    /// The scenario's tools that are functions of the program.
    pub functions: ToolFunctions,
    /// Sees a run's events. (An experiment's runs are not shown.)
    pub events: Option<EventSink>,
    /// Sees the folders of complete runs, before their figures are counted.
    pub on_run: Option<RunSink>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { control, functions, .. } = self;
        f.debug_struct("Host").field("control", control).field("functions", functions).finish_non_exhaustive()
    }
}

impl Host {
    /// The caller's control of a run, or one with the terminal.
    pub(super) fn control(&self) -> Control {
        self.control.clone().unwrap_or_default()
    }

    /// Ready when the run is to end: by the caller's control, or by a signal.
    pub(super) fn stop(&self) -> BoxFuture<'static, ()> {
        match self.control.clone() {
            Some(control) => Box::pin(async move { control.stopped().await }),
            None => Box::pin(stopped()),
        }
    }

    /// What shows a run to the caller.
    pub(super) fn watcher(&self, scenario: &Arc<Scenario>, run: &str) -> Option<Box<dyn Watch>> {
        let events = self.events.clone()?;
        Some(Box::new(RunReporter::begin(scenario.clone(), run, move |name, data| events(name, data))))
    }
}
