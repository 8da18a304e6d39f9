//! Calls of tools: a tool works while others speak, and its caller is asked again with the result.

use super::{Answer, Came, Scene, Scope, Stage, State};
use crate::backend::Reply;
use crate::prompt::Asked;
use crate::scenario::TurnId;
use crate::tools::{Call, Outcome};
use crate::transcript::call_of;
use crate::walk;
use anyhow::anyhow;

impl Stage {
    /// A reply is a call: its result is what a recording says, what the tool gives, or an error that its speaker reads.
    pub(super) fn call(
        &mut self,
        asked: Asked,
        reply: Reply,
        call: Call,
        before: Vec<Answer>,
        scope: &mut Scope<'_>,
    ) {
        let id = asked.id;
        let path = call_of(&asked.path, asked.n_calls + 1);
        let seed = asked.seed;
        let tool = self.memories.tool(id, &call.tool);
        let is_outside = tool.is_some_and(|tool| self.scenario.tools[tool.0].kind.is_outside());
        let recorded = self
            .settings
            .looked_up
            .calls
            .get(&path)
            .filter(|was| was.tool == call.tool && was.arguments == call.arguments);
        let recorded = recorded.filter(|_| is_outside).map(|was| was.outcome());
        self.state[id.0] = State::Calling(asked, Box::new(reply), before);
        if let Some(outcome) = recorded {
            return self.called(id, call, outcome, scope);
        }
        let Some(tool) = tool else {
            let reason = format!("there is no tool `{}`", call.tool);
            return self.called(id, call, Err(reason), scope);
        };
        if is_outside && !self.settings.toolbox.is_open() {
            let remedy = "--allow-tools lets it run";
            let error = anyhow!("{path}: `{}` was not called so when this was recorded; {remedy}", call.tool);
            return self.fail(id, error);
        }
        let toolbox = self.settings.toolbox.clone();
        scope.running.spawn(async move {
            let outcome = toolbox.call(tool, call.clone(), seed).await;
            (id, Ok(Came::Result(call, outcome)))
        });
    }

    /// A tool has done its work: its caller is asked again.
    pub(super) fn called(&mut self, id: TurnId, call: Call, outcome: Outcome, scope: &mut Scope<'_>) {
        let State::Calling(asked, reply, mut answers) =
            std::mem::replace(&mut self.state[id.0], State::Waiting)
        else {
            return self.fail(id, anyhow!("{}: a result without a call", self.plan.turn(id).path));
        };
        let line = walk::called(&mut self.memories, asked, &reply, call, outcome);
        if let Some(call) = &line.call {
            scope.watch.see(id, Scene::Called(call));
        }
        // The turn's memory goes on in its next reply, which saves it.
        answers.push(Answer { line, usage: reply.usage, commit: None });
        self.ask_again(id, answers, scope);
    }
}
