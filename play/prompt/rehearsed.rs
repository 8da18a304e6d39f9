//! What a rehearsal asks of memories: turns that happen without requests, texts rendered whether or not an
//! agent reads them, and notes of every expression evaluated on the way. All else in a rehearsal is as in a
//! run.

use super::memories::{Memories, PromptError};
use super::notes::{Evaluated, EvaluationNotes};
use greenroom_scenario::render::{Reading, render_stage};
use greenroom_scenario::results::{History, Outcome};
use greenroom_scenario::template::{Expression, Template, TemplateError};
use greenroom_scenario::{AgentId, Announced, Chosen, Horizon, PhaseId, TurnId};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Memories {
    /// The same, with notes of every expression that is evaluated.
    pub fn with_notes(mut self) -> Self {
        self.notes = EvaluationNotes::taken();
        self
    }

    /// What was evaluated since the last call.
    pub fn take_notes(&self) -> Vec<Evaluated> {
        self.notes.take()
    }

    /// The value of an expression, or its error as that of the turn for which it was evaluated. Either is
    /// noted.
    pub(super) fn evaluated<T>(
        &self,
        path: &str,
        expression: &Expression,
        value: Result<T, TemplateError>,
    ) -> Result<T, PromptError> {
        self.notes.add(expression, value.as_ref().err());
        value.map_err(|error| self.failed(path, &expression.path, error))
    }

    /// Notes the value of an expression that is evaluated together with others.
    pub(super) fn note_evaluated(&self, expression: &Expression, error: Option<&TemplateError>) {
        self.notes.add(expression, error);
    }

    /// Lets a turn happen with this reply. It is not read or heard.
    pub fn suppose(&mut self, id: TurnId, text: Arc<str>, choice: Option<Chosen>) {
        let value = self.plan.turn(id).form.as_ref().map(|form| form.example());
        let text = value.as_ref().map_or(text, |value| greenroom_scenario::text_of(value).into());
        // Of a call that is made for certain, texts may use the result.
        let call = self.plan.turn(id).call.iter();
        let calls =
            call.map(|tool| json!({ "tool": **tool, "arguments": {}, "result": "…", "failed": false }));
        let calls = calls.filter(|_| self.max_calls(id) > 0).collect();
        self.outcomes[id.0] = Outcome::Said { text, choice, value, calls };
    }

    /// The options that a turn may choose from, by index; none where it makes no choice.
    ///
    /// # Errors
    /// The expression that tells which are open fails.
    pub fn options_of(&self, id: TurnId) -> Result<Vec<usize>, PromptError> {
        let choice = self.plan.turn(id).constraint.as_ref().map(|constraint| constraint.choice.clone());
        choice.map_or(Ok(Vec::new()), |choice| self.open_options(id, &choice))
    }

    /// Whether a phase opens.
    ///
    /// # Errors
    /// A condition that fails.
    pub fn is_opened(&self, phase: PhaseId) -> Result<bool, PromptError> {
        self.opens(REHEARSAL, phase)
    }

    /// Whether the `when` of a phase holds; `None`: it is not asked, because the pass of its block is not
    /// played.
    ///
    /// # Errors
    /// A condition that fails.
    pub fn asks_when(&self, phase: PhaseId, when: &Expression) -> Result<Option<bool>, PromptError> {
        if !self.is_in_pass(REHEARSAL, phase)? {
            return Ok(None);
        }
        self.holds(REHEARSAL, when, None, self.plan.begin_of(phase, 0)).map(Some)
    }

    /// Those of some agents who are present in a phase, as far as that is known.
    pub fn present_of(&self, phase: PhaseId, agents: &[AgentId]) -> Vec<AgentId> {
        // Where speakers are yet to be picked, each may be.
        let is_here = |agent: &&AgentId| self.is_present(REHEARSAL, phase, **agent).unwrap_or(true);
        agents.iter().filter(is_here).copied().collect()
    }

    /// Renders a text as an agent would read it at a point of the plan.
    ///
    /// # Errors
    /// The text can't be rendered. `None`: something that it depends on fails.
    pub fn try_text(
        &self,
        template: &Template,
        reading: Reading,
        known: Horizon,
    ) -> Result<(), Option<TemplateError>> {
        let present = self.cast(REHEARSAL, reading.phase).ok().flatten();
        let text = self.rendered(REHEARSAL, template, (reading, present), known);
        text.map_err(|_| None)?.map(drop).map_err(Some)
    }

    /// Whether an announcement is read: its phase opens, and its round is played.
    ///
    /// # Errors
    /// A condition that fails.
    pub fn is_announced(&self, announced: Announced) -> Result<bool, PromptError> {
        let Announced { phase, round, .. } = announced;
        Ok(self.opens(REHEARSAL, phase)? && self.has_round(REHEARSAL, phase, round)?)
    }

    /// All that was said in some phases before a turn, and what is drawn there.
    pub fn said_before(&self, phases: &[PhaseId], end: TurnId) -> History {
        let said = History::before(&self.plan, &self.outcomes, phases, end);
        said.drawing(Some(self.seeds.chance(end)))
    }

    /// A text of the stage as one agent reads it, where these agents are present; `None`: all who can be.
    pub(super) fn rendered(
        &self,
        path: &str,
        template: &Template,
        (reading, present): (Reading, Option<Arc<BTreeSet<AgentId>>>),
        known: Horizon,
    ) -> Result<Result<String, TemplateError>, PromptError> {
        let mut said = self.history_at(path, &template.quotes, template.scope.state, known)?;
        if present.is_some() {
            Arc::make_mut(&mut said).present = present;
        }
        Ok(render_stage(&self.scenario, template, reading, &said))
    }
}

/// What errors call the turn that a rehearsal is at.
const REHEARSAL: &str = "a rehearsal";
