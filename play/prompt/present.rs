//! Who is present in a phase, who votes, and which options are open: where a scenario gives an expression,
//! evaluated with what is known at that point.

use super::memories::{Memories, PromptError};
use super::settled::Pairs;
use greenroom_scenario::evaluate::{pairs, present};
use greenroom_scenario::render::round_names;
use greenroom_scenario::template::{Expression, TemplateError, TemplateFault};
use greenroom_scenario::{AgentId, Choice, PassId, PhaseId, Purpose, Turn, TurnId};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

impl Memories {
    /// Returns whether an agent who can be present in a phase is.
    pub(super) fn is_present(&self, path: &str, phase: PhaseId, agent: AgentId) -> Result<bool, PromptError> {
        Ok(self.cast(path, phase)?.is_none_or(|cast| cast.contains(&agent)))
    }

    /// Those present in a phase; none: all who can be.
    pub(super) fn cast(
        &self,
        path: &str,
        phase: PhaseId,
    ) -> Result<Option<Arc<BTreeSet<AgentId>>>, PromptError> {
        let here = self.scenario.phase(phase);
        if self.is_made_up || !here.is_cast_open() {
            return Ok(None);
        }
        if let Some(known) = self.settled.casts[phase.0].get() {
            return Ok(Some(known.clone()));
        }
        let Some(cast) = &here.cast else { return self.unrouted(path, phase) };
        let known = self.plan.begin_of(phase, 0);
        let said = self.history_at(path, &cast.phases, cast.scope.state, known)?;
        let found = self.evaluated(path, cast, present(&self.scenario, cast, &said, &[]))?;
        Ok(Some(self.settled.casts[phase.0].get_or_init(|| Arc::new(found)).clone()))
    }

    /// The agents present in a phase whose speakers were not picked: it is not played, or was requested too
    /// early.
    fn unrouted(&self, path: &str, phase: PhaseId) -> Result<Option<Arc<BTreeSet<AgentId>>>, PromptError> {
        if !self.opens(path, phase)? {
            return Ok(None);
        }
        let (path, needed) = (path.to_string(), format!("the route of {}", self.scenario.phase(phase).part));
        Err(PromptError::TooEarly { path, needed })
    }

    /// Returns whether a pass of a block is played.
    pub(super) fn pass_runs(&self, path: &str, pass: PassId) -> Result<bool, PromptError> {
        if let Some(known) = self.settled.passes[pass.0].get() {
            return Ok(*known);
        }
        let scenario = self.scenario.clone();
        let here = scenario.pass(pass);
        let begin = self.plan.begin_of(PhaseId(here.phases.start), 0);
        let holds = |condition: Option<&Expression>, otherwise: bool| {
            condition.map_or(Ok(otherwise), |condition| self.holds(path, condition, None, begin))
        };
        // What is in a pass that is not played is not asked.
        let mut plays = here.within.map_or(Ok(true), |within| self.pass_runs(path, within))?;
        if let Some(before) = here.before.filter(|_| plays) {
            plays = self.pass_runs(path, before)? && !holds(scenario.pass(before).until.as_ref(), false)?;
        }
        plays = plays && holds(here.when.as_ref(), true)?;
        Ok(*self.settled.passes[pass.0].get_or_init(|| plays))
    }

    /// Returns whether the speaker of a ballot votes.
    pub(super) fn votes(&self, turn: &Turn) -> Result<bool, PromptError> {
        let voters = self.scenario.phase(turn.phase).voters.as_ref().and_then(|voters| voters.among.as_ref());
        let Some(among) = voters.filter(|_| !self.is_made_up) else { return Ok(true) };
        let found = self.agents_by(turn, among)?;
        Ok(found.contains(&turn.speaker))
    }

    /// The pairs of a turn's round.
    pub(super) fn paired(&self, turn: &Turn, expression: &Expression) -> Result<Pairs, PromptError> {
        let (phase, round) = (turn.phase, turn.round);
        let memo = self.settled.pairs.get(&(phase, round));
        if let Some(known) = memo.and_then(OnceLock::get) {
            return Ok(known.clone());
        }
        let known = self.plan.begin_of(phase, round);
        let said = self.history_at(&turn.path, &expression.phases, expression.scope.state, known)?;
        let names: Vec<_> = round_names(&self.scenario, phase, round).collect();
        let (here, cast) = (self.scenario.phase(phase), self.cast(&turn.path, phase)?);
        let found = pairs(&self.scenario, expression, &said, &names).and_then(|pairs| {
            let is_here = |agent: &AgentId| {
                here.speakers().contains(agent) && cast.as_ref().is_none_or(|cast| cast.contains(agent))
            };
            let absent = pairs.iter().flat_map(|(one, other)| [one, other]).find(|agent| !is_here(agent));
            absent.map_or(Ok(pairs.clone()), |absent| {
                let key = &self.scenario.agent(*absent).key;
                let message = format!("`{key}` is in a pair, but does not speak in this phase");
                Err(TemplateError { kind: TemplateFault::Other, message, line: 1 })
            })
        });
        let found: Pairs = self.evaluated(&turn.path, expression, found)?.into();
        Ok(memo.map_or(found.clone(), |memo| memo.get_or_init(|| found).clone()))
    }

    fn agents_by(&self, turn: &Turn, among: &Expression) -> Result<BTreeSet<AgentId>, PromptError> {
        let said = self.history_at(&turn.path, &among.phases, among.scope.state, turn.known)?;
        self.evaluated(&turn.path, among, present(&self.scenario, among, &said, &[]))
    }

    /// The options that a turn may choose from, by index; those that another turn has taken aside.
    pub(super) fn open_options(&self, id: TurnId, choice: &Choice) -> Result<Vec<usize>, PromptError> {
        let turn = self.plan.turn(id);
        let mut open: Vec<usize> = (0..choice.options.len()).collect();
        if self.is_made_up {
            return Ok(open);
        }
        if let Some(expression) = &choice.open {
            let said = self.history_at(&turn.path, &expression.phases, expression.scope.state, turn.known)?;
            let names: Vec<_> = round_names(&self.scenario, turn.phase, turn.round).collect();
            let found = choice.open_among(&self.scenario, expression, turn.speaker, &said, &names);
            open = self.evaluated(&turn.path, expression, found)?;
        }
        // The floor is given to those who are present.
        if turn.purpose == Purpose::Floor && self.scenario.phase(turn.phase).is_cast_open() {
            let mut here = Vec::new();
            for option in open {
                let key = choice.options[option].value.as_str();
                let agent = key.and_then(|key| self.scenario.agent_by_key(key));
                if agent.map_or(Ok(true), |agent| self.is_present(&turn.path, turn.phase, agent))? {
                    here.push(option);
                }
            }
            open = here;
        }
        let taken = self.taken(id);
        open.retain(|option| !taken.contains(option));
        Ok(open)
    }
}
