//! Every text and expression that looks at what phases came to, tried on all that a rehearsal comes to.

use super::rehearsal::{Extent, Moment, Piece, Rehearsal, Steps};
use crate::scenario::choice::{Chosen, text_of};
use crate::scenario::plan::Purpose;
use crate::scenario::render::{Reading, evaluate_with, render_stage};
use crate::scenario::results::{Said, payoffs};
use crate::scenario::template::{Code, Expression, Template, TemplateError, plain};
use crate::scenario::yaml::Path;
use crate::scenario::{AgentId, Announcement, PayoffRule, PhaseId, Scenario};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Words that occur only in code which looks at more than each agent's latest choice.
const LOOKS_BACK: &[&str] = &[
    "history",
    "votes",
    "invalid",
    "payoffs",
    "said",
    "messages",
    "replies",
    "reply_history",
    "calls",
    "phases",
];
/// Words that occur only in code which looks at what was said.
const LOOKS_AT_WORDS: &[&str] = &["said", "messages", "replies", "reply_history", "calls"];
/// Names that stand for something else to each reader.
const OF_READER: &[&str] = &["me", "role", "display_name", "others"];
/// Most quoted words of a scenario that are said in rehearsals.
const MAX_QUOTED: usize = 6;
/// Maximum number of choices that are told of a phase.
const MAX_TOLD: usize = 6;

/// Something that is tried, and what became of it.
pub(super) struct Trial<'s> {
    pub(super) what: What<'s>,
    pub(super) path: &'s Path,
    pub(super) text: &'s str,
    /// Phases whose results it uses.
    pub(super) phases: &'s [PhaseId],
    /// Phases on which it depends beside them.
    waits: &'s [PhaseId],
    pub(super) n_tried: usize,
    pub(super) n_failed: usize,
    /// The number of times a condition held.
    pub(super) n_held: usize,
    /// The way to the first failure, and its error.
    pub(super) failed: Option<(String, TemplateError)>,
    /// Phases that it uses and that were skipped once.
    pub(super) unplayed: BTreeSet<PhaseId>,
    pub(super) extent: Extent,
    /// True if what it does depends on the words of agents.
    pub(super) has_words: bool,
    /// True if it is tried though nothing led to it.
    pub(super) is_forced: bool,
}

