//! What strategies reply in a rehearsal: as in a run, as far as what they go by is known there. Not all
//! phases are rehearsed, and of some turns it does not matter what they choose.

use crate::prompt::{KnownPast, Memories, Recollections};
use greenroom_scenario::diagnostic::Diagnostic;
use greenroom_scenario::{
    AgentId, Chosen, Excerpt, NoReply, Path, PhaseId, Plan, Scenario, Strategy, StrategyOffer, Turn, TurnId,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Turns of strategies that were rehearsed, by their ids in the whole plan.
#[derive(Default)]
pub(super) struct Replies {
    tried: RefCell<BTreeMap<TurnId, Tried>>,
    /// Turns that replied in the plays since the last call of [`Replies::settle`], and whether all failed.
    recent: RefCell<BTreeMap<TurnId, bool>>,
}

#[derive(Default)]
struct Tried {
    n: usize,
    n_failed: usize,
    failed: Option<NoReply>,
    /// True if it failed in all plays of a piece whose plays were all that can happen: none represented
    /// others, or depended on invented words.
    is_certain: bool,
}

/// What is known in a play of some phases; ids are those of the whole plan.
pub(super) struct KnownPlay<'a> {
    pub(super) plan: &'a Plan,
    pub(super) excerpt: &'a Excerpt,
    pub(super) phases: &'a BTreeSet<PhaseId>,
    pub(super) memories: &'a Memories,
    /// Turns that chose the first way, because it does not matter to what is looked at; ids of the excerpt.
    pub(super) arbitrary: &'a BTreeSet<TurnId>,
}

impl KnownPlay<'_> {
    /// The turn in the excerpt, if its phase is rehearsed.
    fn here(&self, id: TurnId) -> Option<TurnId> {
        let is_here = self.phases.contains(&self.plan.turn(id).phase);
        is_here.then(|| self.excerpt.id(id))
    }
}

impl KnownPast for KnownPlay<'_> {
    fn was_played(&self, id: TurnId) -> Option<bool> {
        match self.here(id) {
            Some(here) => self.memories.was_played(here),
            None => self.plan.turn(id).guard.is_empty().then_some(true),
        }
    }

    fn option(&self, id: TurnId) -> Option<Option<usize>> {
        let here = self.here(id).filter(|here| !self.arbitrary.contains(here))?;
        self.memories.option(here)
    }

    fn was_present(&self, phase: PhaseId, agent: AgentId) -> Option<bool> {
        self.phases.contains(&phase).then(|| self.memories.was_present(phase, agent))?
    }

    fn opened(&self, phase: PhaseId) -> Option<bool> {
        self.phases.contains(&phase).then(|| self.memories.opened(phase))?
    }
}

impl Replies {
    /// What the strategy of a turn's speaker chooses among the open options; none: the speaker has no
    /// strategy, or it is unknown.
    pub(super) fn choose(
        &self,
        scenario: &Scenario,
        known: &KnownPlay<'_>,
        recollections: &mut Recollections,
        (id, turn): (TurnId, &Turn),
        open: &[usize],
    ) -> Option<Result<Chosen, NoReply>> {
        let strategy = scenario.strategy_of(turn).filter(|strategy| !strategy.is_random())?;
        let choice = &turn.constraint.as_ref()?.choice;
        if *strategy == Strategy::Human || open.is_empty() {
            return None;
        }
        let whole = known.excerpt.whole(id);
        let recalled = recollections.recall(scenario, known.plan, whole, known)?;
        let ranked = known.memories.taken(id);
        let offer = StrategyOffer { choice, open, ranked: &ranked };
        let reply = strategy.reply(&turn.path, 0, Some(offer), &recalled);
        self.note(whole, &reply);
        Some(reply.map(|text| choice.read(&text, &scenario.language)))
    }

    /// Strategies that choose what they can't.
    pub(super) fn stuck(&self, scenario: &Scenario, plan: &Plan) -> Vec<Diagnostic> {
        let stuck = |(id, tried): (TurnId, Tried)| {
            let (error, turn) = (tried.failed?, plan.turn(id));
            let key = scenario.agent(turn.speaker).key.clone();
            let is_certain = tried.n_failed == tried.n && tried.is_certain;
            let may = match (is_certain, tried.n_failed == tried.n) {
                (true, _) => "",
                (false, true) => "in all courses that were tried, ",
                (false, false) => "depending on what others choose, ",
            };
            let message = format!("at {}, {may}{error}", turn.path);
            let path = Path::default().key("agents").key(key).key("strategy");
            let (at, span) = (path.to_string(), scenario.tree.value(&path));
            let found = match is_certain {
                true => Diagnostic::error("not-open", at, span, message),
                false => Diagnostic::warning("not-open", at, span, message),
            };
            Some(found.help("a run would end there with an error: write an option that is open at that turn"))
        };
        self.tried.take().into_iter().filter_map(stuck).collect()
    }

    /// Ends some plays; `is_whole` if they were all that can happen.
    pub(super) fn settle(&self, is_whole: bool) {
        let recent = self.recent.take();
        let mut tried = self.tried.borrow_mut();
        for (turn, _) in recent.iter().filter(|(_, has_failed)| is_whole && **has_failed) {
            tried.entry(*turn).or_default().is_certain = true;
        }
    }

    fn note(&self, turn: TurnId, reply: &Result<String, NoReply>) {
        *self.recent.borrow_mut().entry(turn).or_insert(true) &= reply.is_err();
        let mut all = self.tried.borrow_mut();
        let tried = all.entry(turn).or_default();
        tried.n += 1;
        if let Err(error) = reply {
            tried.n_failed += 1;
            tried.failed.get_or_insert_with(|| error.clone());
        }
    }
}
