//! Checks the list of a block that is played for each item of one.

use super::{Checker, is_identifier};
use crate::choice::text_of;
use crate::schema::WrittenExpression;
use crate::template::{evaluate_in, expression_names, plain_variables};
use crate::{Item, PhaseId};
use greenroom_yaml::Path;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const EXAMPLE: &str = "e.g. `for: place in places`, where `places` is a list under `variables`";

impl Checker {
    /// The names and the items of `NAME in LIST`; no items where something is wrong with it.
    pub(super) fn items(&mut self, written: &str, path: &Path) -> (Vec<String>, Vec<Arc<Item>>) {
        let Some((names, list)) = written.split_once(" in ") else {
            let message = format!("expected `NAME in LIST`, found `{}`", written.trim());
            self.error("bad-value", path, message).help = Some(EXAMPLE.into());
            return Default::default();
        };
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_string()).collect();
        for (at, name) in names.iter().enumerate() {
            let message = match self.name_taken(name, path) {
                _ if !is_identifier(name) => {
                    format!("`{name}` is not a valid name: use letters, digits and `_`")
                }
                Some(by) => format!("`{name}` is the name of {by}, so an item can't have it"),
                None if names[..at].contains(name) => format!("`{name}` appears twice here"),
                None => continue,
            };
            self.error("bad-name", path, message).help = Some("choose another name".into());
            return (names, Vec::new());
        }
        let Some(values) = self.listed(list.trim(), path) else { return (names, Vec::new()) };
        let mut items = Vec::new();
        for value in &values {
            let values = match (&names[..], value) {
                ([name], value) => BTreeMap::from([(name.clone(), value.clone())]),
                (_, Value::Array(parts)) if parts.len() == names.len() => {
                    names.iter().cloned().zip(parts.iter().cloned()).collect()
                }
                _ => {
                    let message = format!("expected items of {} values each, found {value}", names.len());
                    self.error("bad-value", path, message).help =
                        Some("write as many names as an item has values".into());
                    return (names, Vec::new());
                }
            };
            items.push((part(value), values));
        }
        // Parts name phases in transcripts: where they can't, numbers do.
        let distinct: BTreeSet<&Option<String>> = items.iter().map(|(part, _)| part).collect();
        let are_names = distinct.len() == items.len() && !distinct.contains(&None);
        let item = |(at, (part, values)): (usize, (Option<String>, BTreeMap<String, Value>))| {
            let number = (at + 1).to_string();
            Arc::new(Item { part: part.filter(|_| are_names).unwrap_or(number), values })
        };
        let items = items.into_iter().enumerate().map(item).collect();
        (names, items)
    }

    /// The values of a list over variables.
    fn listed(&mut self, list: &str, path: &Path) -> Option<Vec<Value>> {
        let list = self.expression(WrittenExpression::Text(list.into()), path.clone(), PhaseId(0), &[])?;
        let names = expression_names(&list.text).unwrap_or_default();
        if let Some(outer) = names.iter().find(|name| self.is_pass_name(path, name)) {
            let message = format!(
                "`{outer}` differs in each pass of the outer block, but the list of a block in it is the same in all"
            );
            self.error("bad-value", path, message).help =
                Some("list the combinations under `variables`: `for: one, other in combinations`".into());
            return None;
        }
        let message = match evaluate_in(plain_variables(&self.names.values), &list, []) {
            _ if list.scope.state => "the list uses the state, but is needed before the run".to_string(),
            _ if !list.scope.lets.is_empty() => {
                "the list uses an intermediate value, but is needed before the run".to_string()
            }
            Ok(Value::Array(values)) if values.is_empty() => "the list is empty".to_string(),
            Ok(Value::Array(values)) => return Some(values),
            Ok(other) => format!("expected a list, found {}", text_of(&other)),
            Err(error) => error.message,
        };
        self.error("bad-value", path, message).help = Some(EXAMPLE.into());
        None
    }

    /// What has a name already, of all that expressions can name.
    fn name_taken(&self, name: &str, path: &Path) -> Option<&'static str> {
        use crate::template::{
            EXPRESSION_NAMES, FUNCTIONS, OUTER, PASS_NAMES, ROUND_NAMES, STAGE_NAMES, SYSTEM_NAMES,
        };
        let fixed =
            [EXPRESSION_NAMES, STAGE_NAMES, ROUND_NAMES, PASS_NAMES, SYSTEM_NAMES, &[OUTER, "outcome"]];
        let is_fixed = fixed.iter().any(|names| names.contains(&name))
            || FUNCTIONS.iter().any(|(function, _)| *function == name);
        let around = self.names.items.iter().filter(|(block, _)| path.0.starts_with(&block.0));
        let is_item = || around.clone().any(|(_, names)| names.iter().any(|known| known == name));
        match name {
            _ if is_fixed => Some("something else in templates"),
            _ if self.names.variables.iter().any(|known| known == name) => Some("a variable"),
            _ if self.names.state.iter().any(|known| known == name) => Some("something in the state"),
            _ if self.names.lets.iter().any(|known| known.name == name) => Some("an intermediate value"),
            _ if self.names.has_agent(name) => Some("an agent"),
            _ if self.names.phase(name).is_some() => Some("a phase"),
            _ if is_item() => Some("an item of the block around this one"),
            _ => None,
        }
    }
}

/// How an item is written in the path of a turn; `None`: it can't be.
fn part(value: &Value) -> Option<String> {
    let is_plain = |text: &String| {
        !text.is_empty()
            && text.len() <= 40
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
    };
    match value {
        Value::Array(parts) => {
            let parts: Option<Vec<String>> = parts.iter().map(part).collect();
            parts.map(|parts| parts.join("-")).filter(is_plain)
        }
        Value::Object(_) | Value::Null => None,
        other => Some(text_of(other)).filter(is_plain),
    }
}
