//! Carries recorded replies over to a scenario that changed: the recording as it would be if nobody had answered otherwise.

use super::{cast, happen, memories, sum_up};
use crate::outcome;
use crate::prompt::Memories;
use crate::scenario::Scenario;
use crate::timeline::Timeline;
use crate::transcript::{
    Cause, Drift, Header, Line, ScenarioRecord, Transcript, TurnRecord, chain, summary_of,
};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A recording's header with what the scenario is today.
pub fn header_now(header: &Header, memories: &Memories) -> Header {
    let scenario = memories.scenario();
    let (id, blake3) = (scenario.id.clone(), scenario.file_hash());
    Header {
        scenario: ScenarioRecord { id, blake3, ..header.scenario.clone() },
        plan: memories.plan().hash(),
        templates: scenario.template_hashes(),
        variables: scenario.variables.clone(),
        overrides: scenario.overrides.clone(),
        agents: cast(memories),
        ..header.clone()
    }
}

/// The text of a transcript in which the prompts are those of today and the replies those of the recording, found by their
/// turns' paths. Its header says that they were carried over: no model has read these prompts.
///
/// # Errors
/// [`Drift`]: a turn takes place that the recording has not, so only a model can tell what would be said; or a template fails.
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
    let mut lines = vec![Line::Header(Box::new(Header { carried, ..header_now(header, &memories) }))];
    for (id, turn) in plan.order() {
        if !memories.takes_place(id)? {
            memories.skip(id);
            continue;
        }
        if let Some(was) = recorded.get(summary_of(&turn.path).as_str()) {
            lines.push(Line::Turn(sum_up(id, was, &mut memories)?));
        }
        let Some(was) = recorded.get(turn.path.as_str()) else {
            let detail = "the recording has no reply for it: only a model can tell what would be said";
            return Err(Drift::new(&turn.path, Cause::LineMissing, detail).into());
        };
        lines.push(Line::Turn(happen(id, was, &mut memories)?));
    }
    lines.push(Line::Footer(outcome::footer(&memories)));
    Ok(chain(&lines)?)
}
