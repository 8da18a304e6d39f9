//! Information about the name at a place: a field's meaning, an agent's memory, a phase's speakers and
//! readers.

use super::define::definition;
use super::document::Document;
use super::names::{Forms, Symbol, type_of};
use super::occurrences::at;
use crate::commands::check::bounds::at_most;
use crate::scenario::template::{FILTERS, FUNCTIONS};
use crate::scenario::{AgentId, Input, PhaseId, Scenario, Tree, TurnId};
use crate::terminal::counted;
use lsp_types::{Hover, HoverContents, Location, MarkupContent, MarkupKind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest excerpt of a text, in characters.
const EXCERPT: usize = 400;

/// Information about the name at a byte.
pub(super) fn hover(document: &Document, offset: usize) -> Option<Hover> {
    let (tree, _) = Tree::read(&document.source(), 0);
    let named = at(document, &tree, offset).map(|found| found.symbol);
    let known = match (&named, &document.scenario) {
        (Some(Symbol::Filter(name)), _) => documented(FILTERS, name),
        (Some(Symbol::Function(name)), _) => documented(FUNCTIONS, name),
        (Some(Symbol::Agent(key)), Some(scenario)) => agent(scenario, key),
        (Some(Symbol::Phase(name)), Some(scenario)) => phase(scenario, name),
        (Some(Symbol::Value(field, name)), Some(scenario)) => value(scenario, field, name),
        _ => None,
    };
    let known = known.map(|text| match defined_at(document, offset) {
        Some(place) => format!("{text}\n\nDefined in {place}"),
        None => text,
    });
    let text = known.or_else(|| {
        let place = tree.at(0, offset)?;
        let of = type_of(&tree, &place.path)?;
        if !place.is_key {
            let words = Forms::of(of.declared).words;
            let (word, about) = words.into_iter().find(|(word, _)| place.text.as_deref() == Some(word))?;
            return (!about.is_empty()).then(|| format!("**{word}**\n\n{about}"));
        }
        let about = of.declared.get("description").or_else(|| of.of.get("description"))?.as_str()?;
        Some(format!("**{}**\n\n{about}", place.text.unwrap_or_default()))
    })?;
    let contents = HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value: text });
    Some(Hover { contents, range: None })
}

/// The meaning of a filter or a function.
fn documented(of: &[(&str, &str)], name: &str) -> Option<String> {
    let (name, about) = of.iter().find(|(known, _)| *known == name)?;
    Some(format!("**{name}**: {about}"))
}

/// Where the name at a byte is defined: the file, if it is another one, and the line.
fn defined_at(document: &Document, offset: usize) -> Option<String> {
    let Location { uri, range } = definition(document, offset)?;
    let line = format!("line {}", range.start.line + 1);
    if uri == *document.uri() {
        return Some(line);
    }
    let file = uri.path().segments().next_back().map(|name| name.to_string())?;
    Some(format!("{file}, {line}"))
}

fn agent(scenario: &Arc<Scenario>, key: &str) -> Option<String> {
    let id = AgentId(scenario.agents.iter().position(|agent| agent.key == key)?);
    let agent = scenario.agent(id);
    let role = if agent.role.is_empty() { String::new() } else { format!(", {}", agent.role) };
    let plan = scenario.plan();
    let turns = counted(plan.order().filter(|(_, turn)| turn.speaker == id).count(), "turn");
    let mut text = match &agent.strategy {
        Some(strategy) => format!("**{}**{role}: plays `{strategy}`, {turns}", agent.name),
        None => format!("**{}**{role}: {} memory, {turns}", agent.name, agent.lifecycle.word()),
    };
    let tokens = at_most(scenario, PhaseId(scenario.phases.len())).remove(&id);
    if let Some(tokens) = tokens.filter(|_| agent.strategy.is_none()) {
        text += &format!(", at most {tokens} tokens at the end");
    }
    if !agent.system.is_empty() {
        let excerpt: String = agent.system.chars().take(EXCERPT).collect();
        let more = if excerpt.len() < agent.system.len() { "…" } else { "" };
        text += &format!("\n\n{excerpt}{more}");
    }
    Some(text)
}

/// All passes of a phase together.
fn phase(scenario: &Arc<Scenario>, name: &str) -> Option<String> {
    let ids = (0..scenario.phases.len()).map(PhaseId).filter(|id| scenario.phase(*id).name == name);
    let ids: BTreeSet<PhaseId> = ids.collect();
    let last = *ids.last()?;
    let phase = scenario.phase(last);
    let plan = scenario.plan();
    let turns: BTreeSet<TurnId> =
        plan.order().filter(|(_, turn)| ids.contains(&turn.phase)).map(|(id, _)| id).collect();
    let names = |agents: BTreeSet<AgentId>| {
        let names = agents.into_iter().map(|agent| scenario.agent(agent).name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let speakers: BTreeSet<AgentId> = turns.iter().map(|id| plan.turn(*id).speaker).collect();
    let hears = |input: &Input| match input {
        Input::Heard(turn) => turns.contains(turn),
        Input::Record(phase) => ids.contains(phase),
        _ => false,
    };
    let readers = plan.order().filter(|(_, turn)| turn.inputs.iter().any(hears));
    let readers: BTreeSet<AgentId> = readers.map(|(_, turn)| turn.speaker).collect();
    let passes = if ids.len() > 1 { format!(" in {} passes", ids.len()) } else { String::new() };
    let mut lines = vec![
        format!("**{}**: {} at most{passes}", phase.label, counted(turns.len(), "turn")),
        format!("Speakers: {}", names(speakers.clone())),
    ];
    if !readers.is_empty() {
        lines.push(format!("Hear what is said here: {}", names(readers)));
    }
    let tokens = at_most(scenario, last);
    let tokens = tokens.iter().filter(|(agent, _)| speakers.contains(agent));
    let tokens: Vec<String> =
        tokens.map(|(agent, tokens)| format!("{} {tokens}", scenario.agent(*agent).name)).collect();
    if !tokens.is_empty() {
        lines.push(format!("Memory at its end, max tokens: {}", tokens.join(", ")));
    }
    Some(lines.join("\n\n"))
}

fn value(scenario: &Scenario, field: &str, name: &str) -> Option<String> {
    let shown = match field {
        "variables" => scenario.variables.get(name)?.to_string(),
        "state" => scenario.state.get(name)?.to_string(),
        "let" => scenario.lets.iter().find(|(of, _)| of == name)?.1.text.clone(),
        _ => scenario.outcomes.iter().find(|(of, _)| of == name)?.1.text.clone(),
    };
    Some(format!("`{field}.{name}`\n\n```\n{}\n```", shown.chars().take(EXCERPT).collect::<String>()))
}
