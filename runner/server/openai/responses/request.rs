//! The body of a request for a response: read, checked, and made into settings and the response as it begins.

use super::super::messages::{self, FunctionEntry};
use super::super::words::CacheOptions;
use super::input::Status;
use super::output::ResponseObject;
use crate::server::ask::{AnswerSettings, fresh_id};
use crate::server::body;
use crate::server::controls::controls;
use crate::server::error::Refusal;
use crate::server::models::now;
use crate::server::thinking::ThinkingGiven;
use greenroom_engine::{MAX_TOP_LOGPROBS, Tools};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Unsupported fields that would change the response.
const UNSUPPORTED: [&str; 5] = ["background", "conversation", "prompt", "context_management", "moderation"];
/// The value in `include` that requests log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

#[derive(Deserialize)]
pub(super) struct ResponsesBody {
    pub(super) model: String,
    #[serde(default)]
    pub(super) input: Value,
    pub(super) instructions: Option<String>,
    pub(super) previous_response_id: Option<String>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) stream: Option<bool>,
    /// Extension: how the prompt matched the memory.
    #[serde(default)]
    pub(super) greenroom: bool,
    temperature: Option<f64>,
    top_p: Option<f64>,
    max_output_tokens: Option<usize>,
    tools: Option<Vec<ToolGiven>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextOptions>,
    top_logprobs: Option<usize>,
    include: Option<Vec<String>>,
    prompt_cache_options: Option<CacheOptions>,
    metadata: Option<BTreeMap<String, String>>,
    user: Option<String>,
    safety_identifier: Option<String>,
    store: Option<bool>,
    truncation: Option<String>,
    /// All settings of the reply; those here are reported as they were given.
    #[serde(skip, default = "no_controls")]
    controls: AnswerSettings,
    /// How much is thought before the reply.
    #[serde(skip)]
    pub(super) thinking: ThinkingGiven,
    /// The same as it was given.
    #[serde(default)]
    reasoning: Value,
}

/// A tool as clients send it.
#[derive(Deserialize)]
struct ToolGiven {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

#[derive(Deserialize)]
struct TextOptions {
    format: Option<TextFormat>,
}

/// The format of the reply.
#[derive(Clone, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum TextFormat {
    Text,
    JsonObject,
    JsonSchema { name: String, description: Option<String>, schema: Value, strict: Option<bool> },
}

fn no_controls() -> AnswerSettings {
    AnswerSettings::new(0)
}

impl ResponsesBody {
    /// Reads a body.
    ///
    /// # Errors
    /// A field is wrong, or asks for what is not supported.
    pub(super) fn read(value: Value) -> Result<Self, Refusal> {
        body::refuse(&value, &UNSUPPORTED)?;
        let (controls, thinking) = (controls(&value)?, ThinkingGiven::read(&value)?);
        let body = Self { controls, thinking, ..body::of_value(value)? };
        if let Some(other) = body.truncation.as_deref().filter(|word| *word != "disabled") {
            let message = format!("`truncation` is `{other}`, which is not supported; expected `disabled`");
            return Err(Refusal::field("truncation", message));
        }
        if let Some(n) = body.top_logprobs.filter(|n| *n > MAX_TOP_LOGPROBS) {
            let message = format!("`top_logprobs` is {n}; expected at most {MAX_TOP_LOGPROBS}");
            return Err(Refusal::field("top_logprobs", message));
        }
        if body.max_output_tokens == Some(0) {
            return Err(Refusal::field("max_output_tokens", "`max_output_tokens` is 0; expected 1 or more"));
        }
        Ok(body)
    }

    /// The tools, and what was left out: those that OpenAI's servers would run. `None`: there are none.
    ///
    /// # Errors
    /// A function has no name, or its schema can't be followed.
    pub(super) fn tools(&self) -> Result<(Option<Arc<Tools>>, Vec<String>), Refusal> {
        let (mut functions, mut left) = (Vec::new(), Vec::new());
        for (n, tool) in self.tools.iter().flatten().enumerate() {
            match &tool.name {
                Some(name) if tool.kind == "function" => functions.push(FunctionEntry {
                    name: name.clone(),
                    description: tool.description.clone(),
                    parameters: tool.parameters.clone(),
                }),
                None if tool.kind == "function" => {
                    let found = format!("`tools[{n}]` has no name");
                    return Err(Refusal::field(&format!("tools[{n}].name"), found));
                }
                _ => left.push(messages::left_out(n, &tool.kind)),
            }
        }
        Ok((messages::offered(functions)?, left))
    }

