//! Items: inputs and outputs of a response, as the API shows them; read from requests, and converted to lines
//! of a dialogue.

use crate::server::answer::ReadCall as _;
use crate::server::ask::fresh_id;
use crate::server::body;
use crate::server::dialogue::DialogueLine;
use crate::server::error::Refusal;
use greenroom_engine::Call;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An item of an input or an output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Message {
        id: String,
        role: InputRole,
        status: Status,
        content: Vec<InputPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: Status,
    },
    FunctionCallOutput {
        id: String,
        call_id: String,
        output: String,
        status: Status,
    },
    /// What was thought before a reply. In an input it has no effect: what the model thought is remembered.
    Reasoning {
        id: String,
        summary: Vec<Value>,
        content: Vec<ReasoningPart>,
        status: Status,
    },
}

/// A part of a thought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ReasoningPart {
    ReasoningText { text: String },
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum InputPart {
    InputText { text: String },
    OutputText { text: String, annotations: Vec<Value>, logprobs: Value },
}

/// The speaker of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InputRole {
    System,
    Developer,
    User,
    Assistant,
}

/// State of an item or a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    #[default]
    InProgress,
    Completed,
    /// It was cut off by its token limit.
    Incomplete,
    Failed,
}

/// A message as clients send it.
#[derive(Deserialize)]
struct GivenMessage {
    id: Option<String>,
    role: InputRole,
    content: GivenContent,
}

/// A call as clients send it.
#[derive(Deserialize)]
struct GivenCall {
    id: Option<String>,
    call_id: String,
    name: String,
    arguments: String,
    status: Option<Status>,
}

/// The result of a call, as clients send it.
#[derive(Deserialize)]
struct GivenOutput {
    id: Option<String>,
    call_id: String,
    output: GivenContent,
}

/// Text, whole or in parts.
#[derive(Deserialize)]
#[serde(untagged)]
enum GivenContent {
    Text(String),
    Parts(Vec<GivenPart>),
}

#[derive(Deserialize)]
struct GivenPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
}

impl Item {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::FunctionCallOutput { id, .. }
            | Self::Reasoning { id, .. } => id,
        }
    }

    /// A message with these texts, one part for each.
    fn message(id: Option<String>, role: InputRole, texts: Vec<String>) -> Self {
        let part = |text| match role {
            InputRole::Assistant => InputPart::output(text, Value::Array(Vec::new())),
            InputRole::System | InputRole::Developer | InputRole::User => InputPart::InputText { text },
        };
        let content = texts.into_iter().map(part).collect();
        Self::Message { id: id.unwrap_or_else(|| fresh_id("msg_")), role, status: Status::Completed, content }
    }
}

impl InputPart {
    /// Generated text, with the log-probabilities of its tokens: a list.
    pub(super) fn output(text: String, logprobs: Value) -> Self {
        Self::OutputText { text, annotations: Vec::new(), logprobs }
    }

    fn text(&self) -> &str {
        match self {
            Self::InputText { text } | Self::OutputText { text, .. } => text,
        }
    }
}

/// Reads the items of an input; a text is a user's message. Reasoning is ignored.
///
/// # Errors
/// An item is of a type that is not supported, lacks a field, or has a part that is not text: its place is
/// named.
pub(super) fn items(input: &Value) -> Result<Vec<Item>, Refusal> {
    match input {
        Value::String(text) => Ok(vec![Item::message(None, InputRole::User, vec![text.clone()])]),
        Value::Array(given) => {
            let items = given.iter().enumerate().map(|(n, value)| item(value, &format!("input[{n}]")));
            items.filter_map(Result::transpose).collect()
        }
        _ => Err(Refusal::field("input", "`input`: expected a string or a list of items")),
    }
}

fn item(value: &Value, place: &str) -> Result<Option<Item>, Refusal> {
    let item = match value["type"].as_str().unwrap_or("message") {
        "message" => {
            let GivenMessage { id, role, content } = read(value, place)?;
            Item::message(id, role, texts(content, &format!("{place}.content"))?)
        }
        "function_call" => {
            let GivenCall { id, call_id, name, arguments, status } = read(value, place)?;
            let (id, status) = (id.unwrap_or_else(|| fresh_id("fc_")), status.unwrap_or(Status::Completed));
            Item::FunctionCall { id, call_id, name, arguments, status }
        }
        "function_call_output" => {
            let GivenOutput { id, call_id, output } = read(value, place)?;
            let output = texts(output, &format!("{place}.output"))?.join("\n");
            let id = id.unwrap_or_else(|| fresh_id("fco_"));
            Item::FunctionCallOutput { id, call_id, output, status: Status::Completed }
        }
        "reasoning" => return Ok(None),
        other => {
            let message = format!(
                "`{place}` has the unsupported type `{other}`; expected `message`, `function_call` or \
                 `function_call_output`"
            );
            return Err(Refusal::field(place, message));
        }
    };
    Ok(Some(item))
}

fn read<T: DeserializeOwned>(value: &Value, place: &str) -> Result<T, Refusal> {
    let read = body::of_value(value.clone());
    read.map_err(|refusal| Refusal::field(place, format!("{place}: {}", refusal.message())))
}

