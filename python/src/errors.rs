//! Errors as the exceptions of `greenroom.errors`.

use greenroom::backend::worded;
use greenroom::diagnostic::{Report, Severity, Span};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_json::json;

/// An exception of `greenroom.errors`, made of its class's arguments.
fn exception<A>(class: &str, arguments: A) -> PyErr
where
    A: for<'py> IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>>,
    A: for<'py> pyo3::call::PyCallArgs<'py>,
{
    Python::attach(|py| {
        let made = py
            .import("greenroom.errors")
            .and_then(|module| module.getattr(class))
            .and_then(|class| class.call1(arguments));
        made.map_or_else(|error| error, |exception| PyErr::from_value(exception))
    })
}

/// A fault of this program.
pub(crate) fn internal(message: &str) -> PyErr {
    exception("GreenroomError", (format!("this is a fault of greenroom: {message}"),))
}

/// Anything that could not be done.
pub(crate) fn failed(error: &anyhow::Error) -> PyErr {
    exception("GreenroomError", (format!("{error:#}"),))
}

/// A model that can't be found, opened or used.
pub(crate) fn of_model(error: &anyhow::Error) -> PyErr {
    exception("ModelError", (format!("{error:#}"),))
}

/// Names of methods in the engine's errors, and what they are here.
const METHODS: [(&str, &str); 3] = [
    ("`Engine::resume`", "`engine.resume`"),
    ("`Engine::remove`", "`engine.remove`"),
    ("`Agent::replace`", "`replace=True`"),
];

/// An error of the engine.
pub(crate) fn of_engine(error: greenroom_engine::Error) -> PyErr {
    let kind = format!("{:?}", error.kind()).to_lowercase();
    let text = METHODS
        .iter()
        .fold(format!("{:#}", worded(error)), |text, (of_rust, here)| text.replace(of_rust, here));
    exception("EngineError", (text, kind))
}

/// An engine that was closed.
pub(crate) fn closed() -> PyErr {
    exception("EngineError", ("this engine is closed", "closed"))
}

/// An object that belongs to another process.
pub(crate) fn forked() -> PyErr {
    let found = "this engine belongs to the process that opened it, and its threads do not survive a fork; open an \
                 Engine in the child, or start the child by `multiprocessing.get_context(\"spawn\")`";
    exception("EngineError", (found, "forked"))
}

/// A scenario's errors.
pub(crate) fn of_scenario(report: &Report) -> PyErr {
    let rendered = report.render(false);
    exception("ScenarioError", (rendered.trim_end().to_owned(), diagnostics(report)))
}

/// The diagnostics of a scenario, as JSON.
pub(crate) fn diagnostics(report: &Report) -> String {
    let place = |span: Span| {
        let (file, line, column) = report.sources.place(span);
        json!({ "file": file, "line": line, "column": column })
    };
    let each = report.diagnostics.iter().map(|found| {
        let mut entry = json!({
            "severity": if found.severity == Severity::Error { "error" } else { "warning" },
            "code": found.code,
            "message": found.message,
            "path": found.path,
            "help": found.help,
        });
        let place = place(found.span);
        for name in ["file", "line", "column"] {
            entry[name] = place[name].clone();
        }
        entry
    });
    serde_json::Value::Array(each.collect()).to_string()
}
