//! An answer to a request, whatever the API.

use greenroom_engine::{Call, Completion, Engine, ToolCalls, Tools};
use greenroom_grammar::Grammar;
use serde_json::Value;

/// An answer.
#[derive(Clone, Debug)]
pub(super) struct CompletedReply {
    pub(super) completion: Completion,
    pub(super) seed: u64,
    /// The calls that it is, or ends with.
    pub(super) calls: Vec<SaidCall>,
    /// Tokens and milliseconds of another reply, which was rejected because its call broke its tool's schema.
    pub(super) rejected: Option<(usize, f64)>,
    /// What the client has said for it, at its beginning.
    pub(super) begun: String,
    /// What of the request was not read as it was sent, a line each.
    pub(super) warnings: Vec<String>,
}

/// A call in a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SaidCall {
    pub(super) tool: String,
    /// The text of a JSON object; of a call that was cut, its beginning.
    pub(super) arguments: String,
}

impl SaidCall {
    /// As it is read when a client sends it back.
    pub(super) fn as_read(&self) -> Call {
        Call::read(self.tool.clone(), &self.arguments)
    }
}

/// A call with its arguments read: an object, or the text that they are if they are none.
pub(super) trait ReadCall {
    fn read(tool: String, arguments: &str) -> Self;
}

impl ReadCall for Call {
    fn read(tool: String, arguments: &str) -> Self {
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let read = serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
        Self { tool, arguments: read.unwrap_or_else(|| Value::from(arguments)) }
    }
}

impl CompletedReply {
    /// A reply to a prompt with these tools.
    pub(super) fn new(completion: Completion, seed: u64, tools: Option<&Tools>, engine: &Engine) -> Self {
        let calls = match &completion.call {
            Some(ToolCalls::Complete(calls)) => calls
                .iter()
                .map(|call| SaidCall { tool: call.tool.clone(), arguments: call.arguments.to_string() })
                .collect(),
            Some(_) => {
                let text = completion.text.get(completion.parts.speech.end..).unwrap_or_default();
                let so_far = tools.map(|tools| engine.prompter().calls_so_far(tools, text));
                let so_far = so_far.unwrap_or_default().into_iter();
                so_far.map(|call| SaidCall { tool: call.tool.into(), arguments: call.arguments }).collect()
            }
            None => Vec::new(),
        };
        let (rejected, begun, warnings) = Default::default();
        Self { completion, seed, calls, rejected, begun, warnings }
    }

    /// What it says, without what the client has said for it.
    pub(super) fn speech(&self) -> &str {
        let speech = self.completion.speech();
        speech.strip_prefix(self.begun.as_str()).unwrap_or(speech)
    }

    /// Number of tokens generated for it, without those that the client has said for it.
    pub(super) fn n_tokens(&self) -> usize {
        let rejected = self.rejected.map_or(0, |(n, _)| n);
        rejected + self.completion.ids.len() - self.completion.n_given
    }

    /// Milliseconds in which these were generated.
    pub(super) fn said_ms(&self) -> f64 {
        let usage = &self.completion.usage;
        self.rejected.map_or(0.0, |(_, ms)| ms) + (usage.total_ms - usage.ttft_ms).max(0.0)
    }

    /// What its calls break of their tools' schemas, where masks can't enforce all of a schema.
    pub(super) fn broken_by(&self, tools: Option<&Tools>) -> Option<String> {
        let Some(ToolCalls::Complete(calls)) = &self.completion.call else { return None };
        let broken = |call: &Call| {
            let tool = tools?.list.iter().find(|tool| tool.name == call.tool)?;
            let relaxed = Grammar::json_schema(&tool.arguments).relaxed().ok()?;
            let found = relaxed.violated_by(&call.arguments).ok()??;
            Some(format!("the arguments of `{}` break its schema: {found}", call.tool))
        };
        calls.iter().find_map(broken)
    }

    /// Tokens of the prompt.
    pub(super) fn prompt_tokens(&self) -> usize {
        let cost = &self.completion.usage;
        cost.reused + cost.prefilled + cost.recomputed
    }
}
