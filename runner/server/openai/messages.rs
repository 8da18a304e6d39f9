//! Messages and tools of chat completions, read into lines of a dialogue.

use super::super::answer::ReadCall as _;
use super::super::dialogue::DialogueLine;
use super::super::error::Refusal;
use greenroom_engine::{Call, Tool, ToolChoice, Tools};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// How to call tools, for a model whose chat template does not support them.
const FORM: &str = r#"You may call a tool instead of replying. A call is nothing but {"tool": NAME, "arguments": {…}}. The tools:"#;

/// A message.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a message: an object with a `role`")]
pub(in super::super) struct OpenAiMessage {
    role: OpenAiRole,
    #[serde(default)]
    content: Option<MessageParts>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OpenAiRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// Text, whole or in parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts, each with its `type`")]
pub(in super::super) enum MessageParts {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize)]
pub(in super::super) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    id: String,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// A tool that may be called.
#[derive(Debug, Deserialize)]
pub(in super::super) struct OpenAiTool {
    #[serde(rename = "type")]
    kind: String,
    function: Option<FunctionEntry>,
}

/// A function, as tools name it.
#[derive(Debug, Deserialize)]
pub(in super::super) struct FunctionEntry {
    pub(in super::super) name: String,
    #[serde(default)]
    pub(in super::super) description: Option<String>,
    #[serde(default)]
    pub(in super::super) parameters: Option<Value>,
}

/// The lines of messages.
///
/// # Errors
/// A part that is not text, a result without the id of its call.
pub(in super::super) fn lines(messages: Vec<OpenAiMessage>) -> Result<Vec<DialogueLine>, Refusal> {
    let mut lines = Vec::new();
    for (at, message) in messages.into_iter().enumerate() {
        let place = format!("messages[{at}]");
        let content = text(message.content, &format!("{place}.content"))?;
        match message.role {
            OpenAiRole::System | OpenAiRole::Developer => {
                lines.push(DialogueLine::System(content.unwrap_or_default()))
            }
            OpenAiRole::User => lines.push(DialogueLine::User(content.unwrap_or_default())),
            OpenAiRole::Tool => {
                let id = message.tool_call_id.ok_or_else(|| {
                    Refusal::field(
                        &format!("{place}.tool_call_id"),
                        "a tool message needs the id of the call that it answers",
                    )
                })?;
                lines.push(DialogueLine::Result { id, text: content.unwrap_or_default() });
            }
            OpenAiRole::Assistant => {
                let calls = message.tool_calls.unwrap_or_default();
                let has_calls = !calls.is_empty();
                lines.extend(
                    content.filter(|text| !has_calls || !text.is_empty()).map(DialogueLine::Assistant),
                );
                lines.extend(calls.into_iter().map(
                    |ToolCall { id, function: Function { name, arguments } }| {
                        let call = match arguments {
                            Value::String(text) => Call::read(name, &text),
                            Value::Null => Call::read(name, ""),
                            arguments => Call { tool: name, arguments },
                        };
                        DialogueLine::Call { id, call }
                    },
                ));
            }
        }
    }
    Ok(lines)
}

/// The text of a content.
///
/// # Errors
/// A part is not text.
pub(in super::super) fn text(content: Option<MessageParts>, place: &str) -> Result<Option<String>, Refusal> {
    let parts = match content {
        None => return Ok(None),
        Some(MessageParts::Text(text)) => return Ok(Some(text)),
        Some(MessageParts::Parts(parts)) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(n, part)| {
        match (part.kind.as_str(), part.text.or(part.refusal)) {
            ("text" | "input_text" | "output_text" | "refusal", Some(text)) => Ok(text),
            (kind, _) => Err(Refusal::field(
                &format!("{place}[{n}]"),
                format!("parts of type `{kind}` are not supported: these models read only text"),
            )),
        }
    });
    Ok(Some(texts.collect::<Result<Vec<_>, _>>()?.join("\n")))
}

/// Says that a tool is none that a client runs, so the model does not hear of it.
pub(in super::super) fn left_out(n: usize, kind: &str) -> String {
    format!("`tools[{n}]` is left out: this server runs no tools of type `{kind}`")
}

/// The tools of chat completions, and what was left out.
///
/// # Errors
/// A function is not described, or its schema can't be followed.
pub(in super::super) fn tools(
    entries: Vec<OpenAiTool>,
) -> Result<(Option<Arc<Tools>>, Vec<String>), Refusal> {
    let (mut functions, mut left) = (Vec::new(), Vec::new());
    for (n, OpenAiTool { kind, function }) in entries.into_iter().enumerate() {
        match function {
            Some(function) if kind == "function" => functions.push(function),
            None if kind == "function" => {
                let place = format!("tools[{n}].function");
                return Err(Refusal::field(&place, format!("`{place}` is missing: its name and parameters")));
            }
            _ => left.push(left_out(n, &kind)),
        }
    }
    Ok((offered(functions)?, left))
}

/// Functions in the engine's form; `None`: there are none.
///
/// # Errors
/// A schema can't be followed.
pub(in super::super) fn offered(functions: Vec<FunctionEntry>) -> Result<Option<Arc<Tools>>, Refusal> {
    if functions.is_empty() {
        return Ok(None);
    }
    let list = functions.into_iter().map(|function| Tool {
        name: function.name,
        about: function.description.unwrap_or_default(),
        arguments: function.parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {} })),
    });
    let list: Vec<Tool> = list.collect();
    for (n, tool) in list.iter().enumerate() {
        // Anything in a client's schema beyond that is for the client to check.
        let relaxed = greenroom_engine::Grammar::json_schema(&tool.arguments).relaxed();
        let check = relaxed.and_then(|relaxed| relaxed.grammar.check());
        check.map_err(|error| {
            Refusal::field(&format!("tools[{n}]"), format!("the schema of `{}`: {error}", tool.name))
        })?;
    }
    let listed =
        list.iter().map(|tool| format!("\n- {}: {} Arguments: {}", tool.name, tool.about, tool.arguments));
    let instructions = format!("{FORM}{}", listed.collect::<String>());
    Ok(Some(Arc::new(Tools { list, instructions })))
}

/// Which calls a `tool_choice` lets a reply make.
///
/// # Errors
/// It is of no known form, or names no tool.
pub(in super::super) fn calls(choice: Option<&Value>, tools: Option<&Tools>) -> Result<ToolChoice, Refusal> {
    let Some(tools) = tools else {
        return match choice.and_then(Value::as_str) {
            None | Some("none" | "auto") => Ok(ToolChoice::Never),
            Some(_) => Err(Refusal::field("tool_choice", "there are no tools to choose from")),
        };
    };
    match choice {
        None | Some(Value::Null) => Ok(ToolChoice::Allowed),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Allowed),
            "none" => Ok(ToolChoice::Never),
            "required" | "any" => Ok(ToolChoice::Required),
            _ => Err(Refusal::field(
                "tool_choice",
                format!("unknown value `{word}`; expected auto, none, required, or a function"),
            )),
        },
        Some(named) => {
            let name = named["function"]["name"].as_str().or(named["name"].as_str());
            match name.filter(|name| tools.list.iter().any(|tool| tool.name == *name)) {
                Some(name) => Ok(ToolChoice::Named(name.into())),
                None => Err(Refusal::field("tool_choice", format!("{named} names no known tool"))),
            }
        }
    }
}