/// The texts of some content, one for each part.
fn texts(content: GivenContent, place: &str) -> Result<Vec<String>, Refusal> {
    let parts = match content {
        GivenContent::Text(text) => return Ok(vec![text]),
        GivenContent::Parts(parts) => parts,
    };
    let texts = parts.into_iter().enumerate().map(|(n, GivenPart { kind, text, refusal })| {
        match (kind.as_str(), text.or(refusal)) {
            ("input_text" | "output_text" | "text" | "refusal", Some(text)) => Ok(text),
            (kind, _) => Err(Refusal::field(
                &format!("{place}[{n}]"),
                format!("`{place}[{n}]` has the unsupported type `{kind}`: these models read only text"),
            )),
        }
    });
    texts.collect()
}

/// Items as lines of a dialogue. A call that was cut off is ignored, because nothing can answer it.
pub(super) fn lines(items: &[Item]) -> Vec<DialogueLine> {
    let mut lines = Vec::new();
    for item in items {
        lines.push(match item {
            Item::Message { role, content, .. } => {
                let text = content.iter().map(InputPart::text).collect::<Vec<_>>().join("\n");
                match role {
                    InputRole::System | InputRole::Developer => DialogueLine::System(text),
                    InputRole::User => DialogueLine::User(text),
                    InputRole::Assistant => DialogueLine::Assistant(text),
                }
            }
            Item::FunctionCall { status: Status::Incomplete, .. } | Item::Reasoning { .. } => continue,
            Item::FunctionCall { call_id, name, arguments, .. } => {
                DialogueLine::Call { id: call_id.clone(), call: Call::read(name.clone(), arguments) }
            }
            Item::FunctionCallOutput { call_id, output, .. } => {
                DialogueLine::Result { id: call_id.clone(), text: output.clone() }
            }
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use greenroom_engine::Call;
    use serde_json::json;

    #[test]
    fn items_of_all_types_become_lines() {
        let input = json!([
            { "role": "developer", "content": "Be brief." },
            { "type": "message", "role": "user", "content": [
                { "type": "input_text", "text": "How warm" }, { "type": "input_text", "text": "is it?" },
            ] },
            { "type": "reasoning", "id": "rs_1", "summary": [], "content": null },
            { "type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"room\": 1}" },
            {
                "type": "function_call_output", "call_id": "c1",
                "output": [{ "type": "input_text", "text": "21" }]
            },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
                { "type": "output_text", "text": "21.", "annotations": [], "logprobs": [] },
            ] },
            {
                "type": "function_call", "call_id": "c2", "name": "read", "arguments": "{\"ro",
                "status": "incomplete"
            },
            { "role": "user", "content": "Thanks." },
        ]);
        let items = items(&input).unwrap();
        assert_eq!(items.len(), 7);
        assert_eq!(items[4].id(), "msg_1");
        let call = Call { tool: "read".to_string(), arguments: json!({ "room": 1 }) };
        let expected = [
            DialogueLine::System("Be brief.".to_string()),
            DialogueLine::User("How warm\nis it?".to_string()),
            DialogueLine::Call { id: "c1".to_string(), call },
            DialogueLine::Result { id: "c1".to_string(), text: "21".to_string() },
            DialogueLine::Assistant("21.".to_string()),
            DialogueLine::User("Thanks.".to_string()),
        ];
        assert_eq!(lines(&items), expected);
    }

    #[test]
    fn items_are_shown_as_they_are_read() {
        let items = items(&json!("Hello")).unwrap();
        let shown = json!(items);
        assert_eq!(shown[0]["type"], "message");
        assert_eq!(shown[0]["role"], "user");
        assert_eq!(shown[0]["status"], "completed");
        assert_eq!(shown[0]["content"], json!([{ "type": "input_text", "text": "Hello" }]));
        assert!(shown[0]["id"].as_str().unwrap().starts_with("msg_"));
        assert_eq!(serde_json::from_value::<Vec<Item>>(shown.clone()).unwrap(), items);
        assert_eq!(super::items(&shown).unwrap(), items);
    }

    #[test]
    fn what_can_not_be_read_is_named_with_its_place() {
        let image =
            json!([{ "type": "input_text", "text": "See" }, { "type": "input_image", "image_url": "data:" }]);
        for (input, param, expected) in [
            (json!(null), "input", "expected a string or a list"),
            (json!([7]), "input[0]", "input[0]: "),
            (json!([{ "role": "user", "content": image }]), "input[0].content[1]", "`input_image`"),
            (json!([{ "role": "tool", "content": "a" }]), "input[0]", "unknown variant `tool`"),
            (
                json!([{ "role": "user", "content": "a" }, { "type": "item_reference", "id": "x" }]),
                "input[1]",
                "item_reference",
            ),
            (json!([{ "type": "function_call_output", "output": "21" }]), "input[0]", "call_id"),
        ] {
            let refusal = items(&input).unwrap_err();
            assert!(refusal.message().contains(expected), "{input}: {}", refusal.message());
            assert_eq!(refusal.openai()["error"]["param"], param, "{input}");
        }
    }
}
