//! Messages and system text of a request, read into lines of a dialogue.
//!
//! Errors also name the position in their text, because Anthropic's error format has no field for it.

use super::super::body;
use super::super::dialogue::DialogueLine;
use super::super::error::Refusal;
use greenroom_engine::Call;
use serde::Deserialize;
use serde_json::Value;
use std::fmt::Display;

/// Beginning of a line that Claude Code prepends to its system text. It is for accounting, not for models,
/// and differs in each request, so nothing after it could be reused.
const ACCOUNT: &str = "x-anthropic-billing-header:";

/// A message.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a message: an object with a `role`")]
pub(super) struct AnthropicMessage {
    role: AnthropicRole,
    content: MessageBlocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnthropicRole {
    System,
    User,
    Assistant,
}

/// Text, whole or in blocks.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of blocks, each with its `type`")]
pub(super) enum MessageBlocks {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// A block of a message, of any type.
#[derive(Debug, Deserialize)]
pub(super) struct ContentBlock {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    /// For a call: its id, the tool's name, the arguments.
    id: Option<String>,
    name: Option<String>,
    input: Option<Value>,
    /// For a result: the call's id, and its content, as [`MessageBlocks`].
    tool_use_id: Option<String>,
    content: Option<Value>,
    is_error: Option<bool>,
}

/// The lines of a system text and messages.
///
/// # Errors
/// A block can't be read.
pub(super) fn lines(
    system: Option<MessageBlocks>,
    messages: Vec<AnthropicMessage>,
) -> Result<Vec<DialogueLine>, Refusal> {
    let mut lines = Vec::new();
    if let Some(system) = system {
        let system = text(system, "system")?;
        let system = without_account(&system);
        lines.extend((!system.is_empty()).then(|| DialogueLine::System(system.to_string())));
    }
    for (at, AnthropicMessage { role, content }) in messages.into_iter().enumerate() {
        let place = format!("messages[{at}].content");
        match role {
            AnthropicRole::System => lines.push(DialogueLine::System(text(content, &place)?)),
            AnthropicRole::User => lines.extend(user_lines(content, &place)?),
            AnthropicRole::Assistant => lines.extend(assistant_lines(content, &place)?),
        }
    }
    Ok(lines)
}

/// The lines of a user's message: texts, and results of calls.
fn user_lines(content: MessageBlocks, place: &str) -> Result<Vec<DialogueLine>, Refusal> {
    let blocks = match content {
        MessageBlocks::Text(text) => return Ok(vec![DialogueLine::User(text)]),
        MessageBlocks::Blocks(blocks) => blocks,
    };
    let mut lines = Vec::new();
    for (n, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{n}]");
        if block.kind == "tool_result" {
            lines.push(block.into_result(&place)?);
            continue;
        }
        let text = block.into_text(&place)?;
        match lines.last_mut() {
            Some(DialogueLine::User(before)) => *before = format!("{before}\n{text}"),
            _ => lines.push(DialogueLine::User(text)),
        }
    }
    Ok(lines)
}

/// The lines of an assistant's message: texts, and calls. Thinking is ignored; a message with nothing else is
/// an empty reply, as it was said.
fn assistant_lines(content: MessageBlocks, place: &str) -> Result<Vec<DialogueLine>, Refusal> {
    let blocks = match content {
        MessageBlocks::Text(text) => return Ok(vec![DialogueLine::Assistant(text)]),
        MessageBlocks::Blocks(blocks) => blocks,
    };
    let mut lines = Vec::new();
    for (n, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{n}]");
        match block.kind.as_str() {
            "thinking" | "redacted_thinking" => {}
            "tool_use" => lines.push(block.into_call(&place)?),
            _ => {
                let text = block.into_text(&place)?;
                match lines.last_mut() {
                    Some(DialogueLine::Assistant(before)) => *before = format!("{before}\n{text}"),
                    _ if text.is_empty() => {}
                    _ => lines.push(DialogueLine::Assistant(text)),
                }
            }
        }
    }
    if lines.is_empty() {
        lines.push(DialogueLine::Assistant(String::new()));
    }
    Ok(lines)
}

