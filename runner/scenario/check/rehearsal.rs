//! Rehearsals: what some phases of a scenario can come to, found by playing them without a model.
//!
//! Choices are made in every way if there are few, else in ways that stand for the others: all alike, all different, one
//! against the rest, at random. All is counted in steps, never in time, so a check says the same on every machine.
//!
//! `check` rehearses the phases that a text or a condition looks at: every way that they can go up to 256, else ways that stand
//! for the others. So it warns of what can't be reached, may fail or may be missing. It counts steps, not time: its verdict is
//! the same on a busy machine.

use super::chance::{Chance, rules};
use super::played::Replies;
use crate::scenario::choice::{Chosen, Method, text_of};
use crate::scenario::compile::compile;
use crate::scenario::evaluate::present;
use crate::scenario::plan::{Condition, Plan, Purpose, Turn, TurnId};
use crate::scenario::render::{holds_with, round_names};
use crate::scenario::results::{Said, State, Utterance, tally};
use crate::scenario::template::{Expression, TemplateError};
use crate::scenario::{AgentId, PassId, PhaseId, Scenario, Topology};
use greenroom_jinja::taken;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most ways to go that are all played.
const MAX_WAYS: usize = 256;
/// Fewest plays that stand for all others.
const FEWEST_PLAYS: usize = 24;
/// Steps that a whole check may take: a second or two, as a step is about a tenth of a microsecond.
const MAX_STEPS: u64 = 15_000_000;
/// Steps of an expression or a text, apart from what it does: it is compiled, and names are found for it.
const COMPILED_STEPS: u64 = 300;
/// Steps of minijinja's machine that take as long as one of a check.
const MACHINE_STEPS: u64 = 2;

/// Steps of a check that are left.
pub(super) struct Steps(u64);

impl Default for Steps {
    fn default() -> Self {
        Self(MAX_STEPS)
    }
}

impl Steps {
    pub(super) fn spend(&mut self, steps: u64) {
        self.0 = self.0.saturating_sub(steps);
    }

    /// Does what renders and evaluates, and spends what that takes.
    pub(super) fn count<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = taken();
        let done = work();
        self.spend((taken() - before) / MACHINE_STEPS);
        done
    }

    /// A fair part for one of so many.
    pub(super) fn share(&self, n_left: usize) -> u64 {
        self.0 / n_left.max(1) as u64
    }

    pub(super) fn are_used_up(&self) -> bool {
        self.0 == 0
    }
}

/// The part of what can happen that was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// Ways that stand for the others.
    Sample,
    /// Less, because the steps were used up.
    Cut,
}

/// Something to look at in a play.
pub(super) enum Moment<'a> {
    /// A turn takes place.
    Turn(&'a Turn),
    /// A phase's `until` or a turn's `when` is asked.
    Condition(&'a Expression, &'a Result<bool, TemplateError>),
    /// Something else was computed, or failed: what is set, who is present, what is open.
    Worked(&'a Expression, Option<&'a TemplateError>),
    /// It is over.
    End,
}

/// Looks at the moments of plays, and at what has been said by then.
pub(super) type Look<'a> = dyn FnMut(Moment<'_>, &Arc<Said>, &mut Steps) + 'a;

/// Phases that are played together.
pub(super) struct Piece {
    /// The phases, and all that their conditions look at.
    pub(super) phases: BTreeSet<PhaseId>,
    /// The phase that is played only to come to its turns: nothing looks at what is chosen there.
    pub(super) unseen: Option<PhaseId>,
    /// True if more can be told than each agent's latest choice.
    pub(super) looks_back: bool,
    /// The text said where no choice is made; several, if words matter.
    pub(super) texts: Vec<Arc<str>>,
}

/// Plays pieces of a scenario.
pub(super) struct Rehearsal {
    pub(super) scenario: Arc<Scenario>,
    pub(super) plan: Plan,
    /// The turns of each phase.
    turns: Vec<Vec<TurnId>>,
    /// The state before the first turn.
    initial: Arc<State>,
    /// What strategies replied.
    pub(super) replies: Replies,
}

/// The fate of a turn.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Skipped,
    Played(Option<Chosen>),
}

impl Fate {
    fn option(self) -> Option<usize> {
        match self {
            Self::Played(Some(Chosen::Option(option))) => Some(option),
            _ => None,
        }
    }
}

