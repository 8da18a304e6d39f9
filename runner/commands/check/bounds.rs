//! Upper bounds on what each agent may have to remember, found without playing.

use super::models::longest;
use crate::backend::{call_room, conversation, source, tokenizer};
use crate::prompt::{Conversation, Memories};
use crate::scenario::{AgentId, Condition, Phase, PhaseId, Plan, Scenario, TimelineId, Turn, TurnId};
use crate::tools::{ToolOffer, Toolbox};
use crate::walk::{Answers, walk};
use greenroom_engine::PromptEncoder;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Placeholder for a reply whose text is unknown: a character of the private use area.
const UNKNOWN: &str = "\u{F8FE}\u{F8FD}";
/// Tokens that re-reading a reply as another speaker's line may add.
pub(super) const SLACK: usize = 4;

/// Upper bound on the size of one memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    /// Turns, including those that may be skipped.
    pub(super) turns: usize,
    /// Calls of tools.
    calls: usize,
    /// Tokens of reasoning.
    reasoning: usize,
    /// Tokens of its context; 0 without a tokenizer.
    pub(super) tokens: usize,
}

/// Plays the scenario with unknown replies and counts what each memory holds at the end in the worst case;
/// without a tokenizer, only turns.
pub(super) fn bounds(
    scenario: &Arc<Scenario>,
    prompter: Option<&PromptEncoder>,
    max_tokens: usize,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    bounds_until(scenario, prompter, max_tokens, PhaseId(scenario.phases.len()))
}

/// The most tokens that agents remember at the end of a phase, with the tokenizer of the scenario's model, if
/// it is available, otherwise the bundled one's. Empty if that is unknown, as where only a remote engine can
/// count.
pub(in crate::commands) fn at_most(scenario: &Arc<Scenario>, last: PhaseId) -> BTreeMap<AgentId, usize> {
    let open = |model: &str| -> anyhow::Result<Option<PromptEncoder>> {
        Ok(tokenizer(model)?.map(|file| PromptEncoder::open(&source(&file))).transpose()?)
    };
    let own = scenario.own_model().map(|model| open(&model));
    let prompter = own.and_then(Result::ok).unwrap_or_else(|| open("understudy").ok().flatten());
    let Some(prompter) = prompter else { return BTreeMap::new() };
    let bounds = bounds_until(scenario, Some(&prompter), longest(scenario, None), last).unwrap_or_default();
    let mut most: BTreeMap<AgentId, usize> = BTreeMap::new();
    for (timeline, bound) in bounds.into_iter().filter(|(_, bound)| bound.tokens > 0) {
        let so_far = most.entry(timeline.agent).or_default();
        *so_far = bound.tokens.max(*so_far);
    }
    most
}

/// The bounds at the end of a phase.
fn bounds_until(
    scenario: &Arc<Scenario>,
    prompter: Option<&PromptEncoder>,
    max_tokens: usize,
    last: PhaseId,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    let plan = scenario.plan().clone();
    // If one of several speaks, the worst case for each is to be that one.
    let is_of_one = |condition: &Condition| {
        matches!(condition, Condition::Chose(..) | Condition::Paired(..) | Condition::Drawn(_))
    };
    if !plan.order().any(|(_, turn)| turn.guard.iter().any(is_of_one)) {
        let played = |turn: &Turn| turn.phase <= last;
        return bounds_if(opened(scenario, &plan), prompter, max_tokens, played);
    }
    let mut worst = BTreeMap::new();
    for agent in (0..scenario.agents.len()).map(AgentId) {
        let orders: Vec<Vec<AgentId>> =
            scenario.phases.iter().map(|phase| worst_order(phase, agent)).collect();
        let plays = |turn: &Turn| {
            let order = &orders[turn.phase.0];
            let is_played = |condition: &Condition| match condition {
                Condition::Chose(..) => turn.speaker == agent,
                Condition::Drawn(place) => order.get(*place) == Some(&turn.speaker),
                Condition::Paired(one, other, _) => order.chunks(2).any(|pair| pair == [*one, *other]),
                _ => true,
            };
            turn.phase <= last && turn.guard.iter().all(is_played)
        };
        let of = bounds_if(opened(scenario, &plan), prompter, max_tokens, plays)?;
        worst.extend(of.into_iter().filter(|(timeline, _)| timeline.agent == agent));
    }
    Ok(worst)
}

