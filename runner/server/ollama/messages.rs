//! Messages of a request, read into lines of a dialogue. Calls have no ids there: a result is that of the first call that
//! waits for one, of its tool if it names one.

use super::super::dialogue::DialogueLine;
use super::super::error::Refusal;
use greenroom_engine::Call;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// A message.
#[derive(Deserialize)]
#[serde(expecting = "a message: an object with a `role`")]
pub(super) struct OllamaMessage {
    role: Role,
    #[serde(default)]
    content: String,
    tool_calls: Option<Vec<ToolCall>>,
    tool_name: Option<String>,
    images: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Deserialize)]
struct ToolCall {
    function: Function,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: Value,
}

/// The lines of messages.
///
/// # Errors
/// A message has images.
pub(super) fn lines(messages: Vec<OllamaMessage>) -> Result<Vec<DialogueLine>, Refusal> {
    let (mut lines, mut open) = (Vec::new(), VecDeque::<(String, String)>::new());
    for (at, message) in messages.into_iter().enumerate() {
        if message.images.is_some_and(|images| !images.is_empty()) {
            let place = format!("messages[{at}].images");
            return Err(Refusal::field(&place, format!("`{place}`: these models read only text")));
        }
        let content = message.content;
        match message.role {
            Role::System => lines.push(DialogueLine::System(content)),
            Role::User => lines.push(DialogueLine::User(content)),
            Role::Assistant => {
                let calls = message.tool_calls.unwrap_or_default();
                lines.extend(
                    (calls.is_empty() || !content.is_empty()).then_some(DialogueLine::Assistant(content)),
                );
                open.clear();
                for (n, ToolCall { function: Function { name: tool, arguments } }) in
                    calls.into_iter().enumerate()
                {
                    let (id, arguments) =
                        (format!("{at}.{n}"), if arguments.is_null() { json!({}) } else { arguments });
                    open.push_back((id.clone(), tool.clone()));
                    lines.push(DialogueLine::Call { id, call: Call { tool, arguments } });
                }
            }
            Role::Tool => {
                let is_of =
                    |(_, tool): &(String, String)| message.tool_name.as_ref().is_none_or(|name| name == tool);
                let called = open.iter().position(is_of).and_then(|at| open.remove(at));
                let id = called.map_or_else(|| message.tool_name.unwrap_or_default(), |(id, _)| id);
                lines.push(DialogueLine::Result { id, text: content });
            }
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_that_of_the_call_that_waits_for_it() {
        let call = |tool: &str| json!({ "function": { "name": tool, "arguments": { "at": 1 } } });
        let messages = json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Look." },
            { "role": "assistant", "content": "", "tool_calls": [call("look"), call("listen")] },
            { "role": "tool", "content": "silence", "tool_name": "listen" },
            { "role": "tool", "content": "dark" },
            { "role": "user", "content": "And?" },
        ]);
        let lines = lines(serde_json::from_value(messages).unwrap()).unwrap();
        let read = Call { tool: "look".into(), arguments: json!({ "at": 1 }) };
        assert_eq!(lines[2], DialogueLine::Call { id: "2.0".into(), call: read });
        assert_eq!(lines[4], DialogueLine::Result { id: "2.1".into(), text: "silence".into() });
        assert_eq!(lines[5], DialogueLine::Result { id: "2.0".into(), text: "dark".into() });
    }
}
