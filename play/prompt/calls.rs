//! Calls of tools: what an agent asks for instead of replying. The call and its result are only in its own
//! memory; no other agent hears them.
//!
//! Each is a line of its own before the turn's, `PATH.call1` and so on; that it is there makes a replay go
//! through it.

use super::memories::{Asked, Memories, PromptError};
use crate::timeline::Event;
use crate::tools::{self, MAX_RESULT, cut_call};
use crate::transcript::{CallRecord, call_of};
use greenroom_engine::Call;
use greenroom_scenario::language::Text;
use greenroom_scenario::{BuiltIn, Purpose, ToolId, ToolKind, TurnId};
use std::sync::Arc;

/// A call that was made instead of a reply.
#[derive(Clone, Debug)]
pub struct MadeCall {
    /// The sampled ids.
    pub ids: Vec<u32>,
    /// The ids as text.
    pub raw: String,
    /// The call.
    pub call: Call,
    /// What it gave.
    pub outcome: tools::CallOutcome,
    /// Characters of its result that the memory has room for; `None`: as many as any result may have.
    pub room: Option<usize>,
}

impl Memories {
    /// The calls that the speaker of a turn has made in it.
    pub fn n_calls(&self, id: TurnId) -> usize {
        self.unanswered.get(&self.plan.turn(id).timeline).map_or(0, |turn| turn.calls.len())
    }

    /// Maximum number of calls that the speaker of a turn may make in it.
    pub fn max_calls(&self, id: TurnId) -> usize {
        let turn = self.plan.turn(id);
        let agent = self.scenario.agent(turn.speaker);
        let is_speech = turn.purpose == Purpose::Speech && turn.constraint.is_none() && turn.form.is_none();
        let is_asked = agent.strategy.is_none() && !self.scenario.phase(turn.phase).is_judge;
        let is_drawn = is_asked && self.given_reply(id).is_none();
        match &turn.call {
            _ if !is_drawn || agent.tools.is_empty() => 0,
            _ if is_speech => agent.max_calls,
            Some(_) => 1,
            None => 0,
        }
    }

    /// The tool that the next reply to a turn has to be a call of.
    pub(super) fn must_call(&self, id: TurnId) -> Option<Arc<str>> {
        let call = self.plan.turn(id).call.clone();
        call.filter(|_| self.n_calls(id) == 0 && self.max_calls(id) > 0)
    }

    /// True if the next reply to a turn may be a call.
    pub(super) fn may_call(&self, id: TurnId) -> bool {
        self.n_calls(id) < self.max_calls(id)
    }

    /// The tool of that name which the speaker of a turn may call.
    pub fn tool(&self, id: TurnId, name: &str) -> Option<ToolId> {
        tools::named(&self.scenario, self.scenario.agent(self.plan.turn(id).speaker), name)
    }

    /// Result of a call that needs no program: built-in, unknown tool or truncated; `None`: it needs one.
    pub fn builtin_result(&self, asked: &Asked, call: &Call) -> Option<tools::CallOutcome> {
        if *call == cut_call() {
            return Some(Err(match &asked.must_call {
                Some(tool) => format!("this was no complete call of `{tool}`"),
                None => "the call was too long and broke off".to_string(),
            }));
        }
        let Some(tool) = self.tool(asked.id, &call.tool) else {
            return Some(Err(format!("there is no tool `{}`", call.tool)));
        };
        tools::builtin_result(&self.scenario.tools[tool.0].kind, &call.arguments, asked.seed)
    }

    /// Lets what was asked be a call: the speaker reads its outcome and is to be asked again. Returns what is
    /// recorded, and the path of the line.
    pub fn called(&mut self, asked: Asked, made: &MadeCall) -> (String, CallRecord) {
        let of = self.plan.turn(asked.id).timeline;
        let (event, origin, record) = self.lived(&asked, made);
        self.sent.insert(of, (asked.conversation, made.ids.as_slice().into()));
        self.timeline(of).push(event);
        if let Some(turn) = self.unanswered.get_mut(&of) {
            turn.calls.push(serde_json::json!(record));
        }
        (origin, record)
    }

    /// Returns what to ask the speaker after a call.
    ///
    /// # Errors
    /// As [`Memories::ask`].
    pub fn ask_after_call(&self, asked: &Asked, made: &MadeCall) -> Result<Asked, PromptError> {
        let of = self.plan.turn(asked.id).timeline;
        let mut timeline = self.look(of).cloned().unwrap_or_else(|| self.born(of));
        timeline.push(self.lived(asked, made).0);
        let conversation = self.folded(asked.id, timeline.events());
        Ok(Asked { conversation, n_calls: asked.n_calls + 1, must_call: None, ..asked.clone() })
    }

    /// A call as its speaker lives through it and as it is recorded, and the path of its line.
    fn lived(&self, asked: &Asked, made: &MadeCall) -> (Event, String, CallRecord) {
        let origin = call_of(&self.plan.turn(asked.id).path, asked.n_calls + 1);
        let Call { tool, arguments } = made.call.clone();
        let (Ok(result) | Err(result)) = &made.outcome;
        let result = tools::bounded(result, made.room.unwrap_or(MAX_RESULT));
        let record = CallRecord { tool, arguments, result, failed: made.outcome.is_err(), room: made.room };
        let is_last = asked.n_calls + 1 >= self.max_calls(asked.id);
        let event = Event::Called {
            ids: made.ids.as_slice().into(),
            raw: made.raw.as_str().into(),
            call: record.quoted(),
            result: self.as_read(&record, is_last),
            note: self.note(asked, &record),
            reasoning: self.reasoning(asked.id),
            origin: origin.clone(),
        };
        (event, origin, record)
    }

    /// What is noted down by a call.
    fn note(&self, asked: &Asked, call: &CallRecord) -> Option<String> {
        let tool = self.tool(asked.id, &call.tool).filter(|tool| !call.failed && self.takes_notes(*tool));
        let note = tool.and_then(|_| call.arguments["note"].as_str())?;
        Some(self.scenario.language.say(Text::Note, &[("note", note)]))
    }

    fn takes_notes(&self, tool: ToolId) -> bool {
        matches!(self.scenario.tools[tool.0].kind, ToolKind::BuiltIn(BuiltIn::Notes, _))
    }

    /// The result of a call as its agent reads it.
    fn as_read(&self, call: &CallRecord, is_last: bool) -> String {
        let language = &self.scenario.language;
        let result = match call.failed {
            true => language.say(Text::CallFailed, &[("reason", &call.result)]),
            // An empty message is none; as JSON, an empty text is this.
            false if call.result.is_empty() => r#""""#.to_string(),
            false => call.result.clone(),
        };
        if is_last { format!("{result}\n{}", language.text(Text::LastCall)) } else { result }
    }
}