/// The subject of a trial.
pub(super) enum What<'s> {
    /// A text of a phase's opening.
    Opening { template: &'s Template, phase: PhaseId, readers: Vec<AgentId> },
    /// A question to speakers.
    Ask { template: &'s Template, phase: PhaseId },
    /// An announcement.
    Announced { announcement: &'s Announcement, phase: PhaseId },
    /// A phase's `when`.
    When(&'s Expression, PhaseId),
    /// A phase's `until`, a turn's `when`, or a condition of a block.
    Condition(PhaseId),
    /// What is set, who is present or votes, which options are open.
    Worked(PhaseId),
    /// An outcome or an assertion, and the outcomes above it.
    Result { expression: &'s Expression, above: &'s [(String, Expression)] },
    /// The payoff.
    Each,
}

/// All texts and expressions of a scenario that look at what phases came to.
pub(super) fn trials(scenario: &Scenario) -> Vec<Trial<'_>> {
    let mut trials = Vec::new();
    fn of_expression<'s>(what: What<'s>, expression: &'s Expression) -> Trial<'s> {
        let (phases, waits) = (&expression.phases, &expression.scope.waits);
        Trial::new(what, &expression.path, &expression.text, phases, waits)
    }
    fn of_template<'s>(what: What<'s>, template: &'s Template) -> Trial<'s> {
        let (phases, waits) = (&template.quotes, &template.scope.waits);
        Trial::new(what, &template.path, &template.text, phases, waits)
    }
    let looks_back = |template: &Template| !template.quotes.is_empty() || template.scope.state;
    for pass in scenario.passes.iter().filter(|pass| is_tried(scenario, pass.phases.start)) {
        let first = PhaseId(pass.phases.start);
        let until = pass.before.and_then(|before| scenario.pass(before).until.as_ref());
        let conditions = until.into_iter().chain(&pass.when);
        trials.extend(conditions.map(|condition| of_expression(What::Condition(first), condition)));
    }
    for (id, phase) in scenario.phases.iter().enumerate().filter(|(id, _)| is_tried(scenario, *id)) {
        let id = PhaseId(id);
        let voters = phase.voters.iter().filter_map(|voters| voters.among.as_ref());
        let open = phase.choices().filter_map(|choice| choice.open.as_ref());
        let worked = phase.cast.iter().chain(voters).chain(open).chain(phase.sets().map(|each| &each.value));
        trials.extend(worked.map(|worked| of_expression(What::Worked(id), worked)));
        trials.extend(phase.when.iter().map(|when| of_expression(What::When(when, id), when)));
        let conditions =
            phase.until.iter().chain(phase.script().iter().filter_map(|turn| turn.when.as_ref()));
        trials.extend(conditions.map(|condition| of_expression(What::Condition(id), condition)));
        let mut openings: BTreeMap<String, (&Template, Vec<AgentId>)> = BTreeMap::new();
        for agent in &phase.agents {
            for (_, text) in phase.opening(*agent).filter(|(_, text)| looks_back(text)) {
                openings.entry(text.path.to_string()).or_insert((text, Vec::new())).1.push(*agent);
            }
        }
        if let Some(query) = phase.query().filter(|text| looks_back(text)) {
            openings.insert(query.path.to_string(), (query, phase.agents.clone()));
        }
        for (template, mut readers) in openings.into_values() {
            if !OF_READER.iter().any(|name| template.text.contains(name)) {
                readers.truncate(1);
            }
            let what = What::Opening { template, phase: id, readers };
            trials.push(of_template(what, template));
        }
        for announcement in phase.announcements.iter().filter(|each| looks_back(&each.text)) {
            trials.push(of_template(What::Announced { announcement, phase: id }, &announcement.text));
        }
        for template in phase.asks().filter(|text| looks_back(text)) {
            trials.push(of_template(What::Ask { template, phase: id }, template));
        }
    }
    for (at, (_, expression)) in scenario.outcomes.iter().enumerate() {
        let above = &scenario.outcomes[..at];
        trials.push(of_expression(What::Result { expression, above }, expression));
    }
    for assertion in &scenario.assertions {
        let (expression, above) = (&assertion.that, scenario.outcomes.as_slice());
        trials.push(of_expression(What::Result { expression, above }, expression));
    }
    if let Some(payoff) = &scenario.payoff
        && let PayoffRule::Each(each) = &payoff.rule
    {
        trials.push(Trial::new(What::Each, &each.path, &each.text, &payoff.phases, &[]));
    }
    trials
}

/// True of a phase outside of blocks, and of those in the first two passes: later ones are like the second.
fn is_tried(scenario: &Scenario, phase: usize) -> bool {
    scenario.passes_of(PhaseId(phase)).all(|pass| scenario.pass(pass).number <= 2)
}

impl<'s> Trial<'s> {
    fn new(
        what: What<'s>,
        path: &'s Path,
        text: &'s str,
        phases: &'s [PhaseId],
        waits: &'s [PhaseId],
    ) -> Self {
        Self {
            what,
            path,
            text,
            phases,
            waits,
            n_tried: 0,
            n_failed: 0,
            n_held: 0,
            failed: None,
            unplayed: BTreeSet::new(),
            extent: Extent::Cut,
            has_words: false,
            is_forced: false,
        }
    }

    /// The phases to play for it; and one of them whose own choices nothing looks at.
    pub(super) fn phases(&self, rehearsal: &Rehearsal) -> (BTreeSet<PhaseId>, Option<PhaseId>) {
        let scenario = &rehearsal.scenario;
        let opens = |phase: PhaseId| {
            scenario.opens_if(phase).chain(&scenario.phase(phase).cast).flat_map(Expression::needs)
        };
        let own = self.phases.iter().chain(self.waits).copied();
        match &self.what {
            What::Opening { phase, .. } => (rehearsal.closure(own.chain(opens(*phase))), None),
            What::When(..) | What::Each => (rehearsal.closure(own), None),
            What::Condition(phase) | What::Worked(phase) | What::Announced { phase, .. } => {
                (rehearsal.closure(own.chain([*phase])), None)
            }
            What::Ask { phase, .. } => {
                let here = scenario.phase(*phase);
                let own_conditions =
                    here.until.iter().chain(here.script().iter().flat_map(|turn| &turn.when));
                let is_unseen = !self.phases.contains(phase)
                    && !self.waits.contains(phase)
                    && !own_conditions.into_iter().any(|condition| condition.phases.contains(phase));
                (rehearsal.closure(own.chain([*phase])), is_unseen.then_some(*phase))
            }
            What::Result { above, .. } => {
                let above = above.iter().filter(|_| self.text.contains("outcome"));
                let above = above.flat_map(|(_, expression)| expression.needs());
                (rehearsal.closure(own.chain(above)), None)
            }
        }
    }

    /// True if another condition is the same, so that it need not be tried.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        matches!((&self.what, &other.what), (What::When(..), What::When(..))) && self.text == other.text
    }

    pub(super) fn learn_from(&mut self, other: &Self) {
        (self.n_tried, self.n_failed, self.n_held) = (other.n_tried, other.n_failed, other.n_held);
        (self.failed, self.extent, self.has_words) = (other.failed.clone(), other.extent, other.has_words);
    }

    /// All code that it runs.
    fn code(&self) -> Vec<&'s str> {
        let above = match self.what {
            What::Result { above, .. } => above,
            _ => &[],
        };
        above.iter().map(|(_, expression)| expression.text.as_str()).chain([self.text]).collect()
    }

    /// Tries it at a moment of a play.
    pub(super) fn look(
        &mut self,
        rehearsal: &Rehearsal,
        moment: &Moment<'_>,
        said: &Arc<Said>,
        steps: &mut Steps,
    ) {
        // Once it has failed and not failed, all is known.
        if self.n_failed > 0 && self.n_failed < self.n_tried {
            return;
        }
        let scenario = &rehearsal.scenario;
        match (&self.what, moment) {
            (What::Opening { template, phase, readers }, Moment::End) => {
                let when = scenario.phase(*phase).when.as_ref().filter(|_| !self.is_forced);
                let opens = when.map(|when| rehearsal.holds(when, None, said, steps));
                if !matches!(opens, None | Some(Ok(true))) {
                    return;
                }
                let results: Vec<_> = rehearsal
                    .present(*phase, readers, said, steps)
                    .iter()
                    .map(|reader| Reading { phase: *phase, round: None, agent: *reader })
                    .map(|reading| rendered(scenario, template, reading, said, steps))
                    .collect();
                results.into_iter().for_each(|result| self.note(scenario, said, result));
            }
            (What::Ask { template, phase }, Moment::Turn(turn)) if turn.phase == *phase => {
                let of_choice =
                    turn.constraint.as_ref().and_then(|constraint| constraint.choice.ask.as_deref());
                let asked = [turn.ask.as_deref(), of_choice];
                if asked.into_iter().flatten().any(|asked| asked.path == template.path) {
                    let reading = Reading { phase: *phase, round: Some(turn.round), agent: turn.speaker };
                    let result = rendered(scenario, template, reading, said, steps);
                    self.note(scenario, said, result);
                }
            }
            (What::Ask { template, phase }, Moment::End) if self.is_forced => {
                let agent = scenario.phase(*phase).agents[0];
                let reading = Reading { phase: *phase, round: Some(1), agent };
                let result = rendered(scenario, template, reading, said, steps);
                self.note(scenario, said, result);
            }
            // Between rounds: where the first turn of one takes place, and behind the last.
            (What::Announced { announcement, phase }, Moment::Turn(turn))
                if turn.phase == *phase && rehearsal.is_first(turn) =>
            {
                let round = turn.round - usize::from(announcement.is_after);
                if round > 0 {
                    self.announce(rehearsal, announcement, *phase, round, said, steps);
                }
            }
            (What::Announced { announcement, phase }, Moment::End) if announcement.is_after => {
                if let Some(round) = said.lines(*phase).iter().map(|line| line.round).max() {
                    self.announce(rehearsal, announcement, *phase, round, said, steps);
                }
            }
            (What::When(when, _), Moment::End) => {
                let held = rehearsal.holds(when, None, said, steps);
                self.n_held += usize::from(matches!(held, Ok(true)));
                self.note(scenario, said, held.map(drop));
            }
            (What::Condition(_), Moment::Condition(expression, held)) if expression.path == *self.path => {
                self.note(scenario, said, (*held).clone().map(drop));
            }
            (What::Worked(_), Moment::Worked(expression, error)) if expression.path == *self.path => {
                self.note(scenario, said, error.map_or(Ok(()), |error| Err(error.clone())));
            }
            (What::Result { expression, above }, Moment::End) => {
                let result = valued(rehearsal, expression, above, said, steps);
                self.n_held += usize::from(result.as_ref().is_ok_and(|value| plain(value).is_true()));
                self.note(scenario, said, result.map(drop));
            }
            (What::Each, Moment::End) if self.phases.iter().any(|phase| said.has(*phase)) => {
                let lines = self.phases.iter().map(|phase| said.lines(*phase).len() as u64).sum::<u64>();
                steps.spend(lines.saturating_mul(rehearsal.steps_of_text(self.text)));
                let result = steps.count(|| payoffs(scenario, &said.only(self.phases)).map(drop));
                self.note(scenario, said, result);
            }
            _ => {}
        }
    }

    /// Tries an announcement on each of its readers; on one, where all read the same.
    fn announce(
        &mut self,
        rehearsal: &Rehearsal,
        announcement: &Announcement,
        phase: PhaseId,
        round: usize,
        said: &Arc<Said>,
        steps: &mut Steps,
    ) {
        let Announcement { text, to, .. } = announcement;
        let differs = OF_READER.iter().any(|name| text.text.contains(name));
        let scenario = &rehearsal.scenario;
        let present = rehearsal.present(phase, to, said, steps);
        for agent in present.iter().take(if differs { to.len() } else { 1 }) {
            let reading = Reading { phase, round: Some(round), agent: *agent };
            let result = rendered(scenario, text, reading, said, steps);
            self.note(scenario, said, result);
        }
    }

    fn note(&mut self, scenario: &Scenario, said: &Said, result: Result<(), TemplateError>) {
        self.n_tried += 1;
        // In its own phase nothing has been said at first.
        let own = match self.what {
            What::Ask { phase, .. }
            | What::Announced { phase, .. }
            | What::Condition(phase)
            | What::Worked(phase) => Some(phase),
            _ => None,
        };
        let unplayed = self.phases.iter().filter(|phase| Some(**phase) != own && !said.has(**phase));
        self.unplayed.extend(unplayed);
        if let Err(error) = result {
            self.n_failed += 1;
            let mut phases: BTreeSet<PhaseId> = self.phases.iter().copied().collect();
            if self.text.contains("outcome") {
                phases.extend(said.phases());
            }
            self.failed.get_or_insert_with(|| (way(scenario, &phases, own, said, self.has_words), error));
        }
    }
}

