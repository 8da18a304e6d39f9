//! Calls of tools: a tool works while others speak, and its caller is asked again with the result.

use super::{RunLoop, Scene, Stage, TaskResult, TurnAnswer, TurnState};
use crate::backend::Reply;
use crate::prompt::{Asked, MadeCall};
use crate::tools::{CallOutcome, MAX_RESULT};
use crate::transcript::call_of;
use crate::walk;
use anyhow::anyhow;
use greenroom_engine::Call;
use greenroom_scenario::TurnId;
use std::time::Instant;

impl Stage {
    /// A reply is a call: its result is what a recording says, what the tool gives, or an error that its
    /// speaker reads.
    pub(super) fn call(
        &mut self,
        asked: Asked,
        reply: Reply,
        call: Call,
        before: Vec<TurnAnswer>,
        run_loop: &mut RunLoop<'_>,
    ) {
        let id = asked.id;
        let path = call_of(&asked.path, asked.n_calls + 1);
        let recorded = self.settings.retrievals.calls.get(&path).filter(|was| was.call() == call);
        let recorded = recorded.map(|was| was.outcome());
        let known = self.memories.builtin_result(&asked, &call).or(recorded);
        self.state[id.0] = TurnState::Calling(asked, Box::new(reply), before);
        if let Some(outcome) = known {
            return self.called(id, call, outcome, run_loop);
        }
        let tool = self.memories.tool(id, &call.tool);
        let Some(tool) = tool.filter(|tool| self.settings.toolbox.can_call(*tool)) else {
            let remedy = "pass --allow-tools to run it, or the function that it is";
            let error = anyhow!("{path}: the recording has no such call of `{}`; {remedy}", call.tool);
            return self.fail(id, error);
        };
        let toolbox = self.settings.toolbox.clone();
        run_loop.running.spawn(async move {
            let outcome = toolbox.call(tool, call.clone()).await;
            (id, Ok(TaskResult::Result(call, outcome)))
        });
    }

    /// A tool has done its work: its caller is asked again.
    pub(super) fn called(
        &mut self,
        id: TurnId,
        call: Call,
        outcome: CallOutcome,
        run_loop: &mut RunLoop<'_>,
    ) {
        let TurnState::Calling(asked, reply, mut answers) =
            std::mem::replace(&mut self.state[id.0], TurnState::Waiting)
        else {
            return self.fail(id, anyhow!("{}: got a result without a call", self.plan.turn(id).path));
        };
        let (ids, raw, room) = (reply.ids.clone(), reply.text.clone(), None);
        let mut made = MadeCall { ids, raw, call, outcome, room };
        match self.room_for(&asked, &made) {
            Ok(room) => made.room = room,
            Err(error) => return self.fail(id, error),
        }
        let line = walk::called(&mut self.memories, asked, &reply, &made);
        if let Some(call) = &line.call {
            run_loop.watch.see(id, Scene::Called(call));
        }
        // The turn's memory continues in its next reply, which saves it.
        answers.push(TurnAnswer { line, usage: reply.usage, commit: None, at: Instant::now() });
        self.ask_again(id, answers, run_loop);
    }

    /// The characters of a call's result that leave room for what the turn may still need; `None`: all that a
    /// result may have.
    fn room_for(&self, asked: &Asked, made: &MadeCall) -> anyhow::Result<Option<usize>> {
        let backend = self.backend_of(self.plan.turn(asked.id));
        let fits = |room| {
            let asked = self.memories.ask_after_call(asked, &MadeCall { room, ..made.clone() })?;
            Ok::<_, anyhow::Error>(!backend.overflows(&self.request(&asked))?)
        };
        if fits(None)? {
            return Ok(None);
        }
        let (Ok(result) | Err(result)) = &made.outcome;
        let length = result.chars().count().min(MAX_RESULT);
        let (mut fitting, mut n) = (length.min(1), length);
        while fitting < n {
            let some = (fitting + n).div_ceil(2);
            if fits(Some(some))? { fitting = some } else { n = some - 1 }
        }
        Ok(Some(fitting).filter(|room| *room < length))
    }
}
