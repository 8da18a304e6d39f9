//! Plays of some phases of a scenario without a model: walks of the plan, as of any run, whose answers are
//! invented.
//!
//! Choices are made in every possible way if there are few, else in representative ones: all the same, all
//! different, one against the rest, at random. All is counted in steps, never in time, so a check gives the
//! same result on every machine.

use super::chance::{Chance, rules};
use super::strategies::{KnownPlay, Replies};
use super::words::draws;
use crate::prompt::{Evaluated, Memories, Recollections, Routing};
use crate::walk::{Answers, walk};
use anyhow::bail;
use greenroom_jinja::taken;
use greenroom_scenario::Assignment;
use greenroom_scenario::template::Expression;
use greenroom_scenario::{
    Announced, ChoiceMethod, Chosen, Excerpt, Input, PhaseId, Plan, Purpose, Scenario, Steps, Topology, Turn,
    TurnId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Most ways to go that are all played.
const MAX_WAYS: usize = 256;
/// Minimum number of representative plays.
const MIN_PLAYS: usize = 24;
/// Seeds with which all ways are played, where something is drawn by chance.
const N_SEEDS: u64 = 32;
/// Steps of an expression or a text, apart from what it does: it is compiled, and names are found for it.
const COMPILED_STEPS: u64 = 300;
/// Turns that are scanned in one step, for what was said in some phases.
const TURNS_A_STEP: u64 = 4;

/// The part of what can happen that was played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All of it.
    Whole,
    /// Representative courses.
    Sample,
    /// Less, because the steps were used up.
    Cut,
}

/// A play that is over.
pub(super) struct FinishedPlay<'a> {
    pub(super) memories: &'a Memories,
    pub(super) excerpt: &'a Excerpt,
    /// Everything that was evaluated in it.
    pub(super) notes: &'a [Evaluated],
    /// False if it ended early, because something failed.
    pub(super) is_complete: bool,
}

/// Examines plays.
pub(super) type Look<'a> = dyn FnMut(&FinishedPlay<'_>, &mut Steps) + 'a;

/// Phases that are played together.
pub(super) struct PhaseGroup {
    /// The phases, and all that their conditions look at.
    pub(super) phases: BTreeSet<PhaseId>,
    /// The phase that is played only to reach its turns: nothing depends on the choices there.
    pub(super) unseen: Option<PhaseId>,
    /// True if more matters than each agent's latest choice.
    pub(super) looks_back: bool,
    /// The text said where no choice is made; several, if words matter.
    pub(super) texts: Vec<Arc<str>>,
}

/// Plays pieces of a scenario.
pub(super) struct Rehearsal {
    pub(super) scenario: Arc<Scenario>,
    pub(super) plan: Arc<Plan>,
    /// The turns of each phase.
    turns: Vec<Vec<TurnId>>,
    /// The announcements of each phase, in all rounds.
    pub(super) announced: BTreeMap<PhaseId, Vec<Announced>>,
    /// What strategies replied.
    pub(super) replies: Replies,
    /// Number of seeds to play with: several, where something is drawn by chance.
    n_seeds: u64,
}

impl Rehearsal {
    pub(super) fn new(scenario: Arc<Scenario>) -> Self {
        let plan = scenario.plan().clone();
        let mut turns = vec![Vec::new(); scenario.phases.len()];
        plan.order().for_each(|(id, turn)| turns[turn.phase.0].push(id));
        let read = plan.order().flat_map(|(_, turn)| &turn.inputs);
        let inputs = read.chain(plan.unread.iter().flat_map(|(_, inputs)| inputs));
        let mut announced: BTreeMap<PhaseId, BTreeMap<(usize, usize), Announced>> = BTreeMap::new();
        for input in inputs {
            if let Input::Announced(each) = input {
                announced.entry(each.phase).or_default().insert((each.round, each.index), *each);
            }
        }
        let announced = announced.into_iter().map(|(phase, all)| (phase, all.into_values().collect()));
        let (announced, replies) = (announced.collect(), Replies::default());
        let rehearsal = Self { announced, scenario, plan, turns, replies, n_seeds: 1 };
        Self { n_seeds: if rehearsal.draws() { N_SEEDS } else { 1 }, ..rehearsal }
    }

    /// These phases and all that decides about them.
    pub(super) fn closure(&self, phases: impl IntoIterator<Item = PhaseId>) -> BTreeSet<PhaseId> {
        let (mut all, mut new) = (BTreeSet::new(), phases.into_iter().collect::<Vec<_>>());
        while let Some(id) = new.pop() {
            if all.insert(id) {
                let query = self.scenario.phase(id).query().into_iter().flat_map(|query| query.needs());
                new.extend(query);
                new.extend(self.expressions(id).flat_map(Expression::needs));
            }
        }
        all
    }

