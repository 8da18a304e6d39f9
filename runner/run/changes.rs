//! Changes that a fork makes from its turn on: given replies, lines that the stage adds, sampling settings.

use crate::diagnostic::{suggest, unknown};
use crate::replay;
use crate::scenario::{AgentId, Choice, ChoiceMethod, Lifecycle, Plan, Purpose, Scenario, TurnId};
use crate::transcript::{Header, SaidRecord, SettingsBefore, ToldRecord};
use anyhow::{Context as _, bail, ensure};

/// A reply that is given to a turn, instead of the speaker's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    /// Path of the turn.
    pub turn: String,
    /// The reply; of a choice, the result or the text of an option.
    pub text: String,
}

/// A line that the stage adds before a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    /// Path of the turn, or a phase's name for its first turn.
    pub before: String,
    /// Key of its only reader; `None`: the cast of the turn's phase.
    pub to: Option<String>,
    /// The line.
    pub text: String,
}

/// All changes to what is heard and read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Replies.
    pub said: Vec<Say>,
    /// Lines.
    pub tells: Vec<Tell>,
}

impl Changes {
    /// The first turn with a change.
    ///
    /// # Errors
    /// There is none, or the plan has no such turn.
    pub(super) fn first(&self, plan: &Plan, scenario: &Scenario) -> anyhow::Result<TurnId> {
        let said = self.said.iter().map(|say| turn_of(plan, scenario, say));
        let tells = self.tells.iter().map(|tell| turn_at(plan, scenario, &tell.before));
        let all = said.chain(tells).collect::<anyhow::Result<Vec<_>>>()?;
        all.into_iter().min().context("the turn where the fork begins is missing; give it with --at TURN")
    }

    /// The changes as a header records them, checked against the plan.
    ///
    /// # Errors
    /// A description of the first change that can't be made.
    pub(super) fn records(
        &self,
        plan: &Plan,
        scenario: &Scenario,
        at: TurnId,
    ) -> anyhow::Result<(Vec<SaidRecord>, Vec<ToldRecord>)> {
        let mut said: Vec<SaidRecord> = Vec::new();
        for say in &self.said {
            let id = turn_of(plan, scenario, say)?;
            let given = format!("--say {}=…", say.turn);
            not_before(plan, id, at, &given)?;
            ensure!(
                !said.iter().any(|other| other.turn == say.turn),
                "{given}: the reply of this turn is given twice; a turn has one reply"
            );
            said.push(SaidRecord { turn: say.turn.clone(), text: reply(plan, id, say)? });
        }
        let tell = |tell: &Tell| tell.record(plan, scenario, at);
        Ok((said, self.tells.iter().map(tell).collect::<anyhow::Result<_>>()?))
    }
}

/// A turn by its path, or the first one of a phase.
pub(super) fn turn_at(plan: &Plan, scenario: &Scenario, at: &str) -> anyhow::Result<TurnId> {
    let first = || {
        let phase = scenario.phase_by_name(at)?;
        plan.order().find(|(_, turn)| turn.phase == phase).map(|(id, _)| id)
    };
    plan.find(at).or_else(first).with_context(|| {
        let paths = plan.order().map(|(_, turn)| turn.path.as_str());
        let phases = || scenario.phases.iter().map(|phase| phase.name.as_str());
        let message = format!("the plan has no turn or phase `{at}`");
        // There may be too many turns to list.
        match suggest(at, paths.chain(phases())) {
            Some(help) => format!("{message}; {help}"),
            None => unknown(&message, at, phases()),
        }
    })
}

fn turn_of(plan: &Plan, scenario: &Scenario, say: &Say) -> anyhow::Result<TurnId> {
    let Say { turn, .. } = say;
    if let Some(id) = plan.find(turn) {
        return Ok(id);
    }
    if let Some(phase) = scenario.phase_by_name(turn) {
        let first = plan.order().find(|(_, other)| other.phase == phase);
        let first = first.map_or(String::new(), |(_, turn)| format!(", e.g. {}", turn.path));
        bail!("--say {turn}=…: `{turn}` is a phase; give the turn whose reply this is{first}");
    }
    let message = format!("--say {turn}=…: the plan has no turn `{turn}`");
    bail!(unknown(&message, turn, plan.order().map(|(_, turn)| turn.path.as_str())))
}

