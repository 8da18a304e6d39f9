//! Calls of tools: what an agent asks for instead of replying. The call and its result are its memory alone; nobody hears them.
//!
//! Each is a line of its own before the turn's, `PATH.call1` and so on; that it is there makes a replay go through it.

use super::memories::{Asked, Memories};
use crate::scenario::language::Text;
use crate::scenario::{BuiltIn, Purpose, ToolId, ToolKind, TurnId};
use crate::timeline::Event;
use crate::tools::{self, Call};
use crate::transcript::{CallRecord, call_of};

impl Memories {
    /// The calls that the speaker of a turn has made in it.
    pub fn n_calls(&self, id: TurnId) -> usize {
        self.unanswered.get(&self.plan.turn(id).timeline).map_or(0, |turn| turn.calls.len())
    }

    /// The calls that the speaker of a turn may make in it, at most.
    pub fn max_calls(&self, id: TurnId) -> usize {
        let turn = self.plan.turn(id);
        let agent = self.scenario.agent(turn.speaker);
        let is_speech = turn.purpose == Purpose::Speech && turn.constraint.is_none() && turn.form.is_none();
        let is_asked = agent.strategy.is_none() && !self.scenario.phase(turn.phase).is_judge;
        let calls = is_speech && is_asked && !agent.tools.is_empty() && self.given(id).is_none();
        if calls { agent.max_calls } else { 0 }
    }

    /// True if the next reply to a turn may be a call.
    pub(super) fn may_call(&self, id: TurnId) -> bool {
        self.n_calls(id) < self.max_calls(id)
    }

    /// The tool of that name which the speaker of a turn may call.
    pub fn tool(&self, id: TurnId, name: &str) -> Option<ToolId> {
        tools::named(&self.scenario, self.scenario.agent(self.plan.turn(id).speaker), name)
    }

    /// What a call of a tool that is built in gives; `None`: only a program can tell.
    pub fn worked_out(&self, asked: &Asked, call: &Call) -> Option<tools::Outcome> {
        let tool = self.tool(asked.id, &call.tool)?;
        tools::worked_out(&self.scenario.tools[tool.0].kind, &call.arguments, asked.seed)
    }

    /// Lets what was asked be a call with this outcome: the speaker reads it and is to be asked again. Returns what is recorded, and the
    /// path of the line.
    pub fn called(
        &mut self,
        asked: Asked,
        ids: &[u32],
        raw: &str,
        call: Call,
        outcome: tools::Outcome,
    ) -> (String, CallRecord) {
        let turn = self.plan.turn(asked.id);
        let (of, origin) = (turn.timeline, call_of(&turn.path, asked.n_calls + 1));
        let failed = outcome.is_err();
        let result = tools::bounded(&outcome.unwrap_or_else(|reason| reason));
        let note = self.tool(asked.id, &call.tool).filter(|tool| !failed && self.takes_notes(*tool));
        let note = note.and_then(|_| call.arguments["note"].as_str());
        let note = note.map(|note| self.scenario.language.say(Text::Note, &[("note", note)]));
        let record = CallRecord { tool: call.tool, arguments: call.arguments, result, failed };
        let is_last = asked.n_calls + 1 >= self.max_calls(asked.id);
        let event = Event::Called {
            ids: ids.into(),
            raw: raw.into(),
            call: record.quoted(),
            result: self.as_read(&record, is_last),
            note,
            origin: origin.clone(),
        };
        self.sent.insert(of, (asked.conversation, ids.into()));
        self.timeline(of).push(event);
        if let Some(turn) = self.unanswered.get_mut(&of) {
            turn.calls.push(serde_json::json!(record));
        }
        (origin, record)
    }

    fn takes_notes(&self, tool: ToolId) -> bool {
        matches!(self.scenario.tools[tool.0].kind, ToolKind::BuiltIn(BuiltIn::Notes, _))
    }

    /// The result of a call as its agent reads it.
    fn as_read(&self, call: &CallRecord, is_last: bool) -> String {
        let language = &self.scenario.language;
        let result = match call.failed {
            true => language.say(Text::CallFailed, &[("reason", &call.result)]),
            false => call.result.clone(),
        };
        if is_last { format!("{result}\n{}", language.text(Text::LastCall)) } else { result }
    }
}