    /// All expressions that are evaluated to play a phase.
    pub(super) fn expressions(&self, id: PhaseId) -> impl Iterator<Item = &Expression> {
        let phase = self.scenario.phase(id);
        let conditions = self.scenario.opens_if(id).chain(&phase.until).chain(&phase.cast);
        let conditions = conditions.chain(phase.matched());
        let conditions = conditions.chain(phase.script().iter().flat_map(|turn| &turn.when));
        let voters = phase.voters.iter().filter_map(|voters| voters.among.as_ref());
        let open = phase.choices().filter_map(|choice| choice.open.as_ref());
        let set = phase.sets().flat_map(Assignment::expressions);
        conditions.chain(voters).chain(open).chain(set)
    }

    /// True if anything is drawn by chance.
    fn draws(&self) -> bool {
        let scenario = &self.scenario;
        let phases = scenario.phases.iter().enumerate();
        let in_phases = phases.flat_map(|(id, phase)| {
            let texts = phase.templates().map(|template| template.text.as_str());
            texts.chain(self.expressions(PhaseId(id)).map(|expression| expression.text.as_str()))
        });
        let named = scenario
            .lets
            .iter()
            .chain(&scenario.computed)
            .chain(&scenario.outcomes)
            .map(|(_, each)| each.text.as_str());
        scenario.phases.iter().any(|phase| phase.topology == Topology::Random)
            || in_phases.chain(named).any(draws)
    }

    /// Plays a piece within `most` steps; the first play always takes place.
    pub(super) fn play(
        &self,
        piece: &PhaseGroup,
        most: u64,
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) -> Extent {
        if steps.are_used_up() {
            return Extent::Cut;
        }
        let begin = steps.remaining();
        let excerpt = self.plan.excerpt(&piece.phases);
        steps.spend((self.plan.n_turns() + 8 * excerpt.plan.n_turns()) as u64);
        let n_ways = self.n_ways(piece);
        if n_ways <= MAX_WAYS {
            let mut chance = Chance::every();
            self.play_once(piece, &excerpt, (&mut chance, 0), steps, look);
            let each = (begin - steps.remaining()).max(1);
            if each.saturating_mul(n_ways as u64 * self.n_seeds) <= most.min(begin) {
                for seed in 0..self.n_seeds {
                    // What is drawn may open other ways.
                    if seed > 0 {
                        chance = Chance::every();
                        self.play_once(piece, &excerpt, (&mut chance, seed), steps, look);
                    }
                    while chance.next() {
                        self.play_once(piece, &excerpt, (&mut chance, seed), steps, look);
                    }
                }
                let all = if self.n_seeds == 1 { Extent::Whole } else { Extent::Sample };
                return if steps.are_used_up() { Extent::Cut } else { all };
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
            if at >= MIN_PLAYS && begin - steps.remaining() > most {
                break;
            }
            let seed = at as u64 % self.n_seeds;
            self.play_once(piece, &excerpt, (&mut Chance::by(rule), seed), steps, look);
        }
        extent
    }

    /// Numbers of ways of the turns whose choice matters.
    fn constraints<'a>(&'a self, piece: &'a PhaseGroup) -> impl Iterator<Item = usize> {
        let turns = piece.phases.iter().flat_map(|phase| &self.turns[phase.0]);
        let turns = turns.map(|id| self.plan.turn(*id)).filter(|turn| self.matters(piece, turn));
        turns.filter_map(|turn| turn.constraint.as_ref()).map(|constraint| {
            constraint.choice.options.len() + usize::from(constraint.choice.method == ChoiceMethod::Parse)
        })
    }

    /// Maximum number of ways in which a piece can go.
    pub(super) fn n_ways(&self, piece: &PhaseGroup) -> usize {
        let routes = piece.phases.iter().filter_map(|phase| self.scenario.phase(*phase).route.as_ref());
        let routed = routes.flat_map(|route| std::iter::repeat_n(route.among.len() + 1, route.among.len()));
        self.constraints(piece).chain(routed).fold(piece.texts.len().max(1), usize::saturating_mul)
    }

    /// True if what a turn chose can matter: where only the latest choices are looked at, those of the last
    /// round do.
    fn matters(&self, piece: &PhaseGroup, turn: &Turn) -> bool {
        let phase = self.scenario.phase(turn.phase);
        let plain = || {
            let is_asked = |expression: &Expression| expression.phases.contains(&turn.phase);
            let open = phase.choices().filter_map(|choice| choice.open.as_ref());
            phase.until.is_none()
                && phase.set_each_round.is_empty()
                && phase.max_turns.is_none()
                && !open.into_iter().any(is_asked)
                && !phase.asks().any(|ask| ask.quotes.contains(&turn.phase))
                && phase.announcements.is_empty()
                && matches!(
                    phase.topology,
                    Topology::RoundRobin | Topology::Rotating | Topology::Random | Topology::Broadcast
                )
        };
        let is_last = || piece.looks_back || turn.round >= phase.rounds || !plain();
        turn.purpose == Purpose::Floor
            || piece.unseen != Some(turn.phase) && (turn.purpose != Purpose::Choice || is_last())
    }