/// The order of a phase's speakers, and in twos their pairs, in which an agent remembers most: its own place is
/// sure, and so are, among the others, those whom it overhears.
fn worst_order(phase: &Phase, agent: AgentId) -> Vec<AgentId> {
    let overheard = phase.overhears.iter().filter(|(by, _)| *by == agent).flat_map(|(_, of)| of);
    let overheard: Vec<AgentId> = overheard.copied().collect();
    let mut order = phase.speakers();
    let is_own = order.contains(&agent);
    // It hears the one it is paired with in any case.
    order.sort_by_key(|other| (*other != agent, !overheard.contains(other)));
    let partner = order.iter().skip(1).position(|other| !overheard.contains(other)).map(|at| at + 1);
    if let Some(partner) = partner.filter(|_| is_own) {
        order[1..=partner].rotate_right(1);
    }
    order
}

/// What each memory holds at the end if nothing takes place but what no condition decides about, without
/// calls of tools.
pub(super) fn certain(
    scenario: &Arc<Scenario>,
    prompter: &PromptEncoder,
    max_tokens: usize,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    let plan = scenario.plan().clone();
    let mut memories = Memories::new(scenario.clone(), plan, BTreeMap::new(), 0);
    memories.open_certain();
    bounds_if((memories, false), Some(prompter), max_tokens, |turn| turn.guard.is_empty())
}

/// Memories for which every phase is played, with all calls of tools.
fn opened(scenario: &Arc<Scenario>, plan: &Arc<Plan>) -> (Memories, bool) {
    let mut memories = Memories::new(scenario.clone(), plan.clone(), BTreeMap::new(), 0);
    memories.open_all();
    (memories, true)
}

/// Counts what each memory holds at the end if the `played` turns take place.
fn bounds_if(
    (mut memories, with_calls): (Memories, bool),
    prompter: Option<&PromptEncoder>,
    max_tokens: usize,
    played: impl Fn(&Turn) -> bool,
) -> anyhow::Result<BTreeMap<TimelineId, Bound>> {
    let plan = &memories.plan().clone();
    let turns = plan.order().filter(|(_, turn)| played(turn));
    let last = turns.map(|(id, turn)| (turn.timeline, id)).collect();
    let toolbox = Toolbox::at_rest(memories.scenario());
    let mut counting =
        Counting { plan, prompter, max_tokens, toolbox, with_calls, played, last, bounds: BTreeMap::new() };
    walk(&mut memories, plan.end(), &mut counting)?;
    Ok(counting.bounds)
}

struct Counting<'a, P> {
    plan: &'a Plan,
    prompter: Option<&'a PromptEncoder>,
    max_tokens: usize,
    toolbox: Toolbox,
    with_calls: bool,
    played: P,
    /// The last turn of each memory.
    last: BTreeMap<TimelineId, TurnId>,
    bounds: BTreeMap<TimelineId, Bound>,
}

impl<P: Fn(&Turn) -> bool> Answers for Counting<'_, P> {
    fn takes_place(&mut self, _memories: &mut Memories, id: TurnId) -> anyhow::Result<bool> {
        Ok((self.played)(self.plan.turn(id)))
    }

    fn turn(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<ControlFlow<()>> {
        let turn = self.plan.turn(id);
        let bound = self.bounds.entry(turn.timeline).or_default();
        bound.turns += 1;
        bound.calls += if self.with_calls { memories.max_calls(id) } else { 0 };
        memories.hear(id)?;
        let of_model = memories.scenario().agent(turn.speaker).strategy.is_none();
        bound.reasoning += memories.scenario().reasoning_budget_of(turn);
        if let Some(prompter) =
            self.prompter.filter(|_| of_model && self.last.get(&turn.timeline) == Some(&id))
        {
            let scenario = memories.scenario();
            let offer = self.toolbox.offer(scenario, scenario.agent(turn.speaker));
            let conversation = memories.ask(id)?.conversation;
            let calls = bound.calls * call_room(self.max_tokens);
            let reasoning = if prompter.thinks() { bound.reasoning } else { 0 };
            let fixed = tokens(conversation, offer.as_deref(), prompter, self.max_tokens)?;
            bound.tokens = fixed + calls + reasoning;
        }
        memories.make_up(id, UNKNOWN);
        Ok(ControlFlow::Continue(()))
    }
}

fn tokens(
    mut fixed: Conversation,
    tools: Option<&ToolOffer>,
    prompter: &PromptEncoder,
    max_tokens: usize,
) -> anyhow::Result<usize> {
    let texts = fixed.exchanges.iter().map(|past| past.user.as_str()).chain([fixed.next.as_str()]);
    let heard: usize = texts.map(|text| text.matches(UNKNOWN).count()).sum();
    let own = fixed.exchanges.len() + 1;
    fixed.exchanges.iter_mut().for_each(|past| past.user = past.user.replace(UNKNOWN, ""));
    fixed.next = fixed.next.replace(UNKNOWN, "");
    Ok(prompter.prompt_tokens(&conversation(fixed, tools))? + heard * (max_tokens + SLACK) + own * max_tokens)
}
