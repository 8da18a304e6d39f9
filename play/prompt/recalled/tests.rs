//! Recollections that are carried forward equal those from the whole plan, and cost only what is new.

use super::*;
use crate::prompt::{Memories, SampledReply};
use greenroom_scenario::{load, turn_seed};

/// What the strategy of a turn's speaker remembers, by all turns before it, as [`Recollections::recall`]
/// says.
fn from_the_start(scenario: &Scenario, plan: &Plan, id: TurnId, past: &dyn KnownPast) -> Option<Recalled> {
    let turn = plan.turn(id);
    let (hears, counts) = match scenario.strategy_of(turn)? {
        Strategy::TitForTat | Strategy::Grim => (true, false),
        Strategy::List(_) => (false, true),
        _ => return Some(Recalled::default()),
    };
    let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice).filter(|_| hears);
    let first = latest_fresh(scenario, turn, past)?.unwrap_or(PhaseId(0));
    let (mut others, mut n_replies) = (Vec::new(), 0);
    let is_by_phase = matches!(scenario.agent(turn.speaker).strategy, Some(Strategy::ByPhase(_)));
    let name = |phase: PhaseId| &scenario.phase(phase).name;
    for (own_id, own) in plan.order().take(id.0 + 1).filter(|(_, own)| own.timeline == turn.timeline) {
        for heard in own.inputs.iter().filter_map(heard_turn).filter(|_| choice.is_some()) {
            let (Some(choice), other) = (choice, plan.turn(heard)) else { continue };
            let Some(of) = other.constraint.as_ref().filter(|_| other.phase >= first) else { continue };
            if choice.has_results_of(&of.choice) && is_there(scenario, other.phase, turn.speaker, past)? {
                let option = past.option(heard)?;
                others.extend(option.and_then(|option| choice.with_value(&of.choice.options[option].value)));
            }
        }
        let is_same = !is_by_phase || name(own.phase) == name(turn.phase);
        if counts && own_id < id && own.phase >= first && is_same {
            n_replies += usize::from(past.was_played(own_id)?);
        }
    }
    let has_defected = others.iter().any(|other| *other != 0);
    Some(Recalled { last: others.last().copied(), has_defected, n_replies })
}

/// The latest phase up to a turn's own that is fresh and in which the speaker was. A memory of one phase
/// begins with that.
fn latest_fresh(scenario: &Scenario, turn: &Turn, past: &dyn KnownPast) -> Option<Option<PhaseId>> {
    let begin = turn.timeline.phase.map_or(0, |phase| phase.0);
    for id in (begin..=turn.phase.0).rev().map(PhaseId) {
        let phase = scenario.phase(id);
        if !phase.fresh || !phase.agents.contains(&turn.speaker) {
            continue;
        }
        let is_certain = id == turn.phase || scenario.opens_if(id).next().is_none();
        let opened = if is_certain { true } else { past.opened(id)? };
        if opened && (id == turn.phase || is_there(scenario, id, turn.speaker, past)?) {
            return Some(Some(id));
        }
    }
    Some(None)
}

/// A past that is drawn from a seed, and of which not all is known.
struct Drawn<'a> {
    seed: u64,
    plan: &'a Plan,
}

impl Drawn<'_> {
    fn below(&self, n: u64, of: &str) -> u64 {
        turn_seed(self.seed, of) % n
    }

    /// What one of `n` is not known to be, one is not, and all others are.
    fn guess(&self, n: u64, of: &str) -> Option<bool> {
        match self.below(n, of) {
            0 => None,
            drawn => Some(drawn > 1),
        }
    }
}

impl KnownPast for Drawn<'_> {
    fn was_played(&self, id: TurnId) -> Option<bool> {
        self.guess(12, &format!("played {}", id.0))
    }

    fn option(&self, id: TurnId) -> Option<Option<usize>> {
        let constraint = self.plan.turn(id).constraint.as_ref();
        let n = constraint.map_or(0, |constraint| constraint.choice.options.len()) as u64;
        let (is_known, option) = (self.guess(12, &format!("known {}", id.0))?, format!("option {}", id.0));
        Some((is_known && n > 0).then(|| self.below(n, &option) as usize))
    }

    fn was_present(&self, phase: PhaseId, agent: AgentId) -> Option<bool> {
        self.guess(6, &format!("present {} {}", phase.0, agent.0))
    }

    fn opened(&self, phase: PhaseId) -> Option<bool> {
        self.guess(4, &format!("opened {}", phase.0))
    }
}