    fn play_once(
        &self,
        piece: &PhaseGroup,
        excerpt: &Excerpt,
        (chance, seed): (&mut Chance, u64),
        steps: &mut Steps,
        look: &mut Look<'_>,
    ) {
        let plan = &excerpt.plan;
        steps.spend((plan.n_turns() + self.scenario.phases.len()) as u64 / TURNS_A_STEP);
        let memories = Memories::new(self.scenario.clone(), plan.clone(), BTreeMap::new(), seed);
        let mut memories = memories.with_notes();
        let text = chance.pick(piece.texts.len().max(1), None);
        let (notes, taken) = (Vec::new(), taken());
        let mut invented = Invented {
            rehearsal: self,
            piece,
            excerpt,
            plan,
            chance,
            steps,
            text,
            arbitrary: BTreeSet::new(),
            recollections: Recollections::default(),
            notes,
            taken,
        };
        let is_complete = walk(&mut memories, plan.end(), &mut invented).is_ok();
        invented.spend(&memories);
        let notes = invented.notes;
        if !steps.are_used_up() {
            look(&FinishedPlay { memories: &memories, excerpt, notes: &notes, is_complete }, steps);
        }
    }

    /// Steps to prepare the evaluation or rendering of `n_bytes` of code.
    pub(super) fn steps_of(&self, n_bytes: usize, n_turns: usize) -> u64 {
        let n_names = self.scenario.agents.len() + 4 * self.scenario.phases.len();
        COMPILED_STEPS + (n_names + 2 * n_bytes) as u64 + n_turns as u64 / TURNS_A_STEP
    }
}

/// Answers that are invented.
struct Invented<'a> {
    rehearsal: &'a Rehearsal,
    piece: &'a PhaseGroup,
    excerpt: &'a Excerpt,
    plan: &'a Plan,
    chance: &'a mut Chance,
    steps: &'a mut Steps,
    /// Index of the text that is said in this play.
    text: usize,
    /// Turns that chose the first way, because it does not matter to what is looked at.
    arbitrary: BTreeSet<TurnId>,
    recollections: Recollections,
    notes: Vec<Evaluated>,
    /// Steps of minijinja's machine that have been spent.
    taken: u64,
}

impl Invented<'_> {
    /// Spends what was evaluated since the last time.
    fn spend(&mut self, memories: &Memories) {
        let notes = memories.take_notes();
        let cost = |note: &Evaluated| self.rehearsal.steps_of(note.n_bytes, self.plan.n_turns());
        self.steps.spend(notes.iter().map(cost).sum());
        self.notes.extend(notes);
        self.taken = self.steps.spend_since(self.taken);
    }

    /// The choices open to a turn: a decoded one is an option, a parsed one may be invalid.
    fn ways(&mut self, memories: &Memories, id: TurnId) -> anyhow::Result<Vec<Chosen>> {
        let turn = self.plan.turn(id);
        let Some(constraint) = &turn.constraint else { return Ok(Vec::new()) };
        let (choice, open) = (&constraint.choice, memories.options_of(id)?);
        let Rehearsal { scenario, plan, replies, .. } = self.rehearsal;
        let (excerpt, phases, arbitrary) = (self.excerpt, &self.piece.phases, &self.arbitrary);
        let known = KnownPlay { plan, excerpt, phases, memories, arbitrary };
        let chosen = replies.choose(scenario, &known, &mut self.recollections, (id, turn), &open);
        self.steps.spend(self.recollections.take_n_looked());
        if let Some(chosen) = chosen {
            return Ok(vec![chosen?]);
        }
        let open = open.into_iter().map(Chosen::Option);
        Ok(open.chain((choice.method == ChoiceMethod::Parse).then_some(Chosen::Invalid)).collect())
    }
}

impl Answers for Invented<'_> {
    fn takes_place(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<bool> {
        self.steps.spend(2);
        self.spend(memories);
        if self.steps.are_used_up() {
            bail!("the steps of the check are used up");
        }
        Ok(memories.takes_place(id)?)
    }

    fn turn(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<ControlFlow<()>> {
        let turn = self.plan.turn(id);
        let ways = self.ways(memories, id)?;
        self.steps.spend(ways.len() as u64);
        let at = if ways.is_empty() || !self.rehearsal.matters(self.piece, turn) {
            self.arbitrary.extend((ways.len() > 1).then_some(id));
            0
        } else {
            self.chance.pick(ways.len(), Some(turn))
        };
        let chosen = ways.get(at).copied();
        let option = chosen.and_then(|chosen| turn.constraint.as_ref()?.choice.text_of(chosen));
        let texts = &self.piece.texts;
        let text = texts.get(self.chance.text(self.text, texts.len(), turn));
        let text = option.map(Arc::from).or(text.cloned()).unwrap_or_else(|| "…".into());
        memories.suppose(id, text, chosen);
        Ok(ControlFlow::Continue(()))
    }

    /// Any candidate may be nearer than any other, or have no score.
    fn route(&mut self, routing: &Routing) -> anyhow::Result<Option<Vec<Option<f64>>>> {
        let n = routing.candidates.len();
        let score = |_| match self.chance.draw(n + 1) {
            rank if rank < n => Some(1.0 - rank as f64 / (n + 1) as f64),
            _ => None,
        };
        Ok(Some((0..n).map(score).collect()))
    }
}