/// A play under way.
pub(super) struct Play<'a> {
    pub(super) rehearsal: &'a Rehearsal,
    /// The phases that are played.
    pub(super) phases: &'a BTreeSet<PhaseId>,
    pub(super) said: Arc<Said>,
    fates: BTreeMap<TurnId, Fate>,
    /// Turns that chose the first way, because it does not matter to what is looked at.
    arbitrary: BTreeSet<TurnId>,
    /// Phases that opened (0), whose rounds were begun, or whose votes were held (from the end).
    pub(super) decided: BTreeMap<(PhaseId, usize), bool>,
    /// Passes of blocks that were played or not.
    pub(super) passes: BTreeMap<PassId, bool>,
    /// Those present, where that depends on what happened.
    pub(super) casts: BTreeMap<PhaseId, BTreeSet<AgentId>>,
    /// Changes of the state so far.
    pub(super) n_changes: usize,
}

impl Rehearsal {
    pub(super) fn new(scenario: Arc<Scenario>) -> Self {
        let plan = compile(&scenario);
        let mut turns = vec![Vec::new(); scenario.phases.len()];
        plan.order().for_each(|(id, turn)| turns[turn.phase.0].push(id));
        let initial = Arc::new(scenario.state.clone());
        Self { scenario, plan, turns, initial, replies: Replies::default() }
    }

    /// Those of some agents who are present in a phase, as far as it can be determined.
    pub(super) fn present(
        &self,
        phase: PhaseId,
        agents: &[AgentId],
        said: &Arc<Said>,
        steps: &mut Steps,
    ) -> Vec<AgentId> {
        let cast = self.scenario.phase(phase).cast.as_ref().map(|cast| {
            steps.spend(self.steps_of(cast, said));
            steps.count(|| present(&self.scenario, cast, &said.only(&cast.phases), &[]))
        });
        let is_here = |agent: &&AgentId| cast.iter().flatten().all(|cast| cast.contains(agent));
        agents.iter().filter(is_here).copied().collect()
    }

    /// True if a turn is the first of its round.
    pub(super) fn is_first(&self, turn: &Turn) -> bool {
        let first = self.plan.begin_of(turn.phase, turn.round).turns;
        first < self.plan.end() && self.plan.turn(first).path == turn.path
    }

    /// These phases and all that decides about them.
    pub(super) fn closure(&self, phases: impl IntoIterator<Item = PhaseId>) -> BTreeSet<PhaseId> {
        let (mut all, mut new) = (BTreeSet::new(), phases.into_iter().collect::<Vec<_>>());
        while let Some(id) = new.pop() {
            if all.insert(id) {
                let phase = self.scenario.phase(id);
                let conditions = self.scenario.opens_if(id).chain(&phase.until).chain(&phase.cast);
                let conditions = conditions.chain(phase.script().iter().flat_map(|turn| &turn.when));
                let voters = phase.voters.iter().filter_map(|voters| voters.among.as_ref());
                let open = phase.choices().filter_map(|choice| choice.open.as_ref());
                let set = phase.sets().map(|assignment| &assignment.value);
                new.extend(phase.query().into_iter().flat_map(|query| query.needs()));
                new.extend(conditions.chain(voters).chain(open).chain(set).flat_map(Expression::needs));
            }
        }
        all
    }

    /// Plays a piece with at most so many steps, the first time at any rate.
    pub(super) fn play(&self, piece: &Piece, most: u64, steps: &mut Steps, look: &mut Look<'_>) -> Extent {
        if steps.are_used_up() {
            return Extent::Cut;
        }
        let begin = steps.0;
        let n_ways = self.n_ways(piece);
        if n_ways <= MAX_WAYS {
            let mut chance = Chance::every();
            self.play_once(piece, &mut chance, steps, look);
            let each = (begin - steps.0).max(1);
            if each.saturating_mul(n_ways as u64) <= most.min(begin) {
                while chance.next() {
                    self.play_once(piece, &mut chance, steps, look);
                }
                return if steps.are_used_up() { Extent::Cut } else { Extent::Whole };
            }
        }
        let speakers: BTreeSet<_> =
            piece.phases.iter().flat_map(|id| self.scenario.phase(*id).agents.clone()).collect();
        let n_options = self.constraints(piece).map(|n| n.saturating_add(1)).max().unwrap_or(1);
        let extent = if n_ways <= MAX_WAYS { Extent::Cut } else { Extent::Sample };
        for (at, rule) in rules(&speakers, n_options, piece.texts.len()).into_iter().enumerate() {
            if at > 0 && steps.are_used_up() {
                return Extent::Cut;
            }
            if at >= FEWEST_PLAYS && begin - steps.0 > most {
                break;
            }
            self.play_once(piece, &mut Chance::by(rule), steps, look);
        }
        extent
    }

