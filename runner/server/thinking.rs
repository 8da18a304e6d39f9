//! How much a reply is to be thought about, in the words of several clients: OpenAI's `reasoning_effort` and
//! `reasoning`, and `chat_template_kwargs`, which llama.cpp's and vLLM's clients send.

use super::dialogue::Dialogue;
use super::error::Refusal;
use greenroom_engine::Reasoning;
use serde_json::Value;

/// What a request says of thinking before the reply; by default nothing: then a model thinks where its template
/// knows no switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThinkingGiven {
    /// How much is thought, if the request says so.
    pub(super) level: Option<Reasoning>,
    /// Maximum number of tokens of a thought.
    pub(super) max_tokens: Option<usize>,
}

impl ThinkingGiven {
    /// Reads a request's fields.
    ///
    /// # Errors
    /// A value is not known: the field is named.
    pub(super) fn read(request: &Value) -> Result<Self, Refusal> {
        let mut given = Self::default();
        let mut effort = |field: &str, value: &Value| {
            if !value.is_null() {
                given.level = Some(level(value).map_err(|found| Refusal::field(field, found))?);
            }
            Ok::<(), Refusal>(())
        };
        effort("reasoning_effort", &request["reasoning_effort"])?;
        effort("reasoning.effort", &request["reasoning"]["effort"])?;
        if let Some(options) = request["chat_template_kwargs"].as_object() {
            for (name, value) in options {
                let field = format!("chat_template_kwargs.{name}");
                match name.as_str() {
                    "enable_thinking" | "thinking" if value.is_boolean() => effort(&field, value)?,
                    "reasoning_effort" => effort(&field, value)?,
                    _ => {
                        let found = format!(
                            "`{field}` is {value}; expected `enable_thinking` or `thinking`, true or false, or \
                             `reasoning_effort`"
                        );
                        return Err(Refusal::field(&field, found));
                    }
                }
            }
        }
        given.max_tokens = match &request["reasoning"]["max_tokens"] {
            Value::Null => None,
            value => Some(value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
                let found = format!("`reasoning.max_tokens` is {value}; expected a number of tokens");
                Refusal::field("reasoning.max_tokens", found)
            })?),
        };
        Ok(given)
    }

    /// Maximum number of tokens of a thought: none where there is to be none.
    pub(super) fn limit(self) -> Option<usize> {
        if self.level == Some(Reasoning::None) { Some(0) } else { self.max_tokens }
    }

    /// A dialogue whose reply is thought about so much. Of earlier replies nothing else is known.
    pub(super) fn of(self, mut dialogue: Dialogue) -> Dialogue {
        let level = self.level.unwrap_or_default();
        let conversation = &mut dialogue.conversation;
        conversation.reasoning = level;
        conversation.exchanges.iter_mut().for_each(|past| past.reasoning = level);
        dialogue
    }
}

fn level(value: &Value) -> Result<Reasoning, String> {
    let word = match value {
        Value::Bool(true) => "medium",
        Value::Bool(false) => "none",
        Value::String(word) => word.as_str(),
        _ => "",
    };
    match word {
        "none" => Ok(Reasoning::None),
        "minimal" | "low" => Ok(Reasoning::Low),
        "medium" => Ok(Reasoning::Medium),
        "high" | "xhigh" | "max" => Ok(Reasoning::High),
        _ => Err(format!(
            "{value} is no level of reasoning; expected none, minimal, low, medium, high or xhigh"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn clients_say_it_in_several_ways() {
        for (request, expected, limit) in [
            (json!({}), None, None),
            (json!({ "reasoning_effort": "none" }), Some(Reasoning::None), Some(0)),
            (json!({ "reasoning_effort": "minimal" }), Some(Reasoning::Low), None),
            (json!({ "reasoning": { "effort": "high", "max_tokens": 9 } }), Some(Reasoning::High), Some(9)),
            (json!({ "reasoning": null, "reasoning_effort": null }), None, None),
            (json!({ "chat_template_kwargs": { "enable_thinking": true } }), Some(Reasoning::Medium), None),
            (json!({ "chat_template_kwargs": { "thinking": false } }), Some(Reasoning::None), Some(0)),
        ] {
            let given = ThinkingGiven::read(&request).unwrap();
            assert_eq!((given.level, given.limit()), (expected, limit), "{request}");
        }
        for (request, field) in [
            (json!({ "reasoning_effort": "lots" }), "reasoning_effort"),
            (json!({ "reasoning": { "effort": 3 } }), "reasoning.effort"),
            (json!({ "reasoning": { "max_tokens": "few" } }), "reasoning.max_tokens"),
            (json!({ "chat_template_kwargs": { "tone": "kind" } }), "chat_template_kwargs.tone"),
        ] {
            let refusal = ThinkingGiven::read(&request).unwrap_err();
            assert_eq!(refusal.openai()["error"]["param"], field, "{request}");
        }
    }
}