/// Content that is only text.
fn text(content: MessageBlocks, place: &str) -> Result<String, Refusal> {
    let blocks = match content {
        MessageBlocks::Text(text) => return Ok(text),
        MessageBlocks::Blocks(blocks) => blocks,
    };
    let texts = blocks.into_iter().enumerate().map(|(n, block)| block.into_text(&format!("{place}[{n}]")));
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn without_account(system: &str) -> &str {
    match system.strip_prefix(ACCOUNT) {
        Some(line) => line.split_once('\n').map_or("", |(_, rest)| rest),
        None => system,
    }
}

impl ContentBlock {
    fn into_text(self, place: &str) -> Result<String, Refusal> {
        match (self.kind.as_str(), self.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(fault(place, "a block of type `text` has no `text`")),
            (kind, _) => Err(fault(
                place,
                format!("blocks of type `{kind}` are not supported: these models read only text"),
            )),
        }
    }

    fn into_call(self, place: &str) -> Result<DialogueLine, Refusal> {
        match (self.id, self.name, self.input) {
            (Some(id), Some(tool), Some(arguments)) if arguments.is_object() => {
                Ok(DialogueLine::Call { id, call: Call { tool, arguments } })
            }
            _ => Err(fault(
                place,
                "expected an `id`, a `name`, and an object as `input` in a block of type `tool_use`",
            )),
        }
    }

    fn into_result(self, place: &str) -> Result<DialogueLine, Refusal> {
        let id = self.tool_use_id.ok_or_else(|| {
            fault(place, "`tool_use_id` is missing: the id of the call that this is the result of")
        })?;
        let place = format!("{place}.content");
        let content = match self.content {
            None => String::new(),
            Some(content) => {
                let content = body::of_value::<MessageBlocks>(content);
                text(content.map_err(|_| fault(&place, "expected a string or a list of blocks"))?, &place)?
            }
        };
        let text = if self.is_error == Some(true) { format!("Error: {content}") } else { content };
        Ok(DialogueLine::Result { id, text })
    }
}

/// The error for something at a position.
pub(super) fn fault(place: &str, found: impl Display) -> Refusal {
    Refusal::field(place, format!("{place}: {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(system: Value, messages: Value) -> Result<Vec<DialogueLine>, Refusal> {
        lines(serde_json::from_value(system).unwrap(), serde_json::from_value(messages).unwrap())
    }

    fn user(text: &str) -> DialogueLine {
        DialogueLine::User(text.to_string())
    }

    #[test]
    fn texts_calls_and_results_become_lines() {
        let call = json!({
            "type": "tool_use", "id": "c", "name": "look", "input": { "at": 1 }, "cache_control": null
        });
        let result = json!({
            "type": "tool_result", "tool_use_id": "c", "is_error": true,
            "content": [{ "type": "text", "text": "dark" }]
        });
        let found = read(
            json!([{ "type": "text", "text": "Be kind." }, { "type": "text", "text": "Be brief." }]),
            json!([
                {
                    "role": "user",
                    "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]
                },
                {
                    "role": "assistant",
                    "content": [
                        { "type": "thinking", "thinking": "hm", "signature": "" },
                        { "type": "text", "text": "" }, call
                    ]
                },
                { "role": "user", "content": [result, { "type": "text", "text": "c" }] },
                { "role": "assistant", "content": [] },
                { "role": "user", "content": "d" },
            ]),
        );
        let expected = vec![
            DialogueLine::System("Be kind.\nBe brief.".to_string()),
            user("a\nb"),
            DialogueLine::Call {
                id: "c".to_string(),
                call: Call { tool: "look".to_string(), arguments: json!({ "at": 1 }) },
            },
            DialogueLine::Result { id: "c".to_string(), text: "Error: dark".to_string() },
            user("c"),
            DialogueLine::Assistant(String::new()),
            user("d"),
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn an_account_line_is_not_for_the_model() {
        let messages = || json!([{ "role": "user", "content": "a" }]);
        let line = json!({ "type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=fa690;" });
        let found = read(json!([line, { "type": "text", "text": "You are Claude Code." }]), messages());
        assert_eq!(found.unwrap(), vec![DialogueLine::System("You are Claude Code.".to_string()), user("a")]);
        assert_eq!(read(json!([line]), messages()).unwrap(), vec![user("a")]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let refused = |messages| read(Value::Null, messages).unwrap_err().message().to_string();
        let image = json!([{
            "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "image", "source": {} }]
        }]);
        assert!(refused(image).starts_with("messages[0].content[1]: blocks of type `image`"));
        let nested = json!({
            "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "document", "source": {} }]
        });
        let nested = refused(json!([{ "role": "user", "content": [nested] }]));
        assert!(
            nested.starts_with("messages[0].content[0].content[0]: blocks of type `document`"),
            "{nested}"
        );
    }
}