    fn piece_turns<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = (TurnId, &'a Turn)> {
        let ids = piece.phases.iter().flat_map(|phase| &self.turns[phase.0]);
        ids.map(|id| (*id, self.plan.turn(*id)))
    }

    /// Numbers of options of the turns whose choice matters.
    fn constraints<'a>(&'a self, piece: &'a Piece) -> impl Iterator<Item = usize> {
        let turns = self.piece_turns(piece).filter(|(_, turn)| self.matters(piece, turn));
        turns.filter_map(|(_, turn)| turn.constraint.as_ref()).map(|constraint| {
            constraint.choice.options.len() + usize::from(constraint.choice.method == Method::Parse)
        })
    }

    /// In how many ways a piece can go, at most.
    pub(super) fn n_ways(&self, piece: &Piece) -> usize {
        self.constraints(piece).fold(piece.texts.len().max(1), usize::saturating_mul)
    }

    /// True if what a turn chose can matter: where only the latest choices are looked at, those of the last round do.
    fn matters(&self, piece: &Piece, turn: &Turn) -> bool {
        let phase = self.scenario.phase(turn.phase);
        let plain = phase.until.is_none()
            && phase.max_turns.is_none()
            && matches!(phase.topology, Topology::RoundRobin | Topology::TurnByTurn | Topology::Broadcast);
        let is_last = || piece.looks_back || !plain || turn.round >= phase.rounds;
        turn.purpose == Purpose::Floor
            || piece.unseen != Some(turn.phase) && (turn.purpose != Purpose::Choice || is_last())
    }

    fn play_once(&self, piece: &Piece, chance: &mut Chance, steps: &mut Steps, look: &mut Look<'_>) {
        let (fates, arbitrary, decided, passes, casts) = Default::default();
        let said = Arc::new(Said::beginning(self.initial.clone()));
        let phases = &piece.phases;
        let (rehearsal, n_changes) = (self, 0);
        let mut play = Play { rehearsal, phases, said, fates, arbitrary, decided, passes, casts, n_changes };
        let text = chance.pick(piece.texts.len().max(1), None);
        for (id, turn) in self.piece_turns(piece) {
            steps.spend(2);
            if steps.are_used_up() {
                return;
            }
            // Where something fails, the run ends.
            if play.change(id, steps, look).is_err() {
                return;
            }
            let Ok(takes_place) = play.takes_place(id, turn, steps, look) else { return };
            if !takes_place {
                play.fates.insert(id, Fate::Skipped);
                continue;
            }
            look(Moment::Turn(turn), &play.said, steps);
            let Ok(ways) = play.ways(id, turn, steps, look) else { return };
            // A strategy that can't reply ends the run.
            let Some(ways) = ways else { return };
            steps.spend(ways.len() as u64);
            let at = if ways.is_empty() || !self.matters(piece, turn) {
                play.arbitrary.extend((ways.len() > 1).then_some(id));
                0
            } else {
                chance.pick(ways.len(), Some(turn))
            };
            let chosen = ways.get(at).copied();
            let option = chosen.and_then(|chosen| turn.constraint.as_ref()?.choice.text_of(chosen));
            let text = piece.texts.get(chance.text(text, piece.texts.len(), turn));
            let text = option.map(Arc::from).or(text.cloned()).unwrap_or_else(|| "…".into());
            play.fates.insert(id, Fate::Played(chosen));
            let value = turn.form.as_ref().map(|form| form.example());
            let text = value.as_ref().map_or(text, |value| text_of(value).into());
            let line = Utterance { value, ..Utterance::new(turn, &text, chosen) };
            Arc::make_mut(&mut play.said).push(turn.phase, line);
        }
        if play.change(self.plan.end(), steps, look).is_ok() {
            look(Moment::End, &play.said, steps);
        }
    }

    /// True if an expression holds, given what was said in the phases that it names; `round` is where it is asked in a phase.
    pub(super) fn holds(
        &self,
        expression: &Expression,
        round: Option<(PhaseId, usize)>,
        said: &Arc<Said>,
        steps: &mut Steps,
    ) -> Result<bool, TemplateError> {
        steps.spend(self.steps_of(expression, said));
        let names = round.into_iter().flat_map(|(phase, round)| round_names(&self.scenario, phase, round));
        steps.count(|| holds_with(&self.scenario, expression, &said.only(&expression.phases), names))
    }

    /// The steps it takes to get ready to evaluate an expression.
    pub(super) fn steps_of_text(&self, text: &str) -> u64 {
        COMPILED_STEPS + (4 * self.scenario.phases.len() + 2 * text.len()) as u64
    }

    /// The same with the results of phases that it looks at.
    pub(super) fn steps_of(&self, expression: &Expression, said: &Said) -> u64 {
        let n_lines: usize = expression.phases.iter().map(|phase| said.lines(*phase).len()).sum();
        self.steps_of_text(&expression.text) + 4 * n_lines as u64
    }
}