fn not_before(plan: &Plan, id: TurnId, at: TurnId, given: &str) -> anyhow::Result<()> {
    let (path, begin) = (&plan.turn(id).path, &plan.turn(at).path);
    ensure!(
        id >= at,
        "{given}: {path} comes before {begin}, where the fork begins; fork at {path}, or remove --at"
    );
    Ok(())
}

/// The given reply in the turn's form: the text of an option, if it is a choice.
fn reply(plan: &Plan, id: TurnId, say: &Say) -> anyhow::Result<String> {
    let turn = plan.turn(id);
    let (path, text) = (&turn.path, say.text.trim());
    ensure!(!text.is_empty(), "--say {path}=: the text is empty; write what to say after the `=`");
    let choice = turn.constraint.as_ref().map(|constraint| &*constraint.choice);
    let Some(choice) = choice.filter(|choice| choice.method == ChoiceMethod::Decode) else {
        return Ok(text.to_string());
    };
    let found = choice.find(text).with_context(|| {
        let purpose = if matches!(turn.purpose, Purpose::Ballot { .. }) { "vote" } else { "choice" };
        format!("--say {path}={text}: this {purpose} has no such option; expected one of {}", listed(choice))
    })?;
    Ok(choice.options[found].text.clone())
}

fn listed(choice: &Choice) -> String {
    let texts: Vec<String> = choice.options.iter().map(|option| format!("`{}`", option.text)).collect();
    texts.join(", ")
}

impl Tell {
    fn record(&self, plan: &Plan, scenario: &Scenario, at: TurnId) -> anyhow::Result<ToldRecord> {
        let given = match &self.to {
            Some(to) => format!("--tell {to}@{}=…", self.before),
            None => format!("--tell {}=…", self.before),
        };
        let before = turn_at(plan, scenario, &self.before).with_context(|| given.clone())?;
        not_before(plan, before, at, &given)?;
        let text = self.text.trim().to_string();
        ensure!(!text.is_empty(), "{given}: the text is empty; write what to read after the `=`");
        if let Some(key) = &self.to {
            let keys = scenario.agents.iter().map(|agent| agent.key.as_str());
            let agent = scenario
                .agent_by_key(key)
                .with_context(|| unknown(&format!("{given}: there is no agent `{key}`"), key, keys))?;
            ensure!(
                reads(plan, scenario, agent, before),
                "{given}: {}",
                unread(plan, scenario, agent, before)
            );
        }
        Ok(ToldRecord { before: plan.turn(before).path.clone(), to: self.to.clone(), text })
    }
}

/// Tells whether an agent has a turn, from the given one on, at which it remembers what it heard before that.
fn reads(plan: &Plan, scenario: &Scenario, agent: AgentId, before: TurnId) -> bool {
    let phase = plan.turn(before).phase;
    let forgets = scenario.agent(agent).lifecycle == Lifecycle::Ephemeral;
    let mut later = plan.order().skip(before.0);
    later.any(|(_, turn)| turn.speaker == agent && (!forgets || turn.phase == phase))
}

fn unread(plan: &Plan, scenario: &Scenario, agent: AgentId, before: TurnId) -> String {
    let key = &scenario.agent(agent).key;
    let last = plan.order().filter(|(_, turn)| turn.speaker == agent).last();
    match last {
        Some((_, last)) => format!(
            "`{key}` has no turn from {} on in which it could read this; its last turn is {}",
            plan.turn(before).path,
            last.path
        ),
        None => format!("`{key}` has no turns"),
    }
}

/// The changes that a run made before a turn, which its fork shares.
pub(super) fn earlier(
    header: &Header,
    plan: &Plan,
    at: TurnId,
) -> (Vec<SaidRecord>, Vec<ToldRecord>, Vec<SettingsBefore>) {
    let Some(forked) = &header.forked else { return Default::default() };
    let is_earlier = |path: &str| plan.find(path).is_some_and(|id| id < at);
    let said = forked.said.iter().filter(|said| is_earlier(&said.turn)).cloned().collect();
    let tells = forked.told.iter().filter(|tell| is_earlier(&tell.before)).cloned().collect();
    let settings = forked.settings.iter().filter(|settings| is_earlier(&settings.before)).cloned().collect();
    (said, tells, settings)
}

/// Temperature and limit that a run had just before a turn.
pub(super) fn last_settings(header: &Header, plan: &Plan, at: TurnId) -> (f32, usize) {
    let later = replay::settings_before(header, plan).into_iter().find(|(before, ..)| *before >= at);
    later.map_or((header.sampling.temperature, header.max_tokens), |(_, temperature, limit)| {
        (temperature, limit)
    })
}
