//! The cast, in the order of the scenario, with the colours of the graph.

use super::sources::ReportSources;
use crate::drawing;
use crate::scenario::{AgentId, Color};
use crate::transcript::{AgentRecord, Header};
use indexmap::IndexMap;
use serde::Serialize;
use std::collections::BTreeSet;

/// One agent of the cast.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Member {
    pub(super) key: String,
    /// Place in the cast, from 0; selects its colour in the style.
    pub(super) place: usize,
    pub(super) name: String,
    pub(super) role: String,
    pub(super) is_permanent: bool,
    /// The strategy that answers instead of the model.
    pub(super) strategy: Option<String>,
    /// The names of its models and their files, if the scenario names any.
    pub(super) models: Vec<String>,
    /// `#rrggbb`, only for dots and lines, not for text.
    pub(super) color: String,
    pub(super) n_turns: usize,
    #[serde(skip)]
    pub(super) system: String,
}

/// The cast, by key.
#[derive(Debug)]
pub(super) struct CastIndex(IndexMap<String, Member>);

impl CastIndex {
    pub(super) fn new(sources: &ReportSources) -> Self {
        let header = &sources.transcript.header.record;
        let mut cast: IndexMap<String, Member> = IndexMap::new();
        for key in order(sources, header) {
            let record = header.agents.get(&key);
            let place = cast.len();
            cast.insert(key.clone(), member(sources, key, record, place));
        }
        for line in &sources.transcript.turns {
            if let Some(member) = cast.get_mut(&line.record.agent) {
                member.n_turns += usize::from(!line.record.is_aside());
                let name = line.record.hints.model.as_ref();
                let model = name.map(|name| format!("{name} ({})", header.model_of(&line.record).name));
                member.models.extend(model.filter(|model| !member.models.contains(model)));
            }
        }
        // The graph has lanes for the speakers; in the same order they get the same colours here.
        let speaks = |member: &Member| match (&sources.plan, &sources.scenario) {
            (Some(plan), Some(scenario)) => {
                plan.order().any(|(_, turn)| scenario.agent(turn.speaker).key == member.key)
            }
            _ => member.n_turns > 0,
        };
        let (first, rest): (Vec<&mut Member>, Vec<_>) = cast.values_mut().partition(|member| speaks(member));
        for (lane, member) in first.into_iter().chain(rest).enumerate() {
            member.color = drawing::color(given_color(sources, &member.key), lane);
        }
        Self(cast)
    }

    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.0.values()
    }

    pub(super) fn get(&self, key: &str) -> Option<&Member> {
        self.0.get(key)
    }

    /// The name that others see.
    pub(super) fn name<'a>(&'a self, key: &'a str) -> &'a str {
        self.0.get(key).map_or(key, |member| member.name.as_str())
    }

    pub(super) fn place(&self, key: &str) -> usize {
        self.0.get(key).map_or(0, |member| member.place)
    }
}

/// Keys: those of the scenario, then those that only the recording has.
fn order(sources: &ReportSources, header: &Header) -> Vec<String> {
    let written = sources.scenario.iter().flat_map(|scenario| &scenario.agents).map(|agent| &agent.key);
    let written = written.filter(|key| header.agents.contains_key(*key));
    let spoken = sources.transcript.turns.iter().map(|turn| &turn.record.agent);
    let mut seen = BTreeSet::new();
    let all = written.chain(header.agents.keys()).chain(spoken);
    all.filter(|key| seen.insert(key.as_str())).cloned().collect()
}

fn member(sources: &ReportSources, key: String, record: Option<&AgentRecord>, place: usize) -> Member {
    let agent = sources.scenario.as_ref().and_then(|scenario| {
        let id: AgentId = scenario.agent_by_key(&key)?;
        Some(scenario.agent(id))
    });
    let record = record.cloned();
    Member {
        place,
        name: record.as_ref().map_or(key.clone(), |record| record.name.clone()),
        role: agent.map_or(String::new(), |agent| agent.role.clone()),
        is_permanent: record.as_ref().is_none_or(|record| record.lifecycle != "ephemeral"),
        strategy: record.as_ref().and_then(|record| record.strategy.clone()),
        system: record.map_or(String::new(), |record| record.system),
        key,
        ..Member::default()
    }
}

fn given_color(sources: &ReportSources, key: &str) -> Option<Color> {
    let scenario = sources.scenario.as_ref()?;
    scenario.agent(scenario.agent_by_key(key)?).color
}