impl Play<'_> {
    /// True if a turn takes place, as the stage decides it.
    fn takes_place(
        &mut self,
        id: TurnId,
        turn: &Turn,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        let scenario = self.rehearsal.scenario.clone();
        for condition in &turn.guard {
            let met = match condition {
                Condition::Opens(phase) => self.opens(*phase, steps, look)?,
                Condition::Present => self.is_present(turn.phase, turn.speaker, steps, look)?,
                Condition::Votes => self.votes(turn, steps, look)?,
                Condition::CanChoose => {
                    let choice = turn.constraint.as_ref().map(|constraint| constraint.choice.clone());
                    match choice {
                        Some(choice) => !self.open(turn, &choice, steps, look)?.is_empty(),
                        None => true,
                    }
                }
                Condition::GoesOn(phase, round) => match self.decided.get(&(*phase, *round)) {
                    Some(goes_on) => *goes_on,
                    None => {
                        let before = self.decided.get(&(*phase, round - 1)).copied();
                        let before = *round < 3 || before.unwrap_or(true);
                        let until = scenario.phase(*phase).until.as_ref().filter(|_| before);
                        let at = (*phase, round - 1);
                        let held = until.map(|until| self.ask(until, at, steps, look)).transpose()?;
                        *self.decided.entry((*phase, *round)).or_insert(before && !held.unwrap_or(false))
                    }
                },
                Condition::Holds(expression) => {
                    self.ask(expression, (turn.phase, turn.round), steps, look)?
                }
                Condition::Chose(asked, option) => {
                    self.fates.get(asked) == Some(&Fate::Played(Some(Chosen::Option(*option))))
                }
                Condition::NotPlayed(other) => self.fates.get(other) == Some(&Fate::Skipped),
                Condition::Undecided(phase, attempt) => {
                    let undecided = tally(scenario.phase(*phase), self.said.lines(*phase)).decision.is_none();
                    *self.decided.entry((*phase, usize::MAX - attempt)).or_insert(undecided)
                }
            };
            if !met {
                return Ok(false);
            }
        }
        debug_assert!(!self.fates.contains_key(&id));
        Ok(true)
    }

    fn ask(
        &self,
        expression: &Expression,
        round: (PhaseId, usize),
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<bool, TemplateError> {
        let held = self.rehearsal.holds(expression, Some(round), &self.said, steps);
        look(Moment::Condition(expression, &held), &self.said, steps);
        held
    }

    /// The choices open to a turn: a decoded one is an option, a parsed one may be invalid.
    fn ways(
        &mut self,
        id: TurnId,
        turn: &Turn,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Result<Option<Vec<Chosen>>, TemplateError> {
        let Some(constraint) = &turn.constraint else { return Ok(Some(Vec::new())) };
        let choice = &constraint.choice;
        let open = self.open(turn, choice, steps, look)?;
        if let Some(chosen) = self.by_strategy(id, turn, &open, steps) {
            return Ok(chosen.ok().map(|chosen| vec![chosen]));
        }
        let open = open.into_iter().map(Chosen::Option);
        Ok(Some(open.chain((choice.method == Method::Parse).then_some(Chosen::Invalid)).collect()))
    }

    /// The option that a turn chose, if it chose one; none: that is unknown here.
    pub(super) fn option(&self, id: TurnId) -> Option<Option<usize>> {
        let is_known =
            self.phases.contains(&self.rehearsal.plan.turn(id).phase) && !self.arbitrary.contains(&id);
        is_known.then(|| self.fates.get(&id).and_then(|fate| fate.option()))
    }

    /// Options that the speaker of a turn has ranked higher.
    pub(super) fn taken(&self, turn: &Turn) -> BTreeSet<usize> {
        let sooner = turn.constraint.iter().flat_map(|constraint| &constraint.except);
        sooner.filter_map(|sooner| self.fates.get(sooner)?.option()).collect()
    }

    pub(super) fn was_played(&self, turn: TurnId) -> bool {
        self.fates.get(&turn).is_some_and(|fate| *fate != Fate::Skipped)
    }
}
