//! Results of expressions over what has happened: new values of the state, agents who are present, options
//! that are open.
//!
//! A change of the state is a function of the record, so nothing of it is taken on trust: a replay works it
//! out again.

use super::chance::{DRAWS, Draws};
use super::choice::text_of;
use super::render::{evaluate_for, evaluate_with};
use super::results::{History, StateValues};
use super::template::{Expression, TemplateError, TemplateFault, evaluate_in, plain_variables};
use super::{AgentId, Assignment, Chance, Choice, Path, Scenario};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The state before the first turn of a run.
///
/// # Errors
/// The path of a value that can't be computed, or is of another type than with other seeds, and why.
pub fn initial(scenario: &Scenario, chance: Chance) -> Result<StateValues, (Path, TemplateError)> {
    let mut state = scenario.state.clone();
    for (name, expression) in &scenario.computed {
        let found = drawn_alone(&scenario.variables, expression, chance.first);
        let found = found.and_then(|found| {
            let declared = state.get(name).map_or("anything", kind);
            if declared == kind(&found) {
                return Ok(found);
            }
            let message =
                format!("`{name}` is {declared} with other seeds, but this returns {}", kind(&found));
            Err(TemplateError { kind: TemplateFault::Other, message, line: 1 })
        });
        state.insert(name.clone(), found.map_err(|error| (expression.path.clone(), error))?);
    }
    Ok(state)
}

/// The value of an expression over variables that may draw.
pub(crate) fn drawn_alone(
    variables: &BTreeMap<String, Value>,
    expression: &Expression,
    root: u64,
) -> Result<Value, TemplateError> {
    let mut context = plain_variables(variables);
    context.insert(DRAWS.to_string(), Draws::at(root, &expression.path.to_string()));
    evaluate_in(context, expression, [])
}

/// The state after some assignments, of which each sees those before it; `said` holds the state before them.
///
/// # Errors
/// The path of an expression that fails, or whose value is of another type than what was declared, and why.
pub fn assigned(
    scenario: &Arc<Scenario>,
    assignments: &[Assignment],
    said: &History,
    names: &[(&str, Value)],
) -> Result<Arc<StateValues>, (Path, TemplateError)> {
    let mut said = Arc::new(said.clone());
    for Assignment { name, each, value } in assignments {
        let failed = |error| (value.path.clone(), error);
        let found = match each {
            None => evaluate_with(scenario, value, &said, names.iter().cloned()).map_err(failed)?,
            Some(each) => {
                let agents = present(scenario, each, &said, names);
                let agents = agents.map_err(|error| (each.path.clone(), error))?;
                let mut entries = said.state.get(name).cloned().unwrap_or_default();
                for agent in agents {
                    // Each knows the state before all of them.
                    let found = evaluate_for(scenario, value, agent, &said, names.iter().cloned());
                    let found = found.map_err(failed)?;
                    if let Value::Object(entries) = &mut entries {
                        entries.insert(scenario.agent(agent).key.clone(), found);
                    }
                }
                entries.sort_all_objects();
                entries
            }
        };
        let declared = scenario.state.get(name).map_or("anything", kind);
        if declared != "anything" && declared != kind(&found) {
            let message =
                format!("`{name}` is {declared}, but this returns {}: {}", kind(&found), text_of(&found));
            return Err(failed(TemplateError { kind: TemplateFault::Other, message, line: 1 }));
        }
        let mut state = StateValues::clone(&said.state);
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

/// The agents whose keys an expression gives.
///
/// # Errors
/// The expression fails, or gives something else.
pub fn present(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<History>,
    names: &[(&str, Value)],
) -> Result<BTreeSet<AgentId>, TemplateError> {
    let value = evaluate_with(scenario, expression, said, names.iter().cloned())?;
    let wrong = |message: String| TemplateError { kind: TemplateFault::Other, message, line: 1 };
    let Value::Array(keys) = value else {
        return Err(wrong(format!("expected a list of agent keys, found {}", text_of(&value))));
    };
    let agent = |key: Value| {
        let known = key.as_str().and_then(|key| scenario.agent_by_key(key));
        known.ok_or_else(|| wrong(format!("expected agent keys, found {}", text_of(&key))))
    };
    keys.into_iter().map(agent).collect()
}

/// The pairs that an expression gives: lists of two agents' keys. One who is left over has a list of its
/// own, and no turn.
///
/// # Errors
/// The expression fails, gives something else, or an agent twice.
pub fn pairs(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<History>,
    names: &[(&str, Value)],
) -> Result<Vec<(AgentId, AgentId)>, TemplateError> {
    let value = evaluate_with(scenario, expression, said, names.iter().cloned())?;
    let wrong = |message: String| TemplateError { kind: TemplateFault::Other, message, line: 1 };
    let expected = |found: &Value| {
        wrong(format!("expected a list of pairs such as [['ann', 'ben']], found {}", text_of(found)))
    };
    let (mut pairs, mut seen) = (Vec::new(), BTreeSet::new());
    for pair in value.as_array().ok_or_else(|| expected(&value))? {
        let keys = pair.as_array().filter(|pair| (1..=2).contains(&pair.len()));
        let agent = |key: &Value| key.as_str().and_then(|key| scenario.agent_by_key(key));
        let agents: Option<Vec<AgentId>> = keys.and_then(|keys| keys.iter().map(agent).collect());
        let agents = agents.ok_or_else(|| expected(&value))?;
        if let Some(twice) = agents.iter().find(|agent| !seen.insert(**agent)) {
            let key = &scenario.agent(*twice).key;
            return Err(wrong(format!("`{key}` is in more than one pair of a round: {}", text_of(&value))));
        }
        if let [one, other] = agents[..] {
            pairs.push((one, other));
        }
    }
    Ok(pairs)
}

impl Choice {
    /// The options that are open to an agent, by index; their results are those that `open` gives. What is
    /// not an option is not open.
    ///
    /// # Errors
    /// The expression fails, or gives no list.
    pub fn open_among(
        &self,
        scenario: &Arc<Scenario>,
        open: &Expression,
        agent: AgentId,
        said: &Arc<History>,
        names: &[(&'static str, Value)],
    ) -> Result<Vec<usize>, TemplateError> {
        let value = evaluate_for(scenario, open, agent, said, names.iter().cloned())?;
        let Value::Array(results) = value else {
            let message = format!("expected a list of options, found {}", text_of(&value));
            return Err(TemplateError { kind: TemplateFault::Other, message, line: 1 });
        };
        let is_open = |option: &usize| results.contains(&self.options[*option].value);
        Ok((0..self.options.len()).filter(is_open).collect())
    }
}
