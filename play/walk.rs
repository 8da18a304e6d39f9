//! Walks a plan in its order, one turn after the other: a turn is skipped, or its speaker hears what is new
//! and answers.
//!
//! An [`Answers`] gives the replies: from a recording that is held against its plan, carried over, or made
//! up. Where a model answers, turns overlap: `stage` takes the same steps there.

use crate::backend::Reply;
use crate::prompt::{Asked, MadeCall, Memories, OpenOptions, Routing, SampledReply};
use crate::tools::{cut_call, says_call};
use crate::transcript::{
    Cause, Drift, InterTurnRecord, RouteRecord, TurnRecord, call_of, choice_record, form_record, summary_of,
};
use greenroom_scenario::{Keep, NoReply, Strategy, StrategyOffer, Turn, TurnId};
use std::ops::ControlFlow;

/// Answers the turns of a walk.
pub trait Answers {
    /// True if a turn takes place.
    ///
    /// # Errors
    /// A condition fails.
    fn takes_place(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<bool> {
        Ok(memories.takes_place(id)?)
    }

    /// Lets a turn that takes place happen; the walk may end before it.
    ///
    /// # Errors
    /// It can't be asked or answered.
    fn turn(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<ControlFlow<()>>;

    /// Records a turn that does not take place.
    fn skipped(&mut self, _id: TurnId) {}

    /// The score of each candidate for a phase, in their order; `None`: the walk ends before it.
    ///
    /// # Errors
    /// They are not known, and must be.
    fn route(&mut self, routing: &Routing) -> anyhow::Result<Option<Vec<Option<f64>>>> {
        Ok(Some(routing.made_up()))
    }

    /// Records a line between turns.
    ///
    /// # Errors
    /// It does not fit.
    fn between(&mut self, _line: InterTurnRecord) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Lines of a transcript to answer with.
pub trait LineSource {
    /// The next line, if it is at this path: where a memory begins again, or a tool is called, before a
    /// turn's own line.
    fn next_auxiliary(&mut self, path: &str) -> Option<TurnRecord>;

    /// The line of a turn; `None`: the walk ends before it.
    ///
    /// # Errors
    /// A line is required but missing.
    fn line(&mut self, turn: &Turn) -> anyhow::Result<Option<TurnRecord>>;

    /// Takes the line as it would be written now.
    ///
    /// # Errors
    /// It does not fit.
    fn after_reply(&mut self, memories: &Memories, id: TurnId, line: TurnRecord) -> anyhow::Result<()>;

    /// Records a turn that does not take place.
    fn skipped(&mut self, _id: TurnId) {}

    /// The line with the speakers picked for a phase; `None`: the walk ends before it.
    ///
    /// # Errors
    /// A line is required but missing.
    fn route(&mut self, path: &str) -> anyhow::Result<Option<RouteRecord>>;

    /// Takes a line between turns as it would be written now.
    ///
    /// # Errors
    /// It does not fit.
    fn between(&mut self, line: InterTurnRecord) -> anyhow::Result<()>;
}

/// Walks a plan from its first turn to the one before `end`, or until the answers end.
///
/// # Errors
/// The first turn that can't be asked or answered.
pub fn walk(memories: &mut Memories, end: TurnId, answers: &mut impl Answers) -> anyhow::Result<()> {
    let plan = memories.plan().clone();
    let mut n_changes = 0;
    for (id, _) in plan.order().take_while(|(id, _)| *id < end) {
        n_changes = changes(memories, n_changes, id, answers)?;
        if route(memories, id, answers)?.is_break() {
            return Ok(());
        }
        if !answers.takes_place(memories, id)? {
            memories.skip(id);
            answers.skipped(id);
        } else if answers.turn(memories, id)?.is_break() {
            return Ok(());
        }
    }
    if end == plan.end() {
        changes(memories, n_changes, end, answers)?;
    }
    Ok(())
}

/// Tells of the changes of the state from `n_before` on that take place before a turn; returns how many there
/// are by then.
fn changes(
    memories: &Memories,
    n_before: usize,
    end: TurnId,
    answers: &mut impl Answers,
) -> anyhow::Result<usize> {
    let (n, lines) = memories.changes(n_before, end)?;
    lines.into_iter().try_for_each(|line| answers.between(InterTurnRecord::State(line)))?;
    Ok(n)
}

/// Picks those who speak in a turn's phase, if that is to be known now.
fn route(memories: &mut Memories, id: TurnId, answers: &mut impl Answers) -> anyhow::Result<ControlFlow<()>> {
    let Some(routing) = memories.routing(id)? else { return Ok(ControlFlow::Continue(())) };
    let Some(scores) = answers.route(&routing)? else { return Ok(ControlFlow::Break(())) };
    let line = memories.route(&routing, &scores);
    answers.between(InterTurnRecord::Route(line))?;
    Ok(ControlFlow::Continue(()))
}

/// Walks a plan with recorded replies. Strategies are evaluated again.
///
/// # Errors
/// As [`walk`]; a line that does not fit is a [`Drift`].
pub fn follow(memories: &mut Memories, end: TurnId, lines: &mut impl LineSource) -> anyhow::Result<()> {
    walk(memories, end, &mut Following(lines))
}

/// Lets the memory of a turn's speaker start over, if there is a recorded line of what it begins with.
///
/// # Errors
/// As [`walk`].
pub fn replay_epoch(memories: &mut Memories, id: TurnId, lines: &mut impl LineSource) -> anyhow::Result<()> {
    let path = summary_of(&memories.plan().turn(id).path);
    let Some(was) = lines.next_auxiliary(&path) else { return Ok(()) };
    memories.hear(id)?;
    let keep = memories.keep_of(id);
    if (keep == Keep::Summary) != was.kept.is_none() || keep == Keep::All {
        let detail = "its memory continues in a different way when it is full";
        return Err(Drift::new(format!("agents/{}", was.agent), Cause::AgentChanged, detail).into());
    }
    if let Some(kept) = &was.kept {
        let line = memories.keep(id, kept);
        let line = line.map_err(|error| Drift::new(&path, Cause::RecordAltered, error.to_string()))?;
        return lines.after_reply(memories, id, line);
    }
    let asked = memories.ask_for_summary(id)?;
    answer(memories, asked, &was, lines)
}

/// Replays the recorded calls of a turn, before its reply.
///
/// # Errors
/// As [`walk`].
pub fn call_again(memories: &mut Memories, id: TurnId, lines: &mut impl LineSource) -> anyhow::Result<()> {
    while let Some(was) =
        lines.next_auxiliary(&call_of(&memories.plan().turn(id).path, memories.n_calls(id) + 1))
    {
        memories.hear(id)?;
        let asked = memories.ask(id)?;
        let differs = |detail: &str| Drift::new(&was.path, Cause::ToolsChanged, detail);
        let Some(recorded) = &was.call else {
            return Err(
                Drift::new(&was.path, Cause::RecordAltered, "the line does not record the call").into()
            );
        };
        if !asked.may_call {
            return Err(differs("the agent can no longer call a tool here").into());
        }
        let call = recorded.call();
        if call != cut_call() && !says_call(&was.raw, &call) {
            let detail = format!("the agent's reply does not contain this call, {}", recorded.quoted());
            let drift = Drift::new(&was.path, Cause::RecordAltered, detail);
            return Err(drift.texts(recorded.quoted(), &was.raw).into());
        }
        let outcome = memories.builtin_result(&asked, &call).unwrap_or_else(|| recorded.outcome());
        let (ids, raw, room) = (was.tokens.clone(), was.raw.clone(), recorded.room);
        let reply = Reply::recorded(&was, None);
        let line = called(memories, asked, &reply, &MadeCall { ids, raw, call, outcome, room });
        lines.after_reply(memories, id, line)?;
    }
    Ok(())
}

/// Records the call; returns its line.
pub fn called(memories: &mut Memories, asked: Asked, reply: &Reply, made: &MadeCall) -> TurnRecord {
    let line = line(memories, &asked, reply);
    let (path, call) = memories.called(asked, made);
    TurnRecord { path, call: Some(call), ..line }
}

/// Records the reply; returns its line.
pub fn record_reply(memories: &mut Memories, asked: Asked, reply: &Reply) -> TurnRecord {
    let line = line(memories, &asked, reply);
    let (options, form) = (asked.choice.clone(), asked.form.clone());
    let said = SampledReply { ids: &reply.ids, raw: &reply.text, speech: reply.speech() };
    let heard = memories.say(asked, said);
    let form = form.zip(heard.value).map(|(form, value)| form_record(&form, value, reply.rejected.clone()));
    let constraint = options.map(|of| choice_record(&of.choice, &of.open, heard.choice, &reply.logprobs));
    TurnRecord { spoken: heard.spoken, constraint, form, ..line }
}

/// The line of a reply, before it is known what it means.
fn line(memories: &Memories, asked: &Asked, reply: &Reply) -> TurnRecord {
    let speaker = memories.plan().turn(asked.id).speaker;
    TurnRecord {
        path: asked.path.clone(),
        agent: memories.scenario().agent(speaker).key.clone(),
        delta: asked.conversation.next.clone(),
        tokens: reply.ids.clone(),
        raw: reply.text.clone(),
        speech: TurnRecord::marked(&reply.text, &reply.speech),
        spoken: String::new(),
        stop: reply.stop,
        cut: reply.cut.clone(),
        constraint: None,
        form: None,
        call: None,
        kept: None,
        seed: asked.seed,
        hints: memories.hints(asked.id),
    }
}

struct Following<'a, L>(&'a mut L);

impl<L: LineSource> Answers for Following<'_, L> {
    fn turn(&mut self, memories: &mut Memories, id: TurnId) -> anyhow::Result<ControlFlow<()>> {
        replay_epoch(memories, id, self.0)?;
        call_again(memories, id, self.0)?;
        let plan = memories.plan().clone();
        let Some(was) = self.0.line(plan.turn(id))? else { return Ok(ControlFlow::Break(())) };
        memories.hear(id)?;
        let asked = memories.ask(id)?;
        answer(memories, asked, &was, self.0)?;
        Ok(ControlFlow::Continue(()))
    }

    fn skipped(&mut self, id: TurnId) {
        self.0.skipped(id);
    }

    fn route(&mut self, routing: &Routing) -> anyhow::Result<Option<Vec<Option<f64>>>> {
        let Some(was) = self.0.route(&routing.path)? else { return Ok(None) };
        Ok(Some(routing.scores_of(&was)?))
    }

    fn between(&mut self, line: InterTurnRecord) -> anyhow::Result<()> {
        self.0.between(line)
    }
}

fn answer(
    memories: &mut Memories,
    asked: Asked,
    was: &TurnRecord,
    lines: &mut impl LineSource,
) -> anyhow::Result<()> {
    let (id, reply) = (asked.id, reply(memories, &asked, was)?);
    let line = record_reply(memories, asked, &reply);
    lines.after_reply(memories, id, line)
}

/// The reply of a rule, asked again; of a model or a human, the recorded reply.
fn reply(memories: &Memories, asked: &Asked, was: &TurnRecord) -> anyhow::Result<Reply> {
    let strategy = memories.scenario().strategy_of(memories.plan().turn(asked.id));
    let Some(rule) = strategy.filter(|strategy| **strategy != Strategy::Human) else {
        return Ok(Reply::recorded(was, asked.choice.as_ref()));
    };
    if let Some(given) = memories.given_reply(asked.id) {
        return Ok(Reply::of_rule(given.to_string()));
    }
    let offer = asked.choice.as_ref().map(OpenOptions::offer);
    let said = rule.reply(&asked.path, asked.seed, offer, &asked.recalled);
    let is_of_then = || replied_then(memories, asked, rule).as_ref() == Ok(&was.raw);
    if memories.scenario().by_first_rules && said.as_ref() != Ok(&was.raw) && is_of_then() {
        return Ok(Reply::of_rule(was.raw.clone()));
    }
    let text = said.map_err(|error| Drift::new(&asked.path, Cause::RuleChanged, error.to_string()))?;
    Ok(Reply::of_rule(text))
}

/// The reply of a rule in recordings from before strategies remembered other phases. Where its option was not
/// open, it chose the last that was, as it still does in a ranking.
fn replied_then(memories: &Memories, asked: &Asked, rule: &Strategy) -> Result<String, NoReply> {
    let recalled = memories.recalled_in_phase(asked.id, asked.conversation.exchanges.len());
    let closed: Vec<usize> = asked.choice.iter().flat_map(|of| 0..of.choice.options.len()).collect();
    let offer = asked.choice.as_ref().map(|of| StrategyOffer { ranked: &closed, ..of.offer() });
    rule.reply(&asked.path, asked.seed, offer, &recalled)
}
