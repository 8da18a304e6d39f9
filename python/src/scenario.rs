//! Scenarios: read, checked, and as the plan of their turns.

use crate::errors::{diagnostics, failed, of_scenario};
use greenroom::rehearsal;
use greenroom::scenario::{EngineAddress, Loaded, Overrides, Scenario as Checked};
use pyo3::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// A scenario without errors.
#[pyclass(frozen, module = "greenroom._greenroom")]
pub(crate) struct Scenario {
    checked: Arc<Checked>,
    /// Its warnings, as JSON and as text.
    warnings: (String, String),
}

#[pymethods]
impl Scenario {
    /// Reads a scenario: the file, or its text if there is one (which is then not read from the file).
    #[new]
    #[pyo3(signature = (file, text = None, overrides = "[]"))]
    fn new(py: Python<'_>, file: &str, text: Option<&str>, overrides: &str) -> PyResult<Self> {
        let overrides: Overrides = serde_json::from_str(overrides)
            .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
        let Loaded { scenario, report } = py.detach(|| match text {
            Some(text) => Ok(rehearsal::load(file, text, &overrides)),
            None => rehearsal::open(Path::new(file), &overrides).map_err(|error| failed(&error)),
        })?;
        let checked = scenario.ok_or_else(|| of_scenario(&report))?;
        Ok(Self { checked, warnings: (diagnostics(&report), report.render(false)) })
    }

    /// Its warnings as JSON, and as text.
    #[getter]
    fn warnings(&self) -> (&str, &str) {
        (&self.warnings.0, &self.warnings.1)
    }

    /// The text of its file.
    #[getter]
    fn text(&self) -> &str {
        &self.checked.sources.main().text
    }

    /// Its id, title, agents, variables and the plan, as JSON.
    fn described(&self) -> String {
        let scenario = &self.checked;
        let plan = scenario.plan();
        let agents = scenario.agents.iter().map(|agent| {
            json!({
                "key": agent.key, "name": agent.name, "system": agent.system, "is_human": agent.is_human(),
                "tools": agent.tools.iter().map(|id| &scenario.tools[id.0].key).collect::<Vec<_>>(),
            })
        });
        let turns = plan.order().map(|(id, turn)| {
            let needs: Vec<&str> =
                plan.needs(id).map(|(needed, _)| plan.turn(needed).path.as_str()).collect();
            json!({
                "path": turn.path, "agent": scenario.agent(turn.speaker).key,
                "phase": scenario.phase(turn.phase).name, "round": turn.round, "needs": needs,
            })
        });
        // One elsewhere is no engine of this process, and needs permission.
        let model = scenario.usual_model().filter(|model| !EngineAddress::is_meant(model));
        let described = json!({
            "model": model, "n_cases": scenario.cases.as_ref().map_or(0, Vec::len),
            "id": scenario.id, "title": scenario.title, "agents": agents.collect::<Vec<_>>(),
            "variables": scenario.variables, "plan_hash": plan.hash(), "turns": turns.collect::<Vec<Value>>(),
        });
        described.to_string()
    }
}

/// JSON as YAML.
#[pyfunction]
pub(crate) fn to_yaml(json: &str) -> PyResult<String> {
    let value: Value = serde_json::from_str(json)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    serde_saphyr::to_string(&value)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}