impl Rehearsal {
    /// The piece that is played for some trials.
    pub(super) fn piece(
        &self,
        phases: BTreeSet<PhaseId>,
        unseen: Option<PhaseId>,
        trials: &mut [&mut Trial<'_>],
    ) -> Piece {
        let conditions = phases.iter().map(|id| self.scenario.phase(*id)).flat_map(|phase| {
            let of_turns = phase.script().iter().flat_map(|turn| &turn.when);
            phase.when.iter().chain(&phase.until).chain(of_turns).map(|condition| condition.text.as_str())
        });
        let whens = trials.iter().filter_map(|trial| match trial.what {
            What::Opening { phase, .. } => {
                self.scenario.phase(phase).when.as_ref().map(|when| when.text.as_str())
            }
            _ => None,
        });
        let shared: Vec<&str> = conditions.chain(whens).collect();
        let has = |texts: &[&str], words: &[&str]| {
            texts.iter().any(|text| words.iter().any(|word| text.contains(word)))
        };
        let of_shared = has(&shared, LOOKS_AT_WORDS);
        trials.iter_mut().for_each(|trial| trial.has_words = of_shared || has(&trial.code(), LOOKS_AT_WORDS));
        let all: Vec<&str> = trials.iter().flat_map(|trial| trial.code()).chain(shared).collect();
        let texts = if has(&all, LOOKS_AT_WORDS) { words(&all) } else { vec!["…".into()] };
        Piece { phases, unseen, looks_back: has(&all, LOOKS_BACK), texts }
    }
}

fn rendered(
    scenario: &Arc<Scenario>,
    template: &Template,
    reading: Reading,
    said: &Arc<Said>,
    steps: &mut Steps,
) -> Result<(), TemplateError> {
    let taken = (300 + template.text.len() + scenario.agents.len() + 4 * scenario.phases.len()) as u64;
    let n_lines: usize = template.quotes.iter().map(|phase| said.lines(*phase).len()).sum();
    let said = said.only(&template.quotes);
    steps.spend(taken + 4 * n_lines as u64);
    steps.count(|| render_stage(scenario, template, reading, &said)).map(drop)
}

/// The value of an outcome or an assertion, as it is recorded at the end of a run.
fn valued(
    rehearsal: &Rehearsal,
    expression: &Expression,
    above: &[(String, Expression)],
    said: &Arc<Said>,
    steps: &mut Steps,
) -> Result<Value, TemplateError> {
    let mut known = Map::new();
    let mut value = |expression: &Expression, known: &Map<String, Value>| {
        steps.spend(rehearsal.steps_of(expression, said));
        let names = [("outcome", Value::Object(known.clone()))];
        let said = said.only(&expression.phases);
        steps.count(|| evaluate_with(&rehearsal.scenario, expression, &said, names))
    };
    if expression.text.contains("outcome") {
        for (name, above) in above {
            let value = value(above, &known).unwrap_or_default();
            known.insert(name.clone(), value);
        }
    }
    value(expression, &known)
}

/// Words that agents may say: none, few, many, a number, and what the scenario itself quotes.
fn words(code: &[&str]) -> Vec<Arc<str>> {
    let mut words: Vec<Arc<str>> = ["a few words", "", "7"].map(Arc::from).to_vec();
    words.push("many words ".repeat(40).trim_end().into());
    for text in code {
        let pieces = Code::of(text);
        let pieces: Vec<&str> = pieces.pieces(text).map(|(_, piece)| piece).collect();
        let pieces = if pieces.is_empty() { vec![*text] } else { pieces };
        for quote in ['\'', '"'] {
            // What is between quotes is every second part.
            let quoted = pieces.iter().flat_map(|piece| piece.split(quote).skip(1).step_by(2));
            for word in quoted {
                if words.len() < 4 + MAX_QUOTED && !words.iter().any(|known| **known == *word) {
                    words.push(word.into());
                }
            }
        }
    }
    words
}

/// The results of some phases, in words; in the one that is being played there may be none yet.
fn way(
    scenario: &Scenario,
    phases: &BTreeSet<PhaseId>,
    own: Option<PhaseId>,
    said: &Said,
    has_words: bool,
) -> String {
    let of_phase = |id: &PhaseId| {
        let name = &scenario.phase(*id).name;
        let lines = said.lines(*id);
        if lines.is_empty() && own == Some(*id) {
            return format!("nothing has been said in `{name}` yet");
        }
        if lines.is_empty() {
            return format!("`{name}` is skipped");
        }
        let mut latest: BTreeMap<AgentId, String> = BTreeMap::new();
        let mut order = Vec::new();
        for line in lines {
            let (Some((choice, chosen)), true) = (&line.choice, line.chosen().is_some()) else { continue };
            if !order.contains(&line.speaker) {
                order.push(line.speaker);
            }
            let word = match chosen {
                Chosen::Option(option) => text_of(&choice.options[*option].value),
                Chosen::Invalid => "nothing valid".to_string(),
            };
            latest.insert(line.speaker, word);
        }
        if !order.is_empty() {
            let more = order.len().saturating_sub(MAX_TOLD);
            let told: Vec<&str> = order.iter().take(MAX_TOLD).map(|agent| latest[agent].as_str()).collect();
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return format!("`{name}` has the choices {}{more}", told.join(", "));
        }
        let speech = lines.iter().find(|line| line.purpose == Purpose::Speech).filter(|_| has_words);
        match speech.map(|line| line.text.chars().take(30).collect::<String>()) {
            Some(text) if text.is_empty() => format!("nothing is said in `{name}`"),
            Some(text) => format!("\"{text}\" is said in `{name}`"),
            None => format!("`{name}` is played"),
        }
    };
    let ways: Vec<String> = phases.iter().map(of_phase).collect();
    if ways.is_empty() { "anything happens".to_string() } else { ways.join(" and ") }
}
