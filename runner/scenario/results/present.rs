//! Lists that expressions give: agents who are present, options that are open.

use super::Said;
use crate::scenario::choice::text_of;
use crate::scenario::render::{evaluate_for, evaluate_with};
use crate::scenario::template::{Expression, Fault, TemplateError};
use crate::scenario::{AgentId, Choice, Scenario};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The agents whose keys an expression gives.
///
/// # Errors
/// The expression fails, or gives something else.
pub fn present(
    scenario: &Arc<Scenario>,
    expression: &Expression,
    said: &Arc<Said>,
    names: &[(&str, Value)],
) -> Result<BTreeSet<AgentId>, TemplateError> {
    let value = evaluate_with(scenario, expression, said, names.iter().cloned())?;
    let wrong = |message: String| TemplateError { kind: Fault::Other, message, line: 1 };
    let Value::Array(keys) = value else {
        return Err(wrong(format!("expected a list of agents' keys, found {}", text_of(&value))));
    };
    let agent = |key: Value| {
        let known = key.as_str().and_then(|key| scenario.agent_by_key(key));
        known.ok_or_else(|| wrong(format!("expected agents' keys, found {}", text_of(&key))))
    };
    keys.into_iter().map(agent).collect()
}

impl Choice {
    /// The options that are open to an agent, by index; their results are those that `open` gives. What is no option is not open.
    ///
    /// # Errors
    /// The expression fails, or gives no list.
    pub fn open_among(
        &self,
        scenario: &Arc<Scenario>,
        open: &Expression,
        agent: AgentId,
        said: &Arc<Said>,
        names: &[(&'static str, Value)],
    ) -> Result<Vec<usize>, TemplateError> {
        let value = evaluate_for(scenario, open, agent, said, names.iter().cloned())?;
        let Value::Array(results) = value else {
            let message = format!("expected a list of options, found {}", text_of(&value));
            return Err(TemplateError { kind: Fault::Other, message, line: 1 });
        };
        let is_open = |option: &usize| results.contains(&self.options[*option].value);
        Ok((0..self.options.len()).filter(is_open).collect())
    }
}
