//! Tools of a request, and which calls its reply may make.

use super::super::error::Refusal;
use super::super::openai::{FunctionEntry, left_out, offered};
use super::super::thinking::ThinkingGiven;
use super::messages::fault;
use greenroom_engine::{Reasoning, ToolChoice, Tools};
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// A tool that may be called.
#[derive(Debug, Deserialize)]
pub(super) struct AnthropicTool {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    description: Option<String>,
    input_schema: Option<Value>,
}

/// Which calls a reply may make.
#[derive(Debug, Deserialize)]
pub(super) struct WrittenToolChoice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

impl WrittenToolChoice {
    /// True if a reply may be several calls. It is off by default, because small models that may make several
    /// make many.
    pub(super) fn is_joint(&self) -> bool {
        self.disable_parallel_tool_use == Some(false)
    }
}

/// Thinking before a reply.
#[derive(Debug, Deserialize)]
pub(super) struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<usize>,
}

/// The tools of a request, and what was left out: those that Anthropic's servers would run.
///
/// # Errors
/// A tool has no name or no schema, or one that can't be followed.
pub(super) fn tools(entries: Vec<AnthropicTool>) -> Result<(Option<Arc<Tools>>, Vec<String>), Refusal> {
    let (mut functions, mut left) = (Vec::new(), Vec::new());
    for (n, entry) in entries.into_iter().enumerate() {
        if let Some(kind) = entry.kind.filter(|kind| kind != "custom") {
            left.push(left_out(n, &kind));
            continue;
        }
        let (Some(name), Some(schema)) = (entry.name, entry.input_schema) else {
            return Err(fault(&format!("tools[{n}]"), "a tool needs a `name` and an `input_schema`"));
        };
        functions.push(FunctionEntry { name, description: entry.description, parameters: Some(schema) });
    }
    Ok((offered(functions)?, left))
}

/// Which calls a `tool_choice` lets a reply make.
///
/// # Errors
/// It is of no known type, or names no tool.
pub(super) fn calls(
    choice: Option<&WrittenToolChoice>,
    tools: Option<&Tools>,
) -> Result<ToolChoice, Refusal> {
    let kind = choice.map_or("auto", |choice| choice.kind.as_str());
    let Some(tools) = tools else {
        return match kind {
            "auto" | "none" => Ok(ToolChoice::Never),
            _ => Err(fault("tool_choice", "there are no tools to choose from")),
        };
    };
    match kind {
        "auto" => Ok(ToolChoice::Allowed),
        "none" => Ok(ToolChoice::Never),
        "any" => Ok(ToolChoice::Required),
        "tool" => {
            let name = choice.and_then(|choice| choice.name.as_deref()).unwrap_or_default();
            if tools.list.iter().any(|tool| tool.name == name) {
                Ok(ToolChoice::Named(name.into()))
            } else {
                Err(fault("tool_choice.name", format!("there is no tool `{name}`")))
            }
        }
        _ => Err(fault(
            "tool_choice.type",
            format!("unknown value `{kind}`; expected auto, any, tool, or none"),
        )),
    }
}

impl Thinking {
    /// How much is thought. If the model may choose (`adaptive`), it is as its template has it.
    ///
    /// # Errors
    /// Its type is not known.
    pub(super) fn given(&self) -> Result<ThinkingGiven, Refusal> {
        let level = match self.kind.as_str() {
            "disabled" => Some(Reasoning::None),
            "adaptive" => None,
            "enabled" => Some(Reasoning::Medium),
            kind => {
                let found = format!("unknown value `{kind}`; expected enabled, disabled, or adaptive");
                return Err(fault("thinking.type", found));
            }
        };
        Ok(ThinkingGiven { level, max_tokens: self.budget_tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tool_that_anthropics_servers_run_is_left_out() {
        let server = json!([{ "type": "web_search_20250305", "name": "web_search" }]);
        let (tools, left) = tools(serde_json::from_value(server).unwrap()).unwrap();
        assert!(tools.is_none() && left[0].contains("`web_search_20250305`"), "{left:?}");
    }

    #[test]
    fn a_choice_names_one_of_the_tools() {
        let entries = json!([{ "name": "look", "input_schema": { "type": "object" } }]);
        let (tools, _) = tools(serde_json::from_value(entries).unwrap()).unwrap();
        let calls = |choice: Value| calls(Some(&serde_json::from_value(choice).unwrap()), tools.as_deref());
        assert_eq!(
            calls(json!({ "type": "any", "disable_parallel_tool_use": true })).unwrap(),
            ToolChoice::Required
        );
        assert_eq!(
            calls(json!({ "type": "tool", "name": "look" })).unwrap(),
            ToolChoice::Named("look".into())
        );
        assert!(calls(json!({ "type": "tool", "name": "fly" })).unwrap_err().message().contains("`fly`"));
        assert!(calls(json!({ "type": "all" })).unwrap_err().message().contains("unknown value `all`"));
    }
}
