//! Carries recorded replies over to a scenario that changed: the recording as it would be with the same
//! replies.

use super::{cast, memories};
use crate::outcome;
use crate::prompt::Memories;
use crate::sampling::resolved;
use crate::timeline::Timeline;
use crate::tools::Toolbox;
use crate::transcript::{
    Cause, Drift, Header, InterTurnRecord, Line, RouteRecord, ScenarioRecord, Transcript, TurnRecord, chain,
    rules_of,
};
use crate::walk::{LineSource, follow};
use greenroom_scenario::{Scenario, Turn, TurnId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A recording's header with what the scenario is today.
pub fn header_now(header: &Header, memories: &Memories) -> Header {
    let scenario = memories.scenario();
    let (id, blake3) = (scenario.id.clone(), scenario.file_hash());
    let hints = scenario.hints.without(&header.given.clone().unwrap_or_default());
    Header {
        scenario: ScenarioRecord { id, blake3, ..header.scenario.clone() },
        plan: memories.plan().hash(),
        templates: scenario.template_hashes(),
        variables: scenario.variables.clone(),
        overrides: scenario.overrides.clone(),
        rules: rules_of(scenario),
        agents: cast(memories),
        tools: Toolbox::recorded(scenario, &header.tools).specs_by_key(scenario),
        sampling: resolved(&hints, &header.sampling),
        max_tokens: hints.max_tokens.unwrap_or(header.max_tokens),
        hints: scenario.hints.clone(),
        ..header.clone()
    }
}

/// The text of a transcript in which the prompts are those of today and the replies those of the recording,
/// found by their turns' paths. Its header says that they were carried over: no model has read these prompts.
///
/// # Errors
/// [`Drift`]: a turn takes place that the recording has not, so only a model can tell what would be said; or
/// a template fails.
pub fn carry(
    scenario: &Arc<Scenario>,
    transcript: &Transcript,
    earlier: BTreeMap<String, Timeline>,
) -> anyhow::Result<String> {
    let header = &transcript.header.record;
    let mut memories = memories(scenario, header, earlier);
    let plan = memories.plan().clone();
    let recorded = transcript.turns.iter().map(|turn| (turn.record.path.as_str(), &turn.record));
    let recorded: HashMap<&str, &TurnRecord> = recorded.collect();
    let carried = Some(transcript.hash().to_string());
    let header = Line::Header(Box::new(Header { carried, ..header_now(header, &memories) }));
    let routes = transcript.routes().map(|route| (route.path.as_str(), route)).collect();
    let mut carrying = Carrying { recorded, routes, lines: vec![header] };
    follow(&mut memories, plan.end(), &mut carrying)?;
    carrying.lines.push(Line::Footer(outcome::footer(&memories)?));
    Ok(chain(&carrying.lines)?)
}

struct Carrying<'a> {
    recorded: HashMap<&'a str, &'a TurnRecord>,
    routes: HashMap<&'a str, &'a RouteRecord>,
    lines: Vec<Line>,
}

impl LineSource for Carrying<'_> {
    fn next_auxiliary(&mut self, path: &str) -> Option<TurnRecord> {
        self.recorded.get(path).map(|line| (*line).clone())
    }

    fn line(&mut self, turn: &Turn) -> anyhow::Result<Option<TurnRecord>> {
        let Some(was) = self.recorded.get(turn.path.as_str()) else {
            let detail = "the recording has no reply for it, and only a model can produce one";
            return Err(Drift::new(&turn.path, Cause::LineMissing, detail).into());
        };
        Ok(Some((*was).clone()))
    }

    fn after_reply(&mut self, _memories: &Memories, _id: TurnId, line: TurnRecord) -> anyhow::Result<()> {
        self.lines.push(Line::Turn(Box::new(line)));
        Ok(())
    }

    fn route(&mut self, path: &str) -> anyhow::Result<Option<RouteRecord>> {
        let Some(was) = self.routes.get(path) else {
            let detail = "the recording has no route for it, and only a model can compute one";
            return Err(Drift::new(path, Cause::LineMissing, detail).into());
        };
        Ok(Some((*was).clone()))
    }

    fn between(&mut self, line: InterTurnRecord) -> anyhow::Result<()> {
        self.lines.push(line.into());
        Ok(())
    }
}