const GAMES: &str = "
state: {here: [ann, ben, cas, dan]}
agents:
  ann: {strategy: tit_for_tat}
  ben: {strategy: {talk: {list: [one, two]}, game: grim, market: {list: [share, take]}, vote: tit_for_tat}}
  cas: {strategy: {list: [take, share]}, lifecycle: ephemeral}
  dan: {strategy: grim}
phases:
  - {name: talk, agents: [ben]}
  - repeat: 4
    phases:
      - { name: game, agents: [ann, ben, cas, dan], order: broadcast, rounds: 2, answer: [share, take], when: here | length > 1 }
      - repeat: 2
        phases:
          - { name: market, agents: [dan, ben, ann], rounds: 2, answer: [take, share], fresh: true, when: here | length > 2 }
      - { name: vote, agents: here, answer: [share, take], fresh: FRESH }
  - { name: end, agents: [dan, cas, ann], answer: [share, take] }
";

fn loaded(text: &str) -> (Arc<Scenario>, Plan) {
    let loaded = load("games.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let plan = Plan::clone(scenario.plan());
    (scenario, plan)
}

#[test]
fn what_is_carried_forward_is_what_a_look_at_all_turns_says() {
    let (mut n_known, mut n_unknown, mut n_defected) = (0, 0, 0);
    for fresh in ["true", "false"] {
        let (scenario, plan) = loaded(&GAMES.replace("FRESH", fresh));
        let is_asked = |turn: &Turn, past: &Drawn<'_>| {
            let is_certain = scenario.opens_if(turn.phase).next().is_none();
            (is_certain || past.opened(turn.phase) == Some(true))
                && is_there(&scenario, turn.phase, turn.speaker, past) == Some(true)
        };
        for seed in 0..300 {
            let (past, mut recollections) = (Drawn { seed, plan: &plan }, Recollections::default());
            for (id, turn) in plan.order().filter(|(_, turn)| is_asked(turn, &past)) {
                let expected = from_the_start(&scenario, &plan, id, &past);
                for _ in 0..2 {
                    let recalled = recollections.recall(&scenario, &plan, id, &past);
                    assert_eq!(recalled, expected, "{seed}: {}", turn.path);
                }
                n_known += usize::from(expected.is_some());
                n_unknown += usize::from(expected.is_none());
                n_defected += usize::from(expected.is_some_and(|recalled| recalled.has_defected));
            }
        }
    }
    assert!(n_known > 1000 && n_unknown > 1000 && n_defected > 500, "{n_known} {n_unknown} {n_defected}");
}

/// The most that a turn of a game of `n` rounds looks at, and the total of all turns.
fn looked_at(strategy: &str, n_rounds: usize) -> (u64, u64) {
    let text = format!(
        "agents: {{ann: {{strategy: {strategy}}}, ben: {{strategy: {strategy}}}}}
phases: [{{ name: game, agents: [ann, ben], order: broadcast, rounds: {n_rounds}, answer: [share, take] }}]"
    );
    let (scenario, plan) = loaded(&text);
    let plan = Arc::new(plan);
    let mut memories = Memories::new(scenario.clone(), plan.clone(), BTreeMap::new(), 0);
    let (mut most, mut all) = (0, 0);
    for (id, _) in plan.order() {
        memories.hear(id).unwrap();
        let asked = memories.ask(id).unwrap();
        let n_looked = memories.recollections.take_n_looked();
        (most, all) = (n_looked.max(most), all + n_looked);
        memories.say(asked, SampledReply::of_text("share"));
    }
    (most, all)
}

#[test]
fn a_turn_of_a_long_game_looks_at_what_is_new() {
    for strategy in ["tit_for_tat", "grim", "{list: [share, take]}"] {
        let ((most, all), (most_of_long, all_of_long)) = (looked_at(strategy, 20), looked_at(strategy, 200));
        assert!(most > 0 && most_of_long == most, "{strategy}: {most}, {most_of_long}");
        assert!(all > 20 && all_of_long < 11 * all, "{strategy}: {all}, {all_of_long}");
    }
}
