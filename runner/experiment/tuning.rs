//! Settings of a cell besides variables: `--sweep temperature=0,0.7`, `--sweep model=a.gguf,b.gguf`,
//! `--sweep model.NAME=…`.

use crate::diagnostic::unknown;
use crate::run::RunOptions;
use crate::scenario::hints::expected;
use crate::scenario::{Given, Hints, Overrides, Scenario, text_of};
use serde_json::Value;
use std::collections::BTreeMap;

/// Settings of a cell's runs, which replace the design's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Models, by their names in the scenario; the empty name is its own.
    models: BTreeMap<String, String>,
    /// Sampling settings and the most tokens of a reply.
    hints: Hints,
}

impl Tuning {
    /// Separates a cell's values into variables and settings. A variable with a setting's name counts as the
    /// variable.
    ///
    /// # Errors
    /// A description: a value that the setting can't have, or a model that the scenario does not name.
    pub fn of(scenario: &Scenario, values: &[(String, Value)]) -> Result<(Overrides, Self), String> {
        let (mut variables, mut tuning) = (Vec::new(), Self::default());
        for (name, value) in values {
            let first = name.split('.').next().unwrap_or_default();
            let is_variable = scenario.variables.contains_key(first);
            if !is_variable && first == "model" {
                let of = name.strip_prefix("model").unwrap_or_default().trim_start_matches('.');
                tuning.model(scenario, of, value)?;
            } else if !is_variable && Hints::overridable().any(|known| known == name) {
                tuning.number(name, value)?;
            } else {
                variables.push((name.clone(), value.clone()));
            }
        }
        Ok((variables, tuning))
    }

    fn model(&mut self, scenario: &Scenario, of: &str, value: &Value) -> Result<(), String> {
        if !of.is_empty() && !scenario.models.contains_key(of) {
            let message = format!("--sweep model.{of}=…: the scenario has no model `{of}`");
            return Err(unknown(&message, of, scenario.models.keys().map(String::as_str)));
        }
        // A name from the scenario may be used instead of a file.
        let model = text_of(value);
        let model = scenario.model(&model).unwrap_or(model);
        self.models.insert(of.to_string(), model);
        Ok(())
    }

    fn number(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let number = value.as_f64().unwrap_or(f64::NAN);
        if let Some(expected) = expected(name, number) {
            return Err(format!("--sweep {name}=…: {value} is not a valid {name}; expected {expected}"));
        }
        let whole = number.fract() == 0.0 && number <= f64::from(u32::MAX);
        let number = if whole { Value::from(number as u64) } else { Value::from(number) };
        let given = Value::from_iter([(name, number)]);
        let given: Hints =
            serde_json::from_value(given).map_err(|error| format!("--sweep {name}: {error}"))?;
        self.hints = given.over(&self.hints);
        Ok(())
    }

    /// Settings of runs, with these applied.
    pub(super) fn over(&self, options: &RunOptions) -> RunOptions {
        let sampling = self.hints.over(&options.sampling);
        let models = options.models.clone().into_iter().chain(self.models.clone()).collect();
        let swept: Given = self.hints.names().map(str::to_string).collect();
        let given = options.given.union(&swept).cloned().collect();
        let max_tokens = self.hints.max_tokens.unwrap_or(options.max_tokens);
        RunOptions { sampling, models, given, max_tokens, ..options.clone() }
    }

    /// The models that it sets, with their resolved names.
    pub fn models(&self) -> impl Iterator<Item = &String> {
        self.models.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::load;

    const TEXT: &str = "variables: { top_p: 1 }\n\
                        models: { big: a.gguf, small: understudy }\n\
                        agents: { ann: { model: big } }\n\
                        phases: [{ name: talk, agents: [ann], prompt: '{{ top_p }}' }, { name: ben, agents: [ann], prompt: x }]\n\
                        ";

    #[test]
    fn settings_are_distinguished_from_variables() {
        let scenario = load("x.yaml", TEXT, &[]).scenario.unwrap();
        let set = |name: &str, value: Value| Tuning::of(&scenario, &[(name.to_string(), value)]);
        let (variables, tuning) = set("top_p", 0.5.into()).unwrap();
        assert_eq!((variables.len(), tuning), (1, Tuning::default()));
        let (variables, tuning) = set("temperature", 0.into()).unwrap();
        let options = tuning.over(&RunOptions::default());
        assert_eq!((variables.len(), options.sampling.temperature), (0, Some(0.0)));
        assert_eq!(options.given, Given::from(["temperature".to_string()]));
        let options = set("model.big", "small".into()).unwrap().1.over(&RunOptions::default());
        assert_eq!(options.models["big"], "understudy");
        assert!(set("model.bog", "x".into()).unwrap_err().contains("did you mean `big`"));
        assert!(set("temperature", (-1).into()).unwrap_err().contains("at least 0"));
        assert!(set("max_tokens", 1.5.into()).unwrap_err().contains("a whole number"));
    }
}