    /// The settings of the answer.
    ///
    /// # Errors
    /// A schema can't be followed, or `tool_choice` names no tool.
    pub(super) fn settings(&self, tools: Option<&Tools>) -> Result<AnswerSettings, Refusal> {
        Ok(AnswerSettings {
            max_thought_tokens: self.thinking.limit(),
            calls: messages::calls(self.tool_choice.as_ref(), tools)?,
            parallel_tool_calls: self.may_call_several(),
            logprobs: self.has_logprobs().then_some(self.top_logprobs.unwrap_or(0)),
            ..self.controls.clone()
        })
    }

    /// Off by default, because small models that may make several calls make many.
    fn may_call_several(&self) -> bool {
        self.parallel_tool_calls.unwrap_or(false)
    }

    fn format(&self) -> TextFormat {
        self.text.as_ref().and_then(|text| text.format.clone()).unwrap_or(TextFormat::Text)
    }

    /// True if log-probabilities are requested.
    pub(super) fn has_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// The response whose prompt this one's is compared with.
    pub(super) fn compares(&self) -> Option<String> {
        self.prompt_cache_options.as_ref().and_then(|options| options.comparison_response_id.clone())
    }

    /// The response, before any text.
    pub(super) fn begin(&self) -> ResponseObject {
        let tools = self.tools.iter().flatten().map(|tool| {
            json!({
                "type": tool.kind,
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                // Arguments always follow their schema.
                "strict": tool.strict.unwrap_or(true),
            })
        });
        ResponseObject {
            id: fresh_id("resp_"),
            object: "response".to_string(),
            created_at: now(),
            status: Status::InProgress,
            model: self.model.clone(),
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            metadata: self.metadata.clone().unwrap_or_default(),
            parallel_tool_calls: self.may_call_several(),
            previous_response_id: self.previous_response_id.clone(),
            prompt_cache_key: self.prompt_cache_key.clone(),
            reasoning: json!({ "effort": self.reasoning["effort"], "summary": null }),
            safety_identifier: self.safety_identifier.clone(),
            service_tier: "default".to_string(),
            store: self.store.unwrap_or(true),
            temperature: self.temperature.unwrap_or(1.0),
            text: json!({ "format": self.format() }),
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| json!("auto")),
            tools: tools.collect(),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            truncation: "disabled".to_string(),
            user: self.user.clone(),
            ..ResponseObject::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<ResponsesBody, Refusal> {
        ResponsesBody::read(value.clone())
    }

    #[test]
    fn a_response_begins_with_what_was_asked_for() {
        let tool = json!({
            "type": "function", "name": "f", "description": "F.", "parameters": { "type": "object" }
        });
        let body = read(&json!({
            "model": "m",
            "input": "a",
            "tools": [tool],
            "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": {
                "type": "json_schema", "name": "s", "schema": { "type": "object" }, "strict": true
            } },
            "metadata": { "k": "v" },
            "temperature": 0.7,
            "include": ["reasoning.encrypted_content", LOGPROBS],
            "top_logprobs": 2,
        }));
        let body = body.unwrap();
        let response = json!(body.begin());
        assert_eq!(response["object"], "response");
        assert_eq!(response["status"], "in_progress");
        assert_eq!(response["output"], json!([]));
        assert_eq!(response["text"]["format"]["name"], "s");
        assert_eq!(response["tools"][0]["strict"], true);
        assert_eq!(response["metadata"], json!({ "k": "v" }));
        assert_eq!(response["temperature"], 0.7);
        assert_eq!(response["store"], true);
        for field in ["error", "incomplete_details", "instructions", "previous_response_id", "usage", "user"]
        {
            assert_eq!(response.get(field), Some(&Value::Null), "{field}");
        }
        let (tools, _) = body.tools().unwrap();
        let settings = body.settings(tools.as_deref()).unwrap();
        assert_eq!(settings.calls, greenroom_engine::ToolChoice::Named("f".into()));
        assert_eq!(settings.logprobs, Some(2));
        assert!(settings.grammar.is_some());
    }

    #[test]
    fn what_is_not_supported_is_refused_by_its_name() {
        for (field, value) in [
            ("background", json!(true)),
            ("conversation", json!("conv_1")),
            ("truncation", json!("auto")),
            ("top_logprobs", json!(21)),
            ("max_output_tokens", json!(0)),
            ("temperature", json!("hot")),
        ] {
            let mut body = json!({ "model": "m", "input": "a" });
            body[field] = value;
            let refusal = read(&body).err().unwrap();
            assert_eq!(refusal.openai()["error"]["param"], field);
        }
        let with_tool = |tool| read(&json!({ "model": "m", "input": "a", "tools": [tool] })).unwrap().tools();
        let nameless = with_tool(json!({ "type": "function" })).unwrap_err();
        assert_eq!(nameless.openai()["error"]["param"], "tools[0].name");
        let (tools, left) = with_tool(json!({ "type": "web_search" })).unwrap();
        assert!(tools.is_none() && left[0].contains("`web_search`"), "{left:?}");
    }
}
