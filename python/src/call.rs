//! Commands of the program, called with a model that is open and with functions of Python.

use crate::engine::Engine;
use crate::errors::failed;
use crate::runtime::{locked, work};
use greenroom::backend::{Backend, BoxFuture, HumanSeat, Question};
use greenroom::commands::{self, Called, EventSink, Host, RunSink};
use greenroom::stage;
use greenroom::tools::{CallOutcome, Functions, ToolFunctions};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The first exception that a function of Python raised during a call.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Calls a function of Python; after an exception, its text is the error.
    fn call<A>(&self, function: &Py<PyAny>, arguments: A) -> Result<String, String>
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let called = Python::try_attach(|py| {
            let result = function.call1(py, arguments).and_then(|result| {
                if result.is_none(py) { Ok(String::new()) } else { result.extract::<String>(py) }
            });
            result.map_err(|error| {
                let text = error.value(py).str().map(|text| text.to_string()).unwrap_or_default();
                let kind = error.get_type(py).name().map(|name| name.to_string()).unwrap_or_default();
                (if text.is_empty() { kind } else { format!("{kind}: {text}") }, error)
            })
        });
        match called {
            Some(Ok(result)) => Ok(result),
            Some(Err((text, error))) => {
                locked(&self.0).get_or_insert(error);
                Err(text)
            }
            None => Err("Python is shutting down".to_owned()),
        }
    }

    fn take(&self) -> Option<PyErr> {
        locked(&self.0).take()
    }
}

/// Calls a function of Python on a thread that may wait for it.
async fn called<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// A function of Python answers for humans: it gets the question as JSON.
struct Players {
    function: Arc<Py<PyAny>>,
    raised: Raised,
}

impl HumanSeat for Players {
    fn ask(&self, question: Question) -> BoxFuture<'_, anyhow::Result<String>> {
        let (function, raised) = (self.function.clone(), self.raised.clone());
        Box::pin(async move {
            let form = question.form.as_ref().map(|form| form.text().to_string());
            let asked = json!({
                "path": question.path, "agent": question.agent, "system": question.system, "heard": question.heard,
                "past": question.past, "options": question.options, "form": form,
            });
            let reply = called(move || raised.call(&function, (asked.to_string(),))).await?;
            question.read(&reply.map_err(anyhow::Error::msg)?).map_err(anyhow::Error::msg)
        })
    }
}

/// Functions of Python as tools: one function calls them by name, with arguments as JSON.
struct Tools {
    names: BTreeSet<String>,
    function: Arc<Py<PyAny>>,
}

impl Functions for Tools {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn call(&self, name: &str, arguments: Value) -> BoxFuture<'_, CallOutcome> {
        let (function, name) = (self.function.clone(), name.to_owned());
        Box::pin(async move {
            // A call that fails is recorded; it ends no run.
            let result =
                called(move || Raised::default().call(&function, (name, arguments.to_string()))).await;
            result.map_err(|error| error.to_string())?
        })
    }
}

/// Controls a run from any thread.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Control {
    control: stage::Control,
    raised: Raised,
}

#[pymethods]
impl Control {
    /// `players` answers for humans: called with a question as JSON, it returns the reply.
    #[new]
    #[pyo3(signature = (players = None))]
    fn new(players: Option<Py<PyAny>>) -> Self {
        let raised = Raised::default();
        let control = match players {
            Some(function) => {
                let function = Arc::new(function);
                stage::Control::seated(Arc::new(Players { function, raised: raised.clone() }))
            }
            None => stage::Control::remote(false),
        };
        Self { control, raised }
    }

    /// No further turn begins.
    fn pause(&self) {
        self.control.pause();
    }

    /// All turns may begin.
    fn resume(&self) {
        self.control.resume();
    }

    /// One more turn may begin.
    fn step(&self) {
        self.control.step();
    }

    /// The run ends as if it were interrupted.
    fn stop(&self) {
        self.control.stop();
    }

    /// A human's answer to the question of a turn.
    fn answer(&self, path: &str, text: &str) -> PyResult<()> {
        self.control.answer(path, text).map_err(|error| failed(&error.into()))
    }
}

/// Calls a command: exit code, standard output, standard error, and the exception that a function raised.
#[pyfunction]
#[pyo3(signature = (arguments, engine = None, control = None, tools = None, events = None, on_run = None))]
pub(crate) fn call<'py>(
    py: Python<'py>,
    arguments: Vec<PathBuf>,
    engine: Option<&Engine>,
    control: Option<&Control>,
    tools: Option<(BTreeSet<String>, Py<PyAny>)>,
    events: Option<Py<PyAny>>,
    on_run: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    crate::logging::begin();
    let raised = control.map(|control| control.raised.clone()).unwrap_or_default();
    let own = control.map_or_else(|| stage::Control::remote(false), |control| control.control.clone());
    let functions = tools
        .map(|(names, function)| ToolFunctions::new(Arc::new(Tools { names, function: Arc::new(function) })));
    let host = Host {
        backend: engine.map(Engine::pool).transpose()?.map(|pool| pool as Arc<dyn Backend>),
        control: Some(own.clone()),
        functions: functions.unwrap_or_default(),
        events: events.map(|function| {
            let (raised, control) = (raised.clone(), own.clone());
            let tell: EventSink = Arc::new(move |name: &'static str, data: Value| {
                if raised.call(&function, (name, data.to_string())).is_err() {
                    control.stop();
                }
            });
            tell
        }),
        on_run: on_run.map(|function| {
            let raised = raised.clone();
            let see: RunSink = Arc::new(move |run: &Path| {
                raised.call(&function, (run.to_path_buf(),)).map(drop).map_err(anyhow::Error::msg)
            });
            see
        }),
    };
    let stop = own.clone();
    let Called { exit, out, err } = work(
        py,
        move || commands::call(arguments.into_iter().map(PathBuf::into_os_string), host),
        move || stop.stop(),
    )?;
    let result = PyDict::new(py);
    result.set_item("exit", exit)?;
    result.set_item("out", out)?;
    result.set_item("err", err)?;
    result.set_item("raised", raised.take())?;
    Ok(result)
}

/// Runs the program with the arguments of the process, and returns its exit code.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, arguments: Vec<PathBuf>) -> PyResult<u8> {
    if arguments.is_empty() {
        return Err(PyRuntimeError::new_err("the program's name is missing"));
    }
    Ok(py.detach(|| commands::main_with(arguments.into_iter().map(PathBuf::into_os_string))))
}
