//! The state: named values of a scenario that change as it is played, by expressions over what has happened.
//!
//! A change is a function of the record, so nothing of it is taken on trust: a replay works it out again.

use super::Said;
use crate::scenario::choice::text_of;
use crate::scenario::render::evaluate_with;
use crate::scenario::template::{Fault, TemplateError};
use crate::scenario::{Assignment, Path, Scenario};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Values by name.
pub type State = BTreeMap<String, Value>;

/// The state after some assignments, of which each sees those before it; `said` holds the state before them.
///
/// # Errors
/// The path of an expression that fails, or whose value is of another type than what was declared, and why.
pub fn assigned<'a>(
    scenario: &Arc<Scenario>,
    assignments: &[Assignment],
    said: &Said,
    names: &[(&'a str, Value)],
) -> Result<Arc<State>, (Path, TemplateError)> {
    let mut said = Arc::new(said.clone());
    for Assignment { name, value } in assignments {
        let failed = |error| (value.path.clone(), error);
        let found = evaluate_with(scenario, value, &said, names.iter().cloned()).map_err(failed)?;
        let declared = scenario.state.get(name).map_or("anything", kind);
        if declared != "anything" && declared != kind(&found) {
            let message =
                format!("`{name}` is {declared}, and this gives {}: {}", kind(&found), text_of(&found));
            return Err(failed(TemplateError { kind: Fault::Other, message, line: 1 }));
        }
        let mut state = State::clone(&said.state);
        state.insert(name.clone(), found);
        Arc::make_mut(&mut said).state = Arc::new(state);
    }
    Ok(said.state.clone())
}

/// The type of a value, with its article; what is declared as null may become anything.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "anything",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
