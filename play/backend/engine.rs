//! Turns as the engine's plain data, and its answers as replies: the same for an engine in this process and
//! for a remote one.

use super::{Commit, OpenOptions, Reply, Request, Session};
use crate::prompt::Conversation;
use crate::tools::{ToolOffer, cut_call};
use greenroom_engine as engine;
use greenroom_scenario::{ChoiceMethod, Reasoning};
use std::sync::Arc;

/// Maximum number of tokens in a call of a tool, where a reply may not have more.
const CALL_TOKENS: usize = 160;
/// Tokens of a call's result that there is always room for, with what the chat template puts around it.
const RESULT_TOKENS: usize = 96;
/// Tokens that asking for a summary may take.
const SUMMARY_CUE_TOKENS: usize = 96;

/// Maximum number of tokens in a call of a tool.
fn max_call_tokens(max_tokens: usize) -> usize {
    max_tokens.max(CALL_TOKENS)
}

/// Tokens that are kept free for a call of a tool and its result. A result is cut where it needs more and
/// there is no more.
pub fn call_room(max_tokens: usize) -> usize {
    max_call_tokens(max_tokens) + RESULT_TOKENS
}

/// Tokens that a turn may take without calls, and with them.
pub fn room(prompter: &engine::PromptEncoder, request: &Request) -> anyhow::Result<(usize, usize)> {
    let conversation = conversation(request.conversation.clone(), request.tools.as_deref());
    // A model without thoughts needs no room for any.
    let max_thought_tokens = if prompter.thinks() { request.max_thought_tokens } else { 0 };
    let request = &Request { max_thought_tokens, ..request.clone() };
    let needed = by_tokens(prompter.prompt_tokens(&conversation)?, request);
    Ok((needed, needed + needed_for_calls(request)))
}

/// Tokens of a prompt, the reply, and once more as many as the reply's for a summary with its cue.
pub fn by_tokens(of_prompt: usize, request: &Request) -> usize {
    of_prompt + 2 * (request.max_tokens + request.max_thought_tokens) + SUMMARY_CUE_TOKENS
}

/// Tokens that the calls may take which can still come before a reply.
pub fn needed_for_calls(request: &Request) -> usize {
    request.max_calls.saturating_sub(request.n_calls) * call_room(request.max_tokens)
}

/// An engine's answer; `open`: the options that it chose from, in its order.
pub fn reply_of(completion: engine::Completion, open: Vec<usize>, commit: Option<Box<dyn Commit>>) -> Reply {
    let engine::Completion { ids, text, parts, stop, choice, call, followed, usage, .. } = completion;
    let logprobs = choice.map(|choice| open.into_iter().zip(choice.logprobs).collect());
    let (call, usage, logprobs) = (call.map(call_of), Some(usage), logprobs.unwrap_or_default());
    let speech = parts.speech;
    Reply { logprobs, followed, call, usage, commit, speech, ..Reply::of(ids, text, stop) }
}

/// A choice is weighed again also where a recording is followed: one draw tells whether it stands.
fn constraint(options: Option<OpenOptions>, follow: Option<Vec<u32>>) -> Option<engine::Constraint> {
    let decoded = options.filter(|options| options.choice.method == ChoiceMethod::Decode);
    let one_of = decoded.map(|options| {
        let text = |id: &usize| options.choice.options[*id].text.clone();
        engine::Constraint::OneOf(in_file_order(&options).iter().map(text).collect())
    });
    one_of.or(follow.map(engine::Constraint::Follow))
}

/// Open options as the file has them: what is likely does not depend on how they were listed, beyond the
/// prompt.
pub fn in_file_order(options: &OpenOptions) -> Vec<usize> {
    let mut open = options.open.clone();
    open.sort_unstable();
    open
}

impl From<Session> for engine::SessionKey {
    fn from(session: Session) -> Self {
        Self::new(session.run, session.agent)
    }
}

impl From<Request> for engine::Request {
    fn from(request: Request) -> Self {
        let is_by_length = request.choice.as_ref().is_some_and(|options| options.choice.by_length);
        let retention =
            if request.permanent { engine::Retention::Persistent } else { engine::Retention::Ephemeral };
        let constraint = constraint(request.choice, request.follow);
        let calls = match request.must_call {
            Some(tool) => engine::ToolChoice::Named(tool.as_ref().into()),
            None if request.may_call => engine::ToolChoice::Allowed,
            // A choice can be no call anyway.
            None if matches!(constraint, Some(engine::Constraint::OneOf(_))) => engine::ToolChoice::Never,
            None if request.n_calls > 0 => engine::ToolChoice::Forbidden,
            None => engine::ToolChoice::Never,
        };
        Self {
            session: request.session.into(),
            parent: request.parent.map(Into::into),
            retention,
            prompt: conversation(request.conversation, request.tools.as_deref()).into(),
            sampling: request.sampling,
            max_tokens: request.max_tokens,
            fits_context: false,
            max_thought_tokens: Some(request.max_thought_tokens),
            counts_thought: false,
            min_tokens: 0,
            end_ids: Vec::new(),
            stop: request.stops.all(),
            exact_stops: false,
            whole_sentences: true,
            max_call_tokens: max_call_tokens(request.max_tokens),
            constraint,
            by_length: is_by_length,
            grammar: request.form.map(|form| Arc::new(form.enforced().clone())),
            calls,
            parallel_tool_calls: false,
            logprobs: None,
            next_use: request.next_use,
            cold: request.cold,
            meter: None,
        }
    }
}

/// A conversation as the engine has it, with the tools that the agent knows.
pub fn conversation(conversation: Conversation, tools: Option<&ToolOffer>) -> engine::Conversation {
    let reply = |is_call, ids| match is_call {
        true => engine::ReplyContent::Call(ids),
        false => engine::ReplyContent::Ids(ids),
    };
    let exchanges = conversation.exchanges.into_iter();
    let exchanges = exchanges.map(|past| engine::Exchange {
        user: past.user,
        reply: reply(past.is_call, past.ids),
        reasoning: reasoning(past.reasoning),
    });
    let tools = tools.map(|offer| {
        let list = offer.tools.iter().map(|tool| engine::Tool {
            name: tool.name.clone(),
            about: tool.about.clone(),
            arguments: tool.arguments.clone(),
        });
        Arc::new(engine::Tools { list: list.collect(), instructions: offer.instructions.clone() })
    });
    engine::Conversation {
        system: conversation.system,
        tools,
        exchanges: exchanges.collect(),
        next: conversation.next,
        reasoning: reasoning(conversation.reasoning),
        date: None, // a scenario is played alike on any day
    }
}

fn reasoning(reasoning: Reasoning) -> engine::Reasoning {
    match reasoning {
        Reasoning::None => engine::Reasoning::None,
        Reasoning::Low => engine::Reasoning::Low,
        Reasoning::Medium => engine::Reasoning::Medium,
        Reasoning::High => engine::Reasoning::High,
    }
}

/// The call of a reply that is one: no more than one is asked for.
fn call_of(called: engine::ToolCalls) -> engine::Call {
    match called {
        engine::ToolCalls::Complete(calls) => calls.into_iter().next().unwrap_or_else(cut_call),
        _ => cut_call(),
    }
}
